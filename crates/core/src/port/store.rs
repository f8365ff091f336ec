//! The store port: one trait with one operation enum; each operation is one atomic round trip.
//!
//! # What must hold in every engine
//! 1. Events of a thread are dense (`seq` 1, 2, 3 ...) and the version goes up by one per
//!    committed turn.
//! 2. One idempotency key gives one run gives one result, for at least seven days.
//! 3. Only the newest epoch of a thread writes; a refused write is [`Written::Fenced`], counted.
//! 4. A thread with waiting runs has a live owner or can be claimed: no lost wake-up.
//! 5. Terminal states are never left.
//! 6. An operation has happened, durably, before its reply is given, or it has not happened.
//! 7. An effect id has at most one intent and at most one result.
//! 8. A foreign tenant's row is not found, for every operation; tenancy is in the predicate.
//!
//! Domain outcomes are statuses in the reply, so that engines can batch operations; `Err` is for
//! the store itself (`store-unavailable`, `store-full`, ...), and then whether the operation
//! happened is unknown: read again before repeating anything that is not idempotent by key.
//!
//! Engines judge leases by their own clock; operations carry no `now`.

mod answer;
mod lease;
mod thread;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::approval::Approval;
use crate::id::{BlobId, EffectId, IdempotencyKey, ReplicaId, RunId, TenantId, ThreadId};
use crate::journal::{EffectIntent, EffectResult, Event, NewEvent};
use crate::run::{Outcome, Run, RunSpec, RunState, WaitReason};
use crate::thread::Thread;
use crate::{Error, Wall};

pub use answer::{Answer, AnswerTaken, OneAnswer};
pub use lease::{Beat, Heartbeat, Peer};
pub use thread::{
    CreateThread, Deleted, ListThreads, StateWrite, ThreadCreated, ThreadSort, UpdateThread, WriteState,
};

/// An engine.
pub trait Store: Send + Sync {
    /// Carries out one operation atomically and durably.
    ///
    /// # Errors
    /// Only for the store itself; see the module.
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>>;
}

/// The right of an owner to write to a thread: checked in every fenced write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The tenant.
    pub tenant: TenantId,
    /// The thread.
    pub thread: ThreadId,
    /// The run that is active on it.
    pub run: RunId,
    /// The epoch of the claim.
    pub epoch: u64,
}

/// A claim: "you are the runner".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The right to write.
    pub fence: Fence,
    /// The thread's version on which this turn builds.
    pub version: u64,
    /// First event of the context: one after the range that the newest summary replaces (`to + 1`;
    /// the `Compacted` record itself stands later), else 1.
    pub context_from: u64,
    /// The thread's newest sequence number. The claim's own events are the last ones: at the first
    /// claim `RunClaimed` and the user messages, in one piece unless other turns were joined to it.
    pub seq_last: u64,
    /// When the thread was made: a thread made anew under the same id is another one.
    pub thread_created_at: Wall,
    /// The run as stored, `running`, with `attempt` counted up by this claim.
    pub run: Run,
}

/// Asks for a turn to be accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admit {
    /// The tenant.
    pub tenant: TenantId,
    /// The thread.
    pub thread: ThreadId,
    /// Make the thread if it does not exist.
    pub create_thread: bool,
    /// The id that the run gets if it is new.
    pub run: RunId,
    /// What it is asked.
    pub spec: RunSpec,
    /// The client's key. Its scope is the tenant and, unless `create_thread`, the thread.
    pub key: Option<IdempotencyKey>,
    /// Hash of the request body, compared when the key is known.
    pub body_hash: String,
    /// Claim it at once for this replica if the thread is free: the caller has a free slot.
    pub claim_for: Option<ReplicaId>,
    /// Turns that may wait on one thread; one more is `Full`.
    pub n_waiting_max: u32,
    /// The turn is not started earlier than this many milliseconds from its acceptance. It has its
    /// place in the queue all the same: later turns of the thread wait behind it.
    pub delay_ms: u64,
    /// For the policy `merge`.
    pub merge: MergeWindow,
}

/// How long messages of the policy `merge` wait for more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeWindow {
    /// The joined turn starts when no further message came for this long, in milliseconds.
    pub quiet_ms: u64,
    /// It starts at the latest this long after its first message, in milliseconds.
    pub cap_ms: u64,
}

impl Default for MergeWindow {
    fn default() -> Self {
        Self { quiet_ms: 3_000, cap_ms: 30_000 }
    }
}

