//! What the machine hears and what it wants done.

use evenkeel_core::control::breaker::Transition;
use evenkeel_core::control::limiter::Claim;
use evenkeel_core::message::Usage;
use evenkeel_core::port::model::PeerHealth;
use evenkeel_core::{Error, Mono};

use super::Operation;
use crate::classify::{Failure, Hints};
use crate::provider::Bound;
use crate::stream::watch::Limits;

/// Names a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey(pub u64);

/// Names an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey(pub u64);

/// Names a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitKey(pub u64);

/// A call as the machine sees it: no contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Index of the route.
    pub route: usize,
    /// Whose turn it is when it must wait.
    pub claim: Claim,
    /// No answer is wanted after this.
    pub deadline: Mono,
    /// Attempts of the same step before it was parked.
    pub prior_attempts: u32,
    /// The permit that woke it.
    pub permit: Option<PermitKey>,
    /// Whether a later tier may answer.
    pub fallback: bool,
    /// Bytes of the history, prompt and tools.
    pub input_bytes: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A call wants an answer.
    Arrived(CallKey, Arrival),
    /// Its caller is gone.
    Dropped(CallKey),
    /// The response's headers arrived, with what they say of limits.
    Headers(AttemptKey, Hints),
    /// Content arrived (the first, and then now and again).
    Content(AttemptKey),
    /// A complete answer.
    Succeeded(AttemptKey, Usage),
    /// No answer; the tokens are wasted.
    Failed(AttemptKey, Failure, Usage),
    /// So many runs are parked on a route.
    Parked(usize, usize),
    /// A waker has a permit in hand: its lease begins anew.
    PermitTaken(PermitKey),
    /// A permit was dropped without a call.
    PermitDropped(PermitKey),
    /// An operator acts on a lane.
    Operate(usize, Operation),
    /// What the living peers last told.
    Heard(Vec<PeerHealth>),
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make an attempt for a call.
    Start(CallKey, Start),
    /// Stop an attempt of a call: the other one of a race has content.
    Cancel(CallKey, AttemptKey),
    /// Tell the caller.
    Finish(CallKey, Verdict),
    /// Hand a permit to whoever wakes parked runs.
    Grant(PermitKey, Place),
    /// A lane changed its state.
    Changed(usize, Transition),
}

/// Where a permit is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The route.
    pub route: usize,
    /// The lane.
    pub lane: usize,
}

/// An attempt to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// Its name in later events.
    pub attempt: AttemptKey,
    /// Where.
    pub lane: usize,
    /// Counts from 1 over the step.
    pub number: u32,
    /// How long it may take.
    pub limits: Limits,
    /// Whether provider-bound blocks go along.
    pub bound: Bound,
}

/// How a call ends without an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Not now.
    Park {
        /// When a look is next worth it.
        until: Option<Mono>,
        /// In words.
        reason: String,
    },
    /// The context fits no window of the route.
    ContextTooLong,
    /// Never.
    Fatal(Error),
}
