//! `/v1/threads`: a thread as it is stored, with its runs and its whole log, for operators and the lab.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::port::store::{ListRuns, ReadEvents};
use serde::Deserialize;
use serde_json::json;

use super::openapi::{Door, gives, lists};
use super::{Answer, GET, find_thread, runs::LIST_MAX, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::wire::schema;

/// Events that are read for one answer at most.
const EVENTS_MAX: u32 = 1000;

pub(super) fn serve(door: Door) -> Door {
    door.serve(
        GET,
        "/v1/threads/{thread}",
        get_one,
        gives("stored_thread", "A thread in Evenkeel's own words", "StoredThread"),
    )
    .serve(
        GET,
        "/v1/threads/{thread}/runs",
        runs,
        lists("stored_thread_runs", "Its runs in Evenkeel's own words", "StoredRun").paged(),
    )
    .serve(
        GET,
        "/v1/threads/{thread}/events",
        events,
        gives("stored_thread_events", "Its whole log", "Events")
            .query("after", schema::number())
            .query("limit", schema::number()),
    )
}

async fn get_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(thread): Path<String>,
) -> Answer {
    Ok(Json(find_thread(&shared, &caller.tenant, thread_id(&thread)?).await?).into_response())
}

/// Which part of a list is wanted.
#[derive(Debug, Default, Deserialize)]
struct Page {
    after: Option<u64>,
    limit: Option<u32>,
    offset: Option<u32>,
}

/// Runs of the thread, newest first.
async fn runs(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(thread): Path<String>,
    Query(page): Query<Page>,
) -> Answer {
    let thread = find_thread(&shared, &caller.tenant, thread_id(&thread)?).await?;
    let request = ListRuns {
        tenant: Some(thread.tenant),
        thread: Some(thread.id),
        states: Vec::new(),
        limit: page.limit.unwrap_or(100).min(LIST_MAX),
        offset: page.offset.unwrap_or(0),
    };
    Ok(Json(shared.store.list_runs(request).await?).into_response())
}

/// Events of the thread as they are stored. `next_after` is where the next page begins; the last
/// page has none.
async fn events(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(thread): Path<String>,
    Query(page): Query<Page>,
) -> Answer {
    let thread = find_thread(&shared, &caller.tenant, thread_id(&thread)?).await?;
    let limit = page.limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX);
    let after_seq = page.after.unwrap_or(0);
    let request = ReadEvents { tenant: thread.tenant, thread: thread.id, after_seq, limit };
    let events = shared.store.read_events(request).await?;
    let full = events.len() >= limit as usize;
    let next_after = events.last().filter(|_| full).map(|event| event.seq);
    Ok(Json(json!({ "events": events, "next_after": next_after })).into_response())
}
