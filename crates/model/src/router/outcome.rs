//! What follows from what became of an attempt.
//!
//! After a failure the order is: another lane of the same tier at once; the same lane once more
//! after a short pause (transient and broken streams only, breaker not open, budget permitting); a
//! later tier; otherwise wait, park or fail. Moving to another lane is free for the first three
//! attempts of a call and costs the budget afterwards.

use std::time::Duration;

use evenkeel_core::control::backoff::no_earlier_than;
use evenkeel_core::control::breaker::{Failure as BreakerFailure, Phase, Reason, Term};
use evenkeel_core::message::Usage;
use evenkeel_core::{Code, Error, Generator, Mono, Origin};

use super::call::{Call, State};
use super::event::{AttemptKey, CallKey, Verdict};
use super::lane::{Dead, Flight, Prober};
use super::machine::{Machine, Timer};
use super::place::Trial;
use crate::classify::{Class, Failure, Hints};
use crate::config::Midstream;
use crate::provider::Bound;
use crate::stream::watch::Limits;

const MALFORMED_MAX: u32 = 3;
const FREE_FAILOVERS: u32 = 3;

impl Machine {
    pub(super) fn headers(&mut self, now: Mono, attempt: AttemptKey, hints: &Hints) {
        if let Some((lane, _)) = self.flight(attempt) {
            let lane = &mut self.lanes[lane];
            lane.hear(now, hints);
            lane.signed_at = now;
            if let Some(flight) = lane.flights.get_mut(&attempt) {
                flight.signed_at = now;
            }
        }
    }

    pub(super) fn content(&mut self, now: Mono, attempt: AttemptKey, generator: &Generator) {
        let Some((lane_idx, flight)) = self.flight(attempt) else {
            return;
        };
        let lane = &mut self.lanes[lane_idx];
        lane.signed_at = now;
        if let Some(flight) = lane.flights.get_mut(&attempt) {
            flight.signed_at = now;
            flight.has_content = true;
        }
        if !flight.has_content {
            lane.learn_first_content(now.since(flight.started.at));
            self.win(now, attempt, flight.call, generator);
        }
        if self.protects() {
            let transition = self.lanes[lane_idx].breaker.content(now, flight.started);
            self.changed(now, lane_idx, transition, now);
        }
    }

    pub(super) fn succeeded(&mut self, now: Mono, attempt: AttemptKey, usage: Usage, generator: &Generator) {
        // An answer without any content ends a race as well.
        if let Some((call, _)) = self.attempts.get(&attempt).copied() {
            self.win(now, attempt, call, generator);
        }
        let Some((lane_idx, flight)) = self.end_flight(now, attempt, usage.input_tokens) else {
            return;
        };
        let Some(call) = self.calls.remove(&flight.call) else {
            return;
        };
        *self.verdicts.entry("done").or_default() += 1;
        self.pay(lane_idx, usage);
        let lane = &mut self.lanes[lane_idx];
        lane.n_throttled = 0;
        lane.learn_tokens(call.arrival.input_bytes, usage);
        lane.ramp.succeeded(now);
        lane.count("ok", false);
        lane.counters.usage.add(usage);
        lane.n_proven += 1;
        self.budget.success(now);
        if self.protects() {
            let transition = self.lanes[lane_idx].breaker.succeeded(now, flight.started);
            self.changed(now, lane_idx, transition, now);
        }
    }

