//! The writer: one thread, many operations in one commit.
//!
//! A batch is what is queued, up to a number; one `COMMIT` makes all of it durable, and only then are the replies given. So an fsync serves everybody
//! who waited for the one before it, and a reply never says what a crash could take back.
//!
//! - A batch that wrote nothing (polls that found nothing, refused writes) costs no fsync.
//! - An operation that fails is rolled back alone: the batch is done again in savepoints.
//! - When the disk is full the batch is undone and its operations are tried one by one: what fits is
//!   stored, what does not is answered `store-full`, and the store goes on.
//! - After any other failure of a `COMMIT` nobody knows what reached the disk. The store is then
//!   poisoned: this batch and everything later is answered `store-unavailable`, and the process is
//!   to end and start again, which reads the truth from the file.
//! - The number of fenced writes is a low-priority write: it rides on the next commit.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::store::Reply;
use rusqlite::{Connection, TransactionState, config::DbConfig};
use tokio::time::Instant;

use super::fault::faulty;
use super::queue::Job;
use super::rows::SqliteRows;
use super::wal::WalWatch;
use super::{Commit, Shared, SqliteOptions};
use crate::decide::{self, Context};
use crate::record::Replicas;
use crate::rows::{Fault, Rowed};

/// The writer with its connection.
pub(super) struct Writer {
    conn: Connection,
    wal: WalWatch,
    shared: Arc<Shared>,
    options: SqliteOptions,
    replicas: Replicas,
    n_fenced_stored: u64,
    commit: Commit,
}

/// The store is poisoned and everything queued has been answered so.
struct Poisoned;

/// What became of the operations of a batch, in order.
type Outcomes = Vec<Rowed<Reply>>;

/// Commits the open transaction.
pub(super) fn commit(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("COMMIT")?.execute([]).map(drop)
}

impl Writer {
    pub(super) fn new(
        conn: Connection,
        wal: WalWatch,
        shared: Arc<Shared>,
        options: SqliteOptions,
        commit: Commit,
    ) -> Self {
        let n_fenced_stored = shared.n_fenced();
        Self { conn, wal, shared, options, replicas: Replicas::default(), n_fenced_stored, commit }
    }

    /// Carries out batches until the queue is closed and empty, or the store is poisoned.
    pub(super) fn run(&mut self) {
        let mut n_last = 1;
        let mut linger = Duration::ZERO;
        while let Some(jobs) = self.shared.writes.take(self.options.batch_max, n_last, linger) {
            n_last = jobs.len();
            let begun = Instant::now();
            if self.batch(jobs).is_err() {
                return;
            }
            // Whoever was answered just now is likely to come again. Waiting for them a fraction
            // of a commit makes one batch of what would be a small and a large one.
            linger = (begun.elapsed() / 4).min(self.options.linger_max);
            self.tend_wal();
        }
        self.finish();
    }

    /// Carries out one batch and answers it.
    fn batch(&mut self, jobs: Vec<Job>) -> Result<(), Poisoned> {
        match self.together(&jobs) {
            Ok(outcomes) => {
                self.answer_all(jobs, outcomes);
                Ok(())
            }
            Err(Fault::Full) => self.one_by_one(jobs),
            Err(fault) => Err(self.poison(&fault, jobs)),
        }
    }

