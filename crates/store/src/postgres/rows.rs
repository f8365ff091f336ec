//! Rows of a batch under decision: known facts, and over them what the batch has changed so far.
//!
//! A lookup of something that is not known notes the need and ends the decision; the engine loads
//! all needs of the batch together and decides again from the start. So nothing is ever undone: a
//! pass that did not come through is dropped with its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_core::Wall;
use evenkeel_core::id::{BlobId, EffectId, IdempotencyKey, MessageId, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::Event;
use evenkeel_core::port::store::{ApiKey, Effect, Held, ListRuns, ListThreads};
use evenkeel_core::run::{BusyPolicy, Outcome, RunSpec, RunState, WaitReason};
use evenkeel_core::thread::Thread;
use serde_json::Value;

use super::changes::{Absent, Body, Changes, EventOut, Footprint};
use super::facts::{Effects, Facts, KeyName, Need, Needs, RunFact, ThreadFact, effect_word, message_word};
use super::names::Names;
use crate::packed;
use crate::record::{EffectRow, RunRow, ThreadRow};
use crate::rows::{self, EffectSide, Entry, Fault, Rowed, Rows};

/// Rows of one pass over a batch.
pub(super) struct PgRows<'a> {
    base: &'a Facts,
    pub(super) work: Facts,
    pub(super) changes: Changes,
    pub(super) needs: Needs,
    /// Of the operation that is decided now.
    pub(super) footprint: Footprint,
    /// What a queue may answer to this operation: each is looked at again before it is used.
    pub(super) candidates: Vec<RunId>,
    /// The run that an operation brings: its key, its messages and its id count as missing where
    /// they were not looked up.
    pub(super) assume: Option<RunId>,
    names: Names,
}

