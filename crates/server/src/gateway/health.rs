//! Whether the process lives, whether it takes work, what it is.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use evenkeel_core::port::store::Counts;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use crate::app::Shared;
use crate::config::AuthMode;
use crate::telemetry::Reading;
use crate::wire::refusal::Refusal;

/// The longest that a probe waits for the store.
const STORE_PROBE: Duration = Duration::from_secs(1);

/// Paths that need no key, and the metrics, which do.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/ok", get(ok))
        .route("/info", get(info))
        .route("/metrics", get(metrics))
}

async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The dialect's own health check.
async fn ok(State(shared): State<Arc<Shared>>) -> Response {
    if shared.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ok": false }))).into_response();
    }
    Json(json!({ "ok": true })).into_response()
}

/// Whether this process should get traffic: it does not drain, its lease holds, its store answers. Of
/// a gateway: it does not drain, and a replica is up.
async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let draining = shared.is_draining();
    let (ready, mut said) = match &shared.balancer {
        Some(balancer) => {
            let up = balancer.is_any_up();
            (up, json!({ "checks": { "replica": up } }))
        }
        None => {
            let (store, stats) = (store_answers(&shared).await, shared.dispatch.stats());
            let checks = json!({ "store": store, "lease": stats.lease_held });
            let replica = shared.dispatch.replica();
            let said = json!({ "replica": replica, "running": stats.n_running, "checks": checks });
            (store && stats.lease_held, said)
        }
    };
    let ready = ready && !draining;
    said["status"] = json!(if ready { "ready" } else { "not ready" });
    said["checks"]["draining"] = json!(draining);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(said)).into_response()
}

/// Whether the store answers a probe in time: a look for a key that is nobody's.
async fn store_answers(shared: &Shared) -> bool {
    tokio::time::timeout(STORE_PROBE, shared.store.find_key(String::new()))
        .await
        .is_ok_and(|found| found.is_ok())
}

async fn info(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "langgraph_py_version": null,
        "flags": { "assistants": true, "crons": false, "langsmith": false },
        "host": { "kind": "self-hosted", "project_id": null, "host_revision_id": null, "revision_id": null },
        "started_at": shared.started_at.iso(),
    }))
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if shared.config.auth.mode == AuthMode::Keys
        && let Err(error) =
            shared.auth.caller(&shared.env, &headers).await.and_then(|caller| caller.must_operate())
    {
        return Refusal(error).into_response();
    }
    let reading = Reading {
        slots: shared.slots.gauges(),
        router: shared.routing.snapshot(),
        harness: shared.dispatch.stats(),
        export: shared.exporter.stats(),
        counts: counts(&shared).await,
        n_streams: shared.hub.n_followers(),
        draining: shared.is_draining(),
        gateway: shared.balancer.as_ref().map(|balancer| balancer.reading()),
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shared.metrics.text(&reading)).into_response()
}

/// The store's counts, if it answers a probe in time.
async fn counts(shared: &Shared) -> Option<Counts> {
    tokio::time::timeout(STORE_PROBE, shared.store.counts(())).await.ok()?.ok()
}