/// What became of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Admitted {
    /// Stored, with its place in the queue (0 = next or running); its user messages are not yet in
    /// the log, they enter it with the claim.
    Accepted {
        /// The stored run.
        run: Box<Run>,
        /// Set if it was claimed at once.
        claim: Option<Box<Claim>>,
        /// Owned runs that this turn's policy told to stop; a hint to their owners makes it faster.
        stopping: Vec<RunId>,
    },
    /// The key, or a message id of it, is known with the same body: the same run again.
    Replayed(Box<Run>),
    /// The key is known with another body.
    KeyConflict,
    /// There is no such thread.
    ThreadNotFound,
    /// Policy `reject` and the thread has this active run.
    Busy(RunId),
    /// Too many turns wait on the thread.
    Full,
}

/// Appends events of a step under the fence. Used for the assistant message with its effect
/// intents (before any tool runs), for effect results, and for the checkpoint that ends the step.
///
/// The engine reads meaning from the bodies: `EffectIntended` and `EffectSettled` keep the effect
/// table, `Checkpoint` sets the run's step to the event's step, `AssistantMessage` and
/// `ModelAttempts` add to its usage, a `Compacted` with a summary moves `context_from` to its `to + 1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitStep {
    /// The right to write.
    pub fence: Fence,
    /// The thread's newest sequence number as the caller knows it. The same step sent again after
    /// an unknown outcome is refused by it, and so is a step that others' events came before
    /// (a cancel, the end of a waiting turn): read on from here, then send what is missing.
    pub seq_base: u64,
    /// Events, in order.
    pub events: Vec<NewEvent>,
}

/// What became of a fenced write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Written {
    /// Done; `seq_last` is the thread's newest sequence number.
    Done {
        /// Newest sequence number.
        seq_last: u64,
        /// A stop of this run is stored: stop at once.
        cancelling: bool,
        /// Messages wait to be taken into this run: call `take_steered` before the next step.
        steered: bool,
    },
    /// The log goes on behind `seq_base`; nothing was written.
    SeqConflict {
        /// Newest sequence number.
        seq_last: u64,
    },
    /// A later claim took over or the run has ended; nothing was written.
    Fenced,
    /// An effect of the batch has its intent, or its result, already; nothing was written.
    EffectExists(EffectId),
}

/// Ends a run and, in the same transaction, hands over the thread's next waiting turn or releases
/// the thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitTurn {
    /// The right to write.
    pub fence: Fence,
    /// The version on which the turn builds; must be the thread's current one.
    pub version: u64,
    /// Last events before `RunEnded`, which the engine appends itself.
    pub events: Vec<NewEvent>,
    /// How it ended.
    pub outcome: Outcome,
    /// Take the next waiting turn of this thread (the caller keeps its slot for it).
    pub take_next: bool,
}

/// What became of the end of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TurnCommitted {
    /// Done: the thread has this version now.
    Done {
        /// One higher than before.
        version: u64,
        /// Newest sequence number.
        seq_last: u64,
        /// The next turn, claimed for the same replica.
        next: Option<Box<Claim>>,
    },
    /// A later claim took over or the run has ended; nothing was written.
    Fenced,
    /// The thread has another version; nothing was written.
    VersionConflict,
}

/// Stores a run as waiting and gives up the claim, with its last events, in one transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Park {
    /// The right to write.
    pub fence: Fence,
    /// What it waits for.
    pub on: WaitReason,
    /// In words.
    pub reason: String,
    /// When it is next worth a look.
    pub until_hint: Option<Wall>,
    /// The model route, for `WaitReason::Model`.
    pub route: Option<String>,
    /// What a person is asked, for `WaitReason::Approval`. The run is woken at `until_hint` if it
    /// was not answered by then.
    pub approvals: Vec<Approval>,
    /// Events before the `Parked` event, which the engine appends itself.
    pub events: Vec<NewEvent>,
}

/// Gives a claim back without an end: the run is queued again (drain at a step boundary).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// The right to write.
    pub fence: Fence,
}

/// Claims parked runs, most urgent first: interactive before batch, then the earliest deadline. Of
/// those that wait for a person's approval only the ones whose `until_hint` has passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wake {
    /// Who claims.
    pub me: ReplicaId,
    /// What they wait for.
    pub on: WaitReason,
    /// On which route, for `WaitReason::Model`.
    pub route: Option<String>,
    /// How many at most.
    pub limit: u32,
}

/// Claims queued runs whose thread is free, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimReady {
    /// Who claims.
    pub me: ReplicaId,
    /// How many at most.
    pub limit: u32,
}

/// Claims running runs of replicas that are dead (named) or whose lease lapsed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steal {
    /// Who claims.
    pub me: ReplicaId,
    /// Replicas known to be dead; their leases count as lapsed.
    pub dead: Vec<ReplicaId>,
    /// How many at most.
    pub limit: u32,
}

