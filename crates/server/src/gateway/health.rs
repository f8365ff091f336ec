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

/// Whether this process should get traffic: it does not drain, its lease holds, its store answers.
async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let store = counts(&shared).await.is_some();
    let lease = shared.dispatch.stats().lease_held;
    let draining = shared.is_draining();
    let ready = store && lease && !draining;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "status": if ready { "ready" } else { "not ready" },
        "checks": { "store": store, "lease": lease, "draining": draining },
    });
    (status, Json(body)).into_response()
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
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], shared.metrics.text(&reading)).into_response()
}

/// The store's counts, if it answers a probe in time.
async fn counts(shared: &Shared) -> Option<Counts> {
    tokio::time::timeout(STORE_PROBE, shared.store.counts(())).await.ok()?.ok()
}
