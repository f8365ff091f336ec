//! The checker: finds out from the client's history and the stored data alone whether anything was
//! lost, doubled, or computed on a state that it was not.
//!
//! It knows nothing of the implementation. What a client was told, what the journal holds and what
//! the workspace contained at the end must agree; each way in which they can disagree is a property
//! with a name (`P2`, `P3`, ...), and each property is tested by a history with one planted
//! violation of it.

mod history;
mod jepsen;
mod property;
mod span;
mod tally;
#[cfg(test)]
mod tests;
mod thread;
mod turn;
mod wire;

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

pub(crate) use history::CLIENT_LEFT;
pub use history::{Entry, History, Recorder};
pub use jepsen::{export, jepsen};
pub use property::Violation;
pub use tally::{Counts, Tally, TaskEnd};

/// What a history shows.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// Tasks in all, and what became of them.
    pub counts: Counts,
    /// Properties that do not hold, with the place.
    pub violations: Vec<Violation>,
    /// Whether none is violated.
    pub pass: bool,
}

/// Checks a history.
#[must_use]
pub fn history(history: &History) -> Checked {
    let violations = property::all(history);
    let counts = Tally::of(history, &violations).counts;
    let pass = violations.is_empty();
    Checked { counts, violations, pass }
}

/// Reads a history file.
///
/// # Errors
/// If it cannot be read or has a line that is not an entry.
pub fn file(path: &Path) -> anyhow::Result<History> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    History::parse(&text).with_context(|| format!("read {}", path.display()))
}
