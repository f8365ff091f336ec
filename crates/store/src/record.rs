//! Stored shapes: one struct for each row that a decision loads, changes and saves.
//!
//! Rows hold what changes often. What is written once and may be large (a run's spec and outcome,
//! a thread's metadata) is stored beside them and loaded only where it is needed.
//!
//! PostgreSQL keeps thread and run rows as JSON; a field that is added later therefore needs a
//! default, so that earlier rows are read.

use std::collections::BTreeMap;

use evenkeel_core::id::{IdempotencyKey, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::message::Usage;
use evenkeel_core::port::model::Health;
use evenkeel_core::port::store::Peer;
use evenkeel_core::run::{BusyPolicy, Class, EndReason, Outcome, Run, RunSpec, RunState, Waiting};
use evenkeel_core::thread::Thread;
use evenkeel_core::{Mono, Wall};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A thread without its metadata.
///
/// `active` is the run that holds the thread: the claimed, parked or released one, or the queued
/// one that is next to be claimed. It is `None` exactly when no run of the thread is open, so a
/// thread with waiting turns always has a holder that is owned or can be claimed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ThreadRow {
    /// Key inside the engine, in order of arrival.
    #[serde(skip)]
    pub(crate) n: u64,
    pub(crate) id: ThreadId,
    pub(crate) tenant: TenantId,
    pub(crate) created_at: Wall,
    pub(crate) updated_at: Wall,
    pub(crate) version: u64,
    pub(crate) epoch: u64,
    pub(crate) seq_last: u64,
    pub(crate) context_from: u64,
    /// The event that set `context_from`: from it on to the newest the context begins there. A
    /// rewind to an earlier event cannot know where the context began then.
    pub(crate) context_at: u64,
    pub(crate) active: Option<RunId>,
    /// The active run waits until a person answers.
    #[serde(default)]
    pub(crate) asks: bool,
    /// Open runs of the thread besides the active one.
    pub(crate) n_waiting: u32,
    /// The newest run that is not hidden.
    pub(crate) newest_run: Option<RunId>,
    pub(crate) busy_policy: Option<BusyPolicy>,
}

impl ThreadRow {
    /// A new, empty thread; the engine gives it its key.
    pub(crate) fn new(tenant: TenantId, id: ThreadId, now: Wall) -> Self {
        Self {
            n: 0,
            id,
            tenant,
            created_at: now,
            updated_at: now,
            version: 0,
            epoch: 0,
            seq_last: 0,
            context_from: 1,
            context_at: 0,
            active: None,
            asks: false,
            n_waiting: 0,
            newest_run: None,
            busy_policy: None,
        }
    }

    /// The thread as the contract shows it.
    pub(crate) fn into_thread(self, metadata: Value, newest_state: Option<RunState>) -> Thread {
        Thread {
            id: self.id,
            tenant: self.tenant,
            metadata,
            created_at: self.created_at,
            updated_at: self.updated_at,
            version: self.version,
            epoch: self.epoch,
            seq_last: self.seq_last,
            active: self.active,
            asks: self.asks,
            n_waiting: self.n_waiting,
            newest_run: self.newest_run,
            newest_state,
            busy_policy: self.busy_policy,
        }
    }
}

/// A run without its spec and outcome.
///
/// `ready` holds exactly for the queued run that is active on its thread: the one that can be
/// claimed now. `owner` is set exactly while the state is `running` or `cancelling`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRow {
    /// Key inside the engine, in order of arrival: the order of the inbox.
    #[serde(skip)]
    pub(crate) n: u64,
    pub(crate) id: RunId,
    /// Key of its thread.
    #[serde(skip)]
    pub(crate) thread_n: u64,
    pub(crate) thread: ThreadId,
    pub(crate) tenant: TenantId,
    pub(crate) state: RunState,
    pub(crate) ready: bool,
    /// It is not claimed for the first time before this instant.
    pub(crate) not_before: Option<Wall>,
    /// Why it is to end without its own answer.
    pub(crate) stop: Option<EndReason>,
    /// Where its thread stood before its first claim; `None` until then.
    pub(crate) base: Option<Base>,
    pub(crate) wait: Option<Waiting>,
    pub(crate) step: u32,
    pub(crate) attempt: u32,
    pub(crate) owner: Option<ReplicaId>,
    pub(crate) version: Option<u64>,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) body_hash: String,
    pub(crate) class: Class,
    pub(crate) busy_policy: BusyPolicy,
    pub(crate) deadline: Wall,
    pub(crate) created_at: Wall,
    pub(crate) updated_at: Wall,
    pub(crate) usage: Usage,
}

