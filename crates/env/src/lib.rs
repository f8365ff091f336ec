//! The seams: everything that a part gets from outside itself, injected.
//!
//! One value, [`Env`], gives every part its clock, its generator, its spawner and its network.
//! Production passes the real ones ([`Env::real`]); the simulation passes twins and then runs the
//! same code in virtual time. Sleeping and timeouts use tokio's time directly, which a paused
//! runtime drives. clippy bans the ambient versions everywhere else and names the replacement.
//!
//! Besides the seams stand the things built directly on them that more than one part needs:
//! the HTTP client over our connector, slots (a bounded, tenant-fair, deadline-aware queue in
//! front of every component), process start, the codec of server-sent events, and watched values.

pub mod call;
pub mod clock;
#[cfg(test)]
mod fuzzing;
pub mod http;
pub mod net;
pub mod process;
pub mod slots;
pub mod spawn;
pub mod sse;
pub mod watch;

use std::sync::Arc;

use evenkeel_core::{Generator, Mono, Wall};

pub use clock::{Clock, SystemClock};
pub use net::{Accepted, Listener, Net, Stream, TcpNet};
pub use spawn::{Spawn, Task, TokioSpawn};

/// What a part gets from outside. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Random numbers; derive a part's own with [`Env::part`].
    pub generator: Generator,
    /// Starts tasks and threads.
    pub spawner: Arc<dyn Spawn>,
    /// Connects and listens.
    pub net: Arc<dyn Net>,
}

impl Env {
    /// The real world: system clock, seed from the operating system, tokio tasks, TCP.
    ///
    /// # Panics
    /// If the operating system gives no random bytes, without which nothing may start.
    #[must_use]
    pub fn real() -> Self {
        let mut seed = [0u8; 32];
        clock::os_random(&mut seed);
        Self {
            clock: Arc::new(SystemClock::default()),
            generator: Generator::from_bytes(seed),
            spawner: Arc::new(TokioSpawn),
            net: Arc::new(TcpNet),
        }
    }

    /// The real world, but with every random number following from `seed`.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { generator: Generator::from_seed(seed), ..Self::real() }
    }

    /// The same world with the generator of the named part.
    #[must_use]
    pub fn part(&self, name: &str) -> Self {
        Self { generator: self.generator.part(name), ..self.clone() }
    }

    /// The wall clock now.
    #[must_use]
    pub fn wall(&self) -> Wall {
        self.clock.wall()
    }

    /// The monotonic clock now.
    #[must_use]
    pub fn mono(&self) -> Mono {
        self.clock.mono()
    }
}
