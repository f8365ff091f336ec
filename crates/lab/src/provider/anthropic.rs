//! Answers on the Anthropic Messages wire.

use serde_json::{Value, json};

use super::openai::{cut, output_tokens};
use super::serve::{Spoken, Voice, n_tokens};
use crate::task::Reply;

/// One event of the stream.
pub(crate) fn event(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

/// A whole answer.
pub(crate) fn answer(voice: &Voice, reply: &Reply) -> Value {
    let mut content = Vec::new();
    if !reply.text.is_empty() {
        content.push(json!({"type": "text", "text": reply.text}));
    }
    for (idx, call) in (0..).zip(&reply.calls) {
        let id = voice.call_id("toolu_", idx);
        content.push(json!({"type": "tool_use", "id": id, "name": call.name, "input": call.args}));
    }
    json!({
        "id": format!("msg_{}", voice.id), "type": "message", "role": "assistant", "model": voice.model,
        "content": content, "stop_reason": finish(reply), "stop_sequence": null,
        "usage": usage(voice, output_tokens(voice, reply)),
    })
}

/// The same answer as a stream, in pieces of about `n_chars` characters.
pub(crate) fn stream(voice: &Voice, reply: &Reply, n_chars: usize) -> Spoken {
    let head = event(
        "message_start",
        &json!({"type": "message_start", "message": {
            "id": format!("msg_{}", voice.id), "type": "message", "role": "assistant", "model": voice.model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(voice, 1),
        }}),
    );
    let head = head + &event("ping", &json!({"type": "ping"}));
    let mut blocks = Vec::new();
    if !reply.text.is_empty() {
        let deltas = cut(&reply.text, n_chars).into_iter();
        let deltas = deltas.map(|text| (json!({"type": "text_delta", "text": text}), n_tokens(&text)));
        blocks.push((json!({"type": "text", "text": ""}), deltas.collect::<Vec<_>>()));
    }
    for (idx, call) in (0..).zip(&reply.calls) {
        let id = voice.call_id("toolu_", idx);
        let start = json!({"type": "tool_use", "id": id, "name": call.name, "input": {}});
        let deltas = cut(&voice.arguments(&call.args), n_chars).into_iter();
        let deltas =
            deltas.map(|text| (json!({"type": "input_json_delta", "partial_json": text}), n_tokens(&text)));
        blocks.push((start, deltas.collect()));
    }
    let pieces = (0..).zip(blocks).flat_map(|(idx, (start, deltas))| block(idx, &start, deltas)).collect();
    let delta = json!({
        "type": "message_delta", "delta": {"stop_reason": finish(reply), "stop_sequence": null},
        "usage": {"output_tokens": output_tokens(voice, reply)},
    });
    let tail = event("message_delta", &delta) + &event("message_stop", &json!({"type": "message_stop"}));
    Spoken { head, pieces, tail }
}

/// The events of one block: its start goes with its first delta, its stop with its last.
fn block(idx: usize, start: &Value, deltas: Vec<(Value, u64)>) -> Vec<(String, u64)> {
    let mut pieces = Vec::with_capacity(deltas.len());
    let mut before = event(
        "content_block_start",
        &json!({
            "type": "content_block_start", "index": idx, "content_block": start,
        }),
    );
    for (delta, n_tokens) in deltas {
        let text = event(
            "content_block_delta",
            &json!({
                "type": "content_block_delta", "index": idx, "delta": delta,
            }),
        );
        pieces.push((std::mem::take(&mut before) + &text, n_tokens));
    }
    let stop = event("content_block_stop", &json!({"type": "content_block_stop", "index": idx}));
    match pieces.last_mut() {
        Some((text, _)) => text.push_str(&stop),
        None => pieces.push((before + &stop, 0)),
    }
    pieces
}

fn finish(reply: &Reply) -> &'static str {
    if reply.calls.is_empty() { "end_turn" } else { "tool_use" }
}

fn usage(voice: &Voice, output_tokens: u64) -> Value {
    json!({
        "input_tokens": voice.input_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
    })
}
