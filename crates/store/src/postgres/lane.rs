//! A lane: one connection, and all writes to the threads that fall to it, many in one statement.
//!
//! A batch is what is queued, up to a number, without waiting for more. It is decided on rows in
//! memory, written by one statement that checks what was decided on, and then answered. Operations
//! whose threads somebody else had written are decided again on fresh rows, a few times.
//!
//! Two rules keep the cache honest. A reply that changes nothing is only given from rows that were
//! read for it, or that another operation of the batch has the write check. And after a write that
//! did not come through, nothing of its threads is believed any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::port::store::{Op, Reply};
use evenkeel_core::{Error, Generator};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::cache::Cache;
use super::changes::Footprint;
use super::connect::Line;
use super::facts::{Facts, Need, Needs, ThreadFact};
use super::fault::Trouble;
use super::gather::Gather;
use super::rows::PgRows;
use super::settle::{self, Fate};
use super::statement::{Statement, get};
use super::stats::Recorder;
use super::write::{self, Write};
use super::{load, prefetch};
use crate::Guards;
use crate::decide::{self, Context, Now};
use crate::packed::int;
use crate::record::Replicas;
use crate::rows::Fault;

/// What becomes of an operation.
pub(super) type Answer = Result<Reply, Error>;

/// One operation and where its reply goes.
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) now: Now,
    /// The runs among which a queue may choose, and the thread of each.
    pub(super) candidates: Vec<(RunId, ThreadId)>,
    /// The leases that a steal goes by.
    pub(super) replicas: Replicas,
    /// When it is given up.
    pub(super) until: Instant,
    pub(super) reply: oneshot::Sender<Answer>,
    pub(super) progress: Progress,
    /// Held until the job is answered.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Job {
    /// The thread that it is about.
    fn whose(&self) -> Uuid {
        let candidate = || self.candidates.first().map(|(_, thread)| *thread);
        prefetch::thread_of(&self.op).or_else(candidate).map_or(Uuid::nil(), |thread| thread.0)
    }

    /// Whether what stands in line on its thread waits for its answer. What joins the line does not
    /// move it.
    fn is_link(&self) -> bool {
        !matches!(self.op, Op::Admit(_))
    }
}

/// How far a job has come.
#[derive(Default)]
pub(super) struct Progress {
    n_tries: u32,
    /// Nothing may be taken to be missing any more.
    looks: bool,
    last: Option<Trouble>,
}

/// A job is decided again this often before the store says that it cannot answer.
const TRIES_MAX: u32 = 12;

/// Passes over one batch: each loads what the one before found missing.
const PASSES_MAX: usize = 24;

/// The first wait before a batch is tried again.
const WAIT_FIRST: Duration = Duration::from_millis(10);

/// The longest.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// One lane.
pub(super) struct Lane {
    pub(super) line: Line,
    pub(super) cache: Cache,
    pub(super) recorder: Arc<Recorder>,
    pub(super) generator: Generator,
    pub(super) batch_max: usize,
    pub(super) gather: Gather,
    pub(super) guards: Guards,
    /// Names this lane in the database; marks of its batches begin with it.
    pub(super) writer: Uuid,
    pub(super) n_batches: u64,
    pub(super) n_fenced: u64,
    pub(super) n_fenced_stored: u64,
}

/// A batch that was decided.
struct Decided {
    outcomes: Vec<Result<Reply, Fault>>,
    footprints: Vec<Footprint>,
    write: Option<Write>,
    /// What the rows are after it.
    left: Facts,
    dirty: BTreeSet<ThreadId>,
    deleted: BTreeSet<ThreadId>,
}

/// What one pass said.
enum Pass {
    Decided(Box<Decided>),
    /// These must be loaded first.
    Needs(Needs),
    /// The job at this place failed for itself.
    Failed(usize, Fault),
    /// The job at this place, or its cached threads, must be looked at.
    Look(usize, BTreeSet<ThreadId>),
}

