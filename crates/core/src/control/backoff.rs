//! How long to wait before the next try.
//!
//! Two rules, for two situations. When *we* guess, the wait grows with each failed try and is
//! equally jittered: half of it is certain, half is drawn, so that callers spread without anyone
//! trying at once. Its ceiling depends on how old the outage is: in the first two minutes, when
//! most outages end, a long wait would cost more than the few probes it saves; an outage of ten
//! minutes is not made shorter by asking often. When the *provider* names a time, that time is a
//! floor: jitter is only added, up to a fifth and at most half a minute, so that nobody is early
//! and no two callers come back in the same instant.

use std::time::Duration;

use crate::Generator;

/// Growing, jittered waits between the probes of one outage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first wait.
    pub first: Duration,
    /// Growth from wait to wait; at least 1.
    pub factor: f64,
    /// Ceiling while the outage is younger than [`Backoff::EARLY`].
    pub max_early: Duration,
    /// Ceiling while it is younger than [`Backoff::LATE`].
    pub max: Duration,
    /// Ceiling afterwards.
    pub max_late: Duration,
}

impl Backoff {
    /// Until this age an outage is young.
    pub const EARLY: Duration = Duration::from_secs(120);
    /// From this age on it is old.
    pub const LATE: Duration = Duration::from_secs(600);

    /// The wait before try `n_tries + 1` of an outage of this age.
    #[must_use]
    pub fn delay(&self, n_tries: u32, outage_age: Duration, generator: &Generator) -> Duration {
        let exponent = i32::try_from(n_tries.min(64)).unwrap_or(64);
        let grown = self.first.as_secs_f64() * self.factor.powi(exponent);
        let full = grown.min(self.ceiling(outage_age).as_secs_f64());
        Duration::from_secs_f64(full / 2.0 + full / 2.0 * generator.unit())
    }

    fn ceiling(&self, outage_age: Duration) -> Duration {
        match outage_age {
            age if age < Self::EARLY => self.max_early,
            age if age < Self::LATE => self.max,
            _ => self.max_late,
        }
    }
}

/// Jitter for a wait that somebody else has named: the wait itself, plus up to a fifth of it and
/// at most 30 s. Never less than the wait.
#[must_use]
pub fn no_earlier_than(floor: Duration, generator: &Generator) -> Duration {
    let extra = (floor / 5).min(Duration::from_secs(30));
    floor + extra.mul_f64(generator.unit())
}

#[cfg(test)]
mod tests;
