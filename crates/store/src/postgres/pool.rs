//! Connections for what is no write to a thread: reads, looks at the queues, leases.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connect::{Line, Lines};

/// A fixed number of connections, each lent to one caller at a time.
pub(super) struct Pool {
    shared: Arc<Lines>,
    idle: Mutex<Vec<Line>>,
    places: Arc<Semaphore>,
}

/// A connection on loan; it goes back when this is dropped.
pub(super) struct Lent<'p> {
    pool: &'p Pool,
    line: Option<Line>,
    _place: OwnedSemaphorePermit,
}

impl Pool {
    pub(super) fn new(shared: Arc<Lines>, n_max: usize) -> Self {
        Self { shared, idle: Mutex::default(), places: Arc::new(Semaphore::new(n_max)) }
    }

    /// Waits for a connection; `None` when the store is closed.
    pub(super) async fn lend(&self) -> Option<Lent<'_>> {
        let place = self.places.clone().acquire_owned().await.ok()?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let line = idle.unwrap_or_else(|| Line::new(self.shared.clone()));
        Some(Lent { pool: self, line: Some(line), _place: place })
    }
}

impl Lent<'_> {
    /// The connection.
    pub(super) fn line(&mut self) -> &mut Line {
        self.line.get_or_insert_with(|| Line::new(self.pool.shared.clone()))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // One without a connection is worth nothing; its next user shall get one that has.
        if let Some(line) = self.line.take().filter(Line::is_open) {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }
}
