//! A connection between two components that can be broken in every way that a network breaks one.
//!
//! A `Proxy` listens on the loopback and passes bytes to one target. What is wrong with it is set
//! at run time. The decisions are in `rule`, which knows no sockets and no clock; `proxy` asks them
//! and moves the bytes.
//!
//! What holds: bytes are never lost, reordered or changed. They are late, or their connection ends.

mod proxy;
mod rule;
#[cfg(test)]
mod tests;
mod way;

pub(crate) use proxy::Proxy;
pub use rule::Fault;
pub(crate) use rule::{Direction, Pace, Rules, Step};
