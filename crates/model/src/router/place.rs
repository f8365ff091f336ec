//! Which lane a call gets, and what happens when none takes it.
//!
//! Tiers are asked in order; within a tier a healthy lane goes before a suspect one and a less
//! loaded before a more loaded one. A lane whose breaker wants a probe takes the call as the probe
//! (when runs are parked, a permit has taken that place already). When no lane is ready the call
//! waits or parks. A batch call waits only for what ends soon: a full lane or a pause shorter than
//! `batch_wait`. For an open breaker it does not wait at all, because a parked run is one row and a
//! waiting call holds a slot of the harness. An interactive call waits as long as its route allows.

use std::time::Duration;

use evenkeel_core::control::breaker::Phase;
use evenkeel_core::{Code, Error, Generator, Mono, Origin};

use super::call::{Call, State};
use super::event::{Action, Arrival, AttemptKey, CallKey, Start, Verdict};
use super::lane::{Dead, Flight, Prober, Ready};
use super::machine::{Machine, Timer};
use crate::classify::Class;
use crate::stream::watch::Limits;

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

    /// Starts the call on the best lane that is ready.
    pub(super) fn try_start(&mut self, now: Mono, key: CallKey) -> bool {
        for tier in 0..self.tiers_allowed(&self.calls[&key]) {
            if let Some(lane) = self.ready_lane(now, key, tier) {
                self.start(now, key, lane);
                return true;
            }
        }
        false
    }

    /// The best lane of a tier that could take the call now.
    pub(super) fn ready_lane(&mut self, now: Mono, key: CallKey, tier: usize) -> Option<usize> {
        let call = &self.calls[&key];
        let bytes = call.arrival.input_bytes;
        let candidates: Vec<usize> = self.candidates(call, tier).collect();
        let mut best: Option<(usize, (u8, f64))> = None;
        for idx in candidates {
            let lane = &mut self.lanes[idx];
            let tokens = lane.tokens_of(bytes);
            if !matches!(lane.ready(now, tokens), Ready::Now | Ready::Probe) {
                continue;
            }
            let rank = lane.rank(now);
            if best.is_none_or(|(_, known)| (rank.0, rank.1) < known) {
                best = Some((idx, rank));
            }
        }
        best.map(|(idx, _)| idx)
    }

    /// How many tiers the call may use.
    pub(super) fn tiers_allowed(&self, call: &Call) -> usize {
        let route = &self.plan.routes[call.arrival.route];
        if route.fallback && call.arrival.fallback { route.tiers.len() } else { 1 }
    }

    /// Lanes of a tier that have not failed this call and whose window is large enough.
    fn candidates<'a>(&'a self, call: &'a Call, tier: usize) -> impl Iterator<Item = usize> + 'a {
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
    pub(super) fn start(&mut self, now: Mono, key: CallKey, lane_idx: usize) {
        let attempt = AttemptKey(self.fresh_key());
        let n_probes = self.lanes[lane_idx].breaker.n_probes();
        if self.lanes[lane_idx].breaker.gate(now) == evenkeel_core::control::breaker::Gate::Probe {
            let transition = self.lanes[lane_idx].breaker.begin_probe(now);
            self.changed(now, lane_idx, transition, now);
            self.lanes[lane_idx].prober = Some(Prober::Attempt(attempt));
            self.lanes[lane_idx].counters.n_probes += 1;
        }
        let is_probe = self.lanes[lane_idx].breaker.phase() == Phase::HalfOpen;
        let bytes = self.calls[&key].arrival.input_bytes;
        let lane = &mut self.lanes[lane_idx];
        let tokens = lane.tokens_of(bytes);
        lane.limiter.reserve(now, tokens);
        lane.ramp.take(now);
        let started = lane.breaker.started(now);
        let flight = Flight { started, call: key, tokens, signed_at: now, has_content: false };
        lane.flights.insert(attempt, flight);
        self.start_silence_check(now, lane_idx);
        let limits = self.limits(now, key, lane_idx, is_probe.then_some(n_probes));
        self.run(key, attempt, lane_idx, limits);
    }

    /// Marks the call as running and has the attempt made.
    pub(super) fn run(&mut self, key: CallKey, attempt: AttemptKey, lane: usize, limits: Limits) {
        self.attempts.insert(attempt, key);
        let call = self.calls.get_mut(&key).expect("the caller has just looked at this call");
        call.state = Some(State::Running { attempt, lane });
        call.n_attempts += 1;
        let start = Start { attempt, lane, number: call.n_attempts_of_step(), limits, bound: call.bound };
        self.actions.push(Action::Start(key, start));
    }

    /// How long an attempt may take. A probe has less time at first, so that silence does not hide
    /// a recovery; each failed probe gives the next one more, so that a slow one can succeed.
    pub(super) fn limits(&mut self, now: Mono, key: CallKey, lane_idx: usize, probes: Option<u32>) -> Limits {
        let config = self.plan.settings.timeouts;
        let plan = &self.plan.lanes[lane_idx];
        let tokens = self.lanes[lane_idx].tokens_of(self.calls[&key].arrival.input_bytes);
        let patience = if plan.reasoning { 4 } else { 1 };
        #[expect(clippy::cast_precision_loss, reason = "an estimate of a size")]
        let for_input = config.first_content_per_20k_tokens.0.mul_f64(tokens as f64 / 20_000.0);
        let learnt = self.lanes[lane_idx].first_content.unwrap_or_default() * 4;
        let ceiling = config.first_content_max.0 * patience;
        let has_other = self.has_other(now, key, lane_idx);
        let mut first_content = ((config.first_content.0 + for_input) * patience).max(learnt);
        if !has_other {
            first_content *= 2;
        }
        let mut headers = (config.headers.0 + for_input) * patience;
        first_content = first_content.min(ceiling.max(config.first_content.0));
        if has_other && let Some(usual) = self.lanes[lane_idx].counters.first_content.usual() {
            // Waiting longer than this lane ever needs is worse than asking the other one.
            let impatient = (usual * 4).max(config.first_content_elsewhere_min.0) * patience + for_input;
            headers = headers.min(impatient);
            first_content = first_content.min(impatient);
        }
        if let Some(n_failed) = probes {
            let growth = 1.5f64.powi(i32::try_from(n_failed.min(20)).unwrap_or(20));
            let least = Duration::from_secs(3).max(learnt) * patience;
            let probe = (least + for_input).mul_f64(growth);
            headers = headers.min(probe);
            first_content = first_content.min(probe);
        }
        let left = now.until(self.calls[&key].arrival.deadline);
        Limits {
            headers,
            first_content,
            idle: config.idle.0,
            idle_with_pings: config.idle_with_pings.0,
            attempt: config.attempt.0.min(left),
            tokens_per_s_min: has_other.then_some(config.tokens_per_s_min),
            slow_after: config.slow_after.0,
        }
    }

    fn has_other(&mut self, now: Mono, key: CallKey, lane_idx: usize) -> bool {
        let call = &self.calls[&key];
        let others: Vec<usize> = (0..self.tiers_allowed(call))
            .flat_map(|tier| self.candidates(call, tier).collect::<Vec<_>>())
            .filter(|other| *other != lane_idx)
            .collect();
        others.into_iter().any(|other| self.lanes[other].ready(now, 0) == Ready::Now)
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
            return self.start(now, key, lane);
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
