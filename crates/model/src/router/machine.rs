//! The machine: every decision of the router, as a function of events and time.
//!
//! ```text
//!   event + now + generator  -->  machine  -->  actions
//! ```
//!
//! It holds all lanes, routes, waiting calls, running attempts and permits. It performs nothing:
//! the shell makes attempts, wakes callers and hands out permits as the actions say, and tells what
//! became of them as further events. Late events (of an attempt, call or permit that is gone) name
//! keys that no longer exist and change nothing.
//!
//! Where to read on: `place` (which lane a call gets, and what happens when there is none),
//! `race` (a second attempt beside a late one), `outcome` (what follows from a success or failure),
//! `permits` (parked runs), `peers` (what other replicas find), `report` (the snapshot).
//!
//! What holds between events (checked in debug builds): a flight belongs to a running call and the
//! other way round; a waiting call is in its route's queue and has a timer; reserved places equal
//! the permits outstanding; a probe's holder exists.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use evenkeel_core::control::Protect;
use evenkeel_core::control::breaker::{Phase, Reason, Transition};
use evenkeel_core::control::budget::RetryBudget;
use evenkeel_core::control::limiter::FairQueue;
use evenkeel_core::{Generator, Mono};

use super::Operation;
use super::call::{Call, State};
use super::event::{Action, AttemptKey, CallKey, Event, PermitKey, Place};
use super::lane::{Lane, Prober, Silence};
use super::plan::Plan;

/// Why the machine wants to be woken at some instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A waiting call gives up, or a pausing one goes on.
    Call(CallKey),
    /// The first content of a call is late: a second attempt is due.
    Hedge(CallKey),
    /// A probe has been silent for too long to keep the next one waiting.
    Probe(AttemptKey),
    /// An unused permit comes back.
    Permit(PermitKey),
}

/// A route's moving parts.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) queue: FairQueue<CallKey>,
    pub(super) n_parked: usize,
    pub(super) n_permits: usize,
    /// Permits of later tiers were of no use lately: none before this instant.
    pub(super) later_tiers_from: Mono,
    /// Queue and parked runs take turns.
    pub(super) permit_is_next: bool,
}

/// A permit that is out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) place: Place,
    /// Unused by then, it comes back.
    pub(super) until: Mono,
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    pub(super) plan: Arc<Plan>,
    pub(super) lanes: Vec<Lane>,
    pub(super) routes: Vec<Route>,
    pub(super) calls: BTreeMap<CallKey, Call>,
    /// Whose attempt, and on which lane.
    pub(super) attempts: BTreeMap<AttemptKey, (CallKey, usize)>,
    pub(super) permits: BTreeMap<PermitKey, Held>,
    pub(super) budget: RetryBudget,
    pub(super) timers: BTreeSet<(Mono, Timer)>,
    pub(super) next_key: u64,
    pub(super) transitions: VecDeque<(usize, Transition)>,
    pub(super) verdicts: BTreeMap<&'static str, u64>,
    pub(super) wasted_tokens: BTreeMap<&'static str, u64>,
    pub(super) n_truncated: u64,
    pub(super) actions: Vec<Action>,
}

const TRANSITIONS_KEPT: usize = 100;

impl Machine {
    /// A machine in which nothing has happened yet.
    #[must_use]
    pub fn new(plan: Arc<Plan>, now: Mono) -> Self {
        let lanes = plan.lanes.iter().map(|lane| Lane::new(&plan, lane, now)).collect();
        let route = |_| Route {
            queue: FairQueue::new(plan.settings.tenant_weights.clone()),
            n_parked: 0,
            n_permits: 0,
            later_tiers_from: now,
            permit_is_next: false,
        };
        Self {
            lanes,
            routes: plan.routes.iter().map(route).collect(),
            calls: BTreeMap::new(),
            attempts: BTreeMap::new(),
            permits: BTreeMap::new(),
            budget: RetryBudget::new(plan.settings.retry_budget.share, plan.settings.retry_budget.per_s),
            timers: BTreeSet::new(),
            next_key: 1,
            transitions: VecDeque::new(),
            verdicts: BTreeMap::new(),
            wasted_tokens: BTreeMap::new(),
            n_truncated: 0,
            actions: Vec::new(),
            plan,
        }
    }

