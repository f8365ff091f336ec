//! What the gateway believes of one replica, from probes and from the outcomes of requests.
//!
//! ```text
//!             ready                        draining
//!   unknown ---------> up ---------------------------------> draining
//!      |               |  ^                                     |
//!      |       refused |  | ready              refused, silent, |
//!      |  two failures |  |                    broken twice     |
//!      |     not ready v  |                                     v
//!      +-------------> down <-----------------------------------+
//! ```
//! A refused connection is proof: nobody listens there. Silence and a broken connection are not
//! (one request may have hit one fault), so it takes two in a row with no answer between them; the
//! first already asks for a probe at once. Only a probe brings a replica back: a request that is
//! still answered by a replica that is not ready says nothing about the next one.
//!
//! | seen | what it does | function |
//! |---|---|---|
//! | a probe's answer: ready, draining, not ready | the state of that name | [`Health::see`] |
//! | refused | down at once | [`Health::see`] |
//! | silent, broken | down at the second in a row | [`Health::see`] |
//! | served, by a request | forgets a first failure | [`Health::see`] |
//!
//! What holds: `strikes` is below [`STRIKES_MAX`], and 0 unless the replica is up or draining.

use std::time::Duration;

use evenkeel_core::Mono;

/// Failures in a row after which a replica is down.
const STRIKES_MAX: u32 = 2;
/// How much more often a replica is probed that is not simply up.
const EAGER: u32 = 4;

/// What is believed of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing is known yet.
    Unknown,
    /// It gets requests.
    Up,
    /// It finishes what it has and gets nothing new.
    Draining,
    /// It gets nothing.
    Down(Cause),
}

/// Why a replica is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Nobody listens.
    Refused,
    /// It does not answer in time.
    Silent,
    /// Its connections break.
    Broken,
    /// It says that it cannot serve: its store or its lease is away.
    NotReady,
}

/// What was seen of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A probe was answered: it serves.
    Ready,
    /// A probe, or a request, was answered: it drains.
    Draining,
    /// A probe was answered: it cannot serve.
    NotReady,
    /// A connection was refused.
    Refused,
    /// No connection, or no answer to a probe, in time.
    Silent,
    /// The connection broke before the answer.
    Broken,
    /// A request was answered.
    Served,
}

impl Standing {
    /// The word for it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Down(Cause::Refused) => "down: refused",
            Self::Down(Cause::Silent) => "down: silent",
            Self::Down(Cause::Broken) => "down: broken",
            Self::Down(Cause::NotReady) => "down: not ready",
        }
    }
}

/// The health of one replica.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    standing: Standing,
    since: Mono,
    strikes: u32,
}

impl Health {
    /// Nothing is known.
    pub(crate) fn new(now: Mono) -> Self {
        Self { standing: Standing::Unknown, since: now, strikes: 0 }
    }

    /// What is believed now.
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// Since when.
    pub(crate) fn since(&self) -> Mono {
        self.since
    }

    /// Takes in what was seen. Replies whether the standing changed.
    pub(crate) fn see(&mut self, seen: Seen, now: Mono) -> bool {
        let strikes = std::mem::take(&mut self.strikes);
        match seen {
            Seen::Ready => self.become_(Standing::Up, now),
            Seen::Draining => self.become_(Standing::Draining, now),
            Seen::NotReady => self.become_(Standing::Down(Cause::NotReady), now),
            Seen::Refused => self.become_(Standing::Down(Cause::Refused), now),
            Seen::Silent => self.strike(strikes, Cause::Silent, now),
            Seen::Broken => self.strike(strikes, Cause::Broken, now),
            Seen::Served => false,
        }
    }

    /// How long after a probe the next one is due.
    pub(crate) fn probe_after(&self, every: Duration) -> Duration {
        match self.standing {
            Standing::Up if self.strikes == 0 => every,
            _ => every / EAGER,
        }
    }

    fn strike(&mut self, strikes: u32, cause: Cause, now: Mono) -> bool {
        match self.standing {
            Standing::Up | Standing::Draining if strikes + 1 < STRIKES_MAX => {
                self.strikes = strikes + 1;
                false
            }
            Standing::Down(_) => false,
            _ => self.become_(Standing::Down(cause), now),
        }
    }

    fn become_(&mut self, standing: Standing, now: Mono) -> bool {
        if self.standing == standing {
            return false;
        }
        self.standing = standing;
        self.since = now;
        self.check();
        true
    }

    fn check(&self) {
        debug_assert!(self.strikes < STRIKES_MAX);
        debug_assert!(
            self.strikes == 0 || matches!(self.standing, Standing::Up | Standing::Draining),
            "a replica that is down has no strikes"
        );
    }
}
