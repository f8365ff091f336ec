//! The processes of a platform, as the one that is asked sees them, and the orderly end of it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use http::StatusCode;
use serde_json::{Value, json};

use super::Answer;
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::balance::{Balancer, Shown};

/// Paths that every role serves by itself.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/v1/replicas", get(list)).route("/v1/drain", post(drain))
}

async fn list(State(shared): State<Arc<Shared>>, Extension(caller): Extension<Caller>) -> Answer {
    caller.must_operate()?;
    let rows = match &shared.balancer {
        Some(balancer) => behind(balancer),
        None => among(&shared),
    };
    Ok(Json(rows).into_response())
}

/// What a gateway knows of its replicas.
fn behind(balancer: &Balancer) -> Vec<Value> {
    let row = |shown: Shown| {
        json!({
            "address": shown.name,
            "replica": shown.said["replica"],
            "standing": shown.standing.as_str(),
            "for_ms": shown.for_ms,
            "running": shown.said["running"],
            "in_flight": shown.in_flight,
            "n_requests": shown.n_requests,
            "n_failed": shown.n_failed,
        })
    };
    balancer.shown().into_iter().map(row).collect()
}

/// What a replica knows of itself and of the others.
fn among(shared: &Shared) -> Vec<Value> {
    let stats = shared.dispatch.stats();
    let standing = match (shared.is_draining(), stats.lease_held) {
        (true, _) => "draining",
        (false, true) => "up",
        (false, false) => "down: not ready",
    };
    let me = json!({
        "address": shared.address,
        "replica": shared.dispatch.replica(),
        "standing": standing,
        "running": stats.n_running,
        "me": true,
    });
    let peers = shared.dispatch.peers().into_iter().map(|peer| {
        let standing = match (peer.lapsed, peer.draining) {
            (true, _) => "down: lapsed",
            (false, true) => "draining",
            (false, false) => "up",
        };
        json!({ "address": peer.address, "replica": peer.replica, "standing": standing })
    });
    std::iter::once(me).chain(peers).collect()
}

/// The same as SIGTERM: the process ends when it has nothing left, or after `server.drain_timeout`.
async fn drain(State(shared): State<Arc<Shared>>, Extension(caller): Extension<Caller>) -> Answer {
    caller.must_operate()?;
    tracing::info!("an operator asked for the orderly end");
    shared.ask_to_drain();
    Ok((StatusCode::ACCEPTED, Json(json!({ "draining": true }))).into_response())
}
