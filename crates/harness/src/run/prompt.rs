//! The prompt: a pure function of the view, and always valid.
//!
//! Providers refuse a history in which a call has no result directly after it, or a result has no
//! call directly before it, for ever. A crash, a forced cancel, an older version or a compaction
//! could leave such a history behind, so it is repaired here both ways, whatever its cause: open
//! calls get a result that says so, results without a call are dropped, empty text is dropped.

use std::collections::BTreeMap;

use evenkeel_core::id::{CallId, MessageId};
use evenkeel_core::message::{Block, Message, Role, ToolCall, ToolResult};

use super::state::{Entry, Seq, View};

/// Shown for a call whose result was never written.
pub(crate) const INTERRUPTED: &str =
    "The run was interrupted before this call had a result. Whether it took effect is unknown.";

/// The messages for the model.
pub(crate) fn messages(view: &View, stub_bytes_min: usize) -> Vec<Message> {
    let mut messages: Vec<Message> =
        view.summary.iter().map(|summary| summary_message(&summary.text)).collect();
    messages.extend(view.entries.iter().map(|entry| stubbed(view, entry, stub_bytes_min)));
    valid(messages)
}

fn summary_message(text: &str) -> Message {
    Message::text("summary", Role::User, text)
}

/// The entry's message, with stubs for results that a compaction replaced.
pub(crate) fn stubbed(view: &View, entry: &Entry, stub_bytes_min: usize) -> Message {
    let in_stubs = |seq: u64| view.stubs.iter().any(|(from, to)| (*from..=*to).contains(&seq));
    match entry.seq {
        Seq::Stored(seq) if entry.message.role == Role::Tool && in_stubs(seq) => {
            stub_message(view, &entry.message, stub_bytes_min)
        }
        _ => entry.message.clone(),
    }
}

/// The message with its long results replaced by stubs that name the call, its size and its blob.
pub(crate) fn stub_message(view: &View, message: &Message, stub_bytes_min: usize) -> Message {
    let mut message = message.clone();
    for block in &mut message.blocks {
        if let Block::ToolResult(result) = block
            && result.text.len() > stub_bytes_min
        {
            result.text = stub(result, view.blobs.get(&result.call_id).map(|blob| blob.as_str()));
        }
    }
    message
}

fn stub(result: &ToolResult, blob: Option<&str>) -> String {
    let n_chars = result.text.chars().count();
    let kept = blob.map(|blob| format!("; whole output kept as {blob}")).unwrap_or_default();
    let kind = if result.is_error { "error" } else { "result" };
    format!(
        "[older {kind} of {} removed to save space: {n_chars} characters{kept}; call again if needed]",
        result.name
    )
}

/// A history that every provider accepts.
pub(crate) fn valid(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(mut message) = rest.next() {
        message.blocks.retain(|block| !matches!(block, Block::Text { text } if text.trim().is_empty()));
        match message.role {
            // Results are taken together with their calls below; here they are orphans.
            Role::Tool => {}
            Role::User => {
                message.blocks.retain(|block| matches!(block, Block::Text { .. }));
                push_unless_empty(&mut out, message);
            }
            Role::Assistant => {
                let calls = unique_calls(&mut message);
                let id = message.id.clone();
                let has_content = message.blocks.iter().any(|block| !matches!(block, Block::Opaque { .. }));
                if has_content {
                    push_unless_empty(&mut out, message);
                }
                if !calls.is_empty() {
                    let given = rest.next_if(|next| next.role == Role::Tool);
                    out.push(results_for(&id, &calls, given));
                }
            }
        }
    }
    out
}

fn push_unless_empty(out: &mut Vec<Message>, message: Message) {
    if !message.blocks.is_empty() {
        out.push(message);
    }
}

/// The calls of the message; one that repeats an id is removed from it.
fn unique_calls(message: &mut Message) -> Vec<ToolCall> {
    let mut calls: Vec<ToolCall> = Vec::new();
    message.blocks.retain(|block| match block {
        Block::ToolCall(call) if calls.iter().any(|known| known.id == call.id) => false,
        Block::ToolCall(call) => {
            calls.push(call.clone());
            true
        }
        Block::ToolResult(_) => false,
        Block::Text { .. } | Block::Opaque { .. } => true,
    });
    calls
}

/// One result for each call, in the order of the calls, and nothing else.
fn results_for(id: &MessageId, calls: &[ToolCall], given: Option<Message>) -> Message {
    let message_id = given.as_ref().map_or_else(|| format!("{id}-results").into(), |given| given.id.clone());
    let mut results: BTreeMap<CallId, ToolResult> = BTreeMap::new();
    for block in given.into_iter().flat_map(|given| given.blocks) {
        if let Block::ToolResult(result) = block {
            results.entry(result.call_id.clone()).or_insert(result);
        }
    }
    let blocks = calls.iter().map(|call| {
        let result = results.remove(&call.id).unwrap_or_else(|| ToolResult {
            call_id: call.id.clone(),
            name: call.name.clone(),
            text: INTERRUPTED.to_owned(),
            is_error: true,
        });
        Block::ToolResult(result)
    });
    Message { id: message_id, role: Role::Tool, blocks: blocks.collect() }
}
