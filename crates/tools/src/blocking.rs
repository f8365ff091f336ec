//! A few threads for work that blocks: file reads and writes, directory walks, searches.
//!
//! The async runtime never waits on a disk. The queue in front of the threads is bounded by
//! making callers wait, in order; what waits costs a closure, not a thread. When the last handle
//! is dropped the threads finish what is queued and end. In the simulation, which has one thread,
//! work is done where it is asked for.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_env::Env;
use tokio::sync::{mpsc, oneshot};

type Work = Box<dyn FnOnce() + Send>;

/// Callers that may queue before further ones wait to queue.
const QUEUE: usize = 256;

/// A pool of threads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Blocking {
    /// None: work is done inline.
    queue: Option<mpsc::Sender<Work>>,
}

/// The work's thread panicked or is gone; the caller turns this into its own failure.
#[derive(Debug, thiserror::Error)]
#[error("the work was lost with its thread")]
pub(crate) struct Lost;

impl Blocking {
    /// Starts `n_threads` threads.
    pub(crate) fn start(env: &Env, name: &'static str, n_threads: usize) -> Self {
        if env.spawner.runs_inline() {
            return Self { queue: None };
        }
        let (queue, work) = mpsc::channel::<Work>(QUEUE);
        let work = Arc::new(Mutex::new(work));
        for _ in 0..n_threads.max(1) {
            let work = work.clone();
            env.spawner.thread(name, Box::new(move || serve(&work)));
        }
        Self { queue: Some(queue) }
    }

    /// Runs `body` on one of the threads. Dropping the future does not stop work that has begun:
    /// long work watches a [`Cancel`].
    pub(crate) fn run<T, F>(&self, body: F) -> impl Future<Output = Result<T, Lost>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (done, result) = oneshot::channel();
        let work: Work = Box::new(move || {
            if !done.is_closed() {
                let _ = done.send(body());
            }
        });
        let queue = self.queue.clone();
        async move {
            match queue {
                Some(queue) => queue.send(work).await.map_err(|_| Lost)?,
                None => {
                    tokio::task::yield_now().await;
                    carry_out(work);
                }
            }
            result.await.map_err(|_| Lost)
        }
    }
}

fn serve(work: &Mutex<mpsc::Receiver<Work>>) {
    loop {
        // One thread waits for work while the others wait for the lock; both are idle.
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(body) = next else {
            return;
        };
        carry_out(body);
    }
}

/// A panic ends one piece of work, whose caller sees `Lost`, never the thread.
fn carry_out(body: Work) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
}

/// Says that nobody waits for the result any more.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Whether to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// A guard that sets it when dropped.
    pub(crate) fn on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }
}

/// Sets its [`Cancel`] when dropped.
pub(crate) struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
