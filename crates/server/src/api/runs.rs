//! Reading runs.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::port::store::ListRuns;
use serde::Deserialize;
use serde_json::Value;

use super::{Answer, find_run, find_thread, run_id, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::wire;
use crate::wire::refusal::malformed;

/// Runs that one answer lists at most.
pub(super) const LIST_MAX: u32 = 1000;

/// What a list may be asked for.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    limit: Option<u32>,
    offset: Option<u32>,
    status: Option<String>,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ListQuery>,
) -> Answer {
    let thread = find_thread(&shared, &caller.tenant, thread_id(&id)?).await?;
    let states = match query.status.as_deref() {
        None | Some("") => Vec::new(),
        Some(word) => wire::run::states(word).ok_or_else(|| {
            malformed(
                format!("status `{word}` is not known."),
                "Use pending, running, error, success, timeout or interrupted.",
            )
        })?,
    };
    let request = ListRuns {
        tenant: Some(caller.tenant),
        thread: Some(thread.id),
        states,
        limit: query.limit.unwrap_or(10).min(LIST_MAX),
        offset: query.offset.unwrap_or(0),
    };
    let runs = shared.store.list_runs(request).await?;
    Ok(Json(runs.iter().map(wire::run::run).collect::<Vec<Value>>()).into_response())
}

pub(super) async fn get_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((thread, run)): Path<(String, String)>,
) -> Answer {
    let run = find_run(&shared, &caller.tenant, thread_id(&thread)?, run_id(&run)?).await?;
    Ok(Json(wire::run::run(&run)).into_response())
}
