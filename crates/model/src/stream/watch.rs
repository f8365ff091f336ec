//! The watchdog of one attempt: it knows when silence has lasted too long.
//!
//! A silent stream is worse than an error, because nothing ends it. The watchdog looks at content,
//! not at bytes: keep-alive comments and pings extend the patience between two pieces of content
//! once, to a fixed bound, and never count as content. A stream that drips below a minimal rate is
//! given up too, when the router has somewhere else to go.
//!
//! ```text
//!   sent --headers--> waiting --content--> flowing --content--> flowing ...
//!    |                  |                    |
//!    +-- headers        +-- first content    +-- idle, slow          any: whole attempt
//! ```

use std::time::Duration;

use evenkeel_core::Mono;

/// The limits of one attempt, computed by the router for this call and deployment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// From the start to the headers.
    pub headers: Duration,
    /// From the headers to the first content.
    pub first_content: Duration,
    /// Between two pieces of content.
    pub idle: Duration,
    /// The same while pings arrive.
    pub idle_with_pings: Duration,
    /// The whole attempt.
    pub attempt: Duration,
    /// Output below this rate for `slow_after` is given up; `None` when there is nowhere to go.
    pub tokens_per_s_min: Option<f64>,
    /// See `tokens_per_s_min`.
    pub slow_after: Duration,
}

/// Which limit was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// No headers.
    Headers,
    /// No first content.
    FirstContent,
    /// Content stopped.
    Idle,
    /// Content drips.
    Slow,
    /// The attempt as a whole.
    Attempt,
}

/// The watchdog.
#[derive(Clone, Debug)]
pub struct Watch {
    limits: Limits,
    started: Mono,
    phase: Phase,
    /// Since the last content (or the headers), something arrived that was no content.
    pinged_at: Option<Mono>,
    /// The present stretch over which the rate is measured: since when, and tokens in it.
    stretch: (Mono, f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Sent,
    Waiting { since: Mono },
    Flowing { last: Mono },
}

impl Watch {
    /// Starts with the request.
    #[must_use]
    pub fn new(limits: Limits, now: Mono) -> Self {
        Self { limits, started: now, phase: Phase::Sent, pinged_at: None, stretch: (now, 0.0) }
    }

    /// The response's headers arrived.
    pub fn headers(&mut self, now: Mono) {
        self.phase = Phase::Waiting { since: now };
    }

    /// Something arrived that is no content.
    pub fn ping(&mut self, now: Mono) {
        self.pinged_at = Some(now);
    }

    /// Content arrived, of about this many tokens. True for the first.
    pub fn content(&mut self, now: Mono, tokens: f64) -> bool {
        let is_first = !matches!(self.phase, Phase::Flowing { .. });
        self.phase = Phase::Flowing { last: now };
        self.pinged_at = None;
        if is_first {
            self.stretch = (now, 0.0);
        }
        self.stretch.1 += tokens;
        // A stretch that was fast enough is closed and a new one begins.
        if now.since(self.stretch.0) >= self.limits.slow_after && !self.is_slow(now) {
            self.stretch = (now, 0.0);
        }
        is_first
    }

    /// The next instant at which some limit is passed if nothing arrives.
    #[must_use]
    pub fn deadline(&self) -> (Mono, Passed) {
        let whole = (self.started.after(self.limits.attempt), Passed::Attempt);
        let next = match self.phase {
            Phase::Sent => (self.started.after(self.limits.headers), Passed::Headers),
            Phase::Waiting { since } => (since.after(self.limits.first_content), Passed::FirstContent),
            Phase::Flowing { last } => self.flowing_deadline(last),
        };
        if whole.0 < next.0 { whole } else { next }
    }

    fn flowing_deadline(&self, last: Mono) -> (Mono, Passed) {
        let patience = last.after(self.limits.idle);
        // A ping within the patience extends it once; it is no progress.
        let idle = match self.pinged_at {
            Some(at) => patience.max(at.after(self.limits.idle).min(last.after(self.limits.idle_with_pings))),
            None => patience,
        };
        let slow_at = self.stretch.0.after(self.limits.slow_after);
        if self.limits.tokens_per_s_min.is_some() && self.is_slow(slow_at) && slow_at < idle {
            (slow_at, Passed::Slow)
        } else {
            (idle, Passed::Idle)
        }
    }

    fn is_slow(&self, at: Mono) -> bool {
        let seconds = at.since(self.stretch.0).as_secs_f64();
        self.limits.tokens_per_s_min.is_some_and(|min| self.stretch.1 < min * seconds)
    }
}

#[cfg(test)]
mod tests;
