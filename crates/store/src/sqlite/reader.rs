//! Readers: threads that answer reads beside the writer, each from a snapshot of its own.
//!
//! A write is acknowledged after its commit, so whoever saw the reply finds the write in any
//! snapshot taken later. A snapshot is held for one operation and at most for the age limit: an
//! older one would keep the log from being moved.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::store::Reply;
use rusqlite::Connection;
use tokio::time::Instant;

use super::Shared;
use super::fault::faulty;
use super::queue::Job;
use super::rows::SqliteRows;
use crate::decide;
use crate::rows::Rowed;

/// Virtual machine instructions between two looks at the clock: well under a millisecond.
const LOOK_EVERY: i32 = 20_000;

/// One reader with its connection.
pub(super) struct Reader {
    conn: Connection,
    shared: Arc<Shared>,
    until: Arc<Mutex<Option<Instant>>>,
    age_max: Duration,
}

impl Reader {
    pub(super) fn new(mut conn: Connection, shared: Arc<Shared>, age_max: Duration) -> Result<Self, Error> {
        let until = Arc::new(Mutex::new(None::<Instant>));
        let deadline = until.clone();
        let is_over = move || {
            let until = *deadline.lock().unwrap_or_else(PoisonError::into_inner);
            until.is_some_and(|until| Instant::now() >= until)
        };
        let set = |conn: &mut Connection| -> Rowed<()> {
            conn.progress_handler(LOOK_EVERY, Some(is_over)).map_err(faulty)?;
            conn.pragma_update(None, "query_only", true).map_err(faulty)
        };
        set(&mut conn)?;
        Ok(Self { conn, shared, until, age_max })
    }

    /// Answers reads until the queue is closed and empty.
    pub(super) fn run(&self) {
        while let Some(job) = self.shared.reads.take_one() {
            let answer = self.shared.shielded(|| self.read(&job)).map_err(Error::from);
            self.shared.answer(job, answer);
        }
    }

    fn read(&self, job: &Job) -> Rowed<Reply> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + self.age_max);
        // Dropping the transaction ends the snapshot; there is nothing to commit.
        let snapshot = self.conn.unchecked_transaction().map_err(faulty)?;
        let mut reply = decide::read(&mut SqliteRows::new(&snapshot), &job.op)?;
        if let Reply::Counts(counts) = &mut reply {
            counts.n_fenced = self.shared.n_fenced();
        }
        Ok(reply)
    }
}
