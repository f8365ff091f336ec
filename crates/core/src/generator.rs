//! Seeded random numbers, one generator per part, so that a run can be replayed.

use std::sync::{Arc, Mutex, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// A seeded generator that parts share by cloning; each part derives its own with [`Generator::part`].
///
/// Jitter and identifiers come from here and nowhere else. It is not a source of secrets: API keys
/// come from the operating system.
#[derive(Clone)]
pub struct Generator {
    seed: [u8; 32],
    rng: Arc<Mutex<ChaCha8Rng>>,
}

impl Generator {
    /// A generator whose whole sequence follows from `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self::from_bytes(*blake3::hash(&seed.to_le_bytes()).as_bytes())
    }

    /// A generator from 32 bytes of seed, for a seed drawn from the operating system.
    #[must_use]
    pub fn from_bytes(seed: [u8; 32]) -> Self {
        Self { seed, rng: Arc::new(Mutex::new(ChaCha8Rng::from_seed(seed))) }
    }

    /// The generator of the named part: the same seed and name give the same sequence, whatever
    /// the other parts have drawn.
    #[must_use]
    pub fn part(&self, name: &str) -> Self {
        Self::from_bytes(*blake3::keyed_hash(&self.seed, name.as_bytes()).as_bytes())
    }

    /// The next 64 bits.
    #[must_use]
    pub fn next_u64(&self) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    /// A number in `0..bound`; zero if `bound` is zero. The modulo bias is below 2^-32 for the
    /// bounds used here.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number in `[0, 1)`.
    #[must_use]
    pub fn unit(&self) -> f64 {
        // 53 bits are what an f64 holds exactly.
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
        let bits = (self.next_u64() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }

    /// Sixteen random bytes, for identifiers.
    #[must_use]
    pub fn bytes16(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
        bytes
    }
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Generator")
    }
}
