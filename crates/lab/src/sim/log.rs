//! The event log of a virtual run: one line for everything that crosses a border.
//!
//! Connections and the bytes on them, operations of the store, commands, what clients were told,
//! faults: each is a line with its virtual time. The digest of a run is the hash of all its lines, so
//! two runs with one digest were the same run. Lines are kept only if somebody wants to read them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The log of one run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Log(Arc<Shared>);

struct Shared {
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    hasher: blake3::Hasher,
    kept: Option<Vec<String>>,
}

impl Log {
    /// An empty log whose time begins now. `keep`: its lines are wanted, not only their digest.
    pub(super) fn new(keep: bool) -> Self {
        let state = State { hasher: blake3::Hasher::new(), kept: keep.then(Vec::new) };
        Self(Arc::new(Shared { begun: Instant::now(), state: Mutex::new(state) }))
    }

    /// Adds a line: who it is about, and what happened.
    pub(super) fn line(&self, who: &str, what: fmt::Arguments<'_>) {
        let line = format!("{:>10.3} {who} {what}", self.0.begun.elapsed().as_secs_f64());
        let mut state = self.state();
        state.hasher.update(line.as_bytes());
        state.hasher.update(b"\n");
        if let Some(kept) = &mut state.kept {
            kept.push(line);
        }
    }

    /// The hash of all lines so far.
    pub(super) fn digest(&self) -> String {
        self.state().hasher.finalize().to_hex().chars().take(16).collect()
    }

    /// The lines, if they were kept.
    pub(super) fn take(&self) -> Vec<String> {
        self.state().kept.take().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A short name for bytes, for lines that would be too long with them.
pub(super) fn fingerprint(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().chars().take(12).collect()
}
