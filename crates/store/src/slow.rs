//! A store that answers late: the seam for the fault "slow store".
//!
//! It wraps any engine and holds each reply back, so that an operation takes `factor` times as
//! long as it did. The operation itself is untouched: when the caller goes away while the reply is
//! held back it has happened all the same, as with a slow disk or network. An engine in memory
//! takes no time that could be multiplied; `base` is then taken as its time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use tokio::time::Instant;

/// How slow a store is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// How many times as long an operation takes; 1 is full speed.
    pub factor: f64,
    /// The time that an operation counts as having taken at least, before it is multiplied.
    pub base: Duration,
}

impl Slowness {
    /// Full speed.
    pub const NONE: Self = Self { factor: 1.0, base: Duration::ZERO };

    /// How long a reply is held back after an operation that took `took`.
    fn held_back(self, took: Duration) -> Duration {
        let extra = (self.factor - 1.0).max(0.0) * took.max(self.base).as_secs_f64();
        Duration::try_from_secs_f64(extra).unwrap_or(Duration::ZERO)
    }
}

/// An engine whose replies can be held back.
pub struct SlowStore {
    inner: Arc<dyn Store>,
    slowness: Mutex<Slowness>,
}

impl SlowStore {
    /// Wraps an engine; at full speed until [`SlowStore::set`] is called.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, slowness: Mutex::new(Slowness::NONE) })
    }

    /// Sets the speed of all operations that answer from now on.
    pub fn set(&self, slowness: Slowness) {
        *self.slowness.lock().unwrap_or_else(PoisonError::into_inner) = slowness;
    }

    /// The speed now.
    #[must_use]
    pub fn slowness(&self) -> Slowness {
        *self.slowness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for SlowStore {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let begun = Instant::now();
            let reply = self.inner.apply(op).await;
            let wait = self.slowness().held_back(begun.elapsed());
            // Who could not reach the store has waited long enough: a slow disk makes no line slower.
            if reply.is_ok() && !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            reply
        })
    }
}
