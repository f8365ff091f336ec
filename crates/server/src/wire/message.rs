//! Messages as the dialect shows them (LangChain's flattened form).

use evenkeel_core::id::RunId;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::message::{Message, Role, ToolCall, Usage};
use evenkeel_core::run::Attempt;
use serde_json::{Value, json};

/// The id under which a reply is shown, provisional pieces and the committed message alike: clients
/// join pieces by it. A redone attempt has another one, so its text never joins the void one's.
pub(crate) fn reply_id(run: RunId, step: u32, attempt: u32) -> String {
    format!("run-{run}-{step}-{attempt}")
}

/// The messages that an event adds to the thread, as shown; none for most events.
pub(crate) fn of_event(event: &Event) -> Vec<Value> {
    match &event.body {
        EventBody::UserMessage { message } => vec![user(message)],
        EventBody::AssistantMessage { message, attempts, finish } => {
            vec![reply(event, message, attempts, finish)]
        }
        EventBody::ToolMessage { message } => results(message),
        EventBody::StateWritten { messages, .. } => messages.iter().flat_map(written).collect(),
        _ => Vec::new(),
    }
}

/// The number of the attempt that gave the reply.
pub(crate) fn attempt_of(attempts: &[Attempt]) -> u32 {
    attempts.last().map_or(1, |attempt| attempt.attempt)
}

fn user(message: &Message) -> Value {
    let kind = if message.role == Role::Assistant { "ai" } else { "human" };
    json!({
        "type": kind,
        "id": message.id,
        "content": message.joined_text(),
        "name": null,
        "additional_kwargs": {},
        "response_metadata": {},
    })
}

/// A message that a client wrote into the state.
fn written(message: &Message) -> Vec<Value> {
    if message.role == Role::Tool { results(message) } else { vec![user(message)] }
}

fn reply(event: &Event, message: &Message, attempts: &[Attempt], finish: &str) -> Value {
    let last = attempts.last();
    json!({
        "type": "ai",
        "id": reply_id(event.run, event.step, attempt_of(attempts)),
        "content": message.joined_text(),
        "name": null,
        "additional_kwargs": {},
        "response_metadata": {
            "finish_reason": finish,
            "model_name": last.map(|attempt| attempt.model.as_str()),
            "model_provider": last.map(|attempt| attempt.provider.as_str()),
        },
        "tool_calls": message.tool_calls().map(tool_call).collect::<Vec<_>>(),
        "invalid_tool_calls": [],
        "usage_metadata": last.map(|attempt| usage(attempt.usage)),
    })
}

fn tool_call(call: &ToolCall) -> Value {
    json!({ "name": call.name, "args": call.args, "id": call.id, "type": "tool_call" })
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    })
}

/// Results, each as a message of its own.
pub(crate) fn results(message: &Message) -> Vec<Value> {
    let shown = message.tool_results().map(|result| {
        json!({
            "type": "tool",
            "id": format!("{}-{}", message.id, result.call_id),
            "content": result.text,
            "name": result.name,
            "tool_call_id": result.call_id,
            "status": if result.is_error { "error" } else { "success" },
            "artifact": null,
            "additional_kwargs": {},
            "response_metadata": {},
        })
    });
    shown.collect()
}

/// A piece of a reply. `last` marks the piece that completes it.
pub(crate) fn chunk(id: &str, content: &str, last: bool) -> Value {
    json!({
        "type": "AIMessageChunk",
        "id": id,
        "content": content,
        "name": null,
        "additional_kwargs": {},
        "response_metadata": {},
        "tool_calls": [],
        "invalid_tool_calls": [],
        "usage_metadata": null,
        "tool_call_chunks": [],
        "chunk_position": if last { Some("last") } else { None },
    })
}

/// A piece of a call's arguments. The call's id is in the committed message only.
pub(crate) fn call_chunk(id: &str, call_idx: u32, name: Option<&str>, args_piece: &str) -> Value {
    let mut value = chunk(id, "", false);
    value["tool_call_chunks"] = json!([
        { "name": name, "args": args_piece, "id": null, "index": call_idx, "type": "tool_call_chunk" }
    ]);
    value
}
