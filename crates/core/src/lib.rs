//! The words of Evenkeel and its decisions.
//!
//! This crate stands at the bottom of the tree: every other crate may use it and it uses none
//! of ours. It holds the identifiers, messages, runs, threads and errors that more than one part
//! speaks of, the ports through which the parts meet, and the pure state machines (`control`)
//! that decide. It has no runtime, no IO, no clock and no randomness of its own: decisions take
//! `now` and the generator as arguments.

pub mod agent;
pub mod approval;
pub mod clock;
pub mod control;
pub mod error;
pub mod generator;
pub mod id;
pub mod journal;
pub mod message;
pub mod port;
pub mod run;
pub mod thread;

pub use clock::{Mono, Wall};
pub use error::{Code, Error, Origin, Retry};
pub use generator::Generator;
