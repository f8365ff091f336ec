//! What every run on this replica shares: the parts, the settings, the lease and the counters.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::control::lease::Lease;
use evenkeel_core::run::RunState;
use evenkeel_core::{Code, Error, Origin, Wall};
use evenkeel_env::Env;

use tokio::time::timeout;

use crate::config::HarnessConfig;
use crate::harness::Parts;
use crate::kept::Kept;

/// How long an operation of the store may take. Then its outcome is unknown: it may have happened,
/// or may still happen.
const STORE_WAIT: Duration = Duration::from_secs(5);

/// Shared by the loops and the runs of a replica.
pub(crate) struct Host {
    pub(crate) env: Env,
    pub(crate) config: HarnessConfig,
    pub(crate) parts: Parts,
    lease: Mutex<Lease>,
    counters: Mutex<Counters>,
    kept: Mutex<Kept>,
}

/// What has happened here so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) n_claimed: u64,
    pub(crate) n_stolen: u64,
    pub(crate) n_parked: u64,
    pub(crate) n_woken: u64,
    pub(crate) n_asked: u64,
    pub(crate) ended: BTreeMap<&'static str, u64>,
    pub(crate) n_fenced: u64,
    pub(crate) n_self_fenced: u64,
    pub(crate) n_panicked: u64,
    pub(crate) n_store_retries: u64,
    pub(crate) n_compactions: u64,
}

impl Host {
    pub(crate) fn new(env: Env, config: HarnessConfig, parts: Parts) -> Self {
        let lease = Lease::new(config.lease_times(), env.mono());
        Self {
            env,
            config,
            parts,
            lease: Mutex::new(lease),
            counters: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    pub(crate) fn now(&self) -> Wall {
        self.env.wall()
    }

    pub(crate) fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this replica may still act on what it claimed. Asked right before anything outside
    /// is touched, because after a long stop of the process the loop that fences may run late.
    pub(crate) fn holds_lease(&self) -> bool {
        let now = self.env.mono();
        self.lease().holds(now)
    }

    /// Conversations kept between turns.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn count_ended(&self, state: RunState) {
        self.count(|counters| *counters.ended.entry(state.as_str()).or_default() += 1);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The answer of a store operation, or an error when none comes: neither a loop nor a run may
    /// hang with it.
    pub(crate) async fn answer<T>(
        &self,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timeout(STORE_WAIT, operation).await.unwrap_or_else(|_| {
            let message = "The store did not answer in time.";
            let remedy = "Look at the store's load and its connection.";
            Err(Error::new(Code::StoreUnavailable, Origin::Store, message, remedy).retryable())
        })
    }

    /// Waits before a store operation is tried again: 50 ms doubled up to one second, with jitter
    /// so that the runs of a replica do not come back in one instant.
    pub(crate) async fn store_pause(&self, n_tries: u32) {
        self.count(|counters| counters.n_store_retries += 1);
        let base = 50u64.saturating_mul(1 << n_tries.min(5)).min(1_000);
        let wait = base / 2 + self.env.generator.below(base / 2 + 1);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
}