impl RunRow {
    /// The run as the contract shows it.
    pub(crate) fn into_run(self, position: u32, spec: RunSpec, outcome: Option<Outcome>) -> Run {
        Run {
            id: self.id,
            thread: self.thread,
            tenant: self.tenant,
            state: self.state,
            wait: self.wait,
            position,
            not_before: self.not_before.filter(|_| self.state == RunState::Queued),
            stop: self.stop.filter(|_| !self.state.is_terminal()),
            step: self.step,
            attempt: self.attempt,
            owner: self.owner,
            version: self.version,
            key: self.key,
            created_at: self.created_at,
            updated_at: self.updated_at,
            spec,
            outcome,
            usage: self.usage,
        }
    }
}

/// Where a thread stood before a run's first event: what undoing the run goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    pub(crate) seq: u64,
    pub(crate) context_from: u64,
}

/// What is stored of an effect: which of its two events exist.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EffectRow {
    pub(crate) intended: bool,
    pub(crate) settled: bool,
}

/// The replicas of this store and their leases.
///
/// An engine of one process keeps them there and judges them by its monotonic clock: a jump of the
/// wall clock ends no lease, and after a restart every earlier replica is unknown, which counts as
/// lapsed. PostgreSQL keeps them in a table and judges them by the database's clock, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replicas {
    by_id: BTreeMap<ReplicaId, Lease>,
}

/// A replica's lease.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) until: Mono,
    pub(crate) address: Option<String>,
    pub(crate) draining: bool,
    pub(crate) health: Vec<Health>,
}

/// A lapsed replica is forgotten after this long; a zombie that beats later than that is fenced
/// all the same, it is only not told `held: false`.
pub(crate) const FORGET_AFTER_MS: u64 = 24 * 60 * 60 * 1000;

impl Replicas {
    /// Whether the replica holds no lease now.
    pub(crate) fn lapsed(&self, replica: ReplicaId, now: Mono) -> bool {
        self.by_id.get(&replica).is_none_or(|lease| lease.until < now)
    }

    /// Renews a lease; says whether it had not lapsed.
    pub(crate) fn beat(&mut self, replica: ReplicaId, lease: Lease, now: Mono) -> bool {
        self.by_id.retain(|_, lease| now.0.saturating_sub(lease.until.0) < FORGET_AFTER_MS);
        let held = self.by_id.get(&replica).is_none_or(|lease| lease.until >= now);
        self.by_id.insert(replica, lease);
        held
    }

    /// A replica's lease as it is stored.
    pub(crate) fn get(&self, replica: ReplicaId) -> Option<&Lease> {
        self.by_id.get(&replica)
    }

    /// Takes a stored lease.
    pub(crate) fn put(&mut self, replica: ReplicaId, lease: Lease) {
        self.by_id.insert(replica, lease);
    }

    /// Forgets a replica.
    pub(crate) fn leave(&mut self, replica: ReplicaId) {
        self.by_id.remove(&replica);
    }

    /// All replicas but `me`.
    pub(crate) fn peers(&self, me: ReplicaId, now: Mono) -> Vec<Peer> {
        let others = self.by_id.iter().filter(|(replica, _)| **replica != me);
        let peer = |(replica, lease): (&ReplicaId, &Lease)| Peer {
            replica: *replica,
            address: lease.address.clone(),
            lapsed: lease.until < now,
            draining: lease.draining,
            health: lease.health.clone(),
        };
        others.map(peer).collect()
    }
}