fn at_most(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

impl<'a> PgRows<'a> {
    pub(super) fn new(base: &'a Facts) -> Self {
        Self {
            base,
            work: Facts::default(),
            changes: Changes::default(),
            needs: Needs::default(),
            footprint: Footprint::default(),
            candidates: Vec::new(),
            assume: None,
            names: Names::default(),
        }
    }

    fn need<T>(&mut self, need: Need) -> Rowed<T> {
        self.needs.add(need);
        Err(Fault::NotLoaded)
    }

    /// A thread as it is now, if it is known.
    pub(super) fn thread_fact(&self, id: ThreadId) -> Option<&ThreadFact> {
        if self.names.gone.contains(&id) {
            return None;
        }
        self.work.threads.get(&id).or_else(|| self.base.threads.get(&id))
    }

    /// Whether a thread is known from an earlier write, and what hangs on it can be checked by one.
    pub(super) fn is_cached(&self, id: ThreadId) -> bool {
        self.base.threads.get(&id).is_some_and(|fact| fact.cached)
    }

    /// A run as it is now, if it is known.
    pub(super) fn run_fact(&self, id: RunId) -> Option<&RunFact> {
        let fact = self.work.runs.get(&id).or_else(|| self.base.runs.get(&id))?.as_ref();
        (!self.names.gone.contains(&fact.row.thread)).then_some(fact)
    }

    /// A run as the database holds it, if it is known.
    pub(super) fn stored_run(&self, id: RunId) -> Option<&RunRow> {
        self.base.runs.get(&id).map(|fact| &fact.row)
    }

    /// The open runs of a thread as they are now, if they are known.
    pub(super) fn open_of(&self, id: ThreadId) -> Option<&BTreeMap<u64, RunId>> {
        self.work.open.get(&id).or_else(|| self.base.open.get(&id))
    }

    /// The effects of a run as they are now, if they are known.
    pub(super) fn effects_of(&self, id: RunId) -> Option<&Effects> {
        self.work.effects.get(&id).or_else(|| self.base.effects.get(&id))
    }

    fn thread_row(&mut self, id: ThreadId) -> Option<ThreadRow> {
        let row = self.thread_fact(id)?.row.clone();
        self.footprint.read.insert(id);
        Some(ThreadRow { n: self.names.thread(id), ..row })
    }

    fn run_row(&mut self, id: RunId) -> Option<RunRow> {
        let row = self.run_fact(id)?.row.clone();
        self.footprint.read.insert(row.thread);
        Some(RunRow { n: self.run_n(id), thread_n: self.names.thread(row.thread), ..row })
    }

    fn run_n(&mut self, id: RunId) -> u64 {
        let place = self.run_fact(id).map(|fact| (fact.row.thread, fact.place));
        self.names.run(id, place)
    }

    fn change_thread(&mut self, id: ThreadId) -> Rowed<&mut ThreadFact> {
        self.footprint.read.insert(id);
        self.footprint.wrote.insert(id);
        self.changes.dirty.insert(id);
        if !self.work.threads.contains_key(&id) {
            let fact = self.base.threads.get(&id).cloned();
            let fact = fact.ok_or_else(|| Fault::Misused(format!("thread {id} was not loaded")))?;
            self.work.threads.insert(id, fact);
        }
        self.work.threads.get_mut(&id).ok_or(Fault::NotLoaded)
    }

    fn change_run(&mut self, id: RunId) -> Rowed<&mut RunFact> {
        if !self.work.runs.contains_key(&id) {
            let fact = self.base.runs.get(&id).cloned();
            let fact = fact.ok_or_else(|| Fault::Misused(format!("run {id} was not loaded")))?;
            self.work.runs.insert(id, fact);
        }
        let thread = self.work.runs.get(&id).map(|fact| fact.row.thread).ok_or(Fault::NotLoaded)?;
        self.change_thread(thread)?;
        self.changes.runs.insert(id);
        self.work.runs.get_mut(&id).map(Arc::make_mut).ok_or(Fault::NotLoaded)
    }

    fn change_open(&mut self, thread: ThreadId) -> &mut BTreeMap<u64, RunId> {
        let known = self.base.open.get(&thread);
        self.work.open.entry(thread).or_insert_with(|| known.cloned().unwrap_or_default())
    }

    fn change_effects(&mut self, run: RunId) -> &mut Effects {
        let known = self.base.effects.get(&run);
        self.work.effects.entry(run).or_insert_with(|| known.cloned().unwrap_or_default())
    }

    fn body<T: serde::Serialize>(&mut self, thread: ThreadId, value: &T) -> Rowed<Body> {
        let json = packed::json(value)?;
        if json.len() <= packed::INLINE_MAX {
            return Ok(Body::Inline(json));
        }
        let hash = packed::hash(json.as_bytes());
        self.changes.blobs.insert(hash, json.into_bytes());
        self.changes.blob_names.insert((hash, thread));
        Ok(Body::Moved(hash))
    }

    /// Queued runs of a thread in order of their places, as far as `take` wants them.
    fn queue(&mut self, thread: ThreadId, mut take: impl FnMut(&RunFact) -> bool) -> Rowed<()> {
        self.footprint.read.insert(thread);
        let Some(open) = self.open_of(thread) else {
            return self.need(Need::Open(thread));
        };
        let mut missing = None;
        for id in open.values() {
            match self.run_fact(*id) {
                Some(fact) if fact.row.state == RunState::Queued && !take(fact) => break,
                Some(_) => {}
                None => missing = Some(*id),
            }
        }
        missing.map_or(Ok(()), |id| self.need(Need::Run(None, id)))
    }

    /// Candidates that the queue still holds.
    fn still(&mut self, limit: u32, holds: impl Fn(&RunRow) -> bool) -> Rowed<Vec<u64>> {
        let mut found = Vec::new();
        for id in self.candidates.clone() {
            match self.run_row(id) {
                Some(row) if holds(&row) => found.push(row.n),
                Some(_) => {}
                // It has ended and been removed since.
                None if self.base.runs_taken.get(&id) == Some(&false) => {}
                None => return self.need(Need::Run(None, id)),
            }
        }
        found.truncate(at_most(limit));
        Ok(found)
    }

    fn assume(&mut self, absent: Absent) {
        self.footprint.absent.push(absent);
    }
}

impl Rows for PgRows<'_> {
    fn thread(&mut self, tenant: &TenantId, id: ThreadId) -> Rowed<Option<ThreadRow>> {
        if let Some(row) = self.thread_row(id) {
            return Ok((row.tenant == *tenant).then_some(row));
        }
        let missing = self.names.gone.contains(&id) || self.base.no_threads.contains(&(tenant.clone(), id));
        if missing { Ok(None) } else { self.need(Need::Thread(tenant.clone(), id)) }
    }

    fn thread_of(&mut self, n: u64) -> Rowed<ThreadRow> {
        let id = self.names.thread_id(n)?;
        self.thread_row(id).ok_or_else(|| Fault::Corrupt(format!("thread {id} is missing")))
    }

    fn thread_id_taken(&mut self, id: ThreadId) -> Rowed<bool> {
        if self.thread_fact(id).is_some() {
            return Ok(true);
        }
        if self.names.gone.contains(&id) {
            return Ok(false);
        }
        match self.base.threads_taken.get(&id) {
            Some(taken) => Ok(*taken),
            None => self.need(Need::Thread(TenantId(String::new()), id)),
        }
    }

    fn insert_thread(&mut self, row: &ThreadRow, metadata: &Value) -> Rowed<u64> {
        let id = row.id;
        let fact = ThreadFact { row: row.clone(), rev: 0, places: 0, cached: false };
        self.work.threads.insert(id, fact);
        self.work.open.insert(id, BTreeMap::new());
        self.changes.new_threads.insert(id);
        self.change_thread(id)?;
        if metadata.as_object().is_none_or(|members| !members.is_empty()) {
            let body = self.body(id, metadata)?;
            self.changes.metadata.insert(id, body);
        }
        self.work.metadata.insert(id, metadata.clone());
        Ok(self.names.thread(id))
    }

    fn save_thread(&mut self, row: &ThreadRow) -> Rowed<()> {
        self.change_thread(row.id)?.row = row.clone();
        Ok(())
    }

    fn metadata(&mut self, thread_n: u64) -> Rowed<Value> {
        let id = self.names.thread_id(thread_n)?;
        let known = self.work.metadata.get(&id).or_else(|| self.base.metadata.get(&id)).cloned();
        known.map_or_else(|| self.need(Need::Metadata(id)), Ok)
    }

    fn save_metadata(&mut self, thread_n: u64, metadata: &Value) -> Rowed<()> {
        let id = self.names.thread_id(thread_n)?;
        self.change_thread(id)?;
        let body = self.body(id, metadata)?;
        self.changes.metadata.insert(id, body);
        self.work.metadata.insert(id, metadata.clone());
        Ok(())
    }

    fn list_threads(&mut self, list: &ListThreads) -> Rowed<Vec<Thread>> {
        let known = self.base.answers.threads.clone();
        known.map_or_else(|| self.need(Need::ListThreads(list.clone())), Ok)
    }

    fn count_threads(&mut self, list: &ListThreads) -> Rowed<u64> {
        let known = self.base.answers.n_threads;
        known.map_or_else(|| self.need(Need::CountThreads(list.clone())), Ok)
    }

    fn delete_thread(&mut self, thread: &ThreadRow) -> Rowed<()> {
        self.change_thread(thread.id)?;
        self.changes.deleted.insert(thread.id);
        self.names.gone.insert(thread.id);
        Ok(())
    }

    fn run(&mut self, tenant: &TenantId, id: RunId) -> Rowed<Option<RunRow>> {
        if let Some(fact) = self.run_fact(id) {
            let found = fact.row.tenant == *tenant && !fact.hidden;
            let row = self.run_row(id);
            return Ok(row.filter(|_| found));
        }
        if self.base.no_runs.contains(&(tenant.clone(), id)) {
            return Ok(None);
        }
        if self.assume == Some(id) {
            self.assume(Absent::Run(id));
            return Ok(None);
        }
        self.need(Need::Run(Some(tenant.clone()), id))
    }

    fn run_of(&mut self, n: u64) -> Rowed<RunRow> {
        let id = self.names.run_id(n)?;
        match self.run_row(id) {
            Some(row) => Ok(row),
            None if self.base.runs_taken.get(&id) == Some(&false) => {
                Err(Fault::Corrupt(format!("run {id} is missing")))
            }
            None => self.need(Need::Run(None, id)),
        }
    }

    fn run_id_taken(&mut self, id: RunId) -> Rowed<bool> {
        if self.run_fact(id).is_some() || self.changes.writers.iter().any(|(writer, _)| *writer == id) {
            return Ok(true);
        }
        match self.base.runs_taken.get(&id) {
            Some(taken) => Ok(*taken),
            // Looked for before, and taken to be missing.
            None if self.footprint.absent.contains(&Absent::Run(id)) => Ok(false),
            None => self.need(Need::Run(None, id)),
        }
    }

    fn insert_run(&mut self, row: &RunRow, spec: &RunSpec) -> Rowed<u64> {
        let (id, thread) = (row.id, row.thread);
        let fact = self.change_thread(thread)?;
        fact.places += 1;
        let place = fact.places;
        let fact =
            RunFact { row: row.clone(), place, hidden: false, spec: Arc::new(spec.clone()), outcome: None };
        self.work.runs.insert(id, Arc::new(fact));
        self.work.effects.insert(id, Effects::new());
        if self.open_of(thread).is_none() {
            return self.need(Need::Open(thread));
        }
        self.change_open(thread).insert(place, id);
        let spec = self.body(thread, spec)?;
        self.changes.new_runs.insert(id, spec);
        self.changes.runs.insert(id);
        Ok(self.run_n(id))
    }

    fn save_run(&mut self, row: &RunRow) -> Rowed<()> {
        let fact = self.change_run(row.id)?;
        fact.row = row.clone();
        let place = fact.place;
        if row.state.is_terminal() && self.open_of(row.thread).is_some() {
            self.change_open(row.thread).remove(&place);
        }
        Ok(())
    }

    fn save_progress(&mut self, row: &RunRow) -> Rowed<()> {
        let stored = &mut self.change_run(row.id)?.row;
        (stored.step, stored.usage, stored.updated_at) = (row.step, row.usage, row.updated_at);
        Ok(())
    }

    fn spec(&mut self, run_n: u64) -> Rowed<RunSpec> {
        let id = self.names.run_id(run_n)?;
        let known = self.run_fact(id).map(|fact| fact.spec.as_ref().clone());
        known.map_or_else(|| self.need(Need::Run(None, id)), Ok)
    }

    fn outcome(&mut self, run_n: u64) -> Rowed<Option<Outcome>> {
        let id = self.names.run_id(run_n)?;
        let known = self.run_fact(id).map(|fact| fact.outcome.as_deref().cloned());
        known.map_or_else(|| self.need(Need::Run(None, id)), Ok)
    }

    fn save_outcome(&mut self, run_n: u64, outcome: &Outcome) -> Rowed<()> {
        let id = self.names.run_id(run_n)?;
        let fact = self.change_run(id)?;
        fact.outcome = Some(Arc::new(outcome.clone()));
        let thread = fact.row.thread;
        let body = self.body(thread, outcome)?;
        self.changes.outcomes.insert(id, body);
        Ok(())
    }

    fn hide_run(&mut self, run_n: u64) -> Rowed<()> {
        let id = self.names.run_id(run_n)?;
        self.change_run(id)?.hidden = true;
        Ok(())
    }

    fn insert_writer(&mut self, thread: &ThreadRow, writer: RunId) -> Rowed<u64> {
        self.change_thread(thread.id)?;
        self.changes.writers.push((writer, thread.id));
        Ok(self.names.run(writer, None))
    }

    fn queued(&mut self, thread_n: u64, limit: u32) -> Rowed<Vec<RunRow>> {
        let thread = self.names.thread_id(thread_n)?;
        let mut ids = Vec::new();
        if limit > 0 {
            self.queue(thread, |fact| {
                ids.push(fact.row.id);
                ids.len() < at_most(limit)
            })?;
        }
        Ok(ids.into_iter().filter_map(|id| self.run_row(id)).collect())
    }

    fn has_queued(&mut self, thread_n: u64, policy: BusyPolicy) -> Rowed<bool> {
        let thread = self.names.thread_id(thread_n)?;
        let mut found = false;
        self.queue(thread, |fact| {
            found = fact.row.busy_policy == policy;
            !found
        })?;
        Ok(found)
    }

    fn n_queued_before(&mut self, thread_n: u64, run_n: u64) -> Rowed<u32> {
        let (thread, id) = (self.names.thread_id(thread_n)?, self.names.run_id(run_n)?);
        // Whoever only reads need not know the whole line to say where a run stands in it.
        if self.open_of(thread).is_none()
            && let Some(place) = self.run_fact(id).map(|fact| fact.place)
        {
            self.footprint.read.insert(thread);
            let known = self.base.answers.before.get(&id).copied();
            return known.map_or_else(|| self.need(Need::Before(thread, id, place)), Ok);
        }
        let mut n = 0;
        self.queue(thread, |fact| {
            let is_before = fact.row.id != id;
            n += u32::from(is_before);
            is_before
        })?;
        Ok(n)
    }

    fn ready(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>> {
        self.still(limit, |row| row.ready && row.not_before.is_none_or(|from| from <= now))
    }

    fn parked(&mut self, now: Wall, on: WaitReason, route: Option<&str>, limit: u32) -> Rowed<Vec<u64>> {
        self.still(limit, |row| {
            row.state == RunState::Waiting
                && row.not_before.is_none_or(|at| at <= now)
                && row
                    .wait
                    .as_ref()
                    .is_some_and(|wait| wait.on == on && (route.is_none() || wait.route.as_deref() == route))
        })
    }

    fn owners(&mut self) -> Rowed<Vec<ReplicaId>> {
        let mut owners = BTreeSet::new();
        for n in self.still(u32::MAX, |row| row.owner.is_some())? {
            owners.extend(self.run_of(n)?.owner);
        }
        Ok(owners.into_iter().collect())
    }

    fn owned(&mut self, owner: ReplicaId, state: RunState, limit: u32) -> Rowed<Vec<u64>> {
        self.still(limit, |row| row.owner == Some(owner) && row.state == state)
    }

    fn held(&mut self, owner: ReplicaId) -> Rowed<Vec<Held>> {
        let known = self.base.answers.held.clone();
        known.map_or_else(|| self.need(Need::Held(owner)), Ok)
    }

    fn overdue(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>> {
        self.still(limit, |row| {
            matches!(row.state, RunState::Queued | RunState::Waiting) && row.deadline <= now
        })
    }

    fn list_runs(&mut self, list: &ListRuns) -> Rowed<Vec<RunRow>> {
        // What this batch hides must not be found; so many more are read.
        let n_hidden = self.work.runs.values().filter(|fact| fact.hidden).count();
        let limit = list.limit.saturating_add(u32::try_from(n_hidden).unwrap_or(u32::MAX));
        let wider = ListRuns { limit, ..list.clone() };
        let found = match &self.base.answers.runs {
            Some((asked, found)) if *asked == wider => found.clone(),
            _ => return self.need(Need::ListRuns(wider)),
        };
        let mut rows = Vec::with_capacity(found.len());
        for id in found {
            if self.run_fact(id).is_some_and(|fact| !fact.hidden) {
                rows.extend(self.run_row(id));
            }
        }
        rows.truncate(at_most(list.limit));
        Ok(rows)
    }

    fn n_by_state(&mut self) -> Rowed<Vec<(RunState, u64)>> {
        let known = self.base.answers.by_state.clone();
        known.map_or_else(|| self.need(Need::ByState), Ok)
    }

    fn n_parked_by_route(&mut self) -> Rowed<Vec<(String, u64)>> {
        let known = self.base.answers.by_route.clone();
        known.map_or_else(|| self.need(Need::ByRoute), Ok)
    }

    fn append(&mut self, entry: &Entry<'_>) -> Rowed<()> {
        self.change_thread(entry.thread)?;
        if let Some(hash) = rows::named_blob(entry.body).and_then(packed::hash_of) {
            self.changes.blob_names.insert((hash, entry.thread));
        }
        let body = self.body(entry.thread, entry.body)?;
        self.changes.events.push(EventOut {
            thread: entry.thread,
            seq: entry.seq,
            run: entry.run,
            step: entry.step,
            at: entry.at,
            body,
        });
        Ok(())
    }

    fn events(&mut self, thread_n: u64, after_seq: u64, limit: u32) -> Rowed<Vec<Event>> {
        let id = self.names.thread_id(thread_n)?;
        let page = (id, after_seq, limit);
        let known = self.base.answers.events.get(&page).cloned();
        known.map_or_else(|| self.need(Need::Events(page)), Ok)
    }

    fn effect(&mut self, run_n: u64, effect: &EffectId) -> Rowed<EffectRow> {
        let id = self.names.run_id(run_n)?;
        match self.effects_of(id) {
            Some(effects) => {
                let marks = effects.get(&effect_word(effect)).copied().unwrap_or_default();
                Ok(EffectRow { intended: marks.intended.is_some(), settled: marks.settled.is_some() })
            }
            None => self.need(Need::Effects(id)),
        }
    }

    fn mark_effect(&mut self, entry: &Entry<'_>, effect: &EffectId, side: EffectSide) -> Rowed<()> {
        self.change_thread(entry.thread)?;
        let word = effect_word(effect);
        let marks = self.change_effects(entry.run).entry(word.clone()).or_default();
        match side {
            EffectSide::Intended => marks.intended = Some(entry.seq),
            EffectSide::Settled => marks.settled = Some(entry.seq),
        }
        let marks = *marks;
        self.changes.effects.insert((entry.run, word), (entry.thread, marks));
        Ok(())
    }

    fn effects(&mut self, run: &RunRow) -> Rowed<Vec<Effect>> {
        let known = self.base.answers.effects.clone();
        known.map_or_else(|| self.need(Need::ReadEffects(run.thread, run.id)), Ok)
    }

    fn key_run(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
    ) -> Rowed<Option<u64>> {
        let name = KeyName::new(tenant, scope, key);
        match self.work.keys.get(&name).or_else(|| self.base.keys.get(&name)).copied() {
            Some(run) => Ok(run.map(|run| self.run_n(run))),
            None if self.assume.is_some() => {
                self.assume(Absent::Key(name));
                Ok(None)
            }
            None => self.need(Need::Key(name)),
        }
    }

    fn insert_key(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
        run: &RunRow,
    ) -> Rowed<()> {
        let name = KeyName::new(tenant, scope, key);
        self.change_thread(run.thread)?;
        self.work.keys.insert(name.clone(), Some(run.id));
        self.changes.keys.insert(name, (run.thread, run.id, run.created_at));
        Ok(())
    }

    fn message_run(&mut self, thread_n: u64, message: &MessageId) -> Rowed<Option<u64>> {
        let thread = self.names.thread_id(thread_n)?;
        let name = (thread, message_word(message));
        match self.work.messages.get(&name).or_else(|| self.base.messages.get(&name)).copied() {
            Some(run) => Ok(run.map(|run| self.run_n(run))),
            None if self.changes.new_threads.contains(&thread) => Ok(None),
            None if self.assume.is_some() => {
                self.assume(Absent::Message(thread, name.1));
                Ok(None)
            }
            None => self.need(Need::Message(thread, name.1)),
        }
    }

    fn insert_message(&mut self, thread_n: u64, message: &MessageId, run_n: u64) -> Rowed<()> {
        let thread = self.names.thread_id(thread_n)?;
        let run = self.names.run_id(run_n)?;
        self.change_thread(thread)?;
        let name = (thread, message_word(message));
        // A request may name one message twice; the first stands.
        self.changes.messages.entry(name.clone()).or_insert(run);
        self.work.messages.entry(name).or_insert(Some(run));
        Ok(())
    }

    fn put_blob(&mut self, _bytes: &[u8]) -> Rowed<BlobId> {
        Err(Fault::Misused("blobs are not stored in a batch".to_owned()))
    }

    fn blob(&mut self, blob: &BlobId) -> Rowed<Option<Vec<u8>>> {
        let known = self.base.answers.blobs.get(blob).cloned();
        known.map_or_else(|| self.need(Need::Blob(blob.clone())), Ok)
    }

    fn put_api_key(&mut self, _key: &ApiKey) -> Rowed<()> {
        Err(Fault::Misused("API keys are not stored in a batch".to_owned()))
    }

    fn api_key(&mut self, hash: &str) -> Rowed<Option<ApiKey>> {
        match self.base.answers.api_keys.clone() {
            Some(keys) => Ok(keys.into_iter().find(|key| key.hash == hash)),
            None => self.need(Need::ApiKeys(Some(hash.to_owned()))),
        }
    }

    fn api_keys(&mut self) -> Rowed<Vec<ApiKey>> {
        let known = self.base.answers.api_keys.clone();
        known.map_or_else(|| self.need(Need::ApiKeys(None)), Ok)
    }

    fn remove_api_key(&mut self, _hash: &str) -> Rowed<bool> {
        Err(Fault::Misused("API keys are not removed in a batch".to_owned()))
    }
}
