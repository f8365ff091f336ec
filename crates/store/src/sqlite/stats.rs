//! What the gauges show of the engine.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// Figures since the store was opened, except where a depth or size is said to be of now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreStats {
    /// Operations by name.
    pub operations: BTreeMap<&'static str, OperationStats>,
    /// Transactions that were made durable.
    pub n_commits: u64,
    /// Operations in them.
    pub n_committed: u64,
    /// The most operations in one of them.
    pub batch_max: u64,
    /// Seconds in `COMMIT`.
    pub commit_total_s: f64,
    /// The longest `COMMIT` in seconds.
    pub commit_max_s: f64,
    /// Writes that wait now.
    pub write_queue: usize,
    /// Reads that wait now.
    pub read_queue: usize,
    /// Writes refused because a later claim had taken over, since the store was made.
    pub n_fenced: u64,
    /// Checkpoints of the write-ahead log.
    pub n_checkpoints: u64,
    /// Seconds in checkpoints.
    pub checkpoint_total_s: f64,
    /// Bytes in the write-ahead log that are not in the main file yet.
    pub wal_bytes: u64,
    /// Times that the disk was full.
    pub n_full: u64,
}

/// Figures of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OperationStats {
    /// How many were answered.
    pub n: u64,
    /// How many of them with an error of the store.
    pub n_failed: u64,
    /// Seconds from arrival to answer, in all.
    pub total_s: f64,
    /// The longest in seconds.
    pub max_s: f64,
}

/// The figures as they are collected.
#[derive(Default)]
pub(super) struct Recorder {
    stats: Mutex<StoreStats>,
}

impl Recorder {
    pub(super) fn operation(&self, name: &'static str, took: Duration, failed: bool) {
        let mut stats = self.lock();
        let of = stats.operations.entry(name).or_default();
        of.n += 1;
        of.n_failed += u64::from(failed);
        of.total_s += took.as_secs_f64();
        of.max_s = of.max_s.max(took.as_secs_f64());
    }

    pub(super) fn commit(&self, n: usize, took: Duration) {
        let mut stats = self.lock();
        stats.n_commits += 1;
        stats.n_committed += n as u64;
        stats.batch_max = stats.batch_max.max(n as u64);
        stats.commit_total_s += took.as_secs_f64();
        stats.commit_max_s = stats.commit_max_s.max(took.as_secs_f64());
    }

    pub(super) fn checkpoint(&self, took: Duration) {
        let mut stats = self.lock();
        stats.n_checkpoints += 1;
        stats.checkpoint_total_s += took.as_secs_f64();
    }

    pub(super) fn wal(&self, bytes: u64) {
        self.lock().wal_bytes = bytes;
    }

    pub(super) fn full(&self) {
        self.lock().n_full += 1;
    }

    pub(super) fn read(&self) -> StoreStats {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, StoreStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
