//! The clock seam.

use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_core::{Mono, Wall};
use tokio::time::Instant;

/// Tells the time. `mono` follows tokio's clock, so a paused runtime drives it.
pub trait Clock: Send + Sync {
    /// Wall time, for what is stored.
    fn wall(&self) -> Wall;
    /// Monotonic time since this clock was made, for durations.
    fn mono(&self) -> Mono;
}

/// The system's clock.
pub struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn wall(&self) -> Wall {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn mono(&self) -> Mono {
        Mono(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock whose wall time is a fixed start plus tokio's time: for tests and the simulation.
pub struct VirtualClock {
    started: Instant,
    wall_start: Wall,
}

impl VirtualClock {
    /// A clock that reads `wall_start` now.
    #[must_use]
    pub fn starting_at(wall_start: Wall) -> Self {
        Self { started: Instant::now(), wall_start }
    }
}

impl Clock for VirtualClock {
    fn wall(&self) -> Wall {
        self.wall_start.after(self.started.elapsed())
    }

    fn mono(&self) -> Mono {
        Mono(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Random bytes from the operating system: for seeds and secrets (API keys), nothing else.
///
/// # Panics
/// If the operating system gives none.
pub fn os_random(bytes: &mut [u8]) {
    use rand_core::TryRngCore;
    rand_core::OsRng.try_fill_bytes(bytes).expect("the operating system gives random bytes");
}