impl Lane {
    /// Carries out batches until the store is closed.
    pub(super) async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Job>) {
        let mut taken = Vec::new();
        while queue.recv_many(&mut taken, self.batch_max).await > 0 {
            self.gather_more(&mut taken, &mut queue).await;
            for jobs in split(taken.drain(..)) {
                self.batch(jobs).await;
            }
            self.store_fenced().await;
        }
    }

    /// Waits for more jobs, if that is worth it.
    async fn gather_more(&mut self, taken: &mut Vec<Job>, queue: &mut mpsc::UnboundedReceiver<Job>) {
        taken.iter().for_each(|job| self.gather.came(job.whose(), job.is_link()));
        while taken.len() < self.batch_max
            && let Some(until) = self.gather.until(Instant::now())
        {
            let n_before = taken.len();
            let room = self.batch_max - n_before;
            // A closed queue has nothing more; what was taken is carried out.
            if !matches!(timeout_at(until, queue.recv_many(taken, room)).await, Ok(1..)) {
                break;
            }
            taken.iter().skip(n_before).for_each(|job| self.gather.came(job.whose(), job.is_link()));
        }
        self.gather.goes(Instant::now());
    }

    /// Carries jobs out until each is answered.
    async fn batch(&mut self, jobs: Vec<Job>) {
        let mut batches = VecDeque::from([jobs]);
        let mut n_rounds = 0;
        while let Some(jobs) = batches.pop_front() {
            let jobs = give_up_late(jobs);
            if jobs.is_empty() {
                continue;
            }
            if n_rounds > 0 {
                sleep(self.pause(n_rounds)).await;
            }
            n_rounds += 1;
            let (left, together) = self.round(jobs).await;
            match together {
                true if left.is_empty() => n_rounds = 0,
                true => batches.push_front(left),
                false => left.into_iter().rev().for_each(|job| batches.push_front(vec![job])),
            }
        }
    }

    fn pause(&self, n_rounds: u32) -> Duration {
        let full = WAIT_FIRST.saturating_mul(2_u32.saturating_pow(n_rounds.min(8))).min(WAIT_MAX);
        full.mul_f64(0.5 + 0.5 * self.generator.unit())
    }

    /// One try: load, decide, write, answer. Returns what is left, and whether it may stay together.
    async fn round(&mut self, mut jobs: Vec<Job>) -> (Vec<Job>, bool) {
        let mut base = Facts::default();
        let mut decided = match self.decide(&mut jobs, &mut base).await {
            Ok(decided) => decided,
            Err(trouble) => return (again(jobs, &trouble), !matches!(trouble, Trouble::Broken(_))),
        };
        let Some(write) = decided.write.take() else {
            self.answer(jobs, decided.outcomes);
            return (Vec::new(), true);
        };
        let batch = self.mark();
        let n_fenced = self.n_fenced;
        match self.line.send_one(write.statement).await {
            Ok(rows) => {
                let ok = rows.first().and_then(|row| get::<Vec<i32>>(row, 0).ok()).unwrap_or_default();
                self.n_fenced_stored = n_fenced;
                self.recorder.n_writes.add(1);
                let fates = |group: i32| if ok.contains(&group) { Fate::Happened } else { Fate::Not };
                (self.finish(jobs, decided, &base, &write.checked, &fates), true)
            }
            Err(Trouble::Lost(why)) => {
                self.recorder.n_lost.add(1);
                tracing::warn!(
                    why,
                    n = jobs.len(),
                    "the answer to a write was lost; asking what became of it"
                );
                let until = jobs.iter().map(|job| job.until).max();
                let fates = self.settle(&write.checked, batch, until).await;
                let fate = |group: i32| fates.get(&group).copied().unwrap_or(Fate::Unknown);
                let trouble = Trouble::Lost(why);
                let jobs = jobs.into_iter().map(|job| Job { progress: job.progress.after(&trouble), ..job });
                (self.finish(jobs.collect(), decided, &base, &write.checked, &fate), true)
            }
            Err(trouble) => {
                for thread in write.checked.keys() {
                    self.cache.forget(*thread);
                }
                let together = !matches!(trouble, Trouble::Broken(_)) || jobs.len() == 1;
                if let (Trouble::Broken(fault), 1) = (&trouble, jobs.len()) {
                    answer_each(jobs, fault);
                    return (Vec::new(), true);
                }
                tracing::debug!(?trouble, n = jobs.len(), "a write did not happen");
                self.recorder.n_redone.add(jobs.len() as u64);
                (again(jobs, &trouble), together)
            }
        }
    }

    /// Loads and decides until nothing is missing.
    async fn decide(&mut self, jobs: &mut [Job], base: &mut Facts) -> Result<Decided, Trouble> {
        let mut needs = Needs::default();
        for job in jobs.iter() {
            if job.progress.n_tries == 0
                && let Some(thread) = prefetch::thread_of(&job.op)
                && !base.threads.contains_key(&thread)
            {
                self.cache.lend(thread, base);
            }
            let candidates: Vec<RunId> = job.candidates.iter().map(|(run, _)| *run).collect();
            prefetch::of_write(&job.op, &candidates, base, job.progress.looks, &mut needs);
            for (_, thread) in &job.candidates {
                needs.add(Need::Open(*thread));
            }
        }
        let mut failed = BTreeMap::new();
        for _ in 0..PASSES_MAX {
            if !needs.is_empty() {
                self.recorder.n_loads.add(1);
                load::load(&mut self.line, base, std::mem::take(&mut needs)).await?;
            }
            match self.pass(jobs, base, &failed) {
                Pass::Decided(decided) => return Ok(*decided),
                Pass::Needs(missing) => needs = missing,
                Pass::Failed(idx, fault) => {
                    failed.insert(idx, fault);
                }
                Pass::Look(idx, threads) => {
                    let Some(job) = jobs.get_mut(idx) else { continue };
                    job.progress.looks = true;
                    for thread in threads {
                        self.cache.forget(thread);
                        base.forget(thread);
                    }
                    let candidates: Vec<RunId> = job.candidates.iter().map(|(run, _)| *run).collect();
                    prefetch::of_write(&job.op, &candidates, base, true, &mut needs);
                }
            }
        }
        Err(Trouble::Conflict("the rows changed again and again while they were read".to_owned()))
    }

    /// Decides every job on what is known, from the start.
    fn pass(&mut self, jobs: &[Job], base: &Facts, failed: &BTreeMap<usize, Fault>) -> Pass {
        let mut rows = PgRows::new(base);
        let (mut outcomes, mut footprints) = (Vec::new(), Vec::new());
        for (idx, job) in jobs.iter().enumerate() {
            rows.footprint = Footprint::default();
            if let Some(fault) = failed.get(&idx) {
                outcomes.push(Err(fault.clone()));
                footprints.push(Footprint::default());
                continue;
            }
            match decide_one(&mut rows, job, self.guards) {
                Ok(reply) => outcomes.push(Ok(reply)),
                Err(Fault::NotLoaded) => outcomes.push(Err(Fault::NotLoaded)),
                Err(fault) => return Pass::Failed(idx, fault),
            }
            footprints.push(std::mem::take(&mut rows.footprint));
        }
        if !rows.needs.is_empty() {
            return Pass::Needs(rows.needs);
        }
        if let Some((idx, threads)) = unchecked(&rows, base, &footprints) {
            return Pass::Look(idx, threads);
        }
        let fenced = (self.n_fenced != self.n_fenced_stored).then_some((self.writer, self.n_fenced));
        let write = match write::write(&rows, &footprints, self.next_mark(), fenced) {
            Ok(write) => write,
            Err(fault) => return Pass::Failed(0, fault),
        };
        let (left, changes) = (rows.work, rows.changes);
        Pass::Decided(Box::new(Decided {
            outcomes,
            footprints,
            write,
            left,
            dirty: changes.dirty,
            deleted: changes.deleted,
        }))
    }

    /// Answers what came through, keeps what it left, and returns the rest.
    fn finish(
        &mut self,
        jobs: Vec<Job>,
        decided: Decided,
        base: &Facts,
        checked: &BTreeMap<ThreadId, (i32, u64)>,
        fate: &dyn Fn(i32) -> Fate,
    ) -> Vec<Job> {
        let fate_of =
            |thread: &ThreadId| checked.get(thread).map_or(Fate::Happened, |(group, _)| fate(*group));
        for thread in checked.keys() {
            let left = decided.left.threads.get(thread);
            match (fate_of(thread), left) {
                (Fate::Happened, Some(left)) if !decided.deleted.contains(thread) => {
                    let thread = ThreadFact { rev: left.rev + 1, ..left.clone() };
                    self.cache.keep(thread, &decided.left, base);
                }
                (Fate::Happened, None) => {}
                _ => self.cache.forget(*thread),
            }
        }
        let (mut rest, mut done, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
        for ((job, outcome), footprint) in jobs.into_iter().zip(decided.outcomes).zip(decided.footprints) {
            let of_batch = footprint.read.iter().filter(|thread| decided.dirty.contains(*thread));
            let worst =
                of_batch.chain(&footprint.wrote).map(fate_of).fold(
                    Fate::Happened,
                    |worst, fate| match fate {
                        Fate::Happened => worst,
                        Fate::Not if worst == Fate::Happened => Fate::Not,
                        Fate::Not => worst,
                        Fate::Unknown => Fate::Unknown,
                    },
                );
            match worst {
                Fate::Happened => {
                    done.push(job);
                    outcomes.push(outcome);
                }
                Fate::Not => rest.push(job),
                Fate::Unknown => {
                    let last = job.progress.last.clone();
                    let trouble = last.unwrap_or_else(|| Trouble::Lost("the connection broke".to_owned()));
                    drop(job.reply.send(Err(trouble.into_error(true))));
                }
            }
        }
        self.recorder.n_written.add(done.len() as u64);
        self.recorder.n_redone.add(rest.len() as u64);
        self.answer(done, outcomes);
        again(rest, &Trouble::Conflict("somebody else wrote to the thread".to_owned()))
    }

    fn answer(&mut self, jobs: Vec<Job>, outcomes: Vec<Result<Reply, Fault>>) {
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            if outcome.as_ref().is_ok_and(decide::is_fenced) {
                self.n_fenced += 1;
                self.recorder.n_fenced.add(1);
            }
            // A caller that has gone away does not want it.
            drop(job.reply.send(outcome.map_err(Error::from)));
        }
    }

    /// Asks what became of a write until the database says so or the time is up.
    async fn settle(
        &mut self,
        checked: &BTreeMap<ThreadId, (i32, u64)>,
        batch: Uuid,
        until: Option<Instant>,
    ) -> BTreeMap<i32, Fate> {
        let fence = self.mark();
        for n_tries in 1.. {
            match settle::ask(&mut self.line, checked, batch, fence).await {
                Ok(fates) => return fates,
                Err(trouble) => {
                    tracing::debug!(?trouble, "the database does not say yet what became of a write")
                }
            }
            if until.is_none_or(|until| Instant::now() >= until) {
                break;
            }
            sleep(self.pause(n_tries)).await;
        }
        BTreeMap::new()
    }

    /// The mark of the next batch, which `mark` then uses up.
    fn next_mark(&self) -> Uuid {
        let (high, _) = self.writer.as_u64_pair();
        Uuid::from_u64_pair(high, self.n_batches + 1)
    }

    fn mark(&mut self) -> Uuid {
        let mark = self.next_mark();
        self.n_batches += 1;
        mark
    }

    /// Stores the number of fenced writes when no write has carried it along.
    async fn store_fenced(&mut self) {
        if self.n_fenced == self.n_fenced_stored {
            return;
        }
        let n = self.n_fenced;
        let statement = Statement::new(format!("SELECT {}", write::fenced_call("$1", "$2")))
            .with(self.writer, Type::UUID)
            .with(int(n), Type::INT8);
        match self.line.send_one(statement).await {
            Ok(_) => self.n_fenced_stored = n,
            Err(trouble) => tracing::debug!(?trouble, "the number of fenced writes is stored later"),
        }
    }
}

