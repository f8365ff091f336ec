//! What this replica wrote last of the threads of one lane.
//!
//! Whoever owns a thread writes to it again and again, and nobody else does: what the last write
//! left is what the next one finds, so it need not be read. It is only believed where the write
//! checks `rev`; see `lane`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use evenkeel_core::id::{RunId, ThreadId};

use super::facts::{Effects, Facts, RunFact, ThreadFact};

/// A thread with its open runs.
struct Known {
    thread: ThreadFact,
    open: BTreeMap<u64, RunId>,
    runs: Vec<Arc<RunFact>>,
    effects: Vec<(RunId, Effects)>,
    /// When it was used last, in steps of the cache.
    used: u64,
}

/// The cache of one lane.
pub(super) struct Cache {
    threads: HashMap<ThreadId, Known>,
    n_max: usize,
    step: u64,
}

impl Cache {
    pub(super) fn new(n_max: usize) -> Self {
        Self { threads: HashMap::new(), n_max: n_max.max(1), step: 0 }
    }

    /// Gives what is known of a thread to a batch.
    pub(super) fn lend(&mut self, id: ThreadId, facts: &mut Facts) {
        self.step += 1;
        let Some(known) = self.threads.get_mut(&id) else {
            return;
        };
        known.used = self.step;
        facts.learn_thread(ThreadFact { cached: true, ..known.thread.clone() });
        facts.open.insert(id, known.open.clone());
        facts.runs.extend(known.runs.iter().map(|run| (run.row.id, run.clone())));
        facts.effects.extend(known.effects.iter().cloned());
    }

    pub(super) fn forget(&mut self, id: ThreadId) {
        self.threads.remove(&id);
    }

    /// Keeps what a write left of a thread: its row, and its open runs if all are known.
    pub(super) fn keep(&mut self, thread: ThreadFact, left: &Facts, loaded: &Facts) {
        let id = thread.row.id;
        let Some(open) = left.open.get(&id).or_else(|| loaded.open.get(&id)) else {
            self.forget(id);
            return;
        };
        let runs: Option<Vec<Arc<RunFact>>> =
            open.values().map(|run| left.runs.get(run).or_else(|| loaded.runs.get(run)).cloned()).collect();
        let Some(runs) = runs else {
            self.forget(id);
            return;
        };
        let effects = open.values().filter_map(|run| {
            let effects = left.effects.get(run).or_else(|| loaded.effects.get(run))?;
            Some((*run, effects.clone()))
        });
        self.step += 1;
        let known = Known { thread, open: open.clone(), runs, effects: effects.collect(), used: self.step };
        self.threads.insert(id, known);
        if self.threads.len() > self.n_max {
            self.shrink();
        }
    }

    /// Forgets the half that was not used for longest.
    fn shrink(&mut self) {
        let mut used: Vec<u64> = self.threads.values().map(|known| known.used).collect();
        used.sort_unstable();
        let from = used.get(used.len() / 2).copied().unwrap_or_default();
        self.threads.retain(|_, known| known.used >= from);
    }
}
