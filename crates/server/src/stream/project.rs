//! Stored events as server-sent events: a pure function of the event.
//!
//! An event is shown as a fixed list of parts, whatever the client asked for; the part's place in
//! that list is its id. A client that resumes with other modes therefore still resumes exactly.

use evenkeel_core::journal::{Event, EventBody};
use serde_json::{Value, json};

use super::sse::Frame;
use crate::wire::message;
use crate::wire::modes::Modes;
use crate::wire::state::ThreadView;

/// One way in which an event is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// `metadata`: the run begins or goes on.
    Metadata,
    /// `messages`: message number `n` of the event in the tuple form.
    Tuple(usize),
    /// `messages/metadata` of all messages of the event.
    MessagesMetadata,
    /// `messages/complete` with all messages of the event.
    MessagesComplete,
    /// `updates`: what the node added.
    Updates,
    /// `values`: the full state.
    Values,
    /// `custom`: our own kinds.
    Custom,
    /// `error`: the run's cause.
    Error,
}

impl Part {
    fn wanted(self, modes: Modes) -> bool {
        match self {
            Self::Metadata | Self::Error => true,
            Self::Tuple(_) => modes.tuple,
            Self::MessagesMetadata | Self::MessagesComplete => modes.messages,
            Self::Updates => modes.updates,
            Self::Values => modes.values,
            Self::Custom => modes.custom,
        }
    }
}

/// What the client has of a reply already, from its pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown<'a> {
    /// Text of this very attempt that was passed on.
    pub(super) text: &'a str,
}

/// The frames of an event for these modes. `view` is the state after the event, if it is wanted.
pub(super) fn frames(
    event: &Event,
    modes: Modes,
    view: Option<&ThreadView>,
    shown: &Shown<'_>,
) -> Vec<(usize, Frame)> {
    let parts = parts(event);
    let single = parts.len() == 1;
    let wanted = parts.iter().enumerate().filter(|(_, part)| part.wanted(modes));
    wanted
        .filter_map(|(idx, part)| {
            let (name, data) = show(*part, event, view, shown)?;
            let id = if single { event.seq.to_string() } else { format!("{}-{idx}", event.seq) };
            Some((idx, Frame { event: name, data, id: Some(id) }))
        })
        .collect()
}

/// Whether showing this event needs the state.
pub(super) fn needs_view(event: &Event, modes: Modes) -> bool {
    modes.values && parts(event).contains(&Part::Values)
}

fn parts(event: &Event) -> Vec<Part> {
    match &event.body {
        EventBody::RunClaimed { .. } => vec![Part::Metadata],
        EventBody::UserMessage { .. } | EventBody::Checkpoint { .. } => vec![Part::Values],
        EventBody::AssistantMessage { .. } => message_parts(1, &[Part::Updates, Part::Custom]),
        EventBody::ToolMessage { message } => message_parts(message.tool_results().count(), &[Part::Updates]),
        EventBody::RunEnded { outcome } if outcome.error.is_some() => vec![Part::Values, Part::Error],
        EventBody::RunEnded { .. } => vec![Part::Values],
        _ => vec![Part::Custom],
    }
}

fn message_parts(n_messages: usize, rest: &[Part]) -> Vec<Part> {
    let tuples = (0..n_messages).map(Part::Tuple);
    let whole = [Part::MessagesMetadata, Part::MessagesComplete];
    tuples.chain(whole).chain(rest.iter().copied()).collect()
}

fn show(
    part: Part,
    event: &Event,
    view: Option<&ThreadView>,
    shown: &Shown<'_>,
) -> Option<(&'static str, Value)> {
    let messages = || message::of_event(event);
    Some(match part {
        Part::Metadata => ("metadata", metadata(event)?),
        Part::Tuple(idx) => ("messages", tuple(event, idx, shown)?),
        Part::MessagesMetadata => ("messages/metadata", messages_metadata(event, &messages())),
        Part::MessagesComplete => ("messages/complete", Value::Array(messages())),
        Part::Updates => ("updates", json!({ node(event): { "messages": messages() } })),
        Part::Values => ("values", view?.values()),
        Part::Custom => ("custom", custom(event)),
        Part::Error => ("error", error(event)?),
    })
}

fn metadata(event: &Event) -> Option<Value> {
    match &event.body {
        EventBody::RunClaimed { attempt, .. } => Some(json!({ "run_id": event.run, "attempt": attempt })),
        _ => None,
    }
}

/// A reply is completed by one last chunk with what its pieces have not told; a tool's result is
/// shown whole.
fn tuple(event: &Event, idx: usize, shown: &Shown<'_>) -> Option<Value> {
    let whole = message::of_event(event).into_iter().nth(idx)?;
    let about = about(event, None);
    let EventBody::AssistantMessage { message: reply, attempts, .. } = &event.body else {
        return Some(json!([whole, about]));
    };
    let id = message::reply_id(event.run, event.step, message::attempt_of(attempts));
    let text = reply.joined_text();
    let rest = text.strip_prefix(shown.text).unwrap_or(&text);
    let mut chunk = message::chunk(&id, rest, true);
    for field in ["tool_calls", "usage_metadata", "response_metadata"] {
        chunk[field] = whole.get(field).cloned().unwrap_or_default();
    }
    Some(json!([chunk, about]))
}

fn messages_metadata(event: &Event, messages: &[Value]) -> Value {
    let about = about(event, None);
    let ids = messages.iter().filter_map(|message| message.get("id").and_then(Value::as_str));
    Value::Object(ids.map(|id| (id.to_owned(), json!({ "metadata": about }))).collect())
}

/// What goes with a message: where it comes from.
fn about(event: &Event, attempt: Option<u32>) -> Value {
    place(&event.run.to_string(), event.step, node(event), attempt)
}

/// The metadata of a piece or message.
pub(super) fn place(run: &str, step: u32, node: &str, attempt: Option<u32>) -> Value {
    let mut place = json!({ "run_id": run, "langgraph_node": node, "langgraph_step": step });
    if let Some(attempt) = attempt {
        place["attempt"] = json!(attempt);
        place["provisional"] = json!(true);
    }
    place
}

fn node(event: &Event) -> &'static str {
    match &event.body {
        EventBody::ToolMessage { .. } => "tools",
        EventBody::UserMessage { .. } => "__start__",
        _ => "agent",
    }
}

/// The event itself, with its place; of a reply only what is not in the message.
fn custom(event: &Event) -> Value {
    let mut value = match &event.body {
        EventBody::AssistantMessage { attempts, finish, .. } => {
            json!({ "type": "model_called", "attempts": attempts, "finish": finish })
        }
        body => serde_json::to_value(body).unwrap_or_default(),
    };
    if let EventBody::Parked { .. } = &event.body {
        value["type"] = json!("waiting");
    }
    value["run_id"] = json!(event.run);
    value["step"] = json!(event.step);
    value["at"] = json!(event.at.iso());
    value
}

fn error(event: &Event) -> Option<Value> {
    match &event.body {
        EventBody::RunEnded { outcome } => outcome
            .error
            .as_ref()
            .map(|error| json!({ "error": error.code, "message": error.message, "remedy": error.remedy })),
        _ => None,
    }
}
