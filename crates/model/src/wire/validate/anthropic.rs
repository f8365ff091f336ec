//! The request of Anthropic messages.

use std::collections::BTreeSet;

use serde_json::Value;

use super::shape::{Findings, array, is_name, text};

const MEMBERS: &[&str] = &[
    "model",
    "messages",
    "max_tokens",
    "system",
    "stream",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "thinking",
    "service_tier",
];

/// Checks a request body for `POST /v1/messages`.
///
/// # Errors
/// Every finding, with its place.
pub fn anthropic(body: &Value) -> Result<(), Vec<String>> {
    let mut findings = Findings::default();
    if !body.is_object() {
        findings.add("body", "is not an object");
        return findings.result();
    }
    findings.known("body", body, MEMBERS);
    findings.require(!text(body, "model").is_empty(), "model", "is missing");
    let limit = body.get("max_tokens").and_then(Value::as_u64);
    findings.require(limit.is_some_and(|n| n > 0), "max_tokens", "is missing or not a positive integer");
    check_system(&mut findings, body);
    check_tools(&mut findings, body);
    check_messages(&mut findings, array(body, "messages"));
    findings.result()
}

fn check_system(findings: &mut Findings, body: &Value) {
    match body.get("system") {
        None | Some(Value::String(_)) => {}
        Some(Value::Array(blocks)) => {
            for block in blocks {
                findings.require(text(block, "type") == "text", "system", "holds a block that is no text");
                check_text(findings, "system", block);
            }
        }
        Some(_) => findings.add("system", "is neither a string nor an array of text blocks"),
    }
}

fn check_tools(findings: &mut Findings, body: &Value) {
    let choice_alone = body.get("tools").is_none() && body.get("tool_choice").is_some();
    findings.require(!choice_alone, "tool_choice", "is only allowed when tools are given");
    let mut seen = BTreeSet::new();
    for (idx, tool) in array(body, "tools").iter().enumerate() {
        let place = format!("tools[{idx}]");
        findings.known(&place, tool, &["name", "description", "input_schema", "cache_control", "type"]);
        findings.tool(&place, tool, "input_schema", &mut seen);
    }
}

fn check_messages(findings: &mut Findings, messages: &[Value]) {
    findings.require(!messages.is_empty(), "messages", "is empty");
    let mut ids = BTreeSet::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (idx, message) in messages.iter().enumerate() {
        let place = format!("messages[{idx}]");
        findings.known(&place, message, &["role", "content"]);
        let expected = if idx % 2 == 0 { "user" } else { "assistant" };
        let role = text(message, "role");
        let what = format!("role is {role:?}, must be {expected:?}: roles alternate and user is first");
        findings.require(role == expected, &place, what);
        check_content(findings, &place, message);
        if role == "assistant" {
            open = check_calls(findings, &place, message, &mut ids);
        } else {
            check_results(findings, &place, message, &mut open);
        }
    }
    findings.require(open.is_empty(), "messages", format!("tool_use {open:?} have no tool_result"));
}

fn check_content(findings: &mut Findings, place: &str, message: &Value) {
    match message.get("content") {
        Some(Value::String(text)) => {
            findings.require(!text.trim().is_empty(), place, "content is empty");
        }
        Some(Value::Array(blocks)) => {
            findings.require(!blocks.is_empty(), place, "content is empty");
            for block in blocks {
                check_block(findings, place, text(message, "role"), block);
            }
        }
        _ => findings.add(place, "has no content"),
    }
}

fn check_block(findings: &mut Findings, place: &str, role: &str, block: &Value) {
    let kind = text(block, "type");
    let allowed = match role {
        "assistant" => matches!(kind, "text" | "tool_use" | "thinking" | "redacted_thinking"),
        _ => matches!(kind, "text" | "tool_result" | "image" | "document"),
    };
    findings.require(allowed, place, format!("block type {kind:?} is not allowed for role {role:?}"));
    match kind {
        "text" => check_text(findings, place, block),
        "thinking" => {
            let whole = !text(block, "signature").is_empty() && block.get("thinking").is_some();
            findings.require(whole, place, "thinking: signature: Field required");
        }
        "redacted_thinking" => {
            findings.require(!text(block, "data").is_empty(), place, "redacted_thinking has no data");
        }
        _ => {}
    }
}

fn check_text(findings: &mut Findings, place: &str, block: &Value) {
    findings.known(place, block, &["type", "text", "cache_control", "citations"]);
    let empty = text(block, "text").trim().is_empty();
    findings.require(!empty, place, "text content blocks must contain non-whitespace text");
}

fn check_calls<'a>(
    findings: &mut Findings,
    place: &str,
    message: &'a Value,
    ids: &mut BTreeSet<&'a str>,
) -> BTreeSet<&'a str> {
    let mut open = BTreeSet::new();
    for block in array(message, "content").iter().filter(|block| text(block, "type") == "tool_use") {
        findings.known(place, block, &["type", "id", "name", "input", "cache_control"]);
        let id = text(block, "id");
        findings.require(is_name(id, 128), place, format!("tool_use id {id:?} is not valid"));
        findings.require(ids.insert(id), place, format!("tool_use ids must be unique, {id:?} is not"));
        findings.require(is_name(text(block, "name"), 128), place, "name of a tool_use is not valid");
        let input = block.get("input");
        findings.require(input.is_some_and(Value::is_object), place, "input of a tool_use is no object");
        open.insert(id);
    }
    open
}

fn check_results<'a>(findings: &mut Findings, place: &str, message: &'a Value, open: &mut BTreeSet<&'a str>) {
    let mut others = false;
    for block in array(message, "content") {
        if text(block, "type") != "tool_result" {
            others = true;
            continue;
        }
        findings.known(place, block, &["type", "tool_use_id", "content", "is_error", "cache_control"]);
        findings.require(!others, place, "tool_result blocks must come first in the content");
        findings.answer(place, text(block, "tool_use_id"), open);
    }
    if !open.is_empty() {
        findings.add(
            place,
            format!("tool_use ids {open:?} were found without tool_result blocks directly after"),
        );
        open.clear();
    }
}
