//! The store: threads, runs, events, effects and blobs, kept durably.
//!
//! The contract is `evenkeel_core::port::store`; this crate holds its engines. It stands among the
//! parts, knows only `core` and `env`, and is the only place that holds SQL.
//!
//! One rule keeps the engines equal: **an engine loads and stores rows, it never decides.** What an
//! operation means is written once, in `decide`, over the row interface of `rows`; an engine gives
//! it a transaction and acknowledges the reply when that is durable.
//!
//! Read in this order: `record` (stored shapes), `rows` (what an engine must offer), `decide` (what
//! each operation does), [`memory`], [`sqlite`], [`postgres`], [`slow`] (a wrapper that delays),
//! [`conformance`] (the suite that every engine passes).
//!
//! What holds in every engine is listed at the contract. Added here: a decision reads everything it
//! needs and settles its answer before its first write, so a refused operation writes nothing.

mod decide;
mod packed;
mod record;
mod rows;

pub mod conformance;
pub mod memory;
pub mod postgres;
pub mod slow;
pub mod sqlite;

pub use decide::Guards;
