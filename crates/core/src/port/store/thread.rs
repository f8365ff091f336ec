//! Operations on threads themselves: made, changed, listed, removed, written to by hand.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{RunId, TenantId, ThreadId};
use crate::journal::NewEvent;
use crate::run::{BusyPolicy, RunState};
use crate::thread::Thread;

/// Asks for a thread to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateThread {
    /// The tenant.
    pub tenant: TenantId,
    /// Its id.
    pub thread: ThreadId,
    /// Free metadata.
    pub metadata: Value,
    /// What a busy thread does with a message whose request names no policy; `None` for the
    /// assistant's default.
    pub busy_policy: Option<BusyPolicy>,
}

/// Changes what a client may say about a thread. Never conflicts with a turn, and changes neither
/// version nor epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateThread {
    /// The tenant.
    pub tenant: TenantId,
    /// The thread.
    pub thread: ThreadId,
    /// Merged into the metadata, key by key at the top level; `null` values are kept as `null`.
    pub metadata: Value,
    /// Replaces the thread's policy, if given.
    pub busy_policy: Option<BusyPolicy>,
}

/// What became of the deletion of a thread or a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deleted {
    /// It is gone.
    Done,
    /// It is open; cancel it first. Nothing was changed.
    Busy,
    /// There is no such thing.
    NotFound,
}

/// Lists threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListThreads {
    /// The tenant.
    pub tenant: TenantId,
    /// Only these; empty for all.
    pub ids: Vec<ThreadId>,
    /// Only those whose metadata holds all of these members with these values; `{}` for all.
    pub metadata: Value,
    /// Only those with an open run (`true`) or without one (`false`).
    pub busy: Option<bool>,
    /// Only those whose newest run is in one of these states; empty for all.
    pub newest: Vec<RunState>,
    /// The order.
    pub sort: ThreadSort,
    /// Newest first, or oldest first.
    pub descending: bool,
    /// How many at most.
    pub limit: u32,
    /// How many to pass over.
    pub offset: u32,
}

/// The order of a list of threads; equal ones by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThreadSort {
    /// By id.
    Id,
    /// By the instant it was made.
    #[default]
    CreatedAt,
    /// By the instant a row of it last changed.
    UpdatedAt,
}

/// Appends events of a client, outside of any run, to a thread without an open run: an edit of the
/// state, or a rewind. One such write raises the version by one, and the epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteState {
    /// The tenant.
    pub tenant: TenantId,
    /// The thread.
    pub thread: ThreadId,
    /// The events are made for this id; no run of this id exists.
    pub writer: RunId,
    /// Events, in order: `StateWritten` and `Rewound`.
    pub events: Vec<NewEvent>,
}

/// What became of a write of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateWrite {
    /// Done.
    Done {
        /// One higher than before.
        version: u64,
        /// Newest sequence number.
        seq_last: u64,
    },
    /// This run is open on the thread; nothing was written.
    Busy(RunId),
    /// There is no such thread.
    NotFound,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ThreadCreated {
    /// It is new.
    Created(Thread),
    /// This tenant has it already; it is unchanged.
    Exists(Thread),
    /// The id is taken (by another tenant; nothing else is told).
    Taken,
}
