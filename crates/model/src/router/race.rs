//! Races: a second attempt beside one whose first content is late.
//!
//! A stalled or slow stream says nothing, so nothing ends it but patience, and patience is what the
//! caller pays. While another lane is sound, a call whose first content is later than its lane
//! usually needs starts a second attempt there; whichever brings content first answers the call and
//! the other is cancelled. After content nothing is raced: the call would pay for two answers.
//!
//! ```text
//!   first attempt  --late--> second attempt  --content of one--> the other is cancelled
//! ```
//!
//! A second attempt costs twice what a retry does, from the same budget: a few per cent of the
//! successes. So a brown-out of everything cannot double the load. Trials are free, since a recovering
//! lane has few at a time. A lane whose attempt was overtaken is judged as if it had failed: the call
//! itself has shown that it could be answered sooner, so half of all calls overtaken open the breaker.
//! A second attempt that was overtaken says nothing.

use std::time::Duration;

use evenkeel_core::control::breaker::{Failure as BreakerFailure, Phase};
use evenkeel_core::message::Usage;
use evenkeel_core::{Generator, Mono};

use super::call::State;
use super::event::{Action, AttemptKey, CallKey};
use super::lane::Prober;
use super::machine::{Machine, Timer};
use super::place::Trial;
use crate::classify::{Class, Failure};

/// A probe that is silent for this long lets the next one go, whatever the lane usually needs.
const PROBE_ALONE: Duration = Duration::from_secs(1);

impl Machine {
    /// Sets the time at which a second attempt is due, if there could be one.
    pub(super) fn arm_hedge(&mut self, now: Mono, key: CallKey, lane: usize) {
        self.disarm_hedge(key);
        let call = &self.calls[&key];
        let route = &self.plan.routes[call.arrival.route];
        let has_others =
            (0..self.tiers_allowed(call)).any(|tier| self.candidates(call, tier).any(|other| other != lane));
        if !route.hedge || !has_others || call.second.is_some() {
            return;
        }
        let at = now.after(self.hedge_after(lane));
        if let Some(call) = self.calls.get_mut(&key) {
            call.hedge_at = Some(at);
            self.timers.insert((at, Timer::Hedge(key)));
        }
    }

    /// How long the first content of a lane may take before it is late.
    fn hedge_after(&self, lane: usize) -> Duration {
        let settings = &self.plan.settings;
        let patience = if self.plan.lanes[lane].reasoning { 4 } else { 1 };
        let least = settings.hedge.after_min.0;
        let unknown = settings.timeouts.first_content_elsewhere_min.0 * patience;
        let usual = self.lanes[lane].counters.first_content.usual();
        usual.map_or(unknown, |usual| usual.mul_f64(settings.hedge.usual_factor)).max(least)
    }

    pub(super) fn disarm_hedge(&mut self, key: CallKey) {
        if let Some(at) = self.calls.get_mut(&key).and_then(|call| call.hedge_at.take()) {
            self.timers.remove(&(at, Timer::Hedge(key)));
        }
    }

    /// The first content is late: a second attempt, if a sound lane is ready and the budget allows it.
    pub(super) fn hedge_due(&mut self, now: Mono, at: Mono, key: CallKey) {
        let Some(call) = self.calls.get_mut(&key).filter(|call| call.hedge_at == Some(at)) else {
            return;
        };
        call.hedge_at = None;
        let is_last = call.n_attempts >= self.plan.settings.attempts_per_call;
        let Some(State::Running { attempt, lane }) = call.state else {
            return;
        };
        if is_last || call.arrival.deadline <= now {
            return;
        }
        let Some(other) = self.sound_lane_beside(now, key, lane) else {
            return;
        };
        let is_trial = self.lanes[lane].flights.get(&attempt).is_some_and(|flight| flight.is_trial);
        if is_trial || self.budget.take(now, self.plan.settings.hedge.cost) {
            self.lanes[other].counters.n_hedges += 1;
            self.start(now, key, other, Trial::No);
        }
    }

    fn sound_lane_beside(&mut self, now: Mono, key: CallKey, lane: usize) -> Option<usize> {
        let n_tiers = self.tiers_allowed(&self.calls[&key]);
        let call = self.calls.get_mut(&key)?;
        let was_excluded = !call.excluded.insert(lane);
        let other = self.sound_lane(now, key, n_tiers);
        if !was_excluded && let Some(call) = self.calls.get_mut(&key) {
            call.excluded.remove(&lane);
        }
        other
    }

    /// The first content of an attempt: it answers the call, and the other one of a race is over.
    pub(super) fn win(&mut self, now: Mono, winner: AttemptKey, key: CallKey, generator: &Generator) {
        self.disarm_hedge(key);
        let call = &self.calls[&key];
        let was_second = call.second.is_some_and(|second| second.attempt == winner);
        let Some((loser, _)) = call.under_way().find(|(attempt, _)| *attempt != winner) else {
            return;
        };
        if was_second && let Some((_, lane)) = call.under_way().find(|(attempt, _)| *attempt == winner) {
            self.lanes[lane].counters.n_hedges_won += 1;
        }
        self.overtaken(now, loser, was_second, generator);
        self.actions.push(Action::Cancel(key, loser));
    }

    /// An attempt was overtaken. Its input was paid for; a first attempt speaks against its lane.
    fn overtaken(&mut self, now: Mono, loser: AttemptKey, was_first: bool, generator: &Generator) {
        let Some((lane, flight)) = self.flight(loser) else {
            return;
        };
        if !was_first {
            self.return_probe(now, lane, loser, flight.started.term);
        }
        self.end_flight(now, loser, flight.tokens);
        self.lanes[lane].count(Class::Overtaken.as_str(), false);
        self.pay(lane, Usage { input_tokens: flight.tokens, ..Usage::default() });
        if was_first {
            let failure =
                Failure { weight: 1.0, ..Failure::new(Class::Overtaken, "another attempt was sooner") };
            self.judge(now, lane, &flight, &failure, generator);
        }
    }

    /// Lets the next probe go when this one stays silent, however long it may still try.
    pub(super) fn watch_probe(&mut self, now: Mono, lane: usize, probe: AttemptKey) {
        let usual = self.lanes[lane].counters.first_content.usual().or(self.lanes[lane].first_content);
        let alone = usual.map_or(PROBE_ALONE, |usual| (usual * 2).max(PROBE_ALONE));
        self.timers.insert((now.after(alone), Timer::Probe(probe)));
    }

    /// The probe is silent: it counts as failed, and goes on beside the next one.
    pub(super) fn release_probe(&mut self, now: Mono, probe: AttemptKey, generator: &Generator) {
        let Some((lane_idx, flight)) = self.flight(probe) else {
            return;
        };
        let lane = &mut self.lanes[lane_idx];
        if lane.prober == Some(Prober::Attempt(probe)) && lane.breaker.phase() == Phase::HalfOpen {
            let failure = BreakerFailure { weight: 1.0, connect: false };
            let transition = lane.breaker.failed(now, flight.started, failure, generator);
            self.changed(now, lane_idx, transition, now);
        }
    }
}
