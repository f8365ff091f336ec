//! Clocks that go wrong: each simulated host has one of its own, and so has the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use evenkeel_core::{Mono, Wall};
use evenkeel_env::Clock;

/// The simulation's clock as one host sees it.
pub(crate) struct HostClock {
    inner: Arc<dyn Clock>,
    off_by_ms: AtomicI64,
    /// Whether the monotonic time is off as well.
    with_mono: bool,
}

impl HostClock {
    /// The clock of a host that runs processes: only its wall time can be set.
    pub(super) fn of_process(inner: &Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), off_by_ms: AtomicI64::new(0), with_mono: false })
    }

    /// The clock of the store's host. PostgreSQL judges leases by its wall time, and the engine in
    /// memory, which stands for it, by its monotonic time: here both are the same clock.
    pub(super) fn of_store(inner: &Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), off_by_ms: AtomicI64::new(0), with_mono: true })
    }

    /// Sets it forward, or back.
    pub(crate) fn shift(&self, by_ms: i64) {
        self.off_by_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    fn off(&self, ms: u64) -> u64 {
        ms.saturating_add_signed(self.off_by_ms.load(Ordering::Relaxed))
    }
}

impl Clock for HostClock {
    fn wall(&self) -> Wall {
        Wall(self.off(self.inner.wall().ms()))
    }

    fn mono(&self) -> Mono {
        let mono = self.inner.mono();
        if self.with_mono { Mono(self.off(mono.ms())) } else { mono }
    }
}