    /// Takes one event and says what is to be done.
    pub fn on_event(&mut self, now: Mono, event: Event, generator: &Generator) -> Vec<Action> {
        let is_content = matches!(event, Event::Content(_));
        match event {
            Event::Arrived(call, arrival) => self.arrived(now, call, arrival, generator),
            Event::Dropped(call) => self.dropped(now, call),
            Event::Headers(attempt, hints) => self.headers(now, attempt, &hints),
            Event::Content(attempt) => self.content(now, attempt, generator),
            Event::Succeeded(attempt, usage) => self.succeeded(now, attempt, usage, generator),
            Event::Failed(attempt, failure, usage) => self.failed(now, attempt, failure, usage, generator),
            Event::Parked(route, n_parked) => self.routes[route].n_parked = n_parked,
            Event::PermitTaken(permit) => self.renew_permit(now, permit),
            Event::PermitDropped(permit) => self.return_permit(now, permit),
            Event::Operate(lane, operation) => self.operate(now, lane, operation),
            Event::Heard(peers) => self.heard(now, &peers),
            Event::Tick => self.tick(now, generator),
        }
        // Most events of a busy router are content; they free nothing.
        if !is_content || !self.actions.is_empty() {
            self.settle_lanes(now);
            self.pump(now);
            self.assert_invariants();
        }
        std::mem::take(&mut self.actions)
    }

