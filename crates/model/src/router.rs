//! The router: a pure state machine that decides (`machine` and its parts), and a thin
//! asynchronous shell that performs (`shell`, `attempt`).

mod attempt;
mod call;
pub mod event;
mod lane;
mod limits;
pub mod machine;
mod outcome;
mod peers;
mod permits;
mod place;
pub mod plan;
mod race;
mod report;
mod shell;
mod snapshot;
mod summary;

pub use report::Instant;
pub use shell::Router;
pub use snapshot::*;

/// What an operator can do to a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// No new calls; those in flight go on.
    Drain,
    /// Calls again, also after a key was disabled.
    Enable,
    /// Try it at the next call, however long it would still be left alone.
    Probe,
}
