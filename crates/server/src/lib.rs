//! The edge: everything between a client's connection and the parts.
//!
//! [`app`] builds every part in order from the [`config`]. A request enters at the [`gateway`]
//! (connections, authentication, rate limits), is handled by the [`api`] in the shapes of [`wire`],
//! and what a run does reaches its clients through [`stream`]. [`telemetry`] counts and exports.
//!
//! Invariants: this crate holds no state of a run; every door is a projection of the journal, read
//! from the store after it is durable. A waiting connection holds no execution slot. A foreign
//! tenant's id is not found, for every verb.

pub mod api;
pub mod app;
pub mod config;
pub mod gateway;
pub mod stream;
pub mod telemetry;
pub mod wire;

pub use app::{Running, start};
pub use config::{Config, Overrides};