    fn answer_all(&mut self, jobs: Vec<Job>, outcomes: Outcomes) {
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            if outcome.as_ref().is_ok_and(decide::is_fenced) {
                self.shared.count_fenced();
            }
            self.shared.answer(job, outcome.map_err(Error::from));
        }
    }

    /// The disk is full: makes what room can be made, then tries each operation alone.
    fn one_by_one(&mut self, jobs: Vec<Job>) -> Result<(), Poisoned> {
        self.shared.recorder.full();
        tracing::warn!(n = jobs.len(), "the disk is full; operations are tried one by one");
        // Emptying the log may need space itself; if it does, nothing has changed.
        if let Err(fault) = self.wal.checkpoint(&self.conn, false) {
            tracing::warn!(%fault, "the log could not be moved into the main file");
        }
        let mut jobs = jobs.into_iter();
        while let Some(job) = jobs.next() {
            match self.together(std::slice::from_ref(&job)) {
                Ok(outcomes) => self.answer_all(vec![job], outcomes),
                Err(Fault::Full) => self.answer_all(vec![job], vec![Err(Fault::Full)]),
                Err(fault) => return Err(self.poison(&fault, std::iter::once(job).chain(jobs).collect())),
            }
        }
        Ok(())
    }

    /// Runs the operations in one transaction and commits it. On `Err` none of them happened
    /// (`Full`), or that is not known.
    ///
    /// Operations hardly ever fail, so the first try does without savepoints; when one fails, all is
    /// undone and done again with a savepoint around each.
    fn together(&mut self, jobs: &[Job]) -> Rowed<Outcomes> {
        let replicas = self.replicas.clone();
        self.run_sql("BEGIN")?;
        let smooth: Rowed<Vec<Reply>> = jobs.iter().map(|job| self.decide(job)).collect();
        if let Ok(replies) = smooth {
            self.end_batch(jobs.len())?;
            return Ok(replies.into_iter().map(Ok).collect());
        }
        self.roll_back()?;
        self.replicas = replicas;
        self.run_sql("BEGIN")?;
        let outcomes: Rowed<Outcomes> = jobs.iter().map(|job| self.in_savepoint(job)).collect();
        match outcomes {
            Ok(outcomes) => self.end_batch(jobs.len()).map(|()| outcomes),
            Err(fault) => self.roll_back().and(Err(fault)),
        }
    }

    /// Makes the open transaction durable.
    fn end_batch(&mut self, n: usize) -> Rowed<()> {
        let n_fenced = self.shared.n_fenced();
        let wrote = self.has_written();
        let begun = Instant::now();
        let stored = match wrote && n_fenced != self.n_fenced_stored {
            true => super::store_n_fenced(&self.conn, n_fenced),
            false => Ok(()),
        };
        if let Err(fault) = stored.and_then(|()| (self.commit)(&self.conn).map_err(faulty)) {
            self.roll_back()?;
            return Err(fault);
        }
        if wrote {
            self.n_fenced_stored = n_fenced;
            self.shared.recorder.commit(n, begun.elapsed());
        }
        Ok(())
    }

    fn decide(&mut self, job: &Job) -> Rowed<Reply> {
        let mut rows = SqliteRows::new(&self.conn);
        let replicas = &mut self.replicas;
        let mut ctx = Context { rows: &mut rows, replicas, now: job.now, guards: self.options.guards };
        self.shared.shielded(|| decide::apply(&mut ctx, &job.op))
    }

    /// The outer error says that the whole transaction is lost, the inner one that this operation
    /// was undone.
    fn in_savepoint(&mut self, job: &Job) -> Rowed<Rowed<Reply>> {
        self.run_sql("SAVEPOINT op")?;
        let outcome = self.decide(job);
        if let Err(fault) = &outcome {
            if self.conn.is_autocommit() {
                // SQLite has rolled back everything by itself.
                return Err(fault.clone());
            }
            self.run_sql("ROLLBACK TO op")?;
        }
        self.run_sql("RELEASE op")?;
        Ok(outcome)
    }

    fn has_written(&self) -> bool {
        matches!(self.conn.transaction_state(None::<&str>), Ok(TransactionState::Write))
    }

    fn roll_back(&self) -> Rowed<()> {
        if self.conn.is_autocommit() {
            return Ok(());
        }
        self.run_sql("ROLLBACK")
    }

    fn run_sql(&self, sql: &str) -> Rowed<()> {
        self.conn.prepare_cached(sql).map_err(faulty)?.execute([]).map(drop).map_err(faulty)
    }

    /// Moves the log when it has grown; empties it when it has passed its cap.
    fn tend_wal(&self) {
        let bytes = self.wal.bytes();
        if bytes >= self.options.checkpoint_bytes {
            let begun = Instant::now();
            let truncate = bytes >= self.options.wal_bytes_max;
            if let Err(fault) = self.wal.checkpoint(&self.conn, truncate) {
                // The log stays as it is and is complete; the next batch tries again.
                tracing::warn!(%fault, "the write-ahead log could not be moved into the main file");
            }
            self.shared.recorder.checkpoint(begun.elapsed());
        }
        self.shared.recorder.wal(self.wal.bytes());
    }

    fn poison(&mut self, fault: &Fault, jobs: Vec<Job>) -> Poisoned {
        tracing::error!(%fault, "a commit failed; the store stops, the process must be started again");
        // Closing must not move pages whose state is unknown.
        if let Err(error) = self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
            tracing::warn!(%error, "the checkpoint at closing could not be switched off");
        }
        let error = self.shared.poison(fault);
        for job in jobs {
            self.shared.answer(job, Err(error.clone()));
        }
        Poisoned
    }

    /// The last write of an orderly end.
    fn finish(&mut self) {
        let n_fenced = self.shared.n_fenced();
        if n_fenced != self.n_fenced_stored
            && let Err(fault) = super::store_n_fenced(&self.conn, n_fenced)
        {
            tracing::warn!(%fault, "the number of fenced writes was not stored");
        }
        if let Err(fault) = self.wal.checkpoint(&self.conn, true) {
            tracing::warn!(%fault, "the log was not moved at closing; the next start reads it");
        }
    }
}
