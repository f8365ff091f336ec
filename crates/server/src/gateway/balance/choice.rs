//! Which replica gets a request.
//!
//! A request that belongs to a thread goes to the thread's owner, so that the process that runs a
//! thread is the one that its clients stream from. The owner is the replica of those that are up
//! with the highest weight for this thread (rendezvous hashing): all gateways agree without telling
//! each other, and when a replica leaves only its own threads move. Everything else goes where the
//! fewest requests are under way. Nothing depends on this choice but speed.

use std::cmp::Reverse;

use sha2::{Digest, Sha256};

/// A replica that may get the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    /// Its place in the configuration.
    pub(crate) idx: usize,
    /// Its address, as all gateways spell it.
    pub(crate) name: &'a str,
    /// Requests that this gateway has under way there.
    pub(crate) in_flight: usize,
}

/// The best of the candidates; `turn` decides between equals, so that they take turns.
pub(crate) fn choose(candidates: &[Candidate<'_>], thread: Option<&str>, turn: usize) -> Option<usize> {
    let best = match thread {
        Some(thread) => candidates.iter().max_by_key(|candidate| weight(thread, candidate.name)),
        None => {
            let n = candidates.len().max(1);
            candidates
                .iter()
                .enumerate()
                .max_by_key(|(place, candidate)| {
                    (Reverse(candidate.in_flight), Reverse((place + n - turn % n) % n))
                })
                .map(|(_, candidate)| candidate)
        }
    };
    best.map(|candidate| candidate.idx)
}

/// How much a replica is the owner of a thread.
fn weight(thread: &str, name: &str) -> [u8; 32] {
    let digest = Sha256::new().chain_update(thread.to_ascii_lowercase()).chain_update([0]);
    digest.chain_update(name).finalize().into()
}
