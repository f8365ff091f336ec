//! What an engine offers to the decisions: typed access to rows inside one transaction.
//!
//! Every method does one lookup or one write and decides nothing. Lookups by an id that a client
//! can name take the tenant and have it in their predicate. Methods that take an engine key (`n`)
//! are only called with keys that such a lookup, or a queue of the engine, has returned.

use evenkeel_core::id::{BlobId, EffectId, IdempotencyKey, MessageId, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::store::{ApiKey, Effect, Held, ListRuns, ListThreads};
use evenkeel_core::run::{BusyPolicy, Outcome, RunSpec, RunState, WaitReason};
use evenkeel_core::thread::Thread;
use evenkeel_core::{Code, Error, Origin, Wall};
use serde_json::Value;

use crate::record::{EffectRow, RunRow, ThreadRow};

/// Why rows could not be read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// No space is left for this write; nothing of it was kept.
    #[error("no space is left")]
    Full,
    /// The file, or a row in it, is damaged.
    #[error("damaged: {0}")]
    Corrupt(String),
    /// The medium failed, or a read took too long.
    #[error("not available: {0}")]
    Unavailable(String),
    /// The caller broke the contract; a fault of ours.
    #[error("not allowed: {0}")]
    Misused(String),
    /// What is asked for was not loaded yet: the engine loads it and decides again. Never leaves it.
    #[error("not loaded")]
    NotLoaded,
}

/// The result of a row access.
pub(crate) type Rowed<T> = Result<T, Fault>;

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Full => Self::new(
                Code::StoreFull,
                Origin::Store,
                "The disk that holds the store is full; the operation was not stored.",
                "Free space on that disk; the store goes on by itself.",
            )
            .retryable(),
            Fault::Corrupt(what) => Self::new(
                Code::StoreCorrupt,
                Origin::Store,
                format!("The store is damaged: {what}."),
                "Stop the server and restore the data directory from a backup.",
            ),
            Fault::Unavailable(what) => Self::new(
                Code::StoreUnavailable,
                Origin::Store,
                format!("The store cannot answer: {what}."),
                "Read the state again before repeating anything; see the log if this lasts.",
            )
            .retryable(),
            Fault::Misused(what) => Self::internal(format!("The store refused an operation: {what}.")),
            Fault::NotLoaded => Self::internal("The store decided on rows that it had not loaded."),
        }
    }
}

/// An event on its way into the log.
pub(crate) struct Entry<'a> {
    pub(crate) thread_n: u64,
    pub(crate) thread: ThreadId,
    pub(crate) seq: u64,
    pub(crate) run_n: u64,
    pub(crate) run: RunId,
    pub(crate) step: u32,
    pub(crate) at: Wall,
    pub(crate) body: &'a EventBody,
}

/// The blob that an event names outside of its own body.
pub(crate) fn named_blob(body: &EventBody) -> Option<&BlobId> {
    match body {
        EventBody::EffectSettled(result) => result.blob.as_ref(),
        _ => None,
    }
}

/// Whether `value` has all members of `wanted` with equal values, at the top level.
pub(crate) fn has_members(value: &Value, wanted: &Value) -> bool {
    let members = wanted.as_object().into_iter().flatten();
    members.into_iter().all(|(name, wanted)| value.get(name) == Some(wanted))
}

/// Which of an effect's two events is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EffectSide {
    Intended,
    Settled,
}

/// Rows inside one transaction.
pub(crate) trait Rows {
    // Threads.
    fn thread(&mut self, tenant: &TenantId, id: ThreadId) -> Rowed<Option<ThreadRow>>;
    fn thread_of(&mut self, n: u64) -> Rowed<ThreadRow>;
    /// Whether any tenant has a thread of this id.
    fn thread_id_taken(&mut self, id: ThreadId) -> Rowed<bool>;
    fn insert_thread(&mut self, row: &ThreadRow, metadata: &Value) -> Rowed<u64>;
    fn save_thread(&mut self, row: &ThreadRow) -> Rowed<()>;
    fn metadata(&mut self, thread_n: u64) -> Rowed<Value>;
    fn save_metadata(&mut self, thread_n: u64, metadata: &Value) -> Rowed<()>;
    fn list_threads(&mut self, list: &ListThreads) -> Rowed<Vec<Thread>>;
    fn count_threads(&mut self, list: &ListThreads) -> Rowed<u64>;
    /// Removes the thread with its runs (hidden ones too), writers, events, effects, keys and
    /// accepted messages, and the blobs that no other thread names.
    fn delete_thread(&mut self, thread: &ThreadRow) -> Rowed<()>;

