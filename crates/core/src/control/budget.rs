//! The retry budget: retries in proportion to what works.
//!
//! A retry is only worth its load when most calls succeed; when nothing succeeds, retries multiply
//! the very load that keeps a provider down. So one pool earns retries from its successes of the
//! last ten seconds, plus a small steady grant, so that a quiet pool can retry at all. Everyone who
//! would call the same deployment again pays here; layers above own no retries of their own.
//!
//! ```text
//!   earned(now) = share x successes in [now - 10 s, now] + per_s x 10
//!   spent(now)  = costs granted  in [now - 10 s, now]
//!   a cost is granted  <=>  spent + cost <= earned
//! ```

use std::collections::VecDeque;

use crate::Mono;

const WINDOW_S: u64 = 10;

/// One pool's retry budget.
///
/// | call | effect |
/// |---|---|
/// | [`success`](Self::success) | earns `share` for ten seconds |
/// | [`take`](Self::take) | spends, or refuses and changes nothing |
///
/// What holds: the costs granted in any ten seconds never exceed what was earned when the last of
/// them was granted.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    share: f64,
    per_s: f64,
    /// Per second: successes and granted costs. Ordered, never longer than the window.
    seconds: VecDeque<Second>,
}

#[derive(Clone, Copy, Debug)]
struct Second {
    at_s: u64,
    n_successes: u64,
    spent: f64,
}

impl RetryBudget {
    /// A budget of `share` retries per success and `per_s` retries a second in any case.
    #[must_use]
    pub fn new(share: f64, per_s: f64) -> Self {
        Self { share: share.max(0.0), per_s: per_s.max(0.0), seconds: VecDeque::new() }
    }

    /// A call succeeded.
    pub fn success(&mut self, now: Mono) {
        self.second(now).n_successes += 1;
    }

    /// Spends `cost` if the budget allows it.
    pub fn take(&mut self, now: Mono, cost: f64) -> bool {
        self.forget(now);
        if self.level() + 1e-9 < cost {
            return false;
        }
        self.second(now).spent += cost;
        self.assert_invariants();
        true
    }

    /// What could be spent now.
    #[must_use]
    pub fn available(&mut self, now: Mono) -> f64 {
        self.forget(now);
        self.level().max(0.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of ten seconds are far below 2^53")]
    fn level(&self) -> f64 {
        let n_successes: u64 = self.seconds.iter().map(|second| second.n_successes).sum();
        let spent: f64 = self.seconds.iter().map(|second| second.spent).sum();
        self.share * n_successes as f64 + self.per_s * WINDOW_S as f64 - spent
    }

    fn forget(&mut self, now: Mono) {
        let oldest = (now.ms() / 1000).saturating_sub(WINDOW_S - 1);
        while self.seconds.front().is_some_and(|second| second.at_s < oldest) {
            self.seconds.pop_front();
        }
    }

    fn second(&mut self, now: Mono) -> &mut Second {
        self.forget(now);
        let at_s = now.ms() / 1000;
        // A clock that stands still or a late event lands in the newest second.
        if self.seconds.back().is_none_or(|second| second.at_s < at_s) {
            self.seconds.push_back(Second { at_s, n_successes: 0, spent: 0.0 });
        }
        self.seconds.back_mut().expect("a second was just added if there was none")
    }

    fn assert_invariants(&self) {
        debug_assert!(self.level() >= -1e-6, "overspent: {self:?}");
        debug_assert!(self.seconds.len() as u64 <= WINDOW_S, "remembers too much: {self:?}");
        debug_assert!(self.seconds.iter().is_sorted_by_key(|second| second.at_s));
    }
}

#[cfg(test)]
mod tests;
