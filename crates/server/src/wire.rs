//! The shapes of the LangGraph Agent Server dialect, and how our words map to its words.
//!
//! Nothing here reads or writes anything: requests are parsed and checked, stored values are shown.
//! Everything shown is a pure function of the journal and the rows, so that every replica and every
//! reconnection shows the same.

pub(crate) mod assistant;
pub(crate) mod input;
pub(crate) mod interrupt;
pub(crate) mod message;
pub(crate) mod modes;
pub(crate) mod refusal;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod state;
pub(crate) mod thread;

#[cfg(test)]
mod tests;