    /// When the next [`Event::Tick`] is wanted.
    pub fn next_wake(&mut self, now: Mono) -> Option<Mono> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let silence = self.lanes.iter().filter_map(|lane| lane.silence_check).min();
        let lanes = self.next_lane_change(now);
        let ramps = self.next_ramp_step(now);
        [timer, silence, lanes, ramps].into_iter().flatten().min()
    }

    /// A ramp goes on without traffic, so that its end is noticed when it comes.
    fn next_ramp_step(&mut self, now: Mono) -> Option<Mono> {
        let ramping = self.lanes.iter_mut().filter(|lane| lane.breaker.phase() == Phase::Ramping);
        ramping.filter_map(|lane| lane.ramp.next_growth(now)).min()
    }

    /// When a lane that somebody waits for may become ready.
    fn next_lane_change(&mut self, now: Mono) -> Option<Mono> {
        let mut wanted = BTreeSet::new();
        for (route, plan) in self.routes.iter().zip(&self.plan.routes) {
            if !route.queue.is_empty() || route.n_parked > route.n_permits {
                wanted.extend(plan.tiers.iter().flatten().copied());
            }
        }
        wanted.into_iter().filter_map(|lane| self.lanes[lane].next_change(now)).min()
    }

    fn tick(&mut self, now: Mono, generator: &Generator) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Call(call) => self.call_timer(now, at, call, generator),
                Timer::Hedge(call) => self.hedge_due(now, at, call),
                Timer::Probe(attempt) => self.release_probe(now, attempt, generator),
                Timer::Permit(permit) => self.lease_over(now, at, permit),
            }
        }
        for lane in 0..self.lanes.len() {
            self.look_for_silence(now, lane, generator);
        }
    }

    fn look_for_silence(&mut self, now: Mono, lane_idx: usize, generator: &Generator) {
        let config = self.plan.settings.breaker;
        let lane = &mut self.lanes[lane_idx];
        if lane.silence_check.is_none_or(|at| at > now) {
            return;
        }
        let silence = lane.silent_since(config.silent_streams, config.silent_for.0);
        lane.silence_check = silence.map(|silence| silence.at).filter(|at| *at > now);
        if let Some(Silence { since, .. }) = silence.filter(|silence| silence.at <= now) {
            let began = lane.breaker.streak_started().unwrap_or(since);
            let transition = lane.breaker.silent(now, since, generator);
            self.changed(now, lane_idx, transition, began);
        }
    }

    pub(super) fn start_silence_check(&mut self, now: Mono, lane: usize) {
        let config = self.plan.settings.breaker;
        let enough = self.lanes[lane].flights.len() >= config.silent_streams as usize;
        if enough && self.lanes[lane].silence_check.is_none() && self.protects() {
            self.lanes[lane].silence_check = Some(now.after(config.silent_for.0 / 2));
        }
    }

    /// Takes note of a breaker's transition and does what follows from it. `good_until` is when the
    /// good time ended, should this be its end.
    pub(super) fn changed(
        &mut self,
        now: Mono,
        lane_idx: usize,
        transition: Option<Transition>,
        good_until: Mono,
    ) {
        let Some(transition) = transition else {
            return;
        };
        match transition.to {
            Phase::Open { .. } => {
                if matches!(transition.from, Phase::Closed | Phase::Suspect) {
                    self.lanes[lane_idx].good_until = good_until;
                }
                self.lanes[lane_idx].prober = None;
                self.revoke_permits(lane_idx);
            }
            Phase::Ramping => {
                let lane = &mut self.lanes[lane_idx];
                let in_flight = u32::try_from(lane.flights.len()).unwrap_or(u32::MAX);
                let at_least = if transition.reason == Reason::SilenceRefuted { in_flight } else { 0 };
                lane.ramp.restart(now, at_least, lane.good_until);
                lane.prober = None;
                lane.n_proven = 0;
            }
            Phase::Closed | Phase::Suspect | Phase::HalfOpen => {}
        }
        self.transitions.push_back((lane_idx, transition));
        if self.transitions.len() > TRANSITIONS_KEPT {
            self.transitions.pop_front();
        }
        self.actions.push(Action::Changed(lane_idx, transition));
    }

    /// Ramps that are full close their breakers.
    fn settle_lanes(&mut self, now: Mono) {
        let stable_after = self.plan.settings.ramp.stable_after.0;
        for idx in 0..self.lanes.len() {
            let lane = &mut self.lanes[idx];
            if lane.breaker.phase() != Phase::Ramping {
                continue;
            }
            if lane.ramp.is_full(now) || now.since(lane.breaker.since()) >= stable_after {
                let transition = lane.breaker.ramped(now);
                self.changed(now, idx, transition, now);
            }
        }
    }

    fn operate(&mut self, now: Mono, lane_idx: usize, operation: Operation) {
        match operation {
            Operation::Drain => {
                self.lanes[lane_idx].drained = true;
                self.return_permits(now, lane_idx);
            }
            Operation::Enable => {
                let lane = &mut self.lanes[lane_idx];
                lane.drained = false;
                lane.disabled = None;
                lane.throttled_until = None;
            }
            Operation::Probe => {
                let lane = &mut self.lanes[lane_idx];
                lane.disabled = None;
                lane.throttled_until = None;
                let transition = lane.breaker.probe_now(now, Reason::Operator);
                self.changed(now, lane_idx, transition, now);
            }
        }
    }

    /// The caller is gone: whatever the call held comes back.
    fn dropped(&mut self, now: Mono, key: CallKey) {
        let Some(call) = self.calls.remove(&key) else {
            return;
        };
        *self.verdicts.entry("cancelled").or_default() += 1;
        match call.state {
            Some(State::Waiting { until }) => {
                self.routes[call.arrival.route].queue.remove(&call.arrival.claim, &key);
                self.timers.remove(&(until, Timer::Call(key)));
            }
            Some(State::Pausing { until, .. }) => {
                self.timers.remove(&(until, Timer::Call(key)));
            }
            Some(State::Running { .. }) => {
                for (attempt, lane) in call.under_way() {
                    self.give_back(now, attempt, lane);
                }
                if let Some(at) = call.hedge_at {
                    self.timers.remove(&(at, Timer::Hedge(key)));
                }
            }
            None => {}
        }
    }

    /// An attempt whose caller went away.
    fn give_back(&mut self, now: Mono, attempt: AttemptKey, lane: usize) {
        self.attempts.remove(&attempt);
        let flight = self.lanes[lane].flights.remove(&attempt);
        self.lanes[lane].count("cancelled", false);
        if let Some(flight) = flight {
            self.return_probe(now, lane, attempt, flight.started.term);
        }
    }

    pub(super) fn protects(&self) -> bool {
        self.plan.settings.protect == Protect::Full
    }

    pub(super) fn fresh_key(&mut self) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        key
    }

    fn assert_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let n_flights: usize = self.lanes.iter().map(|lane| lane.flights.len()).sum();
        assert_eq!(n_flights, self.attempts.len(), "a flight is a running attempt");
        for (attempt, (call, lane)) in &self.attempts {
            let is_its = |call: &Call| call.under_way().any(|running| running == (*attempt, *lane));
            assert!(self.calls.get(call).is_some_and(is_its), "attempt {attempt:?} belongs to no call");
            assert!(self.lanes[*lane].flights.contains_key(attempt));
        }
        for (key, call) in &self.calls {
            let races = call.second.is_some();
            assert!(!races || matches!(call.state, Some(State::Running { .. })), "a second without a first");
            let timed = call.hedge_at.is_none_or(|at| self.timers.contains(&(at, Timer::Hedge(*key))));
            assert!(timed, "a second attempt that never comes due");
        }
        let n_waiting =
            self.calls.values().filter(|c| matches!(c.state, Some(State::Waiting { .. }))).count();
        let n_queued: usize = self.routes.iter().map(|route| route.queue.len()).sum();
        assert_eq!(n_waiting, n_queued, "a waiting call is in a queue");
        assert!(self.calls.values().all(|call| call.state.is_some()), "every call stands somewhere");
        let n_permits: usize = self.routes.iter().map(|route| route.n_permits).sum();
        assert_eq!(n_permits, self.permits.len());
        for (idx, lane) in self.lanes.iter().enumerate() {
            let n_permits = self.permits.values().filter(|held| held.place.lane == idx).count();
            assert_eq!(n_permits, lane.n_reserved as usize, "reserved places are permits");
            match lane.prober {
                Some(Prober::Permit(permit)) => assert!(self.permits.contains_key(&permit)),
                Some(Prober::Attempt(attempt)) => assert!(lane.flights.contains_key(&attempt)),
                // Without a holder nobody would ever give the place back.
                None => assert_ne!(lane.breaker.phase(), Phase::HalfOpen),
            }
        }
    }
}
