//! `/v1/lab`: faults on demand. Only with `server.lab = true`; otherwise there is nothing here.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Json, Router};
use evenkeel_core::{Code, Error};
use evenkeel_store::slow::{SlowStore, Slowness};
use serde_json::{Value, json};

use super::Answer;
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::route::Sent;
use crate::wire::refusal::malformed;

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/v1/lab/store", get(read).put(set).post(set))
}

fn slow<'a>(shared: &'a Shared, caller: &Caller) -> Result<&'a SlowStore, Error> {
    caller.must_operate()?;
    shared.slow.as_deref().ok_or_else(|| {
        Error::client(
            Code::NotFound,
            "The lab is not open on this server.",
            "Start it with server.lab = true.",
        )
    })
}

async fn read(State(shared): State<Arc<Shared>>, Extension(caller): Extension<Caller>) -> Answer {
    Ok(shown(slow(&shared, &caller)?))
}

/// `{"factor": 2.0, "base_ms": 0}`: every operation takes `factor` times as long as it did, or as
/// `base_ms` if that is longer.
async fn set(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let store = slow(&shared, &caller)?;
    let body = sent.json()?;
    let factor = body.get("factor").and_then(Value::as_f64).filter(|factor| (1.0..=1000.0).contains(factor));
    let factor = factor
        .ok_or_else(|| malformed("`factor` is not a number from 1 to 1000.", "Send 1 for full speed."))?;
    let base_ms = body.get("base_ms").and_then(Value::as_u64).unwrap_or(0);
    store.set(Slowness { factor, base: Duration::from_millis(base_ms) });
    tracing::warn!(factor, base_ms, "the lab set the store's speed");
    Ok(shown(store))
}

fn shown(store: &SlowStore) -> axum::response::Response {
    let Slowness { factor, base } = store.slowness();
    Json(json!({ "factor": factor, "base_ms": base.as_millis() as u64 })).into_response()
}
