//! The heartbeat: renews the lease every second, and fences the replica when that fails for long.
//!
//! Beats overlap: a beat that hangs in a slow store does not keep the next one from being sent.

use std::sync::Arc;

use evenkeel_core::control::lease::Due;
use evenkeel_core::id::ReplicaId;
use evenkeel_core::port::store::{Beat, Heartbeat};
use evenkeel_core::{Error, Mono};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use super::Dispatch;

/// Beats that may be on their way when another one is asked for out of turn.
const BEATS_MAX: usize = 4;

pub(super) async fn run(dispatch: Arc<Dispatch>) {
    let mut beats = FuturesUnordered::new();
    while !dispatch.state().gone {
        let now = dispatch.host.env.mono();
        let due = dispatch.host.lease().check(now);
        match due {
            Due::Fence => {
                beats.clear();
                dispatch.fence();
            }
            Due::Beat => {
                let sent = dispatch.host.lease().begin_beat(now);
                beats.push(beat(dispatch.clone(), dispatch.replica(), sent));
            }
            Due::Wait(until) => {
                tokio::select! {
                    biased;
                    Some(answer) = beats.next(), if !beats.is_empty() => dispatch.beaten(answer),
                    () = dispatch.beat_now.notified(), if beats.len() < BEATS_MAX => {
                        let sent = dispatch.host.lease().begin_beat(dispatch.host.env.mono());
                        beats.push(beat(dispatch.clone(), dispatch.replica(), sent));
                    }
                    () = sleep(until.since(now)) => {}
                }
            }
        }
    }
}

async fn beat(dispatch: Arc<Dispatch>, replica: ReplicaId, sent: Mono) -> (Mono, Result<Beat, Error>) {
    let config = &dispatch.host.config;
    let request = Heartbeat {
        replica,
        address: config.address.clone(),
        lease_ttl_ms: config.lease_ttl_ms,
        draining: dispatch.state().draining,
        health: dispatch.host.parts.model.health(),
    };
    let limit = config.lease_times().fence_after;
    let answer = timeout(limit, dispatch.host.parts.store.heartbeat(request)).await;
    (sent, answer.unwrap_or_else(|_| Err(Error::internal("The store did not answer a heartbeat in time."))))
}

impl Dispatch {
    fn beaten(&self, (sent, answer): (Mono, Result<Beat, Error>)) {
        let beat = match answer {
            Ok(beat) => beat,
            Err(error) => {
                tracing::warn!(code = %error.code, message = %error.message, "heartbeat failed");
                return;
            }
        };
        let now = self.host.env.mono();
        let held_before = self.host.holds_lease();
        self.host.lease().confirm(sent, beat.held, now);
        for run in beat.cancels {
            self.cancel(run);
        }
        if !held_before && self.host.holds_lease() {
            self.orphaned.notify_one();
            self.queued.notify_one();
            self.swept.notify_one();
        }
        self.met(beat.peers);
    }
}
