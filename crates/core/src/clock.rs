//! Two kinds of instant, never mixed: monotonic for durations, wall for what is stored.

use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! instant {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The instant `duration` later; saturates at the end of time.
            #[must_use]
            pub fn after(self, duration: Duration) -> Self {
                Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
            }

            /// Time from `earlier` to this instant; zero if `earlier` is later.
            #[must_use]
            pub fn since(self, earlier: Self) -> Duration {
                Duration::from_millis(self.0.saturating_sub(earlier.0))
            }

            /// Time from this instant until `later`; zero if it has passed.
            #[must_use]
            pub fn until(self, later: Self) -> Duration {
                later.since(self)
            }

            /// Milliseconds.
            #[must_use]
            pub fn ms(self) -> u64 {
                self.0
            }
        }
    };
}

instant! {
    /// A monotonic instant in milliseconds since the process (or the simulation) began.
    Mono
}

instant! {
    /// A wall-clock instant in milliseconds since 1970-01-01T00:00:00Z. Stored, never used to
    /// measure a duration inside one process.
    Wall
}

impl Wall {
    /// ISO 8601 with microseconds and `+00:00`, as the LangGraph dialect writes times.
    #[must_use]
    pub fn iso(self) -> String {
        let ms = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_millisecond(ms) {
            Ok(at) => at.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string(),
            Err(_) => "9999-12-31T23:59:59.000000+00:00".to_owned(),
        }
    }
}
