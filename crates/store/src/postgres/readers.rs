//! Reads of single threads and runs and of pages of a log, many in one round trip.
//!
//! Hundreds of requests a second ask for a row by its key or for what a thread's log has new. Each alone would cost the database a
//! statement to parse and plan; a reader takes what is queued when its connection comes free and asks
//! for all of it at once. What goes wrong here is not told to anybody: the caller then asks alone,
//! which has the patience and the errors.

use std::sync::Arc;

use evenkeel_core::port::store::{Op, Reply};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::connect::{Line, Lines};
use super::facts::{Facts, Needs};
use super::fault::Trouble;
use super::gather::Gather;
use super::rows::PgRows;
use super::{load, prefetch};
use crate::decide;
use crate::rows::Fault;

/// Reads in one round trip.
const BATCH_MAX: usize = 128;

/// One read and where its reply goes; `None` means that the caller is to ask alone.
pub(super) struct Read {
    pub(super) op: Op,
    pub(super) reply: oneshot::Sender<Option<Reply>>,
}

/// Whether a read can be answered together with others: a row by its key, a page of a log.
pub(super) fn takes(op: &Op) -> bool {
    matches!(op, Op::GetThread(_) | Op::GetRun(_) | Op::ReadEvents(_))
}

/// What tells the clients of reads apart.
fn whose(op: &Op) -> Uuid {
    match op {
        Op::GetThread(of) => of.thread.0,
        Op::GetRun(of) => of.run.0,
        Op::ReadEvents(of) => of.thread.0,
        _ => Uuid::nil(),
    }
}

/// Answers reads until the store is closed.
pub(super) async fn run(lines: Arc<Lines>, mut gather: Gather, mut queue: mpsc::Receiver<Read>) {
    let mut line = Line::new(lines);
    let mut taken = Vec::new();
    while queue.recv_many(&mut taken, BATCH_MAX).await > 0 {
        taken.iter().for_each(|read| gather.came(whose(&read.op), true));
        if let Some(until) = gather.until(Instant::now()) {
            sleep_until(until).await;
            while taken.len() < BATCH_MAX
                && let Ok(read) = queue.try_recv()
            {
                gather.came(whose(&read.op), true);
                taken.push(read);
            }
        }
        gather.goes(Instant::now());
        let replies = together(&mut line, &taken).await.unwrap_or_default();
        let replies = replies.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        for (read, reply) in taken.drain(..).zip(replies) {
            // The caller may have given up.
            let _ = read.reply.send(reply);
        }
    }
}

/// All replies, in order, or the first trouble.
async fn together(line: &mut Line, reads: &[Read]) -> Result<Vec<Reply>, Trouble> {
    let mut facts = Facts::default();
    let mut needs = Needs::default();
    for read in reads {
        prefetch::of_read(&read.op, &mut needs);
    }
    loop {
        if !needs.is_empty() {
            load::load(line, &mut facts, std::mem::take(&mut needs)).await?;
        }
        let mut rows = PgRows::new(&facts);
        let mut replies = Vec::with_capacity(reads.len());
        for read in reads {
            match decide::read(&mut rows, &read.op) {
                Ok(reply) => replies.push(reply),
                Err(Fault::NotLoaded) => {}
                Err(fault) => return Err(Trouble::Broken(fault)),
            }
        }
        if replies.len() == reads.len() {
            return Ok(replies);
        }
        if rows.needs.is_empty() {
            return Err(Trouble::Broken(Fault::NotLoaded));
        }
        needs = rows.needs;
    }
}