impl Progress {
    fn after(self, trouble: &Trouble) -> Self {
        Self { n_tries: self.n_tries + 1, looks: true, last: Some(trouble.clone()) }
    }
}

/// A deletion stands alone: a statement cannot remove and make one row.
fn split(jobs: impl Iterator<Item = Job>) -> Vec<Vec<Job>> {
    let mut batches: Vec<Vec<Job>> = Vec::new();
    let mut is_open = false;
    for job in jobs {
        let alone = matches!(job.op, Op::DeleteThread(_));
        match batches.last_mut() {
            Some(batch) if is_open && !alone => batch.push(job),
            _ => batches.push(vec![job]),
        }
        is_open = !alone;
    }
    batches
}

fn decide_one(rows: &mut PgRows<'_>, job: &Job, guards: Guards) -> Result<Reply, Fault> {
    rows.candidates = job.candidates.iter().map(|(run, _)| *run).collect();
    rows.assume = match &job.op {
        Op::Admit(of) if !job.progress.looks => rows.is_cached(of.thread).then_some(of.run),
        _ => None,
    };
    let mut replicas = job.replicas.clone();
    let mut ctx = Context { rows, replicas: &mut replicas, now: job.now, guards };
    // What a panic leaves behind is a pass, and that is dropped.
    std::panic::catch_unwind(AssertUnwindSafe(|| decide::apply(&mut ctx, &job.op)))
        .unwrap_or_else(|_| Err(Fault::Misused("it panicked".to_owned())))
}