    pub(super) fn failed(
        &mut self,
        now: Mono,
        attempt: AttemptKey,
        failure: Failure,
        usage: Usage,
        generator: &Generator,
    ) {
        if self.ran_into_its_deadline(now, attempt, &failure) {
            return;
        }
        let used = if failure.weight > 0.0 { usage.input_tokens } else { 0 };
        let Some((lane_idx, flight)) = self.end_flight(now, attempt, used) else {
            return;
        };
        self.pay(lane_idx, usage);
        let is_refusal = failure.class == Class::BadRequest;
        self.lanes[lane_idx].count(failure.class.as_str(), is_refusal);
        if flight.has_content {
            *self.wasted_tokens.entry(failure.class.as_str()).or_default() += usage.output_tokens;
        }
        self.n_truncated += u64::from(failure.class == Class::StreamBroken && !failure.malformed);
        if !self.protects() {
            return self.plain_failure(now, flight.call, &failure, flight.has_content, generator);
        }
        if failure.weight > 0.0 {
            self.lanes[lane_idx].n_proven = 0;
        }
        let was_closed = matches!(self.lanes[lane_idx].breaker.phase(), Phase::Closed | Phase::Suspect);
        self.blame(now, lane_idx, &flight, &failure, generator);
        let is_closed = matches!(self.lanes[lane_idx].breaker.phase(), Phase::Closed | Phase::Suspect);
        let context = After {
            lane: lane_idx,
            has_content: flight.has_content,
            is_the_lanes_fault: !was_closed || !is_closed,
        };
        if self.goes_on(flight.call, &failure, lane_idx) {
            return;
        }
        self.after_failure(now, flight.call, failure, context, generator);
    }

    /// Whether the other attempt of a race is still under way; then the failure ends nothing.
    fn goes_on(&mut self, key: CallKey, failure: &Failure, lane: usize) -> bool {
        let window = self.plan.lanes[lane].context_tokens;
        let Some(call) = self.calls.get_mut(&key).filter(|call| call.state.is_some()) else {
            return false;
        };
        note_failure(call, failure, lane, window);
        true
    }

    /// Adds what tokens cost to the lane's account, if it has a price.
    pub(super) fn pay(&mut self, lane: usize, usage: Usage) {
        if let Some(price) = &self.plan.lanes[lane].price {
            self.lanes[lane].counters.cost_micro_usd += price.micro_usd(usage);
        }
    }

    /// An attempt that was stopped because its caller's time is over says nothing of its lane.
    fn ran_into_its_deadline(&mut self, now: Mono, attempt: AttemptKey, failure: &Failure) -> bool {
        let Some((lane, flight)) = self.flight(attempt) else {
            return false;
        };
        let is_late = self.calls[&flight.call].arrival.deadline <= now;
        if !is_late || failure.class != Class::Slow || !self.protects() {
            return false;
        }
        self.return_probe(now, lane, attempt, flight.started.term);
        self.end_flight(now, attempt, flight.tokens);
        self.lanes[lane].count("cancelled", false);
        // The other attempt of a race ends in the same moment.
        self.calls[&flight.call].state.is_some() || self.is_late(now, flight.call)
    }

    pub(super) fn flight(&self, attempt: AttemptKey) -> Option<(usize, Flight)> {
        let (_, lane) = *self.attempts.get(&attempt)?;
        self.lanes[lane].flights.get(&attempt).map(|flight| (lane, *flight))
    }

    /// Takes the attempt out and settles its tokens.
    pub(super) fn end_flight(
        &mut self,
        now: Mono,
        attempt: AttemptKey,
        used: u64,
    ) -> Option<(usize, Flight)> {
        let (lane, flight) = self.flight(attempt)?;
        self.attempts.remove(&attempt);
        self.lanes[lane].flights.remove(&attempt);
        self.lanes[lane].limiter.settle(now, flight.tokens, used);
        if self.lanes[lane].prober == Some(Prober::Attempt(attempt)) {
            self.lanes[lane].prober = None;
        }
        if let Some(call) = self.calls.get_mut(&flight.call) {
            call.finish(attempt);
            if call.state.is_none() {
                self.disarm_hedge(flight.call);
            }
        }
        Some((lane, flight))
    }

    /// A probe whose caller went away gives its place back.
    pub(super) fn return_probe(&mut self, now: Mono, lane_idx: usize, attempt: AttemptKey, term: Term) {
        if self.lanes[lane_idx].prober == Some(Prober::Attempt(attempt)) {
            self.lanes[lane_idx].prober = None;
            let transition = self.lanes[lane_idx].breaker.return_probe(now, term);
            self.changed(now, lane_idx, transition, now);
        }
    }

