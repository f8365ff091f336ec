//! The words of a compaction: what the model is asked, and what stands for the old context.

use evenkeel_core::message::{Block, Message, Role};

use crate::run::output;
use crate::run::state::{Entry, View};

use super::plan::Cut;

/// Instructions for the model that summarises.
pub(crate) const SYSTEM: &str = "You summarise the record of an assistant's work so that the work can go on without \
     the record. Write down: what is asked for, what was decided and why, what was done (files with their paths, \
     commands, their results), what failed and must not be tried again, what is left to do, and every name, number and \
     path that will be needed. Write plain text. Do not go on with the work, and do not address anybody.";

/// Characters of one result or argument in the record given to the summary.
const PIECE_CHARS: usize = 2_000;
/// Characters of one line of the digest.
const LINE_CHARS: usize = 160;

/// The record of the cut as one message for the model, at most `bytes_max` bytes.
pub(crate) fn record(view: &View, cut: &Cut, bytes_max: usize) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Some(summary) = &view.summary {
        parts.push(format!("## Summary of what came before\n{}", summary.text));
    }
    let entries = view.entries.get(cut.entries.clone()).unwrap_or_default();
    parts.extend(entries.iter().map(|entry| told(&entry.message, PIECE_CHARS)));
    let whole = parts.join("\n\n");
    if whole.len() <= bytes_max { whole } else { longest(&whole, bytes_max).unwrap_or_default() }
}

/// The longest cut of the text that has at most `bytes_max` bytes, by halving the difference.
fn longest(text: &str, bytes_max: usize) -> Option<String> {
    let (mut low, mut high) = (0, bytes_max);
    let mut best = None;
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        let shown = output::shown(text, middle).text;
        if shown.len() <= bytes_max {
            best = Some(shown);
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    best
}

/// One message in words.
fn told(message: &Message, chars_max: usize) -> String {
    let who = match message.role {
        Role::User => "User",
        Role::Assistant => "Assistant",
        Role::Tool => "Results",
    };
    let blocks = message.blocks.iter().filter_map(|block| match block {
        Block::Text { text } => Some(text.clone()),
        Block::ToolCall(call) => {
            Some(format!("call {}: {}", call.name, output::shown(&call.args.to_string(), chars_max).text))
        }
        Block::ToolResult(result) => {
            let kind = if result.is_error { "error" } else { "result" };
            Some(format!("{kind} of {}: {}", result.name, output::shown(&result.text, chars_max).text))
        }
        Block::Opaque { .. } => None,
    });
    format!("## {who}\n{}", blocks.collect::<Vec<_>>().join("\n"))
}

/// What stands for the cut: the request in its own words if it lies inside, then the summary.
pub(crate) fn standing(request: &[&Entry], summary: &str) -> String {
    let mut text = String::from("[Earlier context was replaced by this text.]\n");
    if !request.is_empty() {
        let words: Vec<String> = request.iter().map(|entry| entry.message.joined_text()).collect();
        text.push_str(&format!("\n# The request, word for word\n{}\n", words.join("\n\n")));
    }
    text.push_str(&format!("\n# What happened so far\n{}", summary.trim()));
    text
}

/// A digest of the cut without a model: one line for each call, newest last, at most `bytes_max`.
pub(crate) fn digest(view: &View, cut: &Cut, bytes_max: usize) -> String {
    let entries = view.entries.get(cut.entries.clone()).unwrap_or_default();
    let mut lines: Vec<String> = Vec::new();
    let mut n_bytes = 0;
    let mut n_left_out = 0;
    for line in entries.iter().rev().flat_map(|entry| lines_of(&entry.message)) {
        if n_bytes + line.len() > bytes_max {
            n_left_out += 1;
            continue;
        }
        n_bytes += line.len() + 1;
        lines.push(line);
    }
    if n_left_out > 0 {
        lines.push(format!("({n_left_out} older lines left out)"));
    }
    lines.reverse();
    format!("No summary could be made. What is known, in short:\n{}", lines.join("\n"))
}

/// The message's lines, last first.
fn lines_of(message: &Message) -> Vec<String> {
    let line = |prefix: &str, text: &str| {
        let first: String =
            text.chars().take(LINE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("- {prefix}: {first}")
    };
    let lines = message.blocks.iter().rev().filter_map(|block| match block {
        Block::Text { text } if message.role == Role::User => Some(line("user", text)),
        Block::Text { text } => Some(line("assistant", text)),
        Block::ToolCall(call) => Some(line(&format!("called {}", call.name), &call.args.to_string())),
        Block::ToolResult(result) if result.is_error => {
            Some(line(&format!("{} failed", result.name), &result.text))
        }
        Block::ToolResult(_) | Block::Opaque { .. } => None,
    });
    lines.collect()
}
