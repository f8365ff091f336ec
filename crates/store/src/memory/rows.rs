//! Rows in ordered maps.
//!
//! Keys (`n`) count from 1 in order of arrival, so that they mean the same as in SQLite.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::Wall;
use evenkeel_core::id::{BlobId, EffectId, IdempotencyKey, MessageId, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::store::{ApiKey, Effect, Held, ListRuns, ListThreads, ThreadSort};
use evenkeel_core::run::{BusyPolicy, Outcome, RunSpec, RunState, WaitReason};
use evenkeel_core::thread::Thread;
use serde_json::Value;

use crate::record::{EffectRow, RunRow, ThreadRow};
use crate::rows::{self, EffectSide, Entry, Fault, Rowed, Rows};

/// All rows of one store.
#[derive(Default)]
pub(super) struct MemoryRows {
    threads: BTreeMap<u64, StoredThread>,
    thread_ids: BTreeMap<ThreadId, u64>,
    runs: BTreeMap<u64, StoredRun>,
    run_ids: BTreeMap<RunId, u64>,
    /// The runs of each thread.
    of_thread: BTreeMap<u64, BTreeSet<u64>>,
    /// Authors of events that are no runs, with their threads.
    writers: BTreeMap<RunId, u64>,
    /// The newest key of a thread and of a run.
    n_last: (u64, u64),
    /// Runs that have not ended: the queues look only at these.
    open: BTreeSet<u64>,
    keys: BTreeMap<(TenantId, Option<ThreadId>, IdempotencyKey), u64>,
    messages: BTreeMap<(u64, MessageId), u64>,
    effects: BTreeMap<(u64, EffectId), Marks>,
    blobs: BTreeMap<BlobId, Vec<u8>>,
    api_keys: BTreeMap<String, ApiKey>,
}

struct StoredThread {
    row: ThreadRow,
    metadata: Value,
    log: Vec<Event>,
}

struct StoredRun {
    row: RunRow,
    spec: RunSpec,
    outcome: Option<Outcome>,
    hidden: bool,
}

/// Where the two events of an effect are in their thread's log.
#[derive(Clone, Copy, Default)]
struct Marks {
    intended: Option<u64>,
    settled: Option<u64>,
}

fn idx(n: u64) -> usize {
    usize::try_from(n).map_or(usize::MAX, |n| n.wrapping_sub(1))
}

fn lost(what: &str, n: u64) -> Fault {
    Fault::Corrupt(format!("{what} {n} is missing"))
}

impl MemoryRows {
    fn stored_thread(&mut self, n: u64) -> Rowed<&mut StoredThread> {
        self.threads.get_mut(&n).ok_or_else(|| lost("thread", n))
    }

    fn stored_run(&mut self, n: u64) -> Rowed<&mut StoredRun> {
        self.runs.get_mut(&n).ok_or_else(|| lost("run", n))
    }

    /// Runs that are not hidden.
    fn rows(&self) -> impl DoubleEndedIterator<Item = &RunRow> {
        self.runs.values().filter(|run| !run.hidden).map(|run| &run.row)
    }

    /// Those of one thread.
    fn rows_of(&self, thread: ThreadId) -> impl DoubleEndedIterator<Item = &RunRow> {
        let runs = self.thread_ids.get(&thread).and_then(|n| self.of_thread.get(n));
        let runs = runs.into_iter().flatten().filter_map(|n| self.runs.get(n));
        runs.filter(|run| !run.hidden).map(|run| &run.row)
    }

    fn open(&self) -> impl Iterator<Item = &RunRow> {
        self.open.iter().filter_map(|n| self.runs.get(n)).map(|run| &run.row)
    }

    /// Queued runs of a thread in order of arrival.
    fn queue(&self, thread_n: u64) -> impl Iterator<Item = &RunRow> {
        let runs = self.of_thread.get(&thread_n).into_iter().flatten();
        let rows = runs.filter_map(|n| self.runs.get(n)).map(|run| &run.row);
        rows.filter(|row| row.state == RunState::Queued)
    }

    /// Threads that a list asks for, in no order.
    fn listed(&self, list: &ListThreads) -> Vec<Thread> {
        let own = self.threads.values().filter(|stored| stored.row.tenant == list.tenant);
        let whole = own.map(|stored| {
            let newest = stored.row.newest_run.and_then(|run| self.run_ids.get(&run));
            let state = newest.and_then(|n| self.runs.get(n)).map(|run| run.row.state);
            stored.row.clone().into_thread(stored.metadata.clone(), state)
        });
        whole.filter(|thread| is_listed_thread(thread, list)).collect()
    }

    fn logged(&mut self, thread_n: u64, seq: u64) -> Rowed<&EventBody> {
        let log = &self.stored_thread(thread_n)?.log;
        log.get(idx(seq)).map(|event| &event.body).ok_or_else(|| lost("event", seq))
    }
}

fn at_most(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn is_listed(row: &RunRow, list: &ListRuns) -> bool {
    list.tenant.as_ref().is_none_or(|tenant| *tenant == row.tenant)
        && list.thread.is_none_or(|thread| thread == row.thread)
        && (list.states.is_empty() || list.states.contains(&row.state))
}

fn is_listed_thread(thread: &Thread, list: &ListThreads) -> bool {
    (list.ids.is_empty() || list.ids.contains(&thread.id))
        && list.busy.is_none_or(|busy| busy == thread.active.is_some())
        && (list.newest.is_empty() || thread.newest_state.is_some_and(|state| list.newest.contains(&state)))
        && rows::has_members(&thread.metadata, &list.metadata)
}

/// Blobs that the log of a thread names.
fn named_blobs(thread: &StoredThread) -> impl Iterator<Item = &BlobId> {
    thread.log.iter().filter_map(|event| rows::named_blob(&event.body))
}

impl Rows for MemoryRows {
    fn thread(&mut self, tenant: &TenantId, id: ThreadId) -> Rowed<Option<ThreadRow>> {
        let Some(n) = self.thread_ids.get(&id).copied() else {
            return Ok(None);
        };
        let row = &self.stored_thread(n)?.row;
        Ok((row.tenant == *tenant).then(|| row.clone()))
    }

    fn thread_of(&mut self, n: u64) -> Rowed<ThreadRow> {
        Ok(self.stored_thread(n)?.row.clone())
    }

    fn thread_id_taken(&mut self, id: ThreadId) -> Rowed<bool> {
        Ok(self.thread_ids.contains_key(&id))
    }

    fn insert_thread(&mut self, row: &ThreadRow, metadata: &Value) -> Rowed<u64> {
        self.n_last.0 += 1;
        let n = self.n_last.0;
        let row = ThreadRow { n, ..row.clone() };
        self.thread_ids.insert(row.id, n);
        self.threads.insert(n, StoredThread { row, metadata: metadata.clone(), log: Vec::new() });
        Ok(n)
    }

    fn save_thread(&mut self, row: &ThreadRow) -> Rowed<()> {
        self.stored_thread(row.n)?.row = row.clone();
        Ok(())
    }

    fn metadata(&mut self, thread_n: u64) -> Rowed<Value> {
        Ok(self.stored_thread(thread_n)?.metadata.clone())
    }

    fn save_metadata(&mut self, thread_n: u64, metadata: &Value) -> Rowed<()> {
        self.stored_thread(thread_n)?.metadata = metadata.clone();
        Ok(())
    }

    fn list_threads(&mut self, list: &ListThreads) -> Rowed<Vec<Thread>> {
        let mut threads = self.listed(list);
        threads.sort_by_key(|thread| match list.sort {
            ThreadSort::Id => (Wall(0), thread.id),
            ThreadSort::CreatedAt => (thread.created_at, thread.id),
            ThreadSort::UpdatedAt => (thread.updated_at, thread.id),
        });
        if list.descending {
            threads.reverse();
        }
        Ok(threads.into_iter().skip(at_most(list.offset)).take(at_most(list.limit)).collect())
    }

    fn count_threads(&mut self, list: &ListThreads) -> Rowed<u64> {
        Ok(self.listed(list).len() as u64)
    }

    fn delete_thread(&mut self, thread: &ThreadRow) -> Rowed<()> {
        let removed = self.threads.remove(&thread.n).ok_or_else(|| lost("thread", thread.n))?;
        self.thread_ids.remove(&thread.id);
        self.writers.retain(|_, thread_n| *thread_n != thread.n);
        self.messages.retain(|(thread_n, _), _| *thread_n != thread.n);
        let gone: BTreeSet<u64> = self.of_thread.remove(&thread.n).unwrap_or_default();
        self.runs.retain(|n, _| !gone.contains(n));
        self.run_ids.retain(|_, n| !gone.contains(n));
        self.open.retain(|n| !gone.contains(n));
        self.keys.retain(|_, n| !gone.contains(n));
        self.effects.retain(|(n, _), _| !gone.contains(n));
        let still: BTreeSet<&BlobId> = self.threads.values().flat_map(named_blobs).collect();
        let blobs: Vec<BlobId> =
            named_blobs(&removed).filter(|blob| !still.contains(blob)).cloned().collect();
        for blob in blobs {
            self.blobs.remove(&blob);
        }
        Ok(())
    }

    fn run(&mut self, tenant: &TenantId, id: RunId) -> Rowed<Option<RunRow>> {
        let Some(n) = self.run_ids.get(&id).copied() else {
            return Ok(None);
        };
        let StoredRun { row, hidden, .. } = self.stored_run(n)?;
        Ok((row.tenant == *tenant && !*hidden).then(|| row.clone()))
    }

    fn run_of(&mut self, n: u64) -> Rowed<RunRow> {
        Ok(self.stored_run(n)?.row.clone())
    }

    fn run_id_taken(&mut self, id: RunId) -> Rowed<bool> {
        Ok(self.run_ids.contains_key(&id) || self.writers.contains_key(&id))
    }

    fn insert_run(&mut self, row: &RunRow, spec: &RunSpec) -> Rowed<u64> {
        self.n_last.1 += 1;
        let n = self.n_last.1;
        self.run_ids.insert(row.id, n);
        self.open.insert(n);
        self.of_thread.entry(row.thread_n).or_default().insert(n);
        let row = RunRow { n, ..row.clone() };
        self.runs.insert(n, StoredRun { row, spec: spec.clone(), outcome: None, hidden: false });
        Ok(n)
    }

    fn save_run(&mut self, row: &RunRow) -> Rowed<()> {
        self.stored_run(row.n)?.row = row.clone();
        if row.state.is_terminal() {
            self.open.remove(&row.n);
        }
        Ok(())
    }

    fn save_progress(&mut self, row: &RunRow) -> Rowed<()> {
        let stored = &mut self.stored_run(row.n)?.row;
        (stored.step, stored.usage, stored.updated_at) = (row.step, row.usage, row.updated_at);
        Ok(())
    }

    fn spec(&mut self, run_n: u64) -> Rowed<RunSpec> {
        Ok(self.stored_run(run_n)?.spec.clone())
    }

    fn outcome(&mut self, run_n: u64) -> Rowed<Option<Outcome>> {
        Ok(self.stored_run(run_n)?.outcome.clone())
    }

    fn save_outcome(&mut self, run_n: u64, outcome: &Outcome) -> Rowed<()> {
        self.stored_run(run_n)?.outcome = Some(outcome.clone());
        Ok(())
    }

    fn hide_run(&mut self, run_n: u64) -> Rowed<()> {
        self.stored_run(run_n)?.hidden = true;
        Ok(())
    }

    fn insert_writer(&mut self, thread: &ThreadRow, writer: RunId) -> Rowed<u64> {
        self.writers.insert(writer, thread.n);
        Ok(0)
    }

    fn queued(&mut self, thread_n: u64, limit: u32) -> Rowed<Vec<RunRow>> {
        Ok(self.queue(thread_n).take(at_most(limit)).cloned().collect())
    }

    fn has_queued(&mut self, thread_n: u64, policy: BusyPolicy) -> Rowed<bool> {
        Ok(self.queue(thread_n).any(|row| row.busy_policy == policy))
    }

    fn n_queued_before(&mut self, thread_n: u64, run_n: u64) -> Rowed<u32> {
        let before = self.queue(thread_n).take_while(|row| row.n < run_n);
        Ok(u32::try_from(before.count()).unwrap_or(u32::MAX))
    }

    fn ready(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>> {
        let due = |row: &&RunRow| row.ready && row.not_before.is_none_or(|at| at <= now);
        Ok(self.open().filter(due).take(at_most(limit)).map(|row| row.n).collect())
    }

    fn parked(&mut self, now: Wall, on: WaitReason, route: Option<&str>, limit: u32) -> Rowed<Vec<u64>> {
        let waits = |row: &&RunRow| {
            row.state == RunState::Waiting
                && row.not_before.is_none_or(|at| at <= now)
                && row
                    .wait
                    .as_ref()
                    .is_some_and(|wait| wait.on == on && (route.is_none() || wait.route.as_deref() == route))
        };
        let mut rows: Vec<&RunRow> = self.open().filter(waits).collect();
        rows.sort_by_key(|row| (row.class, row.deadline, row.n));
        Ok(rows.into_iter().take(at_most(limit)).map(|row| row.n).collect())
    }

    fn owners(&mut self) -> Rowed<Vec<ReplicaId>> {
        let owners: BTreeSet<ReplicaId> = self.open().filter_map(|row| row.owner).collect();
        Ok(owners.into_iter().collect())
    }

    fn owned(&mut self, owner: ReplicaId, state: RunState, limit: u32) -> Rowed<Vec<u64>> {
        let rows = self.open().filter(|row| row.owner == Some(owner) && row.state == state);
        Ok(rows.take(at_most(limit)).map(|row| row.n).collect())
    }

    fn held(&mut self, owner: ReplicaId) -> Rowed<Vec<Held>> {
        let rows = self.open().filter(|row| row.owner == Some(owner));
        Ok(rows.map(|row| Held { tenant: row.tenant.clone(), run: row.id, thread: row.thread }).collect())
    }

    fn overdue(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>> {
        let unowned = |row: &&RunRow| matches!(row.state, RunState::Queued | RunState::Waiting);
        let mut rows: Vec<&RunRow> = self.open().filter(unowned).filter(|row| row.deadline <= now).collect();
        rows.sort_by_key(|row| (row.deadline, row.n));
        Ok(rows.into_iter().take(at_most(limit)).map(|row| row.n).collect())
    }

    fn list_runs(&mut self, list: &ListRuns) -> Rowed<Vec<RunRow>> {
        let page = |rows: &mut dyn Iterator<Item = &RunRow>| -> Vec<RunRow> {
            let rows = rows.filter(|row| is_listed(row, list));
            rows.skip(at_most(list.offset)).take(at_most(list.limit)).cloned().collect()
        };
        Ok(match list.thread {
            Some(thread) => page(&mut self.rows_of(thread).rev()),
            None => page(&mut self.rows().rev()),
        })
    }

    fn n_by_state(&mut self) -> Rowed<Vec<(RunState, u64)>> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for row in self.rows() {
            *counts.entry(row.state.as_str()).or_default() += 1;
        }
        Ok(counts.into_iter().filter_map(|(state, n)| Some((RunState::parse(state)?, n))).collect())
    }

    fn n_parked_by_route(&mut self) -> Rowed<Vec<(String, u64)>> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for wait in self.open().filter_map(|row| row.wait.as_ref()) {
            if wait.on == WaitReason::Model {
                *counts.entry(wait.route.clone().unwrap_or_default()).or_default() += 1;
            }
        }
        Ok(counts.into_iter().collect())
    }

    fn append(&mut self, entry: &Entry<'_>) -> Rowed<()> {
        let log = &mut self.stored_thread(entry.thread_n)?.log;
        if entry.seq != log.len() as u64 + 1 {
            return Err(Fault::Corrupt(format!("event {} does not follow event {}", entry.seq, log.len())));
        }
        log.push(Event {
            thread: entry.thread,
            seq: entry.seq,
            run: entry.run,
            step: entry.step,
            at: entry.at,
            body: entry.body.clone(),
        });
        Ok(())
    }

    fn events(&mut self, thread_n: u64, after_seq: u64, limit: u32) -> Rowed<Vec<Event>> {
        let log = &self.stored_thread(thread_n)?.log;
        let from = usize::try_from(after_seq).unwrap_or(usize::MAX);
        Ok(log.iter().skip(from).take(at_most(limit)).cloned().collect())
    }

    fn effect(&mut self, run_n: u64, effect: &EffectId) -> Rowed<EffectRow> {
        let marks = self.effects.get(&(run_n, effect.clone())).copied().unwrap_or_default();
        Ok(EffectRow { intended: marks.intended.is_some(), settled: marks.settled.is_some() })
    }

    fn mark_effect(&mut self, entry: &Entry<'_>, effect: &EffectId, side: EffectSide) -> Rowed<()> {
        let marks = self.effects.entry((entry.run_n, effect.clone())).or_default();
        match side {
            EffectSide::Intended => marks.intended = Some(entry.seq),
            EffectSide::Settled => marks.settled = Some(entry.seq),
        }
        Ok(())
    }

    fn effects(&mut self, run: &RunRow) -> Rowed<Vec<Effect>> {
        let from = (run.n, EffectId::from(""));
        let of_run = self.effects.range(from..).take_while(|((run_n, _), _)| *run_n == run.n);
        let mut marks: Vec<(u64, Option<u64>)> =
            of_run.filter_map(|(_, marks)| Some((marks.intended?, marks.settled))).collect();
        marks.sort_unstable();
        let mut effects = Vec::with_capacity(marks.len());
        for (intended, settled) in marks {
            let EventBody::EffectIntended(intent) = self.logged(run.thread_n, intended)?.clone() else {
                return Err(lost("intent", intended));
            };
            let step = self.stored_thread(run.thread_n)?.log.get(idx(intended)).map_or(0, |event| event.step);
            let result = match settled.map(|seq| self.logged(run.thread_n, seq).cloned()).transpose()? {
                Some(EventBody::EffectSettled(result)) => Some(result),
                _ => None,
            };
            effects.push(Effect { step, intent, result });
        }
        Ok(effects)
    }

    fn key_run(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
    ) -> Rowed<Option<u64>> {
        Ok(self.keys.get(&(tenant.clone(), scope, key.clone())).copied())
    }

    fn insert_key(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
        run: &RunRow,
    ) -> Rowed<()> {
        self.keys.insert((tenant.clone(), scope, key.clone()), run.n);
        Ok(())
    }

    fn message_run(&mut self, thread_n: u64, message: &MessageId) -> Rowed<Option<u64>> {
        Ok(self.messages.get(&(thread_n, message.clone())).copied())
    }

    fn insert_message(&mut self, thread_n: u64, message: &MessageId, run_n: u64) -> Rowed<()> {
        self.messages.entry((thread_n, message.clone())).or_insert(run_n);
        Ok(())
    }

    fn put_blob(&mut self, bytes: &[u8]) -> Rowed<BlobId> {
        let id = BlobId::of(bytes);
        self.blobs.entry(id.clone()).or_insert_with(|| bytes.to_vec());
        Ok(id)
    }

    fn blob(&mut self, blob: &BlobId) -> Rowed<Option<Vec<u8>>> {
        Ok(self.blobs.get(blob).cloned())
    }

    fn put_api_key(&mut self, key: &ApiKey) -> Rowed<()> {
        self.api_keys.insert(key.hash.clone(), key.clone());
        Ok(())
    }

    fn api_key(&mut self, hash: &str) -> Rowed<Option<ApiKey>> {
        Ok(self.api_keys.get(hash).cloned())
    }

    fn api_keys(&mut self) -> Rowed<Vec<ApiKey>> {
        Ok(self.api_keys.values().cloned().collect())
    }

    fn remove_api_key(&mut self, hash: &str) -> Rowed<bool> {
        Ok(self.api_keys.remove(hash).is_some())
    }
}
