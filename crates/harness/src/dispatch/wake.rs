//! Waking parked runs: one for each permit that the router hands out.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::TenantId;
use evenkeel_core::port::model::Permit;
use evenkeel_core::port::store::Wake;
use evenkeel_core::run::WaitReason;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Dispatch;
use crate::run::drive::Source;

/// Permits that are turned into running runs at once.
const PERMITS_MAX: usize = 16;
/// How long a permit waits for a slot before it is given back.
const SLOT_WAIT: Duration = Duration::from_secs(2);

pub(super) async fn run(dispatch: Arc<Dispatch>) {
    let mut waking = FuturesUnordered::new();
    loop {
        let permits = dispatch.host.parts.model.next_permit();
        tokio::select! {
            biased;
            Some(()) = waking.next(), if !waking.is_empty() => {}
            permit = permits, if waking.len() < PERMITS_MAX => waking.push(dispatch.wake_with(permit)),
        }
    }
}

impl Dispatch {
    /// Wakes the most urgent run of the permit's route. A permit that wakes nobody is dropped,
    /// which gives its place back.
    async fn wake_with(&self, permit: Permit) {
        if !self.may_claim() {
            // Nothing can be woken now; do not take the same permit again in the same instant.
            tokio::time::sleep(Duration::from_millis(100)).await;
            return;
        }
        // The queue for slots goes before the claim loop: steps of begun runs before new runs.
        let Ok(slot) = self.host.parts.slots.harness.acquire(&TenantId::from("parked"), SLOT_WAIT).await
        else {
            return;
        };
        let route = permit.0.route().to_owned();
        let request =
            Wake { me: self.replica(), on: WaitReason::Model, route: Some(route.clone()), limit: 1 };
        match self.host.answer(self.host.parts.store.wake(request)).await {
            Ok(claims) => {
                self.woken(&route, claims.len(), 1);
                self.begin_all(claims, vec![slot], &Source::Woken(Some(permit)));
            }
            Err(error) => {
                drop((slot, permit));
                self.claim_failed("wake", &error).await;
            }
        }
    }

    /// Keeps the number of parked runs in step: fewer than asked for means that none is left.
    pub(super) fn woken(&self, route: &str, n: usize, asked: usize) {
        self.host.count(|counters| counters.n_woken += u64::try_from(n).unwrap_or(0));
        let known = self.state().parked.get(route).copied().unwrap_or(0);
        self.parked(route, if n < asked { 0 } else { known.saturating_sub(n) });
    }
}