/// A job whose reply rests on something that neither was read nor will be checked by the write.
fn unchecked(
    rows: &PgRows<'_>,
    base: &Facts,
    footprints: &[Footprint],
) -> Option<(usize, BTreeSet<ThreadId>)> {
    let is_cached = |thread: &&ThreadId| base.threads.get(thread).is_some_and(|fact| fact.cached);
    for (idx, footprint) in footprints.iter().enumerate().filter(|(_, of)| of.wrote.is_empty()) {
        let clean = footprint.read.iter().filter(|thread| !rows.changes.dirty.contains(*thread));
        let stale: BTreeSet<ThreadId> = clean.filter(is_cached).copied().collect();
        if !stale.is_empty() || !footprint.absent.is_empty() {
            return Some((idx, stale));
        }
    }
    None
}

/// Answers the jobs whose time is up, and those that were tried too often.
fn give_up_late(jobs: Vec<Job>) -> Vec<Job> {
    let now = Instant::now();
    let (late, rest): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| {
        now >= job.until || job.progress.n_tries >= TRIES_MAX && job.progress.is_contended()
    });
    for job in late {
        let last = job.progress.last.clone();
        let trouble = last.unwrap_or_else(|| Trouble::Away("its turn did not come in time".to_owned()));
        drop(job.reply.send(Err(trouble.into_error(false))));
    }
    rest
}

impl Progress {
    /// Whether it lost against others, not against a database that is away.
    fn is_contended(&self) -> bool {
        matches!(self.last, Some(Trouble::Conflict(_) | Trouble::Broken(_)))
    }
}

fn again(jobs: Vec<Job>, trouble: &Trouble) -> Vec<Job> {
    jobs.into_iter().map(|job| Job { progress: job.progress.after(trouble), ..job }).collect()
}

fn answer_each(jobs: Vec<Job>, fault: &Fault) {
    for job in jobs {
        drop(job.reply.send(Err(fault.clone().into())));
    }
}
