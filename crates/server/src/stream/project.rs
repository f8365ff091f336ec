//! Stored events as server-sent events: a pure function of the event.
//!
//! An event is shown as a fixed list of parts, whatever the client asked for; the part's place in
//! that list is its id. A client that resumes with other modes therefore still resumes exactly.

pub(super) mod inside;

use evenkeel_core::id::RunId;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::run::{EndReason, Outcome, WaitReason};
use serde_json::{Value, json};

use super::sse::Frame;
use crate::wire::message;
use crate::wire::modes::{Modes, ThreadModes};
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
    /// `updates`: what a person is asked.
    Interrupt,
    /// `values`: the full state.
    Values,
    /// `custom`: our own kinds.
    Custom,
    /// `error`: the run's cause.
    Error,
    /// `tasks`: a model call or a tool call.
    Task(Half),
    /// `checkpoints`: the state.
    Checkpoint,
    /// `debug`: the same task with its envelope.
    DebugTask(Half),
    /// `debug`: the same state with its envelope.
    DebugCheckpoint,
    /// `events`: a callback.
    Callback,
    /// `metadata`: another run answers in this one's place.
    Answered,
    /// `metadata` on a thread's stream: a run is done.
    RunDone,
    /// `state_update` on a thread's stream: a client changed the state.
    StateUpdate,
}

/// Which half of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Begun,
    Ended,
}

impl Part {
    fn wanted(self, modes: Modes) -> bool {
        match self {
            Self::Metadata | Self::Answered => true,
            Self::Error => modes.thread == ThreadModes::default() || modes.thread.runs,
            Self::RunDone => modes.thread.runs || modes.thread.lifecycle,
            Self::StateUpdate => modes.thread.state_update,
            Self::Tuple(_) => modes.tuple,
            Self::MessagesMetadata | Self::MessagesComplete => modes.messages,
            Self::Updates | Self::Interrupt => modes.updates,
            Self::Values => modes.values,
            Self::Custom => modes.custom,
            Self::Task(_) => modes.tasks,
            Self::Checkpoint => modes.checkpoints,
            Self::DebugTask(_) | Self::DebugCheckpoint => modes.debug,
            Self::Callback => modes.events,
        }
    }

    fn needs_view(self) -> bool {
        matches!(
            self,
            Self::Values | Self::Interrupt | Self::Checkpoint | Self::DebugCheckpoint | Self::StateUpdate
        )
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
    parts(event).into_iter().any(|part| part.needs_view() && part.wanted(modes))
}

/// The state in all its forms.
const STATE: [Part; 3] = [Part::Values, Part::Checkpoint, Part::DebugCheckpoint];

fn parts(event: &Event) -> Vec<Part> {
    let task = |half| [Part::Task(half), Part::DebugTask(half)];
    match &event.body {
        EventBody::RunClaimed { .. } => vec![Part::Metadata, Part::Callback],
        EventBody::UserMessage { .. } | EventBody::Checkpoint { .. } => STATE.to_vec(),
        EventBody::AssistantMessage { .. } => {
            let rest = [Part::Updates, Part::Custom, Part::Callback];
            let tasks = task(Half::Begun).into_iter().chain(task(Half::Ended));
            message_parts(1, &rest).into_iter().chain(tasks).collect()
        }
        EventBody::ToolMessage { message } => message_parts(message.tool_results().count(), &[Part::Updates]),
        EventBody::EffectIntended(_) => {
            [Part::Custom, Part::Callback].into_iter().chain(task(Half::Begun)).collect()
        }
        EventBody::EffectSettled(_) => {
            [Part::Custom, Part::Callback].into_iter().chain(task(Half::Ended)).collect()
        }
        EventBody::RunEnded { outcome } if answered_by(outcome).is_some() => {
            vec![Part::Answered, Part::RunDone]
        }
        EventBody::RunEnded { .. } => {
            STATE.into_iter().chain([Part::Callback, Part::Error, Part::RunDone]).collect()
        }
        EventBody::StateWritten { .. } => vec![Part::StateUpdate],
        EventBody::Parked { on: WaitReason::Approval, .. } => {
            [Part::Custom, Part::Interrupt].into_iter().chain(STATE).collect()
        }
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
        Part::Interrupt => ("updates", json!({ "__interrupt__": [view?.interrupt()?] })),
        Part::Values if is_pause(event) => ("values", view?.paused_values()),
        Part::Values => ("values", view?.values()),
        Part::Custom => ("custom", custom(event)),
        Part::Error => ("error", error(event)?),
        Part::Task(half) => ("tasks", inside::task(event, half)?),
        Part::Checkpoint => ("checkpoints", inside::checkpoint(view?)),
        Part::DebugTask(half) => {
            let kind = if half == Half::Begun { "task" } else { "task_result" };
            ("debug", inside::debug(event, kind, inside::task(event, half)?))
        }
        Part::DebugCheckpoint => ("debug", inside::debug(event, "checkpoint", inside::checkpoint(view?))),
        Part::Callback => ("events", inside::callback(event)?),
        Part::Answered => ("metadata", answered(event)?),
        Part::RunDone => ("metadata", json!({ "status": "run_done", "run_id": event.run })),
        Part::StateUpdate => ("state_update", json!({ "state": view?.state(), "thread_id": event.thread })),
    })
}

/// Whether the run waits for a person from here on.
pub(super) fn is_pause(event: &Event) -> bool {
    matches!(event.body, EventBody::Parked { on: WaitReason::Approval, .. })
}

fn metadata(event: &Event) -> Option<Value> {
    match &event.body {
        EventBody::RunClaimed { attempt, .. } => Some(json!({ "run_id": event.run, "attempt": attempt })),
        _ => None,
    }
}

/// The run that answers in the place of one that ended so.
pub(super) fn answered_by(outcome: &Outcome) -> Option<RunId> {
    outcome.reason.and_then(EndReason::answered_by)
}

/// That another run answers, with the reason.
fn answered(event: &Event) -> Option<Value> {
    match &event.body {
        EventBody::RunEnded { outcome } => Some(json!({
            "run_id": event.run, "answered_by": answered_by(outcome)?, "reason": outcome.reason,
        })),
        _ => None,
    }
}

/// A reply whose pieces were passed on from its beginning is completed by one last chunk with what
/// they have not told. Any other is shown whole, and no chunk: a client that has some of it from an
/// earlier connection adds chunks of one id to each other, and replaces them by a whole message.
fn tuple(event: &Event, idx: usize, shown: &Shown<'_>) -> Option<Value> {
    let whole = message::of_event(event).into_iter().nth(idx)?;
    let about = about(event, None);
    let EventBody::AssistantMessage { message: reply, attempts, .. } = &event.body else {
        return Some(json!([whole, about]));
    };
    let text = reply.joined_text();
    let is_begun = text.is_empty() || !shown.text.is_empty();
    let Some(rest) = text.strip_prefix(shown.text).filter(|_| is_begun) else {
        return Some(json!([whole, about]));
    };
    let id = message::reply_id(event.run, event.step, message::attempt_of(attempts));
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
