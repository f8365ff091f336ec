//! One call inside the machine.

use std::collections::BTreeSet;

use evenkeel_core::Mono;
use evenkeel_core::run::Class as CallClass;

use super::event::{Arrival, AttemptKey, PermitKey};
use crate::classify::Failure;
use crate::provider::Bound;

/// Where a call stands.
///
/// ```text
///   arrived --> waiting --> running --> (answered)
///      |           ^  |        |
///      |           |  v        v
///      +------> running     pausing --> running | waiting
/// ```
/// Any of them ends in a verdict or when the caller goes away; then the call is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In its route's queue, until the instant.
    Waiting {
        /// When it gives up waiting.
        until: Mono,
    },
    /// An attempt is under way; in a race, the first of two.
    Running {
        /// Which.
        attempt: AttemptKey,
        /// Where.
        lane: usize,
    },
    /// A pause before the same lane is tried again.
    Pausing {
        /// When it ends.
        until: Mono,
        /// Where.
        lane: usize,
    },
}

/// The second attempt of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Second {
    /// Which.
    pub(super) attempt: AttemptKey,
    /// Where.
    pub(super) lane: usize,
}

/// One call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// As it arrived.
    pub(super) arrival: Arrival,
    /// When.
    pub(super) arrived_at: Mono,
    /// Where it stands; `None` only while it is being decided.
    pub(super) state: Option<State>,
    /// A second attempt beside the running one, until one of them brings content.
    pub(super) second: Option<Second>,
    /// When a second attempt is due, while the first has no content.
    pub(super) hedge_at: Option<Mono>,
    /// Attempts so far in this call.
    pub(super) n_attempts: u32,
    /// Answers in a row that the model malformed.
    pub(super) n_malformed: u32,
    /// Lanes that failed it and are not asked again.
    pub(super) excluded: BTreeSet<usize>,
    /// Lanes that were tried twice.
    pub(super) retried: BTreeSet<usize>,
    /// Windows must be at least this large, after one was too small.
    pub(super) window_min: u64,
    /// Whether provider-bound blocks go along.
    pub(super) bound: Bound,
    /// The permit that it still holds.
    pub(super) permit: Option<PermitKey>,
    /// The last failure.
    pub(super) failure: Option<Failure>,
}

impl Call {
    /// A call that just arrived.
    #[must_use]
    pub(super) fn new(arrival: Arrival, now: Mono) -> Self {
        Self {
            permit: arrival.permit,
            arrival,
            arrived_at: now,
            state: None,
            second: None,
            hedge_at: None,
            n_attempts: 0,
            n_malformed: 0,
            excluded: BTreeSet::new(),
            retried: BTreeSet::new(),
            window_min: 0,
            bound: Bound::Keep,
            failure: None,
        }
    }

    /// Whether somebody waits for it in person.
    #[must_use]
    pub(super) fn is_interactive(&self) -> bool {
        self.arrival.claim.class == CallClass::Interactive
    }

    /// Its attempts that are under way, with their lanes.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (AttemptKey, usize)> + use<> {
        let first = match self.state {
            Some(State::Running { attempt, lane }) => Some((attempt, lane)),
            _ => None,
        };
        first.into_iter().chain(self.second.map(|second| (second.attempt, second.lane)))
    }

    /// An attempt started.
    pub(super) fn begin(&mut self, attempt: AttemptKey, lane: usize) {
        self.n_attempts += 1;
        match self.state {
            Some(State::Running { .. }) => self.second = Some(Second { attempt, lane }),
            _ => self.state = Some(State::Running { attempt, lane }),
        }
    }

    /// An attempt is over; of a race, the other one goes on alone.
    pub(super) fn finish(&mut self, over: AttemptKey) {
        if self.second.is_some_and(|second| second.attempt == over) {
            self.second = None;
        } else if matches!(self.state, Some(State::Running { attempt, .. }) if attempt == over) {
            let second = self.second.take();
            self.state = second.map(|Second { attempt, lane }| State::Running { attempt, lane });
        }
    }

    /// Attempts of the step, those before parks included.
    #[must_use]
    pub(super) fn n_attempts_of_step(&self) -> u32 {
        self.arrival.prior_attempts.saturating_add(self.n_attempts)
    }
}
