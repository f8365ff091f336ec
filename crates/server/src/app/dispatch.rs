//! What the edge asks of the harness and of the router, as two small doors.

use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::id::{ReplicaId, RunId};
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Claim, Peer};
use evenkeel_env::slots::Slot;
use evenkeel_harness::{Harness, HarnessStats};
use evenkeel_model::{Operation, Router, RouterSnapshot};

/// Who runs what was admitted.
pub trait Dispatch: Send + Sync {
    /// The incarnation that claims are made for.
    fn replica(&self) -> ReplicaId;
    /// Runs that could be started now.
    fn free_slots(&self) -> usize;
    /// A slot for one claim that is about to be asked for, if one is free.
    fn slot(&self) -> Option<Slot>;
    /// Takes back a slot for which there was no claim.
    fn unused(&self, slot: Slot) {
        drop(slot);
    }
    /// Starts a claim that was obtained by `admit`, in its slot.
    fn adopt(&self, claim: Claim, slot: Slot);
    /// Something is queued: look now.
    fn nudge(&self);
    /// Another process stored something that concerns a run here: look for it now.
    fn look(&self) {}
    /// The other replicas, as the store last told of them.
    fn peers(&self) -> Vec<Peer> {
        Vec::new()
    }
    /// A cancel of this run was stored.
    fn cancel(&self, run: RunId);
    /// Hands every run back at its next step boundary; ready when nothing runs here.
    fn drain(&self) -> BoxFuture<'_, ()>;
    /// Counters and gauges.
    fn stats(&self) -> HarnessStats;
}

/// The router, as operators see it.
pub trait Routing: Send + Sync {
    /// What it knows now.
    fn snapshot(&self) -> RouterSnapshot;
    /// Drains, enables or probes a deployment.
    ///
    /// # Errors
    /// `not-found` when there is no such deployment.
    fn operate(&self, deployment: &str, operation: Operation) -> Result<(), Error>;
}

impl Routing for Router {
    fn snapshot(&self) -> RouterSnapshot {
        Self::snapshot(self)
    }

    fn operate(&self, deployment: &str, operation: Operation) -> Result<(), Error> {
        Self::operate(self, deployment, operation)
    }
}

/// The harness of this process.
pub(super) struct Harnessed(pub(super) Arc<Harness>);

impl Dispatch for Harnessed {
    fn replica(&self) -> ReplicaId {
        self.0.replica()
    }

    fn free_slots(&self) -> usize {
        self.0.free_slots()
    }

    fn slot(&self) -> Option<Slot> {
        self.0.slot()
    }

    fn unused(&self, slot: Slot) {
        self.0.unused(slot);
    }

    fn adopt(&self, claim: Claim, slot: Slot) {
        self.0.adopt(claim, slot);
    }

    fn nudge(&self) {
        self.0.nudge();
    }

    fn look(&self) {
        self.0.look();
    }

    fn peers(&self) -> Vec<Peer> {
        self.0.peers()
    }

    fn cancel(&self, run: RunId) {
        self.0.cancel(run);
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        self.0.drain()
    }

    fn stats(&self) -> HarnessStats {
        self.0.stats()
    }
}
