//! Threads: making them, reading them and their state.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::id::ThreadId;
use evenkeel_core::port::store::{CreateThread, ThreadCreated};
use evenkeel_core::{Code, Error};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Answer, find_thread, newest_run, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::gateway::route::Sent;
use crate::stream::follow::view_of;
use crate::wire;
use crate::wire::refusal::malformed;

/// States that one answer of `history` holds at most.
const HISTORY_MAX: usize = 1000;

pub(super) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    shared.admits()?;
    let body = sent.json()?;
    let thread = match body.get("thread_id") {
        None | Some(Value::Null) => ThreadId::new(shared.env.wall(), &shared.env.generator),
        Some(Value::String(id)) => thread_id(id)?,
        Some(_) => return Err(malformed("`thread_id` is not a string.", "Send a UUID.").into()),
    };
    let keep_existing = match body.get("if_exists").and_then(Value::as_str) {
        None | Some("raise") => false,
        Some("do_nothing") => true,
        Some(other) => {
            return Err(malformed(format!("`if_exists` is `{other}`."), "Send raise or do_nothing.").into());
        }
    };
    let metadata = match body.get("metadata") {
        None | Some(Value::Null) => json!({}),
        Some(object @ Value::Object(_)) => object.clone(),
        Some(_) => return Err(malformed("`metadata` is not an object.", "Send a JSON object.").into()),
    };
    let request = CreateThread { tenant: caller.tenant, thread, metadata, busy_policy: None };
    let thread = match shared.store.create_thread(request).await? {
        ThreadCreated::Created(thread) => thread,
        ThreadCreated::Exists(thread) if keep_existing => thread,
        ThreadCreated::Exists(_) | ThreadCreated::Taken => return Err(exists(thread).into()),
    };
    let newest = newest_run(&shared, &thread).await?;
    Ok(Json(wire::thread::thread(&thread, newest.as_ref(), None)).into_response())
}

fn exists(thread: ThreadId) -> Error {
    Error::client(
        Code::ThreadExists,
        format!("Thread {thread} already exists."),
        "Use another id, or send if_exists: \"do_nothing\" for a thread of your own.",
    )
}

pub(super) async fn get_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    let thread = find_thread(&shared, &caller.tenant, thread_id(&id)?).await?;
    let newest = newest_run(&shared, &thread).await?;
    let view = view_of(&shared.store, &caller.tenant, thread.id, thread.seq_last).await?;
    let values = (thread.seq_last > 0).then(|| view.values());
    Ok(Json(wire::thread::thread(&thread, newest.as_ref(), values)).into_response())
}

pub(super) async fn state(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    let thread = find_thread(&shared, &caller.tenant, thread_id(&id)?).await?;
    let view = view_of(&shared.store, &caller.tenant, thread.id, thread.seq_last).await?;
    Ok(Json(view.state(&thread)).into_response())
}

/// What `history` may be asked for.
#[derive(Debug, Default, Deserialize)]
pub(super) struct HistoryQuery {
    limit: Option<usize>,
    before: Option<String>,
}

pub(super) async fn history(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Answer {
    let before = query.before.as_deref().map(checkpoint).transpose()?;
    states(&shared, &caller, &id, query.limit, before).await
}

pub(super) async fn history_by_body(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let body = sent.json()?;
    let limit = body.get("limit").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let before = body.get("before").and_then(|before| before.get("checkpoint_id").unwrap_or(before).as_str());
    let before = before.map(checkpoint).transpose()?;
    states(&shared, &caller, &id, limit, before).await
}

async fn states(
    shared: &Shared,
    caller: &Caller,
    id: &str,
    limit: Option<usize>,
    before: Option<Uuid>,
) -> Answer {
    let thread = find_thread(shared, &caller.tenant, thread_id(id)?).await?;
    let view = view_of(&shared.store, &caller.tenant, thread.id, thread.seq_last).await?;
    Ok(Json(view.history(&thread, limit.unwrap_or(10).min(HISTORY_MAX), before)).into_response())
}

fn checkpoint(text: &str) -> Result<Uuid, Error> {
    text.parse()
        .map_err(|_| malformed("`before` is not a checkpoint's id.", "Send a checkpoint_id of this thread."))
}
