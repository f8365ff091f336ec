//! Which lane a call gets, and what happens when none takes it.
//!
//! Tiers are asked in order; within a tier a sound lane goes before a suspect one and a less loaded
//! before a more loaded one. A lane that is suspect or recovering gets a call only when no sound one
//! of the allowed tiers is ready, or as a trial: the probe, and then one more at a time for each
//! trial in a row that brought a whole answer, each of a call that has not failed before and with a
//! second attempt elsewhere as soon as it is late (`race`). So a call meets at most one stall while a
//! lane recovers, and the lane proves itself before it carries calls again. Without a sound lane the
//! recovering one takes the call, as the probe or within its ramp. When no lane is ready the call
//! waits or parks. A batch call waits only for what ends soon: a full lane or a pause shorter than
//! `batch_wait`. For an open breaker it does not wait at all, because a parked run is one row and a
//! waiting call holds a slot of the harness. An interactive call waits as long as its route allows.

use std::time::Duration;

use evenkeel_core::control::breaker::{Gate, Phase};
use evenkeel_core::{Code, Error, Generator, Mono, Origin};

use super::call::{Call, State};
use super::event::{Action, Arrival, AttemptKey, CallKey, Start, Verdict};
use super::lane::{Dead, Flight, Prober, Ready};
use super::machine::{Machine, Timer};
use crate::classify::Class;
use crate::stream::watch::Limits;

/// Whether an attempt tries a recovering lane although a sound one is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// An attempt whose place is paid for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flown {
    /// Where.
    pub(super) lane: usize,
    /// Input tokens reserved.
    pub(super) tokens: u64,
    /// Whether it is a trial.
    pub(super) trial: Trial,
    /// When it is the probe: how many probes of this outage went before it.
    pub(super) probes: Option<u32>,
}

/// What a look at all candidates found, when none is ready.
#[derive(Clone, Copy, Debug, Default)]
struct Outlook {
    /// The earliest instant at which one may be.
    earliest: Option<Mono>,
    /// One of them is merely full, or ready at `soon`.
    soon: Option<Mono>,
    is_full: bool,
    /// There is a lane that may take it some day.
    may_come: bool,
    /// A lane is left out because of its window.
    too_small: bool,
    dead: Option<Dead>,
}

impl Machine {
    pub(super) fn arrived(&mut self, now: Mono, key: CallKey, arrival: Arrival, generator: &Generator) {
        self.calls.insert(key, Call::new(arrival, now));
        if !self.protects() {
            return self.start_plain(now, key);
        }
        if self.start_with_permit(now, key) {
            return;
        }
        self.find_place(now, key, generator);
    }

    /// Starts the call somewhere, or lets it wait, or ends it.
    pub(super) fn find_place(&mut self, now: Mono, key: CallKey, generator: &Generator) {
        if self.is_late(now, key) {
            return;
        }
        // Whoever waits already goes first.
        let route = self.calls[&key].arrival.route;
        if (self.routes[route].queue.is_empty() || self.calls[&key].n_attempts > 0)
            && self.try_start(now, key)
        {
            return;
        }
        self.wait_or_end(now, key, generator);
    }

    pub(super) fn is_late(&mut self, now: Mono, key: CallKey) -> bool {
        let is_late = self.calls[&key].arrival.deadline <= now;
        if is_late {
            let error = Error::new(
                Code::RunDeadline,
                Origin::Client,
                "The deadline passed before a model call could be made.",
                "Allow the run more time.",
            );
            self.end(key, Verdict::Fatal(error));
        }
        is_late
    }

