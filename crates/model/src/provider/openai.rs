//! OpenAI chat completions: rendering of requests.

pub mod decode;

use std::borrow::Cow;

use evenkeel_core::message::ToolSpec;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::history::{Answered, Item, Turn, turns};
use super::{Bound, Prompt, Target};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
    include_obfuscation: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum WireMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: String,
    },
    Assistant {
        content: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<WireCall<'a>>,
    },
    Tool {
        tool_call_id: String,
        content: Cow<'a, str>,
    },
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunctionCall<'a>,
}

#[derive(Serialize)]
struct WireFunctionCall<'a> {
    name: &'a str,
    arguments: String,
}

#[derive(Serialize)]
struct WireTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

/// The body of the request, as JSON.
#[must_use]
pub fn render(prompt: Prompt<'_>, target: &Target, bound: Bound) -> Vec<u8> {
    let new_name = target.capabilities.max_completion_tokens;
    let limit = prompt.output_tokens_max.max(1);
    let body = Body {
        model: &target.model,
        messages: messages(prompt, target, bound),
        stream: true,
        stream_options: target
            .capabilities
            .stream_options
            .then_some(StreamOptions { include_usage: true, include_obfuscation: false }),
        max_tokens: (!new_name).then_some(limit),
        max_completion_tokens: new_name.then_some(limit),
        tools: prompt.tools.iter().map(tool).collect(),
    };
    serde_json::to_vec(&body).expect("strings, numbers and valid raw JSON always serialise")
}

fn tool(spec: &ToolSpec) -> WireTool<'_> {
    let function =
        WireFunction { name: &spec.name, description: &spec.description, parameters: &spec.input_schema };
    WireTool { kind: "function", function }
}

fn messages<'a>(prompt: Prompt<'a>, target: &Target, bound: Bound) -> Vec<WireMessage<'a>> {
    let mut messages = Vec::new();
    if !prompt.system.trim().is_empty() {
        messages.push(WireMessage::System { content: prompt.system });
    }
    let bound = if target.capabilities.replay_reasoning { bound } else { Bound::Strip };
    for turn in turns(prompt.messages, &target.from, bound) {
        match turn {
            Turn::User(texts) => messages.push(WireMessage::User { content: texts.join("\n\n") }),
            Turn::Assistant(items) => messages.push(assistant(items)),
            Turn::Results(answers) => messages.extend(answers.into_iter().map(result)),
        }
    }
    messages
}

fn assistant(items: Vec<Item<'_>>) -> WireMessage<'_> {
    let mut texts = Vec::new();
    let mut reasoning_content = None;
    let mut tool_calls = Vec::new();
    for item in items {
        match item {
            Item::Text(text) => texts.push(text),
            Item::Raw(raw) => reasoning_content = RawValue::from_string(raw.to_owned()).ok(),
            Item::Call { id, name, args } => tool_calls.push(WireCall {
                id,
                kind: "function",
                function: WireFunctionCall { name, arguments: args.to_string() },
            }),
        }
    }
    let content = (!texts.is_empty()).then(|| texts.join("\n\n"));
    WireMessage::Assistant { content, reasoning_content, tool_calls }
}

/// This wire has no mark for failures, so the text carries it.
fn result(answer: Answered<'_>) -> WireMessage<'_> {
    let content = if answer.is_error {
        Cow::Owned(format!("[the call failed] {}", answer.text))
    } else {
        Cow::Borrowed(answer.text)
    };
    WireMessage::Tool { tool_call_id: answer.id, content }
}
