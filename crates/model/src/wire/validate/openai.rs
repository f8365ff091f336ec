//! The request of OpenAI chat completions.

use std::collections::BTreeSet;

use serde_json::Value;

use super::shape::{Findings, array, is_name, text};

const MEMBERS: &[&str] = &[
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "user",
    "response_format",
    "reasoning_effort",
    "metadata",
    "n",
];

/// Checks a request body for `POST /chat/completions`.
///
/// # Errors
/// Every finding, with its place.
pub fn openai(body: &Value) -> Result<(), Vec<String>> {
    let mut findings = Findings::default();
    if !body.is_object() {
        findings.add("body", "is not an object");
        return findings.result();
    }
    findings.known("body", body, MEMBERS);
    findings.require(!text(body, "model").is_empty(), "model", "is missing");
    check_output_limit(&mut findings, body);
    check_stream(&mut findings, body);
    check_tools(&mut findings, body);
    check_messages(&mut findings, array(body, "messages"));
    findings.result()
}

fn check_output_limit(findings: &mut Findings, body: &Value) {
    let old = body.get("max_tokens");
    let new = body.get("max_completion_tokens");
    let both = old.is_some() && new.is_some();
    findings.require(!both, "max_tokens", "stands beside max_completion_tokens; only one is allowed");
    for limit in [old, new].into_iter().flatten() {
        findings.require(limit.as_u64().is_some_and(|n| n > 0), "max_tokens", "is not a positive integer");
    }
}

fn check_stream(findings: &mut Findings, body: &Value) {
    let streamed = body.get("stream").and_then(Value::as_bool).unwrap_or(false);
    if let Some(options) = body.get("stream_options") {
        findings.require(streamed, "stream_options", "is only allowed with stream: true");
        findings.known("stream_options", options, &["include_usage", "include_obfuscation"]);
    }
}

fn check_tools(findings: &mut Findings, body: &Value) {
    if body.get("tools").is_some() {
        findings.require(!array(body, "tools").is_empty(), "tools", "is an empty array");
    } else {
        for key in ["tool_choice", "parallel_tool_calls"] {
            findings.require(body.get(key).is_none(), key, "is only allowed when tools are given");
        }
    }
    let mut seen = BTreeSet::new();
    for (idx, tool) in array(body, "tools").iter().enumerate() {
        let place = format!("tools[{idx}]");
        findings.require(text(tool, "type") == "function", &place, "type is not \"function\"");
        let Some(function) = tool.get("function") else {
            findings.add(&place, "has no function");
            continue;
        };
        findings.known(&place, function, &["name", "description", "parameters", "strict"]);
        findings.tool(&place, function, "parameters", &mut seen);
    }
}

fn check_messages(findings: &mut Findings, messages: &[Value]) {
    findings.require(!messages.is_empty(), "messages", "is empty");
    // Calls of the last assistant message that no tool message has answered yet.
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (idx, message) in messages.iter().enumerate() {
        let place = format!("messages[{idx}]");
        let role = text(message, "role");
        if role != "tool" && !open.is_empty() {
            findings.add(&place, format!("comes before the calls {open:?} are answered by tool messages"));
            open.clear();
        }
        match role {
            "system" | "developer" | "user" => check_plain(findings, &place, message),
            "assistant" => check_assistant(findings, &place, message, &mut open),
            "tool" => check_tool(findings, &place, message, &mut open),
            other => findings.add(&place, format!("role {other:?} is not known")),
        }
    }
    findings.require(open.is_empty(), "messages", format!("the calls {open:?} are never answered"));
}

fn check_plain(findings: &mut Findings, place: &str, message: &Value) {
    findings.known(place, message, &["role", "content", "name"]);
    check_content(findings, place, message);
}

fn check_assistant<'a>(
    findings: &mut Findings,
    place: &str,
    message: &'a Value,
    open: &mut BTreeSet<&'a str>,
) {
    let known = ["role", "content", "name", "refusal", "tool_calls", "reasoning_content", "reasoning"];
    findings.known(place, message, &known);
    let calls = array(message, "tool_calls");
    let has_calls = message.get("tool_calls").is_some();
    findings.require(!has_calls || !calls.is_empty(), place, "tool_calls is an empty array");
    if !has_calls || message.get("content").is_some_and(|content| !content.is_null()) {
        check_content(findings, place, message);
    }
    for call in calls {
        let id = text(call, "id");
        findings.require(!id.is_empty() && id.len() <= 40, place, format!("call id {id:?} is not valid"));
        findings.require(open.insert(id), place, format!("call id {id:?} occurs twice"));
        findings.require(text(call, "type") == "function", place, "type of a call is not \"function\"");
        let function = call.get("function").unwrap_or(&Value::Null);
        findings.require(is_name(text(function, "name"), 64), place, "name of a call is not valid");
        let args = serde_json::from_str::<Value>(text(function, "arguments"));
        let is_object = args.is_ok_and(|args| args.is_object());
        findings.require(is_object, place, "arguments of a call are not a JSON object in a string");
    }
}

fn check_tool<'a>(findings: &mut Findings, place: &str, message: &'a Value, open: &mut BTreeSet<&'a str>) {
    findings.known(place, message, &["role", "content", "tool_call_id", "name"]);
    findings.answer(place, text(message, "tool_call_id"), open);
    let content = message.get("content");
    let has_content = content.is_some_and(|content| content.is_string() || content.is_array());
    findings.require(has_content, place, "has no content");
}

fn check_content(findings: &mut Findings, place: &str, message: &Value) {
    match message.get("content") {
        Some(Value::String(text)) => findings.require(!text.is_empty(), place, "content is empty"),
        Some(Value::Array(parts)) => {
            findings.require(!parts.is_empty(), place, "content is empty");
            for part in parts {
                let fits = matches!(text(part, "type"), "text" | "image_url" | "refusal");
                findings.require(fits, place, "a part of the content has an unknown type");
            }
        }
        _ => findings.add(place, "has no content"),
    }
}