    /// What the failure says of the lane.
    fn blame(
        &mut self,
        now: Mono,
        lane_idx: usize,
        flight: &Flight,
        failure: &Failure,
        generator: &Generator,
    ) {
        let lane = &mut self.lanes[lane_idx];
        match failure.class {
            Class::RateLimited => self.throttle(now, lane_idx, failure, generator),
            Class::Overloaded => {
                lane.ramp.rejected(now);
                if failure.retry_after.is_some() {
                    self.throttle(now, lane_idx, failure, generator);
                }
            }
            Class::QuotaDead => self.disable(now, lane_idx, Dead::Quota, failure, generator),
            Class::AuthDead => self.disable(now, lane_idx, Dead::Auth, failure, generator),
            Class::ModelUnknown => {
                let until = now.after(self.plan.settings.disabled_for.0);
                lane.disabled = Some((until, Dead::Model));
            }
            Class::Slow if !flight.has_content => {
                // It took at least this long; the next limit grows with what is known.
                let took = now.since(flight.started.at);
                let known = lane.first_content.unwrap_or(took);
                lane.first_content = Some(known.mul_f64(0.8) + took.mul_f64(0.2));
            }
            _ => {}
        }
        self.judge(now, lane_idx, flight, failure, generator);
        if failure.connect {
            self.suspect_siblings(now, lane_idx);
        }
    }

    /// What an attempt that failed, or was overtaken, says of its lane's health.
    pub(super) fn judge(
        &mut self,
        now: Mono,
        lane_idx: usize,
        flight: &Flight,
        failure: &Failure,
        generator: &Generator,
    ) {
        let lane = &mut self.lanes[lane_idx];
        let began = lane.breaker.streak_started().unwrap_or(flight.started.at);
        let is_current = flight.started.term == lane.breaker.term();
        let ramping = lane.breaker.phase() == Phase::Ramping;
        // A trial had somewhere else to go: there is no reason to try on.
        if ramping && is_current && failure.weight > 0.0 && (lane.ramp.failed(now) || flight.is_trial) {
            let transition = lane.breaker.trip(now, Reason::RampFailed, generator);
            return self.changed(now, lane_idx, transition, began);
        }
        let failure = BreakerFailure { weight: failure.weight, connect: failure.connect };
        let transition = lane.breaker.failed(now, flight.started, failure, generator);
        self.changed(now, lane_idx, transition, began);
    }

    /// The provider asks for a pause: kept to the end, with jitter only added, then paced.
    fn throttle(&mut self, now: Mono, lane_idx: usize, failure: &Failure, generator: &Generator) {
        let lane = &mut self.lanes[lane_idx];
        let guess = Duration::from_secs(1 << lane.n_throttled.min(5)).min(Duration::from_secs(30));
        let named = failure.retry_after.filter(|wait| !wait.is_zero());
        let floor = named.unwrap_or(guess).min(self.plan.settings.retry_after_max.0);
        lane.n_throttled += 1;
        lane.ramp.rejected(now);
        if lane.throttled_until.is_some_and(|until| until >= now.after(floor)) {
            return;
        }
        let until = now.after(no_earlier_than(floor, generator));
        lane.throttled_until = Some(until);
        lane.ramp.bound_rate(now, until, now);
        self.return_permits(now, lane_idx);
    }

    fn disable(&mut self, now: Mono, lane_idx: usize, dead: Dead, failure: &Failure, generator: &Generator) {
        let wait = failure.retry_after.unwrap_or(self.plan.settings.disabled_for.0);
        let account = self.plan.lanes[lane_idx].account.clone();
        for idx in 0..self.lanes.len() {
            if self.plan.lanes[idx].account == account {
                self.lanes[idx].disabled = Some((now.after(wait), dead));
                let transition = self.lanes[idx].breaker.trip(now, Reason::Dead, generator);
                self.changed(now, idx, transition, now);
            }
        }
    }

