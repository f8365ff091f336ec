//! Pure state machines that decide: state + event + `now` (+ generator) -> state + actions.
//!
//! Nothing here waits, sleeps or draws time by itself, so the product, the lab and the simulation
//! run the same decisions.

use serde::{Deserialize, Serialize};

pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod lease;
pub mod limiter;
pub mod ramp;

/// How much of the protection is on: one word for the router, the harness, the server and the lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protect {
    /// Everything: retries, failover, breakers, parking, resume.
    #[default]
    Full,
    /// What a plain platform has, for the lab's comparison: the first deployment and two retries, no
    /// parking; a run whose process died has failed.
    None,
}

impl Protect {
    /// The word in files and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::None => "none",
        }
    }
}
