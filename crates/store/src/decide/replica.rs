//! Leases of replicas.

use std::time::Duration;

use evenkeel_core::port::store::{Beat, Heartbeat};
use evenkeel_core::run::RunState;

use super::Context;
use crate::record::Lease;
use crate::rows::Rowed;

/// Renews the lease. A replica whose lease had lapsed is told so and gets a new one: what it held
/// may be another's by now, and its old fences decide nothing.
pub(super) fn heartbeat(ctx: &mut Context<'_>, request: &Heartbeat) -> Rowed<Beat> {
    let mut cancels = Vec::new();
    for run_n in ctx.rows.owned(request.replica, RunState::Cancelling, u32::MAX)? {
        cancels.push(ctx.rows.run_of(run_n)?.id);
    }
    let now = ctx.now.mono;
    let lease = Lease {
        until: now.after(Duration::from_millis(request.lease_ttl_ms)),
        address: request.address.clone(),
        draining: request.draining,
        health: request.health.clone(),
    };
    let held = ctx.replicas.beat(request.replica, lease, now);
    Ok(Beat { held, cancels, peers: ctx.replicas.peers(request.replica, now) })
}
