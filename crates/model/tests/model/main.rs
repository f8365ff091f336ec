//! The model router at its edge.
//!
//! `outage` drives the machine alone in virtual time, with a modelled provider and modelled runs, `chaos` the same with everything at random;
//! `wire` drives the whole router over loopback against a scripted provider that can do everything
//! a provider should not; `history` renders random histories for both strict validators. The names
//! `m01` to `m18`, `c05` and `c06` are public reports of other systems' failures.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod chaos;
mod history;
mod outage;
mod scripted;
mod simulation;
mod wire;
