//! Keys that decisions use for threads and runs: made for one pass, since the database has none.

use std::collections::{HashMap, HashSet};

use evenkeel_core::id::{RunId, ThreadId};

use crate::rows::{Fault, Rowed};

/// Keys of this pass for the ids it met. The key of a run that is known goes up with its place on the
/// thread, since decisions compare them; one of which only the id is known gets one beyond all of
/// these.
#[derive(Default)]
pub(super) struct Names {
    threads: HashMap<ThreadId, u64>,
    thread_ids: Vec<ThreadId>,
    runs: HashMap<RunId, u64>,
    run_ids: HashMap<u64, RunId>,
    pub(super) gone: HashSet<ThreadId>,
}

/// Bits of a run's key below those of its thread.
const PLACE_BITS: u32 = 40;

/// From here on keys are of runs whose place is not known.
const UNPLACED: u64 = 1 << 62;

impl Names {
    pub(super) fn thread(&mut self, id: ThreadId) -> u64 {
        let ids = &mut self.thread_ids;
        *self.threads.entry(id).or_insert_with(|| {
            ids.push(id);
            ids.len() as u64
        })
    }

    pub(super) fn run(&mut self, id: RunId, place: Option<(ThreadId, u64)>) -> u64 {
        if let Some(n) = self.runs.get(&id) {
            return *n;
        }
        let n = match place {
            Some((thread, place)) => (self.thread(thread) << PLACE_BITS) + place,
            None => UNPLACED + self.run_ids.len() as u64,
        };
        self.runs.insert(id, n);
        self.run_ids.insert(n, id);
        n
    }

    pub(super) fn thread_id(&self, n: u64) -> Rowed<ThreadId> {
        let idx = usize::try_from(n).ok().and_then(|n| n.checked_sub(1));
        idx.and_then(|idx| self.thread_ids.get(idx)).copied().ok_or_else(|| lost("thread", n))
    }

    pub(super) fn run_id(&self, n: u64) -> Rowed<RunId> {
        self.run_ids.get(&n).copied().ok_or_else(|| lost("run", n))
    }
}

fn lost(what: &str, n: u64) -> Fault {
    Fault::Misused(format!("{what} {n} was not looked up before"))
}
