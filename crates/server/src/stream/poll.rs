//! The poll: one question to the store for all followed threads of this process.
//!
//! A run that is driven here announces what it commits. A run that another process drives, or that
//! was taken over by one, announces nothing here; its thread's growth is found by asking the store
//! how long the logs are. One round trip answers for all threads that are due, so that a thousand
//! clients that wait cost as many round trips as one.
//!
//! When a thread is due follows from how long it has been quiet: an eighth of that time, so that
//! whoever waits a second is told an eighth of a second late at most, and a run that is parked for
//! minutes is looked at every other second. A sign from this process (a commit, a piece of a reply)
//! says that the run is driven here and puts the next look off.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::port::store::ThreadRef;
use tokio::time::{Instant, sleep};

use super::Hub;

/// Between two questions, and the shortest time between two looks at one thread.
const TICK: Duration = Duration::from_millis(100);
/// The longest time between two looks at one thread.
const LONGEST: Duration = Duration::from_secs(2);
/// How long a sign from this process puts the next look off.
const DRIVEN_HERE: Duration = Duration::from_millis(500);
/// Threads asked for in one round trip.
const THREADS_MAX: usize = 1_000;

/// When a thread is looked at next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    quiet_since: Instant,
    due: Instant,
    /// The newest sequence number that is known.
    tail: u64,
}

impl Look {
    /// A thread that somebody begins to follow now.
    pub(super) fn beginning(now: Instant) -> Self {
        Self { quiet_since: now, due: now + TICK, tail: 0 }
    }

    /// Whether it should be looked at.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Something of the thread was seen in this process.
    pub(super) fn sign(&mut self, now: Instant) {
        self.quiet_since = now;
        self.due = now + DRIVEN_HERE;
    }

    /// The log was read up to here.
    pub(super) fn read_to(&mut self, seq: u64) {
        self.tail = self.tail.max(seq);
    }

    /// The store says how long the log is. Replies whether that is news.
    pub(super) fn found(&mut self, seq: u64, now: Instant) -> bool {
        if seq <= self.tail {
            return false;
        }
        *self = Self { quiet_since: now, due: now + TICK, tail: seq };
        true
    }

    /// The question is asked now; another one is due later.
    pub(super) fn asked(&mut self, now: Instant) {
        let quiet = now.saturating_duration_since(self.quiet_since);
        self.due = now + (quiet / 8).clamp(TICK, LONGEST);
    }
}

/// Looks at the followed threads for as long as the process serves.
pub(super) async fn run(hub: Arc<Hub>) {
    loop {
        hub.wait_for_followers().await;
        sleep(TICK).await;
        let due = hub.take_due(Instant::now());
        for threads in due.chunks(THREADS_MAX) {
            look(&hub, threads).await;
        }
    }
}

/// A store that does not answer makes streams late; the next look asks again.
async fn look(hub: &Hub, threads: &[ThreadRef]) {
    match hub.store.read_tails(threads.to_vec()).await {
        Ok(tails) => tails.into_iter().for_each(|(thread, seq)| hub.found(thread, seq)),
        Err(error) => {
            tracing::warn!(code = %error.code, message = %error.message, "look at followed threads");
        }
    }
}
