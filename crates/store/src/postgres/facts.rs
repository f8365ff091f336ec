//! What is known of the database while a batch is decided: rows as they were loaded, or as this
//! replica wrote them last.
//!
//! A fact of a thread carries the thread's `rev`. Everything that hangs on a thread (its runs, its
//! queue, its effects and messages) was loaded with the thread or after it, so that whatever is
//! stale is caught by the check of `rev` at the write.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use evenkeel_core::id::{BlobId, EffectId, IdempotencyKey, MessageId, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::Event;
use evenkeel_core::port::store::{ApiKey, Effect, Held, ListRuns, ListThreads};
use evenkeel_core::run::{Outcome, RunSpec, RunState};
use evenkeel_core::thread::Thread;
use serde_json::Value;

use crate::record::{RunRow, ThreadRow};

/// A thread as it is stored.
#[derive(Clone, Debug)]
pub(super) struct ThreadFact {
    pub(super) row: ThreadRow,
    /// 0 for a thread that is made by this batch.
    pub(super) rev: u64,
    pub(super) places: u64,
    /// Known from an earlier write and not read in this batch: good for writes, which check `rev`,
    /// and for nothing else.
    pub(super) cached: bool,
}

/// A run as it is stored, with what stands beside its row.
#[derive(Clone, Debug)]
pub(super) struct RunFact {
    pub(super) row: RunRow,
    pub(super) place: u64,
    pub(super) hidden: bool,
    pub(super) spec: Arc<RunSpec>,
    pub(super) outcome: Option<Arc<Outcome>>,
}

/// Where the two events of an effect are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) intended: Option<u64>,
    pub(super) settled: Option<u64>,
}

/// Names of any length and content as they stand in an index: themselves, or their hash.
pub(super) type Word = Vec<u8>;

/// Longer names are indexed by their hash: an index takes no row of any length.
const WORD_MAX: usize = 200;

/// The word of a name.
pub(super) fn word(name: &str) -> Word {
    let (tag, bytes) = match name.len() {
        0..=WORD_MAX => (0, name.as_bytes().to_vec()),
        _ => (1, blake3::hash(name.as_bytes()).as_bytes().to_vec()),
    };
    std::iter::once(tag).chain(bytes).collect()
}

/// The name of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyName {
    pub(super) tenant: TenantId,
    pub(super) scope: Option<ThreadId>,
    pub(super) key: Word,
}

impl KeyName {
    pub(super) fn new(tenant: &TenantId, scope: Option<ThreadId>, key: &IdempotencyKey) -> Self {
        Self { tenant: tenant.clone(), scope, key: word(key.as_str()) }
    }
}

/// Effects of one run by their word.
pub(super) type Effects = HashMap<Word, Marks>;

/// Known rows. An absent entry means "not loaded"; what is known to be missing is said so.
#[derive(Clone, Default)]
pub(super) struct Facts {
    pub(super) threads: HashMap<ThreadId, ThreadFact>,
    pub(super) no_threads: HashSet<(TenantId, ThreadId)>,
    /// Whether any tenant has it.
    pub(super) threads_taken: HashMap<ThreadId, bool>,
    pub(super) metadata: HashMap<ThreadId, Value>,
    pub(super) runs: HashMap<RunId, Arc<RunFact>>,
    pub(super) no_runs: HashSet<(TenantId, RunId)>,
    pub(super) runs_taken: HashMap<RunId, bool>,
    /// All runs of a thread that have not ended, by their place.
    pub(super) open: HashMap<ThreadId, BTreeMap<u64, RunId>>,
    /// All effects of a run.
    pub(super) effects: HashMap<RunId, Effects>,
    pub(super) keys: HashMap<KeyName, Option<RunId>>,
    pub(super) messages: HashMap<(ThreadId, Word), Option<RunId>>,
    pub(super) answers: Answers,
}

/// A page of a thread's log: its thread, the event behind which it begins, how many events at most.
pub(super) type Page = (ThreadId, u64, u32);

/// Answers to questions that are not rows by key.
#[derive(Clone, Default)]
pub(super) struct Answers {
    pub(super) runs: Option<(ListRuns, Vec<RunId>)>,
    pub(super) threads: Option<Vec<Thread>>,
    pub(super) n_threads: Option<u64>,
    pub(super) events: HashMap<Page, Vec<Event>>,
    pub(super) effects: Option<Vec<Effect>>,
    pub(super) before: HashMap<RunId, u32>,
    pub(super) held: Option<Vec<Held>>,
    pub(super) by_state: Option<Vec<(RunState, u64)>>,
    pub(super) by_route: Option<Vec<(String, u64)>>,
    pub(super) blobs: HashMap<BlobId, Option<Vec<u8>>>,
    pub(super) api_keys: Option<Vec<ApiKey>>,
}

/// Something that has to be loaded.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Need {
    /// A thread with its open runs.
    Thread(TenantId, ThreadId),
    /// A thread alone.
    Row(TenantId, ThreadId),
    /// The open runs of a thread that is known.
    Open(ThreadId),
    /// A run with its thread's row; for any tenant if `None`.
    Run(Option<TenantId>, RunId),
    Metadata(ThreadId),
    Effects(RunId),
    Key(KeyName),
    Message(ThreadId, Word),
    ListRuns(ListRuns),
    ListThreads(ListThreads),
    CountThreads(ListThreads),
    Events(Page),
    ReadEffects(ThreadId, RunId),
    /// How many queued runs of its thread arrived before a run, which has this place.
    Before(ThreadId, RunId, u64),
    Held(ReplicaId),
    ByState,
    ByRoute,
    Blob(BlobId),
    /// The key of this hash, or all.
    ApiKeys(Option<String>),
}

impl Facts {
    /// Forgets a thread and what hangs on it.
    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.threads.remove(&thread);
        self.threads_taken.remove(&thread);
        self.no_threads.retain(|(_, of)| *of != thread);
        self.open.remove(&thread);
        let effects = &mut self.effects;
        self.runs.retain(|id, fact| {
            let keep = fact.row.thread != thread;
            if !keep {
                effects.remove(id);
            }
            keep
        });
    }

    /// Takes a thread as a read found it, unless it is known: the older one is checked at the write.
    pub(super) fn learn_thread(&mut self, fact: ThreadFact) {
        self.threads.entry(fact.row.id).or_insert(fact);
    }
}

/// The word of an effect.
pub(super) fn effect_word(effect: &EffectId) -> Word {
    word(effect.as_str())
}

/// The word of a message.
pub(super) fn message_word(message: &MessageId) -> Word {
    word(message.as_str())
}

/// Needs in the order in which they came up. One may stand there twice; it is loaded once.
#[derive(Default)]
pub(super) struct Needs(pub(super) Vec<Need>);

impl Needs {
    pub(super) fn add(&mut self, need: Need) {
        if self.0.last() != Some(&need) {
            self.0.push(need);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