    // Runs. Lookups and lists do not find hidden ones; `run_of` and `run_id_taken` do.
    fn run(&mut self, tenant: &TenantId, id: RunId) -> Rowed<Option<RunRow>>;
    fn run_of(&mut self, n: u64) -> Rowed<RunRow>;
    /// Whether any tenant has a run, or a writer, of this id.
    fn run_id_taken(&mut self, id: RunId) -> Rowed<bool>;
    fn insert_run(&mut self, row: &RunRow, spec: &RunSpec) -> Rowed<u64>;
    fn save_run(&mut self, row: &RunRow) -> Rowed<()>;
    /// Saves only what a step changes: the step, the usage and the time. No queue sees these, so an
    /// engine need not touch its indexes.
    fn save_progress(&mut self, row: &RunRow) -> Rowed<()>;
    fn spec(&mut self, run_n: u64) -> Rowed<RunSpec>;
    fn outcome(&mut self, run_n: u64) -> Rowed<Option<Outcome>>;
    fn save_outcome(&mut self, run_n: u64, outcome: &Outcome) -> Rowed<()>;
    /// Takes an ended run out of every list and lookup; its events stay in the log.
    fn hide_run(&mut self, run_n: u64) -> Rowed<()>;
    /// Makes an author of events that is no run; returns its key for [`Entry::run_n`].
    fn insert_writer(&mut self, thread: &ThreadRow, writer: RunId) -> Rowed<u64>;
    /// Queued runs of a thread in order of arrival, the one that is next to be claimed too.
    fn queued(&mut self, thread_n: u64, limit: u32) -> Rowed<Vec<RunRow>>;
    /// Whether a queued run of the thread has this policy.
    fn has_queued(&mut self, thread_n: u64, policy: BusyPolicy) -> Rowed<bool>;
    /// Queued runs of a thread that arrived before `run_n`.
    fn n_queued_before(&mut self, thread_n: u64, run_n: u64) -> Rowed<u32>;
    /// Runs that can be claimed at `now`, oldest first: `ready`, and not before a later instant.
    fn ready(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>>;
    /// Parked runs that can be claimed at `now`, most urgent first; on any route if `route` is `None`.
    fn parked(&mut self, now: Wall, on: WaitReason, route: Option<&str>, limit: u32) -> Rowed<Vec<u64>>;
    /// Replicas that own runs.
    fn owners(&mut self) -> Rowed<Vec<ReplicaId>>;
    /// Runs of one owner in one state, oldest first.
    fn owned(&mut self, owner: ReplicaId, state: RunState, limit: u32) -> Rowed<Vec<u64>>;
    /// Names of the runs of one owner, oldest first.
    fn held(&mut self, owner: ReplicaId) -> Rowed<Vec<Held>>;
    /// Queued and waiting runs whose deadline is not after `now`, earliest first.
    fn overdue(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>>;
    fn list_runs(&mut self, list: &ListRuns) -> Rowed<Vec<RunRow>>;
    fn n_by_state(&mut self) -> Rowed<Vec<(RunState, u64)>>;
    /// Runs that wait for a model, by route.
    fn n_parked_by_route(&mut self) -> Rowed<Vec<(String, u64)>>;

    // The log and the effects that are indexed from it.
    fn append(&mut self, entry: &Entry<'_>) -> Rowed<()>;
    fn events(&mut self, thread_n: u64, after_seq: u64, limit: u32) -> Rowed<Vec<Event>>;
    fn effect(&mut self, run_n: u64, effect: &EffectId) -> Rowed<EffectRow>;
    fn mark_effect(&mut self, entry: &Entry<'_>, effect: &EffectId, side: EffectSide) -> Rowed<()>;
    /// Effects that have an intent, in order of it.
    fn effects(&mut self, run: &RunRow) -> Rowed<Vec<Effect>>;

    // Idempotency.
    fn key_run(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
    ) -> Rowed<Option<u64>>;
    fn insert_key(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
        run: &RunRow,
    ) -> Rowed<()>;
    /// The run that brought this message to the thread.
    fn message_run(&mut self, thread_n: u64, message: &MessageId) -> Rowed<Option<u64>>;
    fn insert_message(&mut self, thread_n: u64, message: &MessageId, run_n: u64) -> Rowed<()>;

    // Blobs and API keys.
    fn put_blob(&mut self, bytes: &[u8]) -> Rowed<BlobId>;
    fn blob(&mut self, blob: &BlobId) -> Rowed<Option<Vec<u8>>>;
    fn put_api_key(&mut self, key: &ApiKey) -> Rowed<()>;
    fn api_key(&mut self, hash: &str) -> Rowed<Option<ApiKey>>;
    /// All keys, in order of their hash.
    fn api_keys(&mut self) -> Rowed<Vec<ApiKey>>;
    fn remove_api_key(&mut self, hash: &str) -> Rowed<bool>;
}
