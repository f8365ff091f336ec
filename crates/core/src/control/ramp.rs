//! How much a deployment is given: an adaptive limit of streams, and a bounded rate while it
//! comes back.
//!
//! A provider that returns from an outage meets everybody who waited. Given all of them at once it
//! answers with acceleration limits or falls over again, and the second outage is ours. So traffic
//! comes back in a ramp: a small limit that grows by a tenth and one every quarter of a second, and
//! beside it a rate of new calls that is at most one and a half times what worked before, or works
//! by now. Each rejection shrinks the limit and holds it for a second; some failures in one second
//! say that the deployment is not back at all.
//!
//! The same limit serves in good times: an overloaded answer shrinks it, and it grows back.

use std::collections::VecDeque;
use std::time::Duration;

use super::limiter::TokenBucket;
use crate::Mono;

/// Constants of a ramp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The configured limit of streams.
    pub streams: u32,
    /// Streams at first, at least.
    pub start_streams: u32,
    /// Streams at first, as a share of `streams`.
    pub start_share: f64,
    /// Growth per step, together with one more stream.
    pub growth: f64,
    /// Length of a step.
    pub step: Duration,
    /// What a rejection leaves of the limit.
    pub shrink: f64,
    /// No growth after a rejection for this long.
    pub hold: Duration,
    /// Failures in one second that mean that it is not back.
    pub failures: u32,
    /// New calls a second against those that worked.
    pub rate_factor: f64,
    /// New calls a second that are allowed in any case while ramping.
    pub rate_min: f64,
    /// The rate is bounded until this much time has passed without a restart.
    pub stable_after: Duration,
}

/// The adaptive limit of one deployment, and its rate while it ramps.
///
/// ```text
///          restart                    step: x growth + 1 (not while held)
///   full ----------> start_streams ---------------------------------------> full
///     |  rejected: x shrink, held                          ^
///     +----------------------------------------------------+
/// ```
///
/// | call | effect |
/// |---|---|
/// | [`limit`](Self::limit) | grows what is due and tells the limit |
/// | [`restart`](Self::restart), [`bound_rate`](Self::bound_rate) | begins a ramp and bounds the rate, or only bounds it |
/// | [`rejected`](Self::rejected) | shrinks and holds |
/// | [`failed`](Self::failed) | counts; true when the deployment is not back |
/// | [`ready_at`](Self::ready_at), [`take`](Self::take), [`give_back`](Self::give_back) | the bounded rate |
///
/// What holds: 1 <= limit <= streams; without rejections the limit never falls; the rate is bounded
/// only within `stable_after` of a restart.
#[derive(Clone, Debug)]
pub struct Ramp {
    settings: Settings,
    limit: f64,
    /// Steps are counted from here.
    grown_at: Mono,
    held_until: Mono,
    failures: VecDeque<Mono>,
    good: Meter,
    pace: Option<Pace>,
}

#[derive(Clone, Debug)]
struct Pace {
    since: Mono,
    /// Good calls a second before the outage.
    before: f64,
    bucket: TokenBucket,
}

impl Ramp {
    /// A full limit.
    #[must_use]
    pub fn new(settings: Settings, now: Mono) -> Self {
        Self {
            settings,
            limit: f64::from(settings.streams),
            grown_at: now,
            held_until: now,
            failures: VecDeque::new(),
            good: Meter::default(),
            pace: None,
        }
    }

    /// Streams allowed now.
    pub fn limit(&mut self, now: Mono) -> u32 {
        self.grow(now);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 <= limit <= streams")]
        let limit = self.limit as u32;
        limit.clamp(1, self.settings.streams)
    }

    /// Whether the limit is the configured one.
    pub fn is_full(&mut self, now: Mono) -> bool {
        self.limit(now) == self.settings.streams
    }

    /// Begins a ramp. `at_least` streams are allowed whatever the constants say (those in flight,
    /// when silence turns out to have been patience). `good_until` is when the last good time ended.
    pub fn restart(&mut self, now: Mono, at_least: u32, good_until: Mono) {
        let share = f64::from(self.settings.streams) * self.settings.start_share;
        let start = f64::from(self.settings.start_streams).max(share).max(f64::from(at_least));
        self.limit = start.min(f64::from(self.settings.streams));
        self.grown_at = now;
        self.held_until = now;
        self.failures.clear();
        self.bound_rate(now, now, good_until);
        self.assert_invariants();
    }

    /// Bounds the rate of new calls from the instant `from` on, without touching the limit: what
    /// follows a pause that the provider asked for.
    pub fn bound_rate(&mut self, now: Mono, from: Mono, good_until: Mono) {
        // A restart during a ramp remembers the good time before the first one.
        let earlier = self.pace.as_ref().map_or(0.0, |pace| pace.before);
        let before = self.good.rate(good_until, 10).max(earlier);
        let rate = (before * self.settings.rate_factor).max(self.settings.rate_min);
        let since = from.max(now);
        self.pace = Some(Pace { since, before, bucket: pace_bucket(rate, since) });
    }

