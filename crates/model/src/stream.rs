//! From events to one complete answer: silence ([`watch`]), assembly ([`answer`]).
//!
//! Invariant: an answer exists only after its wire's terminal rule was met and its tool calls were
//! valid. A clean end of the body proves nothing.

pub mod answer;
pub mod watch;
