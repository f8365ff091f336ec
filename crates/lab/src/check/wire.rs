//! The stored history in the words of both wires, to be judged by the strict validators.
//!
//! This rendering is the checker's own: the product's could make an invalid history look valid.

use evenkeel_core::message::{Block, Message, Role};
use serde_json::{Value, json};

/// What the validators of both wires say against a history; empty if nothing.
pub(super) fn findings(messages: &[&Message]) -> Vec<String> {
    let judged = [
        ("OpenAI", evenkeel_model::wire::validate::openai(&openai(messages))),
        ("Anthropic", evenkeel_model::wire::validate::anthropic(&anthropic(messages))),
    ];
    let found = judged.into_iter().flat_map(|(wire, judged)| {
        judged.err().unwrap_or_default().into_iter().map(move |finding| format!("{wire} wire: {finding}"))
    });
    found.collect()
}

fn openai(messages: &[&Message]) -> Value {
    let mut rendered = vec![json!({"role": "system", "content": "As stored."})];
    for message in messages {
        match message.role {
            Role::User => rendered.push(json!({"role": "user", "content": message.joined_text()})),
            Role::Assistant => {
                let mut reply = json!({"role": "assistant", "content": message.joined_text()});
                let calls: Vec<Value> = message
                    .tool_calls()
                    .map(|call| json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.args.to_string()}}))
                    .collect();
                if !calls.is_empty() {
                    reply["tool_calls"] = calls.into();
                }
                rendered.push(reply);
            }
            Role::Tool => rendered.extend(message.tool_results().map(
                |result| json!({"role": "tool", "tool_call_id": result.call_id, "content": result.text}),
            )),
        }
    }
    json!({"model": "checker", "messages": rendered})
}

fn anthropic(messages: &[&Message]) -> Value {
    let mut rendered: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        let role = if message.role == Role::Assistant { "assistant" } else { "user" };
        let blocks = message.blocks.iter().filter_map(|block| match block {
            Block::Text { text } => Some(json!({"type": "text", "text": text})),
            Block::ToolCall(call) => {
                Some(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.args}))
            }
            Block::ToolResult(result) => Some(json!({
                "type": "tool_result", "tool_use_id": result.call_id, "content": result.text,
                "is_error": result.is_error,
            })),
            Block::Opaque { .. } => None,
        });
        match rendered.last_mut() {
            Some((last, parts)) if *last == role => parts.extend(blocks),
            _ => rendered.push((role, blocks.collect())),
        }
    }
    let messages: Vec<Value> =
        rendered.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    json!({"model": "checker", "max_tokens": 1, "messages": messages})
}
