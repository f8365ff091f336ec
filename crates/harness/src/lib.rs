//! The agent harness: everything around the model that makes a run durable.
//!
//! A run is a loop of steps: model call, tool calls, checkpoint. The harness claims runs from the
//! store, drives each to its end, and writes down what happened *before* it acts on it, so that any
//! other process can take over at any moment and go on: the model is not asked again for what it
//! answered, and no effect is repeated.
//!
//! # Rooms, in reading order
//! - [`config`]: what may be set.
//! - [`harness`]: the handle that the edge holds.
//! - `dispatch`: the loops of a replica: heartbeat, claim, steal, wake, expire, and the set of runs
//!   that are running here.
//! - `run`: one run. `state` folds the journal into a view, `step` decides what comes next as a
//!   pure function of that view, `recover` decides how an unfinished effect is settled, `drive`
//!   carries decisions out.
//! - `compact`: keeps the context inside the model's window without ever breaking a pair.
//!
//! # Invariants
//! 1. Every decision about a run is a pure function of its journal, its agent, its limits and the
//!    time. What a process only remembers is never needed to go on.
//! 2. A tool starts only after its intent is durable under the newest epoch.
//! 3. The prompt is a pure function of the journal, and always valid: each call has exactly one
//!    result directly after it, no result is without its call.
//! 4. No store operation is pending while a model or tool call is pending in the same run.
//! 5. A panic ends one run.

pub mod config;
pub mod harness;

mod compact;
mod dispatch;
mod host;
mod kept;
mod run;

pub use config::{CompactConfig, HarnessConfig, OnTimeout};
pub use harness::{Harness, HarnessSlots, HarnessStats, Parts};
