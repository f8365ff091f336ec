//! The lab: proof, on the operator's own machine, of what the product does when things break.
//!
//! It starts the real product as a process of its own against a fake model provider that speaks
//! both real wires, puts load on it, breaks things on a time line, and then checks from the client
//! history and the stored data alone that nothing was lost, doubled or computed on a wrong state.
//!
//! - [`provider`]: the fake provider with all its faults;
//! - [`task`]: real coding tasks with a solver that plays them back.

pub mod provider;
pub mod task;
