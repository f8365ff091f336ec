//! The spawn seam: every task and thread of the product starts here, so that the simulation can
//! stop, pause and count them.

use futures_util::future::BoxFuture;
use tokio::task::{AbortHandle, JoinHandle};

/// Starts tasks and threads.
pub trait Spawn: Send + Sync {
    /// Starts a task. It goes on when the handle is dropped.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task;

    /// Starts a thread for work that blocks (the SQLite writer). The simulation runs such work
    /// inline and refuses this.
    fn thread(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> std::thread::JoinHandle<()>;

    /// Whether work that blocks is done where it is asked for, because there is one thread only: in
    /// the simulation.
    fn runs_inline(&self) -> bool {
        false
    }
}

/// A started task.
pub struct Task {
    handle: JoinHandle<()>,
}

impl Task {
    /// Stops the task at its next await point.
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// A handle that only stops it.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.handle.abort_handle()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits for its end. `Err` holds the panic's text or `cancelled`.
    ///
    /// # Errors
    /// If the task panicked or was stopped.
    pub async fn join(self) -> Result<(), String> {
        self.handle.await.map_err(|error| error.to_string())
    }
}

/// Tokio tasks and system threads.
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        Task { handle: tokio::spawn(future) }
    }

    fn thread(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> std::thread::JoinHandle<()> {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .expect("the operating system starts a thread")
    }
}
