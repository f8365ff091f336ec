//! Pure state machines that decide: state + event + `now` (+ generator) -> state + actions.
//!
//! Nothing here waits, sleeps or draws time by itself, so the product, the lab and the simulation
//! run the same decisions.

pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod lease;
pub mod limiter;
pub mod ramp;
