//! Threads: making, reading, changing and removing them.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::id::{TenantId, ThreadId};
use evenkeel_core::port::store::{CreateThread, Deleted, ThreadCreated, ThreadRef, UpdateThread};
use evenkeel_core::thread::Thread;
use evenkeel_core::{Code, Error};
use http::StatusCode;
use serde_json::{Value, json};

use super::{Answer, asking_run, find_thread, newest_run, stop, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::Path;
use crate::gateway::route::Sent;
use crate::stream::follow::view_of;
use crate::wire;
use crate::wire::input::busy_policy;
use crate::wire::interrupt;
use crate::wire::refusal::{malformed, no_thread};
use crate::wire::thread::Beside;

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
    let metadata = metadata(&body)?.unwrap_or_else(|| json!({}));
    let busy_policy = busy_policy(&body)?;
    let request = CreateThread { tenant: caller.tenant, thread, metadata, busy_policy };
    let thread = match shared.store.create_thread(request).await? {
        ThreadCreated::Created(thread) => thread,
        ThreadCreated::Exists(thread) if keep_existing => thread,
        ThreadCreated::Exists(_) | ThreadCreated::Taken => return Err(exists(thread).into()),
    };
    Ok(Json(shown_without_values(&shared, &thread).await?).into_response())
}

fn metadata(body: &Value) -> Result<Option<Value>, Error> {
    match body.get("metadata") {
        None | Some(Value::Null) => Ok(None),
        Some(object @ Value::Object(_)) => Ok(Some(object.clone())),
        Some(_) => Err(malformed("`metadata` is not an object.", "Send a JSON object.")),
    }
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
    Ok(Json(shown(&shared, &thread).await?).into_response())
}

/// A thread with its values.
pub(super) async fn shown(shared: &Shared, thread: &Thread) -> Result<Value, Error> {
    let newest = newest_run(shared, thread).await?;
    let view = view_of(&shared.store, &thread.tenant, thread.id, thread.seq_last).await?;
    let values = (thread.seq_last > 0).then(|| view.values());
    let interrupt = if thread.asks { view.interrupt() } else { None };
    Ok(wire::thread::thread(thread, Beside { newest: newest.as_ref(), interrupt, values }))
}

/// A thread without its values, so that its log need not be read.
pub(super) async fn shown_without_values(shared: &Shared, thread: &Thread) -> Result<Value, Error> {
    let newest = newest_run(shared, thread).await?;
    let interrupt = asking_run(shared, thread).await?.and_then(|run| {
        let open: Vec<_> = run.asks().iter().filter(|asked| asked.answer.is_none()).collect();
        interrupt::interrupt(run.id, &open, |_| None)
    });
    Ok(wire::thread::thread(thread, Beside { newest: newest.as_ref(), interrupt, values: None }))
}

pub(super) async fn patch(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let (thread, body) = (thread_id(&id)?, sent.json()?);
    let metadata = metadata(&body)?.unwrap_or_else(|| json!({}));
    let busy_policy = busy_policy(&body)?;
    let request = UpdateThread { tenant: caller.tenant, thread, metadata, busy_policy };
    let thread = shared.store.update_thread(request).await?.ok_or_else(no_thread)?;
    Ok(Json(shown(&shared, &thread).await?).into_response())
}

/// Removes a thread; what is still open on it is stopped first.
pub(super) async fn delete(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    let thread = thread_id(&id)?;
    find_thread(&shared, &caller.tenant, thread).await?;
    remove(&shared, &caller.tenant, thread).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A thread on which new turns arrive all the time is refused after this many tries.
const REMOVALS_MAX: usize = 5;

/// Stops what is open on a thread, then removes it. One that is gone already is no error.
pub(super) async fn remove(shared: &Shared, tenant: &TenantId, thread: ThreadId) -> Result<(), Error> {
    for _ in 0..REMOVALS_MAX {
        match shared.store.delete_thread(ThreadRef { tenant: tenant.clone(), thread }).await? {
            Deleted::Done | Deleted::NotFound => {
                shared.hub.touch(thread);
                return Ok(());
            }
            Deleted::Busy => stop::all_of(shared, tenant, thread).await?,
        }
    }
    Err(Error::client(
        Code::ThreadBusy,
        "New turns arrive on this thread while it is removed.",
        "Stop sending, then remove it.",
    ))
}
