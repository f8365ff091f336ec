//! An open loop: calls begin at their instants whether or not earlier ones have ended, and latency
//! counts from the instant at which a call should have begun, so that a stall is not hidden.

use std::future::Future;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What a load measured, in microseconds.
pub(crate) struct Measured {
    histogram: Histogram<u64>,
    failed: usize,
}

impl Measured {
    /// A quantile in milliseconds.
    pub(crate) fn ms(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// Calls that failed; they are not in the histogram.
    pub(crate) fn failed(&self) -> usize {
        self.failed
    }
}

/// Calls `one` `per_s` times a second for `for_s` seconds.
pub(crate) async fn run<F, C>(per_s: u64, for_s: u64, one: F) -> Result<Measured>
where
    F: Fn() -> C,
    C: Future<Output = Result<()>> + Send + 'static,
{
    let mut calls = JoinSet::new();
    let begun = Instant::now();
    for n in 0..per_s * for_s {
        let due = begun + Duration::from_micros(n * 1_000_000 / per_s);
        tokio::time::sleep_until(due).await;
        let call = one();
        calls.spawn(async move { call.await.map(|()| due.elapsed()) });
    }
    let mut measured = Measured { histogram: Histogram::new(3)?, failed: 0 };
    while let Some(done) = calls.join_next().await {
        match done? {
            Ok(took) => measured.histogram.record(u64::try_from(took.as_micros())?.max(1))?,
            Err(_) => measured.failed += 1,
        }
    }
    Ok(measured)
}
