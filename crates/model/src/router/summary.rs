//! Quantiles of durations in a few hundred bytes: buckets that grow by a fifth.

use std::time::Duration;

use super::snapshot::SummarySnapshot;

const N_BUCKETS: usize = 80;
const GROWTH: f64 = 1.2;
/// Fewer values say nothing of what is usual.
const N_TO_KNOW: u64 = 20;

/// A histogram of milliseconds from 1 to about 1.8 million.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Summary {
    fn default() -> Self {
        Self { buckets: vec![0; N_BUCKETS], count: 0, max: 0 }
    }
}

impl Summary {
    /// Adds a value.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the logarithm of a positive number of milliseconds is small"
    )]
    pub(super) fn add(&mut self, value: Duration) {
        let ms = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
        let idx = ((ms.max(1) as f64).ln() / GROWTH.ln()).round() as usize;
        self.buckets[idx.min(N_BUCKETS - 1)] += 1;
        self.count += 1;
        self.max = self.max.max(ms);
    }

    /// The 95th percentile, once enough values were seen to speak of one.
    #[must_use]
    pub(super) fn usual(&self) -> Option<Duration> {
        (self.count >= N_TO_KNOW).then(|| Duration::from_millis(self.quantile(95)))
    }

    /// The quantiles.
    #[must_use]
    pub(super) fn snapshot(&self) -> SummarySnapshot {
        SummarySnapshot { count: self.count, p50: self.quantile(50), p95: self.quantile(95), max: self.max }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_possible_wrap,
        reason = "there are eighty buckets"
    )]
    fn quantile(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        for (idx, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted && seen > 0 {
                return (GROWTH.powi(idx as i32).round() as u64).min(self.max);
            }
        }
        self.max
    }
}
