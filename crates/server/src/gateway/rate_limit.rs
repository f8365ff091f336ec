//! How often: one bucket for everybody, one for each key with a rate of its own.
//!
//! A bucket fills evenly and holds what arrives in [`BURST_S`] seconds, so a client may be uneven
//! but not faster than its rate. Refusals name the time until the next token.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::{Code, Error, Mono};

use super::auth::Caller;

/// Seconds' worth of tokens that a bucket holds.
const BURST_S: f64 = 2.0;
/// Buckets of keys kept at most; full ones are forgotten first.
const BUCKETS_MAX: usize = 10_000;

/// A token bucket. Decisions take the time as an argument.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    per_ms: f64,
    holds: f64,
    tokens: f64,
    at: Mono,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn per_minute(calls: u32) -> Self {
        let per_ms = f64::from(calls) / 60_000.0;
        let holds = (per_ms * 1000.0 * BURST_S).max(1.0);
        Self { per_ms, holds, tokens: holds, at: Mono(0) }
    }

    /// Takes a token, or says when there is one.
    pub(crate) fn take(&mut self, now: Mono) -> Result<(), Duration> {
        self.fill(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let ms = if self.per_ms > 0.0 { (1.0 - self.tokens) / self.per_ms } else { 60_000.0 };
        Err(Duration::from_secs_f64(ms / 1000.0))
    }

    fn fill(&mut self, now: Mono) {
        let passed_ms = now.since(self.at).as_secs_f64() * 1000.0;
        self.tokens = (self.tokens + passed_ms * self.per_ms).min(self.holds);
        self.at = self.at.max(now);
    }

    fn is_full(&self) -> bool {
        self.tokens >= self.holds
    }
}

/// The rates of this process.
pub(crate) struct RateLimit {
    all: Mutex<Bucket>,
    by_key: Mutex<BTreeMap<String, Bucket>>,
}

impl RateLimit {
    /// With this many requests per minute over all callers.
    pub(crate) fn new(calls_per_min: u32) -> Self {
        Self { all: Mutex::new(Bucket::per_minute(calls_per_min)), by_key: Mutex::default() }
    }

    /// Counts a request against the rate of everybody.
    pub(crate) fn take_global(&self, now: Mono) -> Result<(), Error> {
        let taken = self.all.lock().unwrap_or_else(PoisonError::into_inner).take(now);
        taken.map_err(|wait| limited("The server takes no more requests this minute.", wait))
    }

    /// Counts a request against its key's own rate.
    pub(crate) fn take_own(&self, caller: &Caller, now: Mono) -> Result<(), Error> {
        let (Some(key), Some(calls_per_min)) = (&caller.key, caller.calls_per_min) else {
            return Ok(());
        };
        let mut buckets = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(key) {
            buckets.retain(|_, bucket| {
                bucket.fill(now);
                !bucket.is_full()
            });
        }
        let bucket = buckets.entry(key.clone()).or_insert_with(|| {
            let mut bucket = Bucket::per_minute(calls_per_min);
            bucket.at = now;
            bucket
        });
        bucket.take(now).map_err(|wait| limited("This API key's rate is used up.", wait))
    }
}

fn limited(message: &'static str, wait: Duration) -> Error {
    Error::client(Code::RateLimited, message, "Wait for the time in Retry-After, then send it again.")
        .retry_after(wait)
}
