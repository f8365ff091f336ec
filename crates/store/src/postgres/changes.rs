//! What a batch changes, and what one of its operations looked at: from these the write is made.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::Wall;
use evenkeel_core::id::{RunId, ThreadId};

use super::facts::{KeyName, Marks, Word};
use crate::packed::Hash;

/// A body on its way into a column.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Inline(String),
    Moved(Hash),
}

impl Body {
    /// The column values: text, or the name of a blob.
    pub(super) fn columns(&self) -> (Option<&str>, Option<&[u8]>) {
        match self {
            Self::Inline(json) => (Some(json), None),
            Self::Moved(hash) => (None, Some(hash)),
        }
    }
}

/// An event on its way into the log.
pub(super) struct EventOut {
    pub(super) thread: ThreadId,
    pub(super) seq: u64,
    pub(super) run: RunId,
    pub(super) step: u32,
    pub(super) at: Wall,
    pub(super) body: Body,
}

/// Something that was taken to be missing without a look; the write makes sure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    Key(KeyName),
    Message(ThreadId, Word),
    Run(RunId),
}

/// What a batch changes.
#[derive(Default)]
pub(super) struct Changes {
    /// Threads with any change.
    pub(super) dirty: BTreeSet<ThreadId>,
    pub(super) new_threads: BTreeSet<ThreadId>,
    pub(super) deleted: BTreeSet<ThreadId>,
    pub(super) metadata: BTreeMap<ThreadId, Body>,
    pub(super) new_runs: BTreeMap<RunId, Body>,
    pub(super) runs: BTreeSet<RunId>,
    pub(super) outcomes: BTreeMap<RunId, Body>,
    pub(super) writers: Vec<(RunId, ThreadId)>,
    pub(super) events: Vec<EventOut>,
    pub(super) effects: BTreeMap<(RunId, Word), (ThreadId, Marks)>,
    pub(super) keys: BTreeMap<KeyName, (ThreadId, RunId, Wall)>,
    pub(super) messages: BTreeMap<(ThreadId, Word), RunId>,
    pub(super) blobs: BTreeMap<Hash, Vec<u8>>,
    pub(super) blob_names: BTreeSet<(Hash, ThreadId)>,
}

/// What one operation touched.
#[derive(Clone, Default)]
pub(super) struct Footprint {
    /// Threads whose rows it looked at or changed.
    pub(super) read: BTreeSet<ThreadId>,
    /// Threads that it changed.
    pub(super) wrote: BTreeSet<ThreadId>,
    pub(super) absent: Vec<Absent>,
}