    /// Starts the call on the lane that suits it best, if one is ready.
    pub(super) fn try_start(&mut self, now: Mono, key: CallKey) -> bool {
        let n_tiers = self.tiers_allowed(&self.calls[&key]);
        let ready = self.ready_lanes(now, key, n_tiers);
        let Some((first, _)) = ready.first().copied() else {
            return false;
        };
        let Some((sound, tier)) = ready.iter().copied().find(|(lane, _)| self.is_sound(now, *lane)) else {
            self.start(now, key, first, Trial::No);
            return true;
        };
        let is_fresh = self.calls[&key].n_attempts_of_step() == 0;
        let wants = |lane: usize| !self.is_sound(now, lane) && self.lanes[lane].wants_trial();
        let recovering = ready.iter().find(|(lane, of)| *of <= tier && wants(*lane));
        match recovering.filter(|_| is_fresh) {
            Some((lane, _)) => self.start(now, key, *lane, Trial::Yes),
            None => self.start(now, key, sound, Trial::No),
        }
        true
    }

    /// The best sound lane of the first `n_tiers` tiers that could take the call now.
    pub(super) fn sound_lane(&mut self, now: Mono, key: CallKey, n_tiers: usize) -> Option<usize> {
        let ready = self.ready_lanes(now, key, n_tiers);
        ready.into_iter().map(|(lane, _)| lane).find(|lane| self.is_sound(now, *lane))
    }

    /// Whether calls may rely on a lane.
    pub(super) fn is_sound(&self, now: Mono, lane: usize) -> bool {
        self.lanes[lane].is_sound(now, self.plan.settings.ramp.proofs)
    }