    fn suspect_siblings(&mut self, now: Mono, lane_idx: usize) {
        let domain = self.plan.lanes[lane_idx].domain.clone();
        for idx in 0..self.lanes.len() {
            if idx != lane_idx && self.plan.lanes[idx].domain == domain {
                let transition = self.lanes[idx].breaker.suspect(now, Reason::Sibling);
                self.changed(now, idx, transition, now);
            }
        }
    }

    /// What becomes of the call.
    fn after_failure(
        &mut self,
        now: Mono,
        key: CallKey,
        failure: Failure,
        after: After,
        generator: &Generator,
    ) {
        let settings = &self.plan.settings;
        let (per_call, per_step) = (settings.attempts_per_call, settings.attempts_per_step);
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        let may_retry = note_failure(call, &failure, after.lane, self.plan.lanes[after.lane].context_tokens);
        let reroutes = self.plan.routes[call.arrival.route].reroute_rejected;
        let midstream = self.plan.routes[call.arrival.route].midstream;
        // Probes of a long outage may have used up the step's attempts before anything was healthy:
        // a call that was woken has one retry in any case.
        let n_before = call.arrival.prior_attempts.min(per_step.saturating_sub(2));
        let (n_attempts, n_of_step) = (call.n_attempts, n_before + call.n_attempts);
        if let Some(error) = final_error(call, &failure, reroutes) {
            return self.end(key, Verdict::Fatal(error));
        }
        if n_of_step >= per_step && !after.is_the_lanes_fault {
            // The lane is healthy and the step keeps failing: it is the step.
            let error = self.unavailable(key, &format!("{n_of_step} attempts of this step failed"));
            return self.end(key, Verdict::Fatal(error));
        }
        let stops = after.has_content && midstream == Midstream::Fail;
        if stops || n_attempts >= per_call || n_of_step >= per_step {
            return self.give_up(now, key, generator);
        }
        self.try_again(now, key, &after, may_retry, generator);
    }

    fn try_again(&mut self, now: Mono, key: CallKey, after: &After, may_retry: bool, generator: &Generator) {
        let call = &self.calls[&key];
        let route = &self.plan.routes[call.arrival.route];
        let tier = route.tiers.iter().position(|tier| tier.contains(&after.lane)).unwrap_or(0);
        if call.n_attempts > FREE_FAILOVERS && !self.budget.take(now, 1.0) {
            return self.give_up(now, key, generator);
        }
        if let Some(lane) = self.sound_lane(now, key, tier + 1) {
            return self.start(now, key, lane, Trial::No);
        }
        let flows = matches!(self.lanes[after.lane].breaker.phase(), Phase::Closed | Phase::Suspect);
        if may_retry && flows && self.budget.take(now, 1.0) {
            return self.pause(now, key, after.lane, Duration::from_millis(100 + generator.below(300)));
        }
        if !self.calls[&key].is_interactive() {
            return self.find_place(now, key, generator);
        }
        if !self.try_start(now, key) {
            self.wait_in_person(now, key, after.lane, generator);
        }
    }

    /// Somebody waits, so lanes that failed the call count again when they are ready; one that still
    /// takes calls after a growing pause.
    fn wait_in_person(&mut self, now: Mono, key: CallKey, lane: usize, generator: &Generator) {
        let call = self.calls.get_mut(&key).expect("the caller has just looked at this call");
        call.excluded.clear();
        let wait = Duration::from_millis(500 << call.n_attempts.min(4)) / 2;
        let cut_off = matches!(self.lanes[lane].breaker.phase(), Phase::Open { .. } | Phase::HalfOpen);
        if cut_off {
            self.wait_or_end(now, key, generator);
        } else if self.budget.take(now, 1.0) {
            self.pause(now, key, lane, no_earlier_than(wait, generator));
        } else {
            self.give_up(now, key, generator);
        }
    }

    fn pause(&mut self, now: Mono, key: CallKey, lane: usize, wait: Duration) {
        let until = now.after(wait);
        let call = self.calls.get_mut(&key).expect("the caller has just looked at this call");
        call.excluded.remove(&lane);
        call.retried.insert(lane);
        call.state = Some(State::Pausing { until, lane });
        self.timers.insert((until, Timer::Call(key)));
    }

