//! The lab: proof, on the operator's own machine, of what the product does when things break.
//!
//! It starts the real product as processes of their own (live), or its code on one thread in virtual
//! time, against a fake model provider that speaks
//! both real wires, puts load on it, breaks things on a time line, and then checks from the client
//! history and the stored data alone that nothing was lost, doubled or computed on a wrong state.
//!
//! Read in this order: [`scenario`] (what is promised), [`task`] (what is run), [`provider`] (what
//! breaks), [`link`] (what breaks between them), `live` (how it is run), `sim` (how it is run in
//! virtual time), [`mod@sweep`] (many seeds of that), [`check`] (what must hold), [`report`] (what is shown),
//! [`mod@plan`] (what a topology can carry), [`run`] and [`mod@demo`] (from a command to its report).
//!
//! Invariants: the product is only reached through its own doors; the checker knows nothing of the
//! implementation; a task counts as done only if its tests pass in a fresh sandbox afterwards.

pub mod check;
pub mod compare;
pub mod demo;
pub mod link;
mod live;
pub mod plan;
pub mod provider;
pub mod report;
pub mod run;
pub mod scenario;
mod sim;
pub mod sweep;
pub mod task;

pub use demo::{DemoOptions, demo};
pub use plan::{PlanOptions, plan};
pub use run::{Mode, RunOptions};
pub use scenario::list;
pub use sweep::{Sweep, SweepOptions, sweep};
