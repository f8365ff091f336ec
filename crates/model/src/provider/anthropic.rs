//! Anthropic messages: rendering of requests.
//!
//! Blocks are written as raw JSON, so that thinking blocks of the same model go back byte by byte.

pub mod decode;

use evenkeel_core::message::ToolSpec;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::history::{Answered, Item, Turn, turns};
use super::{Bound, Prompt, Target};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<Value>,
    messages: Vec<WireMessage>,
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
}

#[derive(Serialize)]
struct WireMessage {
    role: &'static str,
    content: Vec<Box<RawValue>>,
}

#[derive(Serialize)]
struct WireTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

/// The body of the request, as JSON.
#[must_use]
pub fn render(prompt: Prompt<'_>, target: &Target, bound: Bound) -> Vec<u8> {
    let cached = target.capabilities.cache_control;
    let body = Body {
        model: &target.model,
        max_tokens: prompt.output_tokens_max.max(1),
        system: system(prompt.system, cached),
        messages: messages(prompt, target, bound),
        stream: true,
        tools: prompt.tools.iter().map(tool).collect(),
    };
    serde_json::to_vec(&body).expect("strings, numbers and valid raw JSON always serialise")
}

/// The system prompt and the tools before it make the prefix that every step of a run shares.
fn system(text: &str, cached: bool) -> Vec<Value> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut block = json!({"type": "text", "text": text});
    if cached {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
    vec![block]
}

fn tool(spec: &ToolSpec) -> WireTool<'_> {
    WireTool { name: &spec.name, description: &spec.description, input_schema: &spec.input_schema }
}

fn messages(prompt: Prompt<'_>, target: &Target, bound: Bound) -> Vec<WireMessage> {
    let mut messages: Vec<WireMessage> = Vec::new();
    let turns = turns(prompt.messages, &target.from, bound);
    let n_turns = turns.len();
    for (idx, turn) in turns.into_iter().enumerate() {
        // The last turn marks how far the provider may cache; the next step continues from there.
        let cached = target.capabilities.cache_control && idx + 1 == n_turns;
        let (role, content) = match turn {
            Turn::User(texts) => ("user", marked(texts.into_iter().map(text_block).collect(), cached)),
            Turn::Results(answers) => {
                ("user", marked(answers.into_iter().map(result_block).collect(), cached))
            }
            Turn::Assistant(items) => ("assistant", items.into_iter().filter_map(item_block).collect()),
        };
        // Results and what the user says after them are one message, results first.
        match messages.last_mut() {
            Some(last) if last.role == role => last.content.extend(content),
            _ => messages.push(WireMessage { role, content }),
        }
    }
    messages
}

fn marked(mut blocks: Vec<Value>, cached: bool) -> Vec<Box<RawValue>> {
    if cached && let Some(last) = blocks.last_mut() {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    blocks.iter().map(raw).collect()
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("a JSON value always serialises")
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn result_block(answer: Answered<'_>) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": answer.id, "content": answer.text});
    if answer.is_error {
        block["is_error"] = Value::Bool(true);
    }
    block
}

fn item_block(item: Item<'_>) -> Option<Box<RawValue>> {
    match item {
        Item::Text(text) => Some(raw(&text_block(text))),
        Item::Call { id, name, args } => {
            Some(raw(&json!({"type": "tool_use", "id": id, "name": name, "input": args})))
        }
        // What is stored as raw is JSON by construction; a damaged one is left out.
        Item::Raw(text) => RawValue::from_string(text.to_owned()).ok(),
    }
}
