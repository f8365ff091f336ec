//! What the gauges show of the engine.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Figures since the store was opened, except where a number is said to be of now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PostgresStats {
    /// Connections that are open now.
    pub connections: usize,
    /// The most that this replica opens.
    pub connections_max: usize,
    /// Writes that were made durable, each one statement.
    pub n_writes: u64,
    /// Operations in them.
    pub n_written: u64,
    /// Round trips that loaded rows for a write.
    pub n_loads: u64,
    /// Operations that were decided again because somebody else had written.
    pub n_redone: u64,
    /// Writes whose answer was lost.
    pub n_lost: u64,
    /// Writes refused because a later claim had taken over.
    pub n_fenced: u64,
}

#[derive(Default)]
pub(super) struct Recorder {
    pub(super) n_writes: Counter,
    pub(super) n_written: Counter,
    pub(super) n_loads: Counter,
    pub(super) n_redone: Counter,
    pub(super) n_lost: Counter,
    pub(super) n_fenced: Counter,
}

#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Recorder {
    pub(super) fn read(&self, connections: usize, connections_max: usize) -> PostgresStats {
        PostgresStats {
            connections,
            connections_max,
            n_writes: self.n_writes.get(),
            n_written: self.n_written.get(),
            n_loads: self.n_loads.get(),
            n_redone: self.n_redone.get(),
            n_lost: self.n_lost.get(),
            n_fenced: self.n_fenced.get(),
        }
    }
}
