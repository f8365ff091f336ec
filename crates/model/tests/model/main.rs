//! The model router at its edge.
//!
//! `outage` and `race` drive the machine alone in virtual time, with modelled providers and modelled
//! runs, `chaos` the same with everything at random. `streams`, `moves` and `parks` drive the whole
//! router over loopback (`loopback`) against a scripted provider that can do everything a provider
//! should not. `history` renders random histories for both strict validators. The names
//! `m01` to `m18`, `c05` and `c06` are public reports of other systems' failures.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod chaos;
mod history;
mod loopback;
mod moves;
mod mutation;
mod outage;
mod parks;
mod race;
mod replicas;
mod scripted;
mod simulation;
mod streams;
