//! The task that is run: real coding tasks, and the solver that plays them back.
//!
//! Everything of a task is real except the intelligence: the workspace is a small repository with
//! a failing test, and the moves of a solver (list, read, grep, edit, run the tests, look at the
//! failure, fix, commit) are real tool calls. The solver reacts to what the tools return, so a lost
//! or doubled effect gives another conversation and shows.

pub(crate) mod chat;
mod conversation;
mod script;
mod solver;
#[cfg(test)]
mod tests;
mod verify;

pub(crate) use conversation::canonical;
pub use conversation::{Conversation, Item, Reply, SolverCall};
pub(crate) use script::EFFECTS;
pub use script::{Move, Script, Shape, Step, all, available};
pub use solver::Solver;
pub use verify::{Facts, Verdict, Verifier};