    /// The deployment pushed back: less for now, and no growth for a while.
    pub fn rejected(&mut self, now: Mono) {
        self.grow(now);
        // One wave of rejections counts once: they all answer the same excess.
        if now < self.held_until {
            return;
        }
        self.limit = (self.limit * self.settings.shrink).max(1.0);
        self.held_until = now.after(self.settings.hold);
        self.assert_invariants();
    }

    /// A failure while ramping; true when there were so many in a second that it is not back.
    pub fn failed(&mut self, now: Mono) -> bool {
        while self.failures.front().is_some_and(|at| at.after(Duration::from_secs(1)) <= now) {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        self.failures.len() >= self.settings.failures as usize
    }

    /// A call brought a complete answer.
    pub fn succeeded(&mut self, now: Mono) {
        self.good.count(now);
    }

    /// When the bounded rate allows the next call; `now` when it is not bounded.
    pub fn ready_at(&mut self, now: Mono) -> Mono {
        self.pace(now).map_or(now, |pace| pace.bucket.ready_at(now, 1.0))
    }

    /// A call starts.
    pub fn take(&mut self, now: Mono) {
        if let Some(pace) = self.pace(now) {
            pace.bucket.take(now, 1.0);
        }
    }

    /// A call that was counted did not start after all.
    pub fn give_back(&mut self, now: Mono) {
        if let Some(pace) = self.pace(now) {
            pace.bucket.give(now, 1.0);
        }
    }

    /// When the limit grows next, if it is not full.
    pub fn next_growth(&mut self, now: Mono) -> Option<Mono> {
        (!self.is_full(now)).then(|| self.grown_at.max(self.held_until).after(self.settings.step))
    }

    fn grow(&mut self, now: Mono) {
        let full = f64::from(self.settings.streams);
        self.grown_at = self.grown_at.max(self.held_until.min(now));
        while self.limit < full && self.grown_at.after(self.settings.step) <= now {
            self.grown_at = self.grown_at.after(self.settings.step);
            self.limit = (self.limit * self.settings.growth + 1.0).min(full);
        }
        if self.limit >= full {
            self.grown_at = now.max(self.grown_at);
        }
    }

    fn pace(&mut self, now: Mono) -> Option<&mut Pace> {
        let stable_after = self.settings.stable_after;
        if self.pace.as_ref().is_some_and(|pace| pace.since.after(stable_after) <= now) {
            self.pace = None;
        }
        let pace = self.pace.as_mut()?;
        // What works by now may exceed what worked before; the rate follows it.
        let by_now = self.good.rate(now, 4);
        let rate = (by_now.max(pace.before) * self.settings.rate_factor).max(self.settings.rate_min);
        pace.bucket.set_rate(now, rate, burst(rate));
        Some(pace)
    }

    fn assert_invariants(&self) {
        debug_assert!(self.limit >= 1.0 && self.limit <= f64::from(self.settings.streams), "{self:?}");
    }
}

fn pace_bucket(rate: f64, now: Mono) -> TokenBucket {
    let mut bucket = TokenBucket::new(rate, burst(rate), now);
    // The first second starts from nothing but the probe: a full bucket would be a small herd.
    bucket.take(now, burst(rate) - 1.0);
    bucket
}

fn burst(rate: f64) -> f64 {
    (rate / 4.0).max(1.0)
}

/// Counts good calls by the second.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    seconds: VecDeque<(u64, u64)>,
}

impl Meter {
    const KEPT_S: u64 = 60;

    /// One good call.
    pub fn count(&mut self, now: Mono) {
        let at_s = now.ms() / 1000;
        match self.seconds.back_mut() {
            Some((last, n)) if *last >= at_s => *n += 1,
            _ => self.seconds.push_back((at_s, 1)),
        }
        while self.seconds.front().is_some_and(|(at, _)| at + Self::KEPT_S < at_s) {
            self.seconds.pop_front();
        }
    }

    /// Good calls a second in the `window_s` whole seconds before `until`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of seconds are far below 2^53")]
    pub fn rate(&self, until: Mono, window_s: u64) -> f64 {
        let end = until.ms() / 1000;
        let begin = end.saturating_sub(window_s);
        let counted = self.seconds.iter().filter(|(at, _)| (begin..end).contains(at));
        let n: u64 = counted.map(|(_, n)| n).sum();
        n as f64 / (end - begin).max(1) as f64
    }
}

#[cfg(test)]
mod tests;
