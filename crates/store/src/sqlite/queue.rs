//! The bounded queue between callers and a thread of the engine.
//!
//! Callers wait for a place without blocking their runtime; the thread blocks until work is there.
//! The thread says how many jobs it hopes for, and is woken once for all of them instead of once
//! for each: with two cores the wake-ups would cost more than the statements.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::store::{Op, Reply};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::decide::Now;

/// What becomes of an operation.
pub(super) type Answer = Result<Reply, Error>;

/// One operation and where its reply goes.
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) now: Now,
    pub(super) arrived: Instant,
    pub(super) reply: oneshot::Sender<Answer>,
    /// Held until the job is answered.
    _place: OwnedSemaphorePermit,
}

/// The queue is closed: its thread has ended or will end with what is queued.
#[derive(Debug)]
pub(super) struct Closed;

/// The queue.
pub(super) struct Queue {
    places: Arc<Semaphore>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
    /// The thread sleeps until this many jobs are queued.
    wanted: usize,
}

impl Queue {
    pub(super) fn new(len_max: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(len_max.clamp(1, Semaphore::MAX_PERMITS))),
            state: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    /// Queues an operation, waiting for a place. A caller that goes away while it waits has asked
    /// for nothing; one that goes away later has asked, and the operation is carried out.
    pub(super) async fn push(&self, op: Op, now: Now) -> Result<oneshot::Receiver<Answer>, Closed> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| Closed)?;
        let (reply, answer) = oneshot::channel();
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        state.jobs.push_back(Job { op, now, arrived: Instant::now(), reply, _place: place });
        if state.wanted > 0 && state.jobs.len() >= state.wanted {
            state.wanted = 0;
            self.arrived.notify_one();
        }
        Ok(answer)
    }

    /// Blocks until a job is there, then takes up to `n_max`. When fewer than `n_hoped` are there,
    /// waits for them at most `linger`. `None` when the queue is closed and empty.
    pub(super) fn take(&self, n_max: usize, n_hoped: usize, linger: Duration) -> Option<Vec<Job>> {
        let mut state = self.lock();
        while state.jobs.is_empty() {
            if state.closed {
                return None;
            }
            state.wanted = 1;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let n_hoped = n_hoped.min(n_max);
        let until = Instant::now() + linger;
        while state.jobs.len() < n_hoped && !state.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.wanted = n_hoped;
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.wanted = 0;
        let n = state.jobs.len().min(n_max);
        Some(state.jobs.drain(..n).collect())
    }

    /// Takes one job for one of several threads; `None` when the queue is closed and empty.
    pub(super) fn take_one(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state.wanted = 1;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Refuses new jobs; what is queued can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.places.close();
        self.arrived.notify_all();
    }

    /// Jobs that wait now.
    pub(super) fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
