//! The handle of a replica's harness, as the edge holds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::agent::Agent;
use evenkeel_core::id::{ReplicaId, RunId};
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::feed::Feed;
use evenkeel_core::port::forge::Forge;
use evenkeel_core::port::model::Model;
use evenkeel_core::port::store::{Claim, Peer, StoreClient};
use evenkeel_core::port::tools::Tools;
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_env::slots::{Slot, SlotGauges, Slots};
use evenkeel_env::{Env, Task};
use serde::Serialize;

use crate::config::HarnessConfig;
use crate::dispatch::Dispatch;

/// The parts that the harness talks to.
#[derive(Clone)]
pub struct Parts {
    /// Threads, runs, events.
    pub store: StoreClient,
    /// The model router.
    pub model: Arc<dyn Model>,
    /// Tools and policy.
    pub tools: Arc<dyn Tools>,
    /// Workspaces and their snapshots.
    pub workspaces: Arc<dyn Workspaces>,
    /// Where results are delivered.
    pub forge: Arc<dyn Forge>,
    /// Local listeners.
    pub feed: Arc<dyn Feed>,
    /// Assistants by name.
    pub agents: BTreeMap<String, Agent>,
    /// Limits of the components inside the harness.
    pub slots: HarnessSlots,
}

/// Slots of the components inside the harness.
#[derive(Clone)]
pub struct HarnessSlots {
    /// Runs that are driven at once.
    pub harness: Slots,
    /// Summaries that are made at once.
    pub compactor: Slots,
}

/// Counters and gauges of a replica, for metrics and the console.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HarnessStats {
    /// Runs that are driven here now.
    pub n_running: usize,
    /// Claims begun here, by whatever way they came.
    pub n_claimed: u64,
    /// Claims taken over from dead replicas.
    pub n_stolen: u64,
    /// Runs parked here.
    pub n_parked: u64,
    /// Parked runs woken here.
    pub n_woken: u64,
    /// Times a run was parked until a person answers.
    pub n_asked: u64,
    /// Runs that ended here, by the word of their state.
    pub ended: BTreeMap<&'static str, u64>,
    /// Claims that were lost to a later one.
    pub n_fenced: u64,
    /// Times that the replica stopped itself because its lease was not confirmed.
    pub n_self_fenced: u64,
    /// Runs that ended by a panic.
    pub n_panicked: u64,
    /// Store operations that were tried again.
    pub n_store_retries: u64,
    /// Compactions carried out.
    pub n_compactions: u64,
    /// Whether the lease holds.
    pub lease_held: bool,
    /// Whether it drains.
    pub draining: bool,
}

/// A running harness. Dropping it stops everything at once, as a crash would: what it held is
/// taken over by others when its lease lapses. [`Harness::drain`] is the orderly end.
pub struct Harness {
    dispatch: Arc<Dispatch>,
    tasks: Vec<Task>,
}

impl Harness {
    /// Starts the loops of this replica. Claims nothing before the first heartbeat is confirmed.
    #[must_use]
    pub fn start(env: &Env, config: HarnessConfig, parts: Parts) -> Arc<Self> {
        let dispatch = Dispatch::new(env.part("harness"), config, parts);
        let tasks = dispatch.start_loops();
        Arc::new(Self { dispatch, tasks })
    }

    /// The incarnation that claims are made for. It changes when the replica had to fence itself.
    #[must_use]
    pub fn replica(&self) -> ReplicaId {
        self.dispatch.replica()
    }

    /// Runs that could be started now; 0 while draining or without a lease.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.dispatch.free_slots()
    }

    /// A slot for one claim that is about to be asked for; none while draining, without a lease, or
    /// when all are taken.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        self.dispatch.slot()
    }

    /// Takes back a slot for which there was no claim.
    pub fn unused(&self, slot: Slot) {
        self.dispatch.unused(slot);
    }

    /// Starts a claim that was obtained by `admit` for [`Harness::replica`], in its slot.
    pub fn adopt(&self, claim: Claim, slot: Slot) {
        self.dispatch.adopt(claim, slot);
    }

    /// Something is queued: look now.
    pub fn nudge(&self) {
        self.dispatch.nudge();
    }

    /// Another process stored something that concerns a run here: look for it now.
    pub fn look(&self) {
        self.dispatch.look();
    }

    /// The other replicas, as the store last told of them.
    #[must_use]
    pub fn peers(&self) -> Vec<Peer> {
        self.dispatch.peers()
    }

    /// A cancel of this run was stored: stop it now, if it runs here.
    pub fn cancel(&self, run: RunId) {
        self.dispatch.cancel(run);
    }

    /// Claims nothing more, hands every run back at its next step boundary, and leaves the store.
    /// Ready when nothing runs here any more.
    #[must_use]
    pub fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.dispatch.drain())
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> HarnessStats {
        self.dispatch.stats()
    }

    /// Gauges of the harness's and the compactor's slots.
    #[must_use]
    pub fn slots(&self) -> [SlotGauges; 2] {
        self.dispatch.slot_gauges()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.dispatch.drop_all_runs();
    }
}
