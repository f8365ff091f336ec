//! The lease of one replica, as the replica itself must see it.
//!
//! A lease is the right to keep working on what was claimed. The store judges it by its own clock:
//! from the moment a heartbeat *arrives* it lasts `ttl`. The replica cannot see that moment, so it
//! trusts only what it can prove: the beat was *sent* before it arrived, hence the lease lasts at
//! least until `sent + ttl`. It stops working at `sent + fence_after`, which is earlier by a margin
//! that covers a slow reaction and clocks that run at slightly different rates. A beat without an
//! answer proves nothing and moves nothing.
//!
//! ```text
//!   begin_beat        confirm                                     now
//!      | sent            | answered                                |
//!      +-----------------+-----------------------------------------+---------> time
//!      |<-------------- fence_after = 3 s ------------------>| self-fenced from here
//!      |<-------------- ttl = 4 s, counted by the store from arrival ---------->| others may steal
//! ```
//!
//! Leases give liveness only. A replica that is wrong about its lease is stopped by the fencing
//! token in the store; self-fencing saves the money that a zombie would spend.
//!
//! | transition | function |
//! |---|---|
//! | (start) -> waiting for the first answer | [`Lease::new`] |
//! | any -> a beat is on its way | [`Lease::begin_beat`] |
//! | waiting or held -> held | [`Lease::confirm`] with `held` |
//! | held -> lost (others may own our runs) | [`Lease::confirm`] without `held`, or [`Lease::check`] too late |
//!
//! `Lost` is never left: the replica drops everything and begins again as a new incarnation with a
//! new lease.

use std::time::Duration;

use crate::Mono;

/// The durations of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// From one beat to the next.
    pub beat_every: Duration,
    /// How long the store lets a lease last after a beat arrives.
    pub ttl: Duration,
    /// How long after the last confirmed beat was sent the replica stops by itself; below `ttl`.
    pub fence_after: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            beat_every: Duration::from_secs(1),
            ttl: Duration::from_secs(4),
            fence_after: Duration::from_secs(3),
        }
    }
}

/// What a replica may believe of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No beat was confirmed yet: nothing may be claimed.
    Waiting,
    /// The lease holds at least until this instant, unless a later beat is confirmed.
    Held {
        /// Stop by then.
        until: Mono,
    },
    /// Work must stop now.
    Lost,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send a beat now.
    Beat,
    /// Nothing before this instant.
    Wait(Mono),
    /// Drop everything that was claimed, then begin again as a new incarnation.
    Fence,
}

/// The lease of one incarnation.
#[derive(Clone, Debug)]
pub struct Lease {
    times: LeaseTimes,
    standing: Standing,
    beat_at: Mono,
}

impl Lease {
    /// A lease that nobody has confirmed; its first beat is due at once.
    #[must_use]
    pub fn new(times: LeaseTimes, now: Mono) -> Self {
        Self { times, standing: Standing::Waiting, beat_at: now }
    }

    /// What to do at `now`. Once this says `Fence` it says so for ever.
    #[must_use]
    pub fn check(&mut self, now: Mono) -> Due {
        match self.standing {
            Standing::Lost => Due::Fence,
            Standing::Held { until } if now >= until => {
                self.standing = Standing::Lost;
                Due::Fence
            }
            _ if now >= self.beat_at => Due::Beat,
            Standing::Held { until } => Due::Wait(self.beat_at.min(until)),
            Standing::Waiting => Due::Wait(self.beat_at),
        }
    }

    /// A beat leaves now. Returns its name: the instant it was sent.
    pub fn begin_beat(&mut self, now: Mono) -> Mono {
        self.beat_at = now.after(self.times.beat_every);
        now
    }

    /// The store answered the beat sent at `sent`: `held` is whether it still counted the lease.
    /// Answers may come in any order; an older one never shortens what a newer one proved, and an
    /// answer that comes after the time to stop changes nothing.
    pub fn confirm(&mut self, sent: Mono, held: bool, now: Mono) {
        let until_new = sent.after(self.times.fence_after);
        self.standing = match self.standing {
            Standing::Lost => Standing::Lost,
            // The first beat of an incarnation finds no lease to hold on to, and nothing to lose.
            Standing::Waiting if now < until_new => Standing::Held { until: until_new },
            Standing::Waiting => Standing::Waiting,
            Standing::Held { until } if !held || now >= until => Standing::Lost,
            Standing::Held { until } => Standing::Held { until: until.max(until_new) },
        };
    }

    /// Whether claimed work may go on at `now`.
    #[must_use]
    pub fn holds(&self, now: Mono) -> bool {
        matches!(self.standing, Standing::Held { until } if now < until)
    }

    /// What the replica may believe.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// When work must stop if nothing is confirmed before.
    #[must_use]
    pub fn fence_at(&self) -> Option<Mono> {
        match self.standing {
            Standing::Held { until } => Some(until),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
