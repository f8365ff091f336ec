//! Answers on the OpenAI Chat Completions wire.

use serde_json::{Value, json};

use super::serve::{Spoken, Voice, n_tokens};
use crate::task::Reply;

/// One event of the stream.
pub(crate) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A whole answer.
pub(crate) fn answer(voice: &Voice, reply: &Reply) -> Value {
    let calls: Vec<Value> =
        (0..).zip(&reply.calls).map(|(idx, call)| call_json(voice, idx, &call.name, &call.args)).collect();
    let mut message = json!({"role": "assistant", "content": reply.text, "refusal": null, "annotations": []});
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    json!({
        "id": format!("chatcmpl-{}", voice.id), "object": "chat.completion", "created": 1_700_000_000,
        "model": voice.model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish(reply)}],
        "usage": usage(voice, reply),
    })
}

/// The same answer as a stream, in pieces of about `n_chars` characters.
pub(crate) fn stream(voice: &Voice, reply: &Reply, n_chars: usize) -> Spoken {
    let head = chunk(voice, &json!({"role": "assistant", "content": ""}), None);
    let mut pieces = Vec::new();
    for text in cut(&reply.text, n_chars) {
        pieces.push((chunk(voice, &json!({"content": text}), None), n_tokens(&text)));
    }
    for (idx, call) in (0..).zip(&reply.calls) {
        let mut first = call_json(voice, idx, &call.name, &Value::Null);
        first["index"] = idx.into();
        first["function"]["arguments"] = "".into();
        pieces.push((chunk(voice, &json!({"tool_calls": [first]}), None), 1));
        for text in cut(&voice.arguments(&call.args), n_chars) {
            let delta = json!({"tool_calls": [{"index": idx, "function": {"arguments": text}}]});
            pieces.push((chunk(voice, &delta, None), n_tokens(&text)));
        }
    }
    let mut tail = chunk(voice, &json!({}), Some(finish(reply)));
    if voice.usage_wanted {
        let mut last = envelope(voice);
        last["choices"] = json!([]);
        last["usage"] = usage(voice, reply);
        tail.push_str(&data(&last));
    }
    tail.push_str("data: [DONE]\n\n");
    Spoken { head, pieces, tail }
}

fn envelope(voice: &Voice) -> Value {
    json!({
        "id": format!("chatcmpl-{}", voice.id), "object": "chat.completion.chunk",
        "created": 1_700_000_000, "model": voice.model,
    })
}

fn chunk(voice: &Voice, delta: &Value, finish: Option<&str>) -> String {
    let mut chunk = envelope(voice);
    chunk["choices"] = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    if voice.usage_wanted {
        chunk["usage"] = Value::Null;
    }
    data(&chunk)
}

fn call_json(voice: &Voice, idx: usize, name: &str, args: &Value) -> Value {
    json!({
        "id": voice.call_id("call_", idx), "type": "function",
        "function": {"name": name, "arguments": voice.arguments(args)},
    })
}

fn finish(reply: &Reply) -> &'static str {
    if reply.calls.is_empty() { "stop" } else { "tool_calls" }
}

fn usage(voice: &Voice, reply: &Reply) -> Value {
    let output = output_tokens(voice, reply);
    json!({
        "prompt_tokens": voice.input_tokens, "completion_tokens": output,
        "total_tokens": voice.input_tokens + output,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

/// Output tokens of a reply.
pub(crate) fn output_tokens(voice: &Voice, reply: &Reply) -> u64 {
    let calls = reply.calls.iter().map(|call| 1 + n_tokens(&voice.arguments(&call.args)));
    n_tokens(&reply.text) + calls.sum::<u64>()
}

/// Cuts text into pieces of `n_chars` characters.
pub(crate) fn cut(text: &str, n_chars: usize) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(n_chars.max(1)).map(|piece| piece.iter().collect()).collect()
}
