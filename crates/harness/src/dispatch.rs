//! The loops of a replica and the set of runs that are driven here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_core::id::{ReplicaId, RunId};
use evenkeel_core::port::store::Claim;
use evenkeel_env::slots::SlotGauges;
use evenkeel_env::{Env, Task};

use crate::config::HarnessConfig;
use crate::harness::{HarnessStats, Parts};

pub(crate) struct Dispatch {
    parts: Parts,
    replica: ReplicaId,
    draining: AtomicBool,
}

impl Dispatch {
    pub(crate) fn new(env: Env, _config: HarnessConfig, parts: Parts) -> Arc<Self> {
        let replica = ReplicaId::new(env.wall(), &env.generator);
        Arc::new(Self { parts, replica, draining: AtomicBool::new(false) })
    }

    pub(crate) fn start_loops(self: &Arc<Self>) -> Vec<Task> {
        Vec::new()
    }

    pub(crate) fn replica(&self) -> ReplicaId {
        self.replica
    }

    pub(crate) fn free_slots(&self) -> usize {
        0
    }

    pub(crate) fn adopt(&self, _claim: Claim) {}

    pub(crate) fn nudge(&self) {}

    pub(crate) fn cancel(&self, _run: RunId) {}

    pub(crate) async fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> HarnessStats {
        HarnessStats { draining: self.draining.load(Ordering::Relaxed), ..HarnessStats::default() }
    }

    pub(crate) fn slot_gauges(&self) -> [SlotGauges; 2] {
        [self.parts.slots.harness.gauges(), self.parts.slots.compactor.gauges()]
    }

    pub(crate) fn drop_all_runs(&self) {}
}
