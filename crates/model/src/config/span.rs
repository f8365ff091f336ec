//! Durations as operators write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration written as a number and a unit: `400ms`, `5s`, `1.5s`, `10m`, `2h`, `1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Span {
    /// Milliseconds.
    #[must_use]
    pub const fn millis(n: u64) -> Self {
        Self(Duration::from_millis(n))
    }

    /// Seconds.
    #[must_use]
    pub const fn seconds(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// Minutes.
    #[must_use]
    pub const fn minutes(n: u64) -> Self {
        Self(Duration::from_secs(60 * n))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is not a duration; write a number and ms, s, m, h or d");
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(refused)?;
        let (number, unit) = text.split_at(split);
        let number: f64 = number.parse().map_err(|_| refused())?;
        let (_, unit_ms) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
        #[expect(clippy::cast_precision_loss, reason = "a day in milliseconds fits an f64 exactly")]
        let seconds = number * unit_ms as f64 / 1000.0;
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| refused())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let (unit, unit_ms) = UNITS
            .into_iter()
            .rev()
            .find(|(_, unit_ms)| ms >= *unit_ms && ms.is_multiple_of(*unit_ms))
            .unwrap_or(("ms", 1));
        write!(f, "{}{unit}", ms / unit_ms)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
