//! Claiming what is queued, and taking over what dead replicas held.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::port::store::{Claim, ClaimReady, Steal};
use evenkeel_env::slots::Slot;

use super::{Dispatch, RESERVED_MAX, hint_or};
use crate::run::drive::Source;

/// Looks for queued runs: at once after a hint, else less and less often.
pub(super) async fn claim_loop(dispatch: Arc<Dispatch>) {
    let config = &dispatch.host.config;
    let shortest = Duration::from_millis(config.poll_min_ms.max(1));
    let longest = Duration::from_millis(config.poll_max_ms).max(shortest);
    let mut wait = shortest;
    loop {
        hint_or(&dispatch.queued, wait).await;
        wait = match dispatch.claim_queued().await {
            0 => (wait * 2).min(longest),
            _ => shortest,
        };
    }
}

/// Takes over the runs of dead replicas, every second and whenever a lapsed peer is seen.
pub(super) async fn steal_loop(dispatch: Arc<Dispatch>) {
    let every = Duration::from_millis(dispatch.host.config.beat_every_ms);
    loop {
        hint_or(&dispatch.orphaned, every).await;
        dispatch.steal().await;
    }
}

impl Dispatch {
    /// Claims queued runs until there are none or no slot is free. Replies with their number.
    async fn claim_queued(&self) -> usize {
        let mut n_claimed = 0;
        while self.may_claim() {
            let slots = self.reserve(RESERVED_MAX);
            let n_slots = slots.len();
            if n_slots == 0 {
                break;
            }
            let limit = u32::try_from(n_slots).unwrap_or(u32::MAX);
            let request = ClaimReady { me: self.replica(), limit };
            let claims = match self.host.answer(self.host.parts.store.claim_ready(request)).await {
                Ok(claims) => claims,
                Err(error) => {
                    drop(slots);
                    self.claim_failed("claim_ready", &error).await;
                    break;
                }
            };
            let n = claims.len();
            n_claimed += n;
            self.begin_all(claims, slots, &Source::Fresh);
            if n < n_slots {
                break;
            }
        }
        n_claimed
    }

    async fn steal(&self) {
        while self.may_claim() {
            let slots = self.reserve(RESERVED_MAX);
            let n_slots = slots.len();
            if n_slots == 0 {
                return;
            }
            let (me, dead) = {
                let state = self.state();
                (state.replica, state.former.iter().chain(&state.dead).copied().collect::<Vec<_>>())
            };
            let limit = u32::try_from(n_slots).unwrap_or(u32::MAX);
            let request = Steal { me, dead: dead.clone(), limit };
            let claims = match self.host.answer(self.host.parts.store.steal(request)).await {
                Ok(claims) => claims,
                Err(error) => {
                    drop(slots);
                    return self.claim_failed("steal", &error).await;
                }
            };
            let n = claims.len();
            self.host.count(|counters| counters.n_stolen += u64::try_from(n).unwrap_or(0));
            self.begin_all(claims, slots, &Source::Stolen);
            if n < n_slots {
                return self.forget(&dead).await;
            }
        }
    }

    /// What former incarnations and dead peers held is all taken over.
    async fn forget(&self, dead: &[evenkeel_core::id::ReplicaId]) {
        for replica in dead {
            if self.host.answer(self.host.parts.store.leave(*replica)).await.is_ok() {
                let mut state = self.state();
                state.former.retain(|other| other != replica);
                state.dead.remove(replica);
                state.peers.retain(|peer| peer.replica != *replica);
            }
        }
    }

    pub(super) fn begin_all(&self, claims: Vec<Claim>, slots: Vec<Slot>, source: &Source) {
        for (claim, slot) in claims.into_iter().zip(slots) {
            self.begin(claim, slot, source.clone());
        }
    }
}