/// Stores the intent to cancel a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    /// The tenant.
    pub tenant: TenantId,
    /// The run.
    pub run: RunId,
    /// Also end it at once by a new epoch, whatever its owner does.
    pub force: bool,
    /// Whether what it did is kept or undone.
    pub undo: bool,
}

/// Takes the messages of the policy `steer` that wait on the thread into the active run: their user
/// messages enter the log here, and their own runs end [`EndReason::Steered`](crate::run::EndReason::Steered).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TakeSteered {
    /// The right to write.
    pub fence: Fence,
    /// The step before which they enter.
    pub step: u32,
}

/// What became of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cancelled {
    /// It had no owner, or was forced: it has ended `cancelled`.
    Done,
    /// Its owner stops it.
    Cancelling,
    /// It had ended before.
    Ended,
    /// There is no such run.
    NotFound,
}

/// Ends runs without an owner whose deadline has passed: `expired`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expire {
    /// How many at most.
    pub limit: u32,
}

/// Reads events of one thread in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadEvents {
    /// The tenant.
    pub tenant: TenantId,
    /// The thread.
    pub thread: ThreadId,
    /// Events with a higher sequence number.
    pub after_seq: u64,
    /// How many at most.
    pub limit: u32,
}

/// An effect as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Its step.
    pub step: u32,
    /// The intent.
    pub intent: EffectIntent,
    /// The result, if it has one.
    pub result: Option<EffectResult>,
}

/// Names one run or thread of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRef {
    /// The tenant.
    pub tenant: TenantId,
    /// The run.
    pub run: RunId,
}

/// A run that a replica owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The tenant.
    pub tenant: TenantId,
    /// The run.
    pub run: RunId,
    /// Its thread.
    pub thread: ThreadId,
}

/// Names one thread of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRef {
    /// The tenant.
    pub tenant: TenantId,
    /// The thread.
    pub thread: ThreadId,
}

/// Lists runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListRuns {
    /// The tenant; `None` for the operator's view over all.
    pub tenant: Option<TenantId>,
    /// Only of this thread.
    pub thread: Option<ThreadId>,
    /// Only in one of these states; empty for all.
    pub states: Vec<RunState>,
    /// How many at most.
    pub limit: u32,
    /// How many to pass over.
    pub offset: u32,
}

/// Reads a range of a blob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GetBlob {
    /// Which.
    pub blob: BlobId,
    /// First byte.
    pub offset: u64,
    /// Bytes at most.
    pub limit: u64,
}

/// Stores a blob; storing it again changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutBlob {
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// An API key, hashed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApiKey {
    /// SHA-256 of the key, hex.
    pub hash: String,
    /// Whose requests it makes.
    pub tenant: TenantId,
    /// A name for lists.
    pub name: String,
    /// Requests per minute; `None` for no limit of its own.
    pub calls_per_min: Option<u32>,
    /// Not valid from this instant.
    pub expires_at: Option<Wall>,
    /// When it was made.
    pub created_at: Wall,
}

/// How many runs there are in each state, and what waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Runs by state, in the order of the states.
    pub runs: Vec<(RunState, u64)>,
    /// Parked runs by model route.
    pub parked: Vec<(String, u64)>,
    /// Fenced writes since the store was made.
    pub n_fenced: u64,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $method:ident: $variant:ident($request:ty) -> $reply:ty;)*) => {
        /// All operations. One enum is one place for latency, faults, logs and replay.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Op {
            $($(#[$doc])* $variant($request),)*
        }

        impl Op {
            /// The operation's name, for metrics and logs.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => stringify!($method),)* }
            }
        }

        /// The replies, one for each operation.
        #[expect(clippy::large_enum_variant, reason = "a reply lives for one await")]
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Reply {
            $($(#[$doc])* $variant($reply),)*
        }

        impl StoreClient {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// Only for the store itself.
                pub async fn $method(&self, request: $request) -> Result<$reply, Error> {
                    match self.0.apply(Op::$variant(request)).await? {
                        Reply::$variant(reply) => Ok(reply),
                        _ => Err(Error::internal(concat!("The store answered another operation than ", stringify!($method), "."))),
                    }
                }
            )*
        }
    };
}

