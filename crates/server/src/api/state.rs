//! The state of a thread: now, at a checkpoint, its past, and changed by a client.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::id::RunId;
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::port::feed::Feed;
use evenkeel_core::port::store::{StateWrite, WriteState};
use evenkeel_core::{Code, Error};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Answer, find_thread, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::gateway::route::Sent;
use crate::stream::follow::view_of;
use crate::wire;
use crate::wire::refusal::{malformed, no_thread};
use crate::wire::state::{ThreadView, checkpoint, checkpoint_id as checkpoint_of};

/// States that one answer of `history` holds at most.
const HISTORY_MAX: usize = 1000;

pub(super) async fn newest(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    Ok(Json(view(&shared, &caller, &id).await?.state()).into_response())
}

pub(super) async fn at(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((id, checkpoint)): Path<(String, String)>,
) -> Answer {
    let checkpoint = checkpoint_id(&checkpoint)?;
    shown_at(&view(&shared, &caller, &id).await?, checkpoint)
}

pub(super) async fn at_by_body(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let body = sent.json()?;
    let place = body.get("checkpoint").filter(|place| place.is_object()).ok_or_else(|| {
        malformed("`checkpoint` is not an object.", "Send {\"checkpoint\":{\"checkpoint_id\":\"...\"}}.")
    })?;
    let checkpoint = named(Some(place))?;
    let view = view(&shared, &caller, &id).await?;
    // A place without an id is the newest.
    checkpoint
        .map_or_else(|| Ok(Json(view.state()).into_response()), |checkpoint| shown_at(&view, checkpoint))
}

fn shown_at(view: &ThreadView, checkpoint: Uuid) -> Answer {
    Ok(Json(view.state_at(checkpoint).ok_or_else(|| no_checkpoint(checkpoint))?).into_response())
}

/// The whole thread, folded.
async fn view(shared: &Shared, caller: &Caller, id: &str) -> Result<ThreadView, Error> {
    let thread = find_thread(shared, &caller.tenant, thread_id(id)?).await?;
    view_of(&shared.store, &caller.tenant, thread.id, thread.seq_last).await
}

/// `{"values", "as_node", "checkpoint"}`: messages replace those of the same id or are appended,
/// other values replace those of the same name; on top of a checkpoint, if one is named.
pub(super) async fn write(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    shared.admits()?;
    let body = sent.json()?;
    let (now, generator) = (shared.env.wall(), &shared.env.generator);
    let written = wire::input::state_written(&body, shared.input_limits(), now, generator)?;
    let view = view(&shared, &caller, &id).await?;
    let mut bodies = Vec::new();
    if let Some(checkpoint) = named(body.get("checkpoint"))? {
        let to = view.seq_of(checkpoint).ok_or_else(|| no_checkpoint(checkpoint))?;
        bodies.push(EventBody::Rewound { to, cause: "fork".to_owned() });
    }
    bodies.push(written);
    let thread = thread_id(&id)?;
    let request = WriteState {
        tenant: caller.tenant,
        thread,
        writer: RunId::new(now, generator),
        events: bodies.into_iter().map(|body| NewEvent { step: 0, body }).collect(),
    };
    match shared.store.write_state(request).await? {
        StateWrite::Done { seq_last, .. } => {
            shared.hub.committed(thread, seq_last);
            let id = checkpoint_of(thread, seq_last);
            let place = checkpoint(thread, id);
            Ok(Json(json!({ "checkpoint": place, "configurable": place, "checkpoint_id": id }))
                .into_response())
        }
        StateWrite::Busy(active) => Err(Error::client(
            Code::ThreadBusy,
            "Thread is running a task; its state cannot be written now.",
            format!("Wait for run {active} to end, or cancel it."),
        )
        .into()),
        StateWrite::NotFound => Err(no_thread().into()),
    }
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
    let before = query.before.as_deref().map(checkpoint_id).transpose()?;
    let view = view(&shared, &caller, &id).await?;
    Ok(Json(view.history(limited(query.limit), before, &Value::Null)).into_response())
}

pub(super) async fn history_by_body(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let body = sent.json()?;
    let limit = body.get("limit").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let before = named(body.get("before"))?;
    let metadata = match body.get("metadata") {
        None | Some(Value::Null) => Value::Null,
        Some(metadata @ Value::Object(_)) => metadata.clone(),
        Some(_) => return Err(malformed("`metadata` is not an object.", "Send a JSON object.").into()),
    };
    let view = view(&shared, &caller, &id).await?;
    Ok(Json(view.history(limited(limit), before, &metadata)).into_response())
}

fn limited(limit: Option<usize>) -> usize {
    limit.unwrap_or(10).min(HISTORY_MAX)
}

/// The checkpoint that a value names: an id, an object with a `checkpoint_id`, or one with such an
/// object as `configurable`.
pub(super) fn named(value: Option<&Value>) -> Result<Option<Uuid>, Error> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let inner = value.get("configurable").unwrap_or(value);
    let id = if inner.is_object() { inner.get("checkpoint_id").unwrap_or(&Value::Null) } else { inner };
    match id {
        Value::Null => Ok(None),
        Value::String(id) => checkpoint_id(id).map(Some),
        _ => Err(malformed(
            "A checkpoint is named by no `checkpoint_id`.",
            "Send {\"checkpoint_id\":\"...\"} with the id of a state of this thread.",
        )),
    }
}

fn checkpoint_id(text: &str) -> Result<Uuid, Error> {
    text.parse()
        .map_err(|_| malformed("This is not a checkpoint's id.", "Send a checkpoint_id of this thread."))
}

/// The refusal of a checkpoint that the thread does not have.
pub(super) fn no_checkpoint(id: Uuid) -> Error {
    Error::client(
        Code::NotFound,
        format!("The thread has no checkpoint {id}."),
        "GET /threads/{thread}/history lists its checkpoints.",
    )
}
