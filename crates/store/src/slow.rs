//! A store that answers late: the seam for the fault "slow store".
//!
//! It wraps any engine and holds each reply back, so that an operation takes `factor` times as
//! long as it did. The operation itself is untouched: when the caller goes away while the reply is
//! held back it has happened all the same, as with a slow disk or network. An engine in memory
//! takes no time that could be multiplied; `base` is then taken as its time.
//!
//! What holds: no reply is held back for longer than the store is slow. An operation that waited a
//! long time for something else, such as a connection, would otherwise be held back for minutes
//! after everything is fast again.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_env::watch;
use tokio::time::{Instant, timeout_at};

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
    slowness: watch::Sender<Slowness>,
}

impl SlowStore {
    /// Wraps an engine; at full speed until [`SlowStore::set`] is called.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, slowness: watch::Sender::new(Slowness::NONE) })
    }

    /// Sets the speed of all operations that have not answered yet.
    pub fn set(&self, slowness: Slowness) {
        self.slowness.send_replace(slowness);
    }

    /// The speed now.
    #[must_use]
    pub fn slowness(&self) -> Slowness {
        *self.slowness.borrow()
    }

    /// Holds a reply back that was there at `ready` after an operation that took `took`, for as long
    /// as the speed of the moment wants it.
    async fn hold_back(&self, ready: Instant, took: Duration) {
        let mut slowness = self.slowness.subscribe();
        loop {
            let wait = slowness.borrow_and_update().held_back(took);
            // Only a change of the speed within that time is worth another look.
            if wait.is_zero() || timeout_at(ready + wait, slowness.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Store for SlowStore {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let begun = Instant::now();
            let reply = self.inner.apply(op).await;
            // Who could not reach the store has waited long enough: a slow disk makes no line slower.
            if reply.is_ok() {
                self.hold_back(Instant::now(), begun.elapsed()).await;
            }
            reply
        })
    }
}