impl Op {
    /// Whether it only reads: it changes nothing, and may be asked again at will.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Self::GetThread(_)
                | Self::ListThreads(_)
                | Self::CountThreads(_)
                | Self::GetRun(_)
                | Self::ListRuns(_)
                | Self::ReadEvents(_)
                | Self::ReadTails(_)
                | Self::ReadEffects(_)
                | Self::GetBlob(_)
                | Self::FindKey(_)
                | Self::ListKeys(())
                | Self::Counts(())
                | Self::CountParked(())
                | Self::ListHeld(_)
        )
    }
}

/// Any engine behind typed methods, one for each operation.
#[derive(Clone)]
pub struct StoreClient(pub Arc<dyn Store>);

operations! {
    /// Makes a thread.
    create_thread: CreateThread(CreateThread) -> ThreadCreated;
    /// Changes a thread's metadata and policy; `None` if there is no such thread.
    update_thread: UpdateThread(UpdateThread) -> Option<Thread>;
    /// Removes a thread with its runs, events, effects and keys. Blobs go when nothing names them.
    delete_thread: DeleteThread(ThreadRef) -> Deleted;
    /// Lists threads.
    list_threads: ListThreads(ListThreads) -> Vec<Thread>;
    /// Counts threads; limit and offset are ignored.
    count_threads: CountThreads(ListThreads) -> u64;
    /// Appends events of a client to a thread without an open run.
    write_state: WriteState(WriteState) -> StateWrite;
    /// Accepts a turn.
    admit: Admit(Admit) -> Admitted;
    /// Appends events of a step under the fence.
    commit_step: CommitStep(CommitStep) -> Written;
    /// Takes steering messages into the active run.
    take_steered: TakeSteered(TakeSteered) -> Written;
    /// Ends a run and hands the thread on.
    commit_turn: CommitTurn(CommitTurn) -> TurnCommitted;
    /// Stores a run as waiting.
    park: Park(Park) -> Written;
    /// Answers what a run asks of a person.
    answer: Answer(Answer) -> AnswerTaken;
    /// Gives a claim back; the run is queued again.
    release: Release(Release) -> Written;
    /// Claims parked runs.
    wake: Wake(Wake) -> Vec<Claim>;
    /// Claims queued runs.
    claim_ready: ClaimReady(ClaimReady) -> Vec<Claim>;
    /// Claims runs of dead replicas.
    steal: Steal(Steal) -> Vec<Claim>;
    /// Stores the intent to cancel a run.
    cancel: Cancel(Cancel) -> Cancelled;
    /// Ends runs past their deadline that nobody runs; replies with their threads and ids.
    expire: Expire(Expire) -> Vec<(ThreadId, RunId)>;
    /// Renews a replica's lease.
    heartbeat: Heartbeat(Heartbeat) -> Beat;
    /// Removes a replica that has ended in order; what it still held can be stolen at once.
    leave: Leave(ReplicaId) -> ();
    /// Reads a thread.
    get_thread: GetThread(ThreadRef) -> Option<Thread>;
    /// Reads a run.
    get_run: GetRun(RunRef) -> Option<Run>;
    /// Removes an ended run from every list; its events stay in the log of its thread.
    delete_run: DeleteRun(RunRef) -> Deleted;
    /// Lists runs.
    list_runs: ListRuns(ListRuns) -> Vec<Run>;
    /// Reads events of a thread.
    read_events: ReadEvents(ReadEvents) -> Vec<Event>;
    /// Reads the newest sequence numbers of many threads at once, for whoever follows them; a thread
    /// that is not there is left out.
    read_tails: ReadTails(Vec<ThreadRef>) -> Vec<(ThreadId, u64)>;
    /// Reads the effects of a run, in order.
    read_effects: ReadEffects(RunRef) -> Vec<Effect>;
    /// Stores a blob.
    put_blob: PutBlob(PutBlob) -> BlobId;
    /// Reads a range of a blob; `None` if there is no such blob.
    get_blob: GetBlob(GetBlob) -> Option<Vec<u8>>;
    /// Stores an API key's hash; an old one with the same hash is replaced.
    put_key: PutKey(ApiKey) -> ();
    /// Finds an API key by its hash.
    find_key: FindKey(String) -> Option<ApiKey>;
    /// Lists all API keys.
    list_keys: ListKeys(()) -> Vec<ApiKey>;
    /// Removes an API key by its hash; says whether there was one.
    remove_key: RemoveKey(String) -> bool;
    /// What a replica owns, in order of arrival; names alone, for it is asked again and again.
    list_held: ListHeld(ReplicaId) -> Vec<Held>;
    /// Counts for gauges; may read every run that ever was, so it is for people and scrapes.
    counts: Counts(()) -> Counts;
    /// Counts the runs that wait for a model, by route: reads only what waits.
    count_parked: CountParked(()) -> Vec<(String, u64)>;
}