    /// Lanes of the first `n_tiers` tiers that could take the call now, best first, with their tiers.
    fn ready_lanes(&mut self, now: Mono, key: CallKey, n_tiers: usize) -> Vec<(usize, usize)> {
        let call = &self.calls[&key];
        let (bytes, proofs) = (call.arrival.input_bytes, self.plan.settings.ramp.proofs);
        let candidates: Vec<(usize, usize)> = (0..n_tiers)
            .flat_map(|tier| self.candidates(call, tier).map(move |lane| (lane, tier)).collect::<Vec<_>>())
            .collect();
        let mut ready = Vec::new();
        for (idx, tier) in candidates {
            let lane = &mut self.lanes[idx];
            let tokens = lane.tokens_of(bytes);
            if matches!(lane.ready(now, tokens), Ready::Now | Ready::Probe) {
                ready.push((tier, lane.rank(now, proofs), idx));
            }
        }
        ready.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.0.cmp(&b.1.0)).then(a.1.1.total_cmp(&b.1.1)));
        ready.into_iter().map(|(tier, _, idx)| (idx, tier)).collect()
    }

    /// How many tiers the call may use.
    pub(super) fn tiers_allowed(&self, call: &Call) -> usize {
        let route = &self.plan.routes[call.arrival.route];
        if route.fallback && call.arrival.fallback { route.tiers.len() } else { 1 }
    }

    /// Lanes of a tier that have not failed this call and whose window is large enough.
    pub(super) fn candidates<'a>(&'a self, call: &'a Call, tier: usize) -> impl Iterator<Item = usize> + 'a {
        let lanes = &self.plan.routes[call.arrival.route].tiers[tier];
        lanes.iter().copied().filter(move |idx| !call.excluded.contains(idx) && self.fits(call, *idx))
    }

    /// An estimate may be wrong by a fifth before the provider is not even asked.
    fn fits(&self, call: &Call, lane: usize) -> bool {
        let window = self.plan.lanes[lane].context_tokens;
        let tokens = self.lanes[lane].tokens_of(call.arrival.input_bytes);
        window >= call.window_min && tokens <= window + window / 5
    }

    /// Starts an attempt.
    pub(super) fn start(&mut self, now: Mono, key: CallKey, lane_idx: usize, trial: Trial) {
        let attempt = AttemptKey(self.fresh_key());
        let n_probes = self.lanes[lane_idx].breaker.n_probes();
        if self.lanes[lane_idx].breaker.gate(now) == Gate::Probe {
            let transition = self.lanes[lane_idx].breaker.begin_probe(now);
            self.changed(now, lane_idx, transition, now);
            self.lanes[lane_idx].prober = Some(Prober::Attempt(attempt));
            self.lanes[lane_idx].counters.n_probes += 1;
        }
        let is_probe = self.lanes[lane_idx].breaker.phase() == Phase::HalfOpen;
        let lane = &mut self.lanes[lane_idx];
        let tokens = lane.tokens_of(self.calls[&key].arrival.input_bytes);
        lane.limiter.reserve(now, tokens);
        lane.ramp.take(now);
        self.fly(
            now,
            key,
            attempt,
            Flown { lane: lane_idx, tokens, trial, probes: is_probe.then_some(n_probes) },
        );
    }

    /// Books the stream of an attempt whose place is paid for, and has it made.
    pub(super) fn fly(&mut self, now: Mono, key: CallKey, attempt: AttemptKey, flown: Flown) {
        let lane = &mut self.lanes[flown.lane];
        let flight = Flight {
            started: lane.breaker.started(now),
            call: key,
            tokens: flown.tokens,
            signed_at: now,
            has_content: false,
            is_trial: flown.trial == Trial::Yes,
        };
        lane.flights.insert(attempt, flight);
        self.start_silence_check(now, flown.lane);
        let limits = self.limits(now, key, flown.lane, flown.probes);
        self.run(key, attempt, flown.lane, limits);
        if flown.probes.is_some() {
            self.watch_probe(now, flown.lane, attempt);
        }
        self.arm_hedge(now, key, flown.lane);
    }

    /// Marks the call as running and has the attempt made.
    pub(super) fn run(&mut self, key: CallKey, attempt: AttemptKey, lane: usize, limits: Limits) {
        self.attempts.insert(attempt, (key, lane));
        let call = self.calls.get_mut(&key).expect("the caller has just looked at this call");
        call.begin(attempt, lane);
        let start = Start { attempt, lane, number: call.n_attempts_of_step(), limits, bound: call.bound };
        self.actions.push(Action::Start(key, start));
    }

    /// No lane is ready: wait, park or fail.
    pub(super) fn wait_or_end(&mut self, now: Mono, key: CallKey, generator: &Generator) {
        let outlook = self.outlook(now, key);
        let call = &self.calls[&key];
        let settings = &self.plan.settings;
        if !outlook.may_come && outlook.too_small {
            return self.end(key, Verdict::ContextTooLong);
        }
        if !outlook.may_come && matches!(outlook.dead, Some(Dead::Auth | Dead::Model)) {
            let error = self.dead_error(key, outlook.dead);
            return self.end(key, Verdict::Fatal(error));
        }
        let route = &self.plan.routes[call.arrival.route];
        let patience = if call.is_interactive() { route.interactive_max } else { settings.batch_wait.0 };
        let until = call.arrived_at.after(patience).min(call.arrival.deadline);
        let worth = if call.is_interactive() {
            outlook.may_come
        } else {
            outlook.is_full || outlook.soon.is_some_and(|at| at <= until)
        };
        let has_room = self.routes[call.arrival.route].queue.len() < settings.queue_max;
        if worth && has_room && until > now && call.n_attempts < settings.attempts_per_call {
            return self.wait(key, until);
        }
        self.give_up(now, key, generator);
    }

    fn wait(&mut self, key: CallKey, until: Mono) {
        let call = self.calls.get_mut(&key).expect("the caller has just looked at this call");
        call.state = Some(State::Waiting { until });
        let (route, claim) = (call.arrival.route, call.arrival.claim.clone());
        self.routes[route].queue.push(&claim, key);
        self.timers.insert((until, Timer::Call(key)));
    }

    /// Parks a batch call; an interactive one fails with the cause and a time to come back.
    pub(super) fn give_up(&mut self, now: Mono, key: CallKey, generator: &Generator) {
        if self.is_late(now, key) {
            return;
        }
        let earliest = self.outlook_of_route(now, key).earliest;
        // Parked runs come back by permits; the hint is for people and gets a jitter of its own.
        let until = earliest.map(|at| {
            let wait = now.until(at);
            now.after(evenkeel_core::control::backoff::no_earlier_than(wait, generator))
        });
        let reason = self.reason(now, key);
        let verdict = if self.calls[&key].is_interactive() {
            let wait = until.map_or(Duration::from_secs(1), |at| now.until(at).max(Duration::from_secs(1)));
            Verdict::Fatal(self.unavailable(key, &reason).retry_after(wait))
        } else {
            Verdict::Park { until, reason }
        };
        self.end(key, verdict);
    }

    /// Ends a call that has no attempt under way.
    pub(super) fn end(&mut self, key: CallKey, verdict: Verdict) {
        let word = match verdict {
            Verdict::Park { .. } => "park",
            Verdict::ContextTooLong => "context_too_long",
            Verdict::Fatal(_) => "fatal",
        };
        *self.verdicts.entry(word).or_default() += 1;
        self.calls.remove(&key);
        self.actions.push(Action::Finish(key, verdict));
    }

    /// A waiting call has waited enough, or a pausing one goes on.
    pub(super) fn call_timer(&mut self, now: Mono, at: Mono, key: CallKey, generator: &Generator) {
        match self.calls.get(&key).and_then(|call| call.state) {
            Some(State::Waiting { until }) if until == at => {
                let arrival = &self.calls[&key].arrival;
                let (route, claim) = (arrival.route, arrival.claim.clone());
                self.routes[route].queue.remove(&claim, &key);
                self.give_up(now, key, generator);
            }
            Some(State::Pausing { until, lane }) if until == at => self.go_on(now, key, lane, generator),
            _ => {}
        }
    }

    /// The pause before the same lane is tried again is over.
    fn go_on(&mut self, now: Mono, key: CallKey, lane: usize, generator: &Generator) {
        if !self.protects() {
            return self.start_plain(now, key);
        }
        let bytes = self.calls[&key].arrival.input_bytes;
        let tokens = self.lanes[lane].tokens_of(bytes);
        if self.lanes[lane].ready(now, tokens) == Ready::Now && !self.is_late(now, key) {
            return self.start(now, key, lane, Trial::No);
        }
        if self.calls.contains_key(&key) {
            self.find_place(now, key, generator);
        }
    }

    /// Gives free places to waiting calls and parked runs, in turns.
    pub(super) fn pump(&mut self, now: Mono) {
        if !self.protects() {
            return;
        }
        for route in 0..self.routes.len() {
            loop {
                let permit_first = std::mem::take(&mut self.routes[route].permit_is_next);
                let progressed = if permit_first {
                    self.grant(now, route) || self.serve_queue(now, route)
                } else if self.serve_queue(now, route) {
                    self.routes[route].permit_is_next = true;
                    true
                } else {
                    self.grant(now, route)
                };
                if !progressed {
                    break;
                }
            }
        }
    }

    fn serve_queue(&mut self, now: Mono, route: usize) -> bool {
        for key in self.routes[route].queue.next(8) {
            let Some(State::Waiting { until }) = self.calls.get(&key).and_then(|call| call.state) else {
                continue;
            };
            if self.try_start(now, key) {
                let claim = self.calls[&key].arrival.claim.clone();
                self.routes[route].queue.serve(&claim, &key);
                self.timers.remove(&(until, Timer::Call(key)));
                return true;
            }
        }
        false
    }

    fn outlook(&mut self, now: Mono, key: CallKey) -> Outlook {
        let call = &self.calls[&key];
        let lanes: Vec<usize> = (0..self.tiers_allowed(call))
            .flat_map(|tier| self.candidates(call, tier).collect::<Vec<_>>())
            .collect();
        self.outlook_over(now, key, lanes)
    }

    /// The same over all lanes, those that failed this call included: it may come back.
    fn outlook_of_route(&mut self, now: Mono, key: CallKey) -> Outlook {
        let call = &self.calls[&key];
        let n_tiers = self.tiers_allowed(call);
        let lanes = self.plan.routes[call.arrival.route].tiers.iter().take(n_tiers).flatten().copied();
        let lanes = lanes.collect();
        self.outlook_over(now, key, lanes)
    }

    fn outlook_over(&mut self, now: Mono, key: CallKey, lanes: Vec<usize>) -> Outlook {
        let mut outlook = Outlook::default();
        let call = &self.calls[&key];
        let bytes = call.arrival.input_bytes;
        let all = self.plan.routes[call.arrival.route].tiers.iter().flatten();
        outlook.too_small = all.clone().any(|lane| !self.fits(call, *lane));
        let disabled = all.filter_map(|lane| self.lanes[*lane].disabled);
        outlook.dead = disabled.filter(|(until, _)| *until > now).map(|(_, dead)| dead).next();
        let earlier = |known: Option<Mono>, at: Mono| Some(known.map_or(at, |known| known.min(at)));
        for idx in lanes {
            let lane = &mut self.lanes[idx];
            let tokens = lane.tokens_of(bytes);
            outlook.may_come |= !matches!(lane.ready(now, tokens), Ready::Drained | Ready::Disabled(_));
            match lane.ready(now, tokens) {
                Ready::Now | Ready::Probe => outlook.earliest = Some(now),
                Ready::Full => outlook.is_full = true,
                Ready::Paced(at) => {
                    outlook.earliest = earlier(outlook.earliest, at);
                    outlook.soon = earlier(outlook.soon, at);
                }
                Ready::Open(at) | Ready::Disabled(at) => outlook.earliest = earlier(outlook.earliest, at),
                Ready::Probing | Ready::Drained => {}
            }
        }
        outlook
    }

    /// In words, lane by lane.
    fn reason(&mut self, now: Mono, key: CallKey) -> String {
        let call = &self.calls[&key];
        let n_tiers = self.tiers_allowed(call);
        let route = &self.plan.routes[call.arrival.route];
        let lanes: Vec<usize> = route.tiers.iter().take(n_tiers).flatten().copied().collect();
        let seconds = |at: Mono| format!("{:.1} s", now.until(at).as_secs_f64());
        let mut parts = Vec::new();
        for idx in lanes {
            let name = &self.plan.lanes[idx].name;
            let lane = &mut self.lanes[idx];
            let why = lane.breaker.reason().as_str();
            parts.push(match lane.ready(now, 0) {
                Ready::Now | Ready::Probe => format!("{name} has just failed this call"),
                Ready::Full => format!("{name} has no free stream"),
                Ready::Paced(at) => format!("{name} is paced for {}", seconds(at)),
                Ready::Open(at) => format!("{name} is down ({why}), next probe in {}", seconds(at)),
                Ready::Probing => format!("{name} is being probed"),
                Ready::Disabled(at) => format!("{name} is disabled for {}", seconds(at)),
                Ready::Drained => format!("{name} is drained"),
            });
        }
        parts.join("; ")
    }

    pub(super) fn unavailable(&self, key: CallKey, reason: &str) -> Error {
        let call = &self.calls[&key];
        let failure = call.failure.as_ref();
        let code = match failure {
            Some(failure) if failure.connect => Code::ProviderUnreachable,
            Some(failure) if failure.class == Class::QuotaDead => Code::ProviderQuota,
            Some(failure) if failure.class == Class::AuthDead => Code::ProviderAuth,
            _ => Code::ProviderUnavailable,
        };
        let cause = failure.map(|failure| format!(" Last cause: {}.", failure.cause)).unwrap_or_default();
        let route = &self.plan.routes[call.arrival.route].name;
        Error::new(
            code,
            Origin::Provider,
            format!("No deployment of route {route} can answer now: {reason}.{cause}"),
            "Try again later, or add a second provider to the route.",
        )
    }

    fn dead_error(&self, key: CallKey, dead: Option<Dead>) -> Error {
        let reason = match dead {
            Some(Dead::Model) => "the provider does not know the model",
            _ => "the provider refuses the key",
        };
        let mut error = self.unavailable(key, reason);
        (error.code, error.remedy) = match dead {
            Some(Dead::Model) => (Code::ModelUnknown, "Correct the deployment's model.".into()),
            _ => (Code::ProviderAuth, "Set a valid key, then enable the deployment.".into()),
        };
        error
    }
}