    /// Without protection: the first lane, whatever its state, as a plain SDK does.
    pub(super) fn start_plain(&mut self, now: Mono, key: CallKey) {
        let lane_idx = self.plan.routes[self.calls[&key].arrival.route].tiers[0][0];
        let attempt = AttemptKey(self.fresh_key());
        let lane = &mut self.lanes[lane_idx];
        let started = lane.breaker.started(now);
        let flight =
            Flight { started, call: key, tokens: 0, signed_at: now, has_content: false, is_trial: false };
        lane.flights.insert(attempt, flight);
        let day = Duration::from_secs(600).min(now.until(self.calls[&key].arrival.deadline));
        let limits = Limits {
            headers: day,
            first_content: day,
            idle: day,
            idle_with_pings: day,
            attempt: day,
            tokens_per_s_min: None,
            slow_after: day,
        };
        self.run(key, attempt, lane_idx, limits);
    }

    fn plain_failure(
        &mut self,
        now: Mono,
        key: CallKey,
        failure: &Failure,
        has_content: bool,
        generator: &Generator,
    ) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        call.failure = Some(failure.clone());
        let retries = matches!(failure.class, Class::Transient | Class::Overloaded | Class::RateLimited);
        if retries && !has_content && call.n_attempts <= 2 {
            let wait = 0.5 * f64::from(call.n_attempts) * (1.0 - 0.25 * generator.unit());
            let lane = self.plan.routes[call.arrival.route].tiers[0][0];
            return self.pause(now, key, lane, Duration::from_secs_f64(wait));
        }
        let error = final_error(call, failure, false);
        let error = error.unwrap_or_else(|| self.unavailable(key, "two retries failed"));
        self.end(key, Verdict::Fatal(error));
    }
}

/// Where an attempt failed, and how.
struct After {
    lane: usize,
    has_content: bool,
    /// The lane was not healthy before or after: the failure does not speak against the step.
    is_the_lanes_fault: bool,
}

/// Remembers the failure in the call; whether the same lane may be tried once more.
fn note_failure(call: &mut Call, failure: &Failure, lane: usize, window: u64) -> bool {
    call.failure = Some(failure.clone());
    call.n_malformed = if failure.malformed { call.n_malformed + 1 } else { 0 };
    match failure.class {
        Class::ContextTooLong => call.window_min = call.window_min.max(window + 1),
        // The same lane at once, without what it refused.
        Class::ForeignItems if call.bound == Bound::Keep => {
            call.bound = Bound::Strip;
            return true;
        }
        _ => {}
    }
    call.excluded.insert(lane);
    let retries = matches!(failure.class, Class::Transient | Class::StreamBroken);
    retries && !failure.no_retry && !call.retried.contains(&lane)
}

/// The error of a call that no other attempt can help.
fn final_error(call: &Call, failure: &Failure, reroutes_rejected: bool) -> Option<Error> {
    let error = |code, origin, remedy: &'static str| {
        Some(Error::new(code, origin, format!("The provider refused the call: {}.", failure.cause), remedy))
    };
    match failure.class {
        Class::BadRequest => error(
            Code::ProviderRejected,
            Origin::Ours,
            "Report it with the log of this moment: the request was not valid for the provider.",
        ),
        // The first refusal of foreign items is repeated without them.
        Class::ForeignItems if call.excluded.is_empty() => None,
        Class::ForeignItems => error(
            Code::ProviderRejected,
            Origin::Ours,
            "Report it with the log of this moment: provider-bound items were sent although stripped.",
        ),
        Class::Rejected if !reroutes_rejected => {
            error(Code::ContentRejected, Origin::Provider, "Change the content that was refused.")
        }
        _ if call.n_malformed >= MALFORMED_MAX => {
            error(Code::ReplyMalformed, Origin::Provider, "Try again, or use another model for this route.")
        }
        _ => None,
    }
}
