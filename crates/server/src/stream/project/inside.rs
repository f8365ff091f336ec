//! What happens inside a run: model calls and tool calls as tasks, checkpoints, callbacks.
//!
//! The journal records a reply when it is whole, so the begin of a model call is shown together
//! with its end; a tool call is shown when its intent is stored and again when its result is.

use evenkeel_core::journal::{EffectIntent, Event, EventBody};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Half, node};
use crate::wire::message;
use crate::wire::state::ThreadView;

/// One half of a task, in the form of the mode `tasks`.
pub(super) fn task(event: &Event, half: Half) -> Option<Value> {
    Some(match (&event.body, half) {
        (EventBody::AssistantMessage { .. }, Half::Begun) => json!({
            "id": model_task(event), "name": "agent", "input": null, "triggers": ["branch:to:agent"],
            "metadata": {},
        }),
        (EventBody::AssistantMessage { .. }, Half::Ended) => json!({
            "id": model_task(event), "name": "agent", "error": null,
            "result": { "messages": message::of_event(event) }, "interrupts": [],
        }),
        (EventBody::EffectIntended(intent), Half::Begun) => json!({
            "id": intent.effect, "name": "tools", "input": called(intent), "triggers": ["branch:to:tools"],
            "metadata": {},
        }),
        (EventBody::EffectSettled(result), Half::Ended) => json!({
            "id": result.effect, "name": "tools",
            "error": result.is_error.then_some(result.text.as_str()),
            "result": { "tool_call_id": result.call_id, "content": result.text, "settled": result.settled },
            "interrupts": [],
        }),
        _ => return None,
    })
}

/// Model calls have no id of their own: it follows from the run and the step.
fn model_task(event: &Event) -> Uuid {
    Uuid::new_v5(&event.run.0, &event.step.to_be_bytes())
}

fn called(intent: &EffectIntent) -> Value {
    json!({ "tool_call_id": intent.call_id, "name": intent.tool, "effect_class": intent.class })
}

/// The state after this event as a checkpoint: a state, with its place in the older form as well.
pub(super) fn checkpoint(view: &ThreadView) -> Value {
    let mut state = view.state();
    for (from, to) in [("checkpoint", "config"), ("parent_checkpoint", "parent_config")] {
        let place = state.get(from).filter(|place| !place.is_null()).cloned();
        state[to] = place.map_or(Value::Null, |place| json!({ "configurable": place }));
    }
    state
}

/// The envelope of the mode `debug`.
pub(super) fn debug(event: &Event, kind: &str, payload: Value) -> Value {
    json!({ "step": event.step, "timestamp": event.at.iso(), "type": kind, "payload": payload })
}

/// An event in the form of a callback.
pub(super) fn callback(event: &Event) -> Option<Value> {
    let (name, subject, data) = match &event.body {
        EventBody::RunClaimed { attempt, .. } => ("on_chain_start", "agent", json!({ "attempt": attempt })),
        EventBody::RunEnded { outcome } => {
            ("on_chain_end", "agent", json!({ "output": { "state": outcome.state, "result": outcome.text } }))
        }
        EventBody::AssistantMessage { .. } => {
            ("on_chat_model_end", "agent", json!({ "output": message::of_event(event).pop() }))
        }
        EventBody::EffectIntended(intent) => ("on_tool_start", intent.tool.as_str(), called(intent)),
        EventBody::EffectSettled(result) => {
            ("on_tool_end", "tools", json!({ "output": result.text, "tool_call_id": result.call_id }))
        }
        _ => return None,
    };
    Some(callback_of(&event.run.to_string(), event.step, node(event), name, subject, data))
}

/// A callback with its place.
pub(in crate::stream) fn callback_of(
    run: &str,
    step: u32,
    node: &str,
    event: &str,
    name: &str,
    data: Value,
) -> Value {
    json!({
        "event": event, "name": name, "run_id": run, "tags": [], "parent_ids": [], "data": data,
        "metadata": super::place(run, step, node, None),
    })
}
