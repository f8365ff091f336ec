//! The model router: it turns "a model call" into exactly one complete answer, or an honest reason
//! why not now.
//!
//! Read in this order: [`config`] (what an operator writes), `router` (the decisions as one pure
//! state machine, and the thin shell that performs them), `provider` (both wires, out and in),
//! `stream` (events, silence, the assembled answer), `classify` (the one table of errors), `quota`
//! (what providers say of their limits), [`wire`] (strict validators of both wires).
//!
//! Invariants: no answer without its terminal event; every decision is made by the machine from
//! events and `now`; one retry budget for the whole pool; headers of a provider only lower limits;
//! dropping a call stops it upstream and gives back everything it held.

pub mod classify;
pub mod config;
pub mod provider;
pub mod router;
pub mod stream;
pub mod wire;

pub use config::{ProviderKeys, RouterConfig};
pub use router::{Operation, Router, RouterSnapshot};
