//! Anthropic messages: decoding of streams.
//!
//! Complete means that a `stop_reason` was seen; `message_stop` follows it and ends the stream.
//! Blocks are keyed by their index, never by which came last. Counts of tokens are cumulative:
//! later ones replace earlier ones and are never added. Unknown events and deltas are passed over.

use std::collections::BTreeMap;

use evenkeel_core::message::Usage;
use serde_json::{Value, json};

use crate::provider::Decoded;
use crate::stream::answer::{Assembler, Finish, Key, Progressed};

/// The decoder of one attempt.
#[derive(Debug, Default)]
pub struct Decoder {
    blocks: BTreeMap<u64, Block>,
    usage: Counts,
    n_unreadable: u32,
}

#[derive(Debug)]
enum Block {
    Text,
    Call { preset: Option<String>, stopped: bool },
    Thinking { text: String, signature: String },
    Done,
}

#[derive(Debug, Default)]
struct Counts {
    input: u64,
    cache_creation: u64,
    cache_read: u64,
    output: u64,
}

impl Decoder {
    /// Decodes one event.
    pub fn event(&mut self, name: Option<&str>, data: &str, into: &mut Assembler) -> Decoded {
        let event = match serde_json::from_str::<Value>(data) {
            Ok(event) => event,
            Err(error) => return self.unreadable(name, &error),
        };
        let mut decoded = Decoded::default();
        match event.get("type").and_then(Value::as_str).or(name).unwrap_or_default() {
            "message_start" => {
                self.count(event.pointer("/message/usage"), into);
            }
            "content_block_start" => self.start(&event, into, &mut decoded.progressed),
            "content_block_delta" => self.delta(&event, into, &mut decoded.progressed),
            "content_block_stop" => self.stop(index(&event), into, &mut decoded.progressed),
            "message_delta" => {
                self.count(event.get("usage"), into);
                finish(event.pointer("/delta/stop_reason"), into);
            }
            "message_stop" => decoded.is_last = true,
            "error" => decoded.error = Some(event.get("error").cloned().unwrap_or(Value::Null)),
            _ => {}
        }
        decoded
    }

    /// An unreadable event is passed over, unless it may have held a piece of a call's arguments.
    fn unreadable(&mut self, name: Option<&str>, error: &serde_json::Error) -> Decoded {
        self.n_unreadable += 1;
        let open_call = self.blocks.values().any(|block| matches!(block, Block::Call { stopped: false, .. }));
        let harmless = name == Some("ping") || !open_call;
        let broken = (!harmless || self.n_unreadable > 8)
            .then(|| format!("an event of the stream is no valid JSON: {error}"));
        Decoded { broken, ..Decoded::default() }
    }

    /// Decodes a whole answer.
    pub fn whole(&mut self, body: &Value, into: &mut Assembler) -> Decoded {
        let mut decoded = Decoded::default();
        if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
            decoded.error = Some(error.clone());
            return decoded;
        }
        let blocks = body.get("content").and_then(Value::as_array);
        for (idx, block) in blocks.into_iter().flatten().enumerate() {
            let start = json!({"index": idx, "content_block": block});
            self.start(&start, into, &mut decoded.progressed);
            self.stop(idx as u64, into, &mut decoded.progressed);
        }
        self.count(body.get("usage"), into);
        finish(body.get("stop_reason"), into);
        decoded
    }

    fn start(&mut self, event: &Value, into: &mut Assembler, progressed: &mut Progressed) {
        let index = index(event);
        let Some(content) = event.get("content_block") else {
            return;
        };
        let text = |key: &str| content.get(key).and_then(Value::as_str).unwrap_or_default();
        let block = match text("type") {
            "text" => {
                into.text(Key::Block(index), text("text"), progressed);
                Block::Text
            }
            "tool_use" => {
                into.call(Key::Block(index), Some(text("id")), text("name"), progressed);
                // Usually an empty object and followed by deltas; some servers send all of it here.
                let input = content.get("input").and_then(Value::as_object);
                let preset = input.filter(|input| !input.is_empty());
                let preset = preset.map(|input| Value::Object(input.clone()).to_string());
                Block::Call { preset, stopped: false }
            }
            "thinking" => {
                Block::Thinking { text: text("thinking").to_owned(), signature: text("signature").to_owned() }
            }
            "redacted_thinking" => {
                into.hidden(text("data"), progressed);
                into.opaque(Key::Block(index), content.to_string());
                Block::Done
            }
            // Blocks of tools that run at the provider; we never ask for them.
            _ => Block::Done,
        };
        self.blocks.insert(index, block);
    }

    fn delta(&mut self, event: &Value, into: &mut Assembler, progressed: &mut Progressed) {
        let index = index(event);
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let kind = text("/delta/type");
        match self.blocks.get_mut(&index) {
            Some(Block::Text) if kind == "text_delta" => {
                into.text(Key::Block(index), text("/delta/text"), progressed);
            }
            Some(Block::Call { preset, stopped: false }) if kind == "input_json_delta" => {
                let piece = text("/delta/partial_json");
                if !piece.is_empty() {
                    *preset = None;
                }
                into.args(Key::Block(index), piece, progressed);
            }
            Some(Block::Thinking { text: kept, .. }) if kind == "thinking_delta" => {
                kept.push_str(text("/delta/thinking"));
                into.hidden(text("/delta/thinking"), progressed);
            }
            Some(Block::Thinking { signature, .. }) if kind == "signature_delta" => {
                signature.push_str(text("/delta/signature"));
                into.hidden(text("/delta/signature"), progressed);
            }
            // A delta after its block stopped, for an unknown block, or of an unknown kind.
            _ => {}
        }
    }

    fn stop(&mut self, index: u64, into: &mut Assembler, progressed: &mut Progressed) {
        match self.blocks.get_mut(&index) {
            Some(Block::Call { preset, stopped }) => {
                if let Some(args) = preset.take() {
                    into.args(Key::Block(index), &args, progressed);
                }
                *stopped = true;
            }
            Some(Block::Thinking { .. }) => self.keep_thinking(index, into),
            _ => {}
        }
    }

    fn keep_thinking(&mut self, index: u64, into: &mut Assembler) {
        if let Some(Block::Thinking { text, signature }) = self.blocks.insert(index, Block::Done) {
            // Without its signature the block would be refused when it is sent back.
            if !signature.is_empty() {
                let raw = json!({"type": "thinking", "thinking": text, "signature": signature}).to_string();
                into.opaque(Key::Block(index), raw);
            }
        }
    }

    fn count(&mut self, usage: Option<&Value>, into: &mut Assembler) {
        let Some(usage) = usage else {
            return;
        };
        let read = |key: &str, known: &mut u64| {
            if let Some(n) = usage.get(key).and_then(Value::as_u64) {
                *known = n;
            }
        };
        read("input_tokens", &mut self.usage.input);
        read("cache_creation_input_tokens", &mut self.usage.cache_creation);
        read("cache_read_input_tokens", &mut self.usage.cache_read);
        read("output_tokens", &mut self.usage.output);
        into.report_usage(Usage {
            input_tokens: self.usage.input + self.usage.cache_creation + self.usage.cache_read,
            cached_input_tokens: self.usage.cache_read,
            output_tokens: self.usage.output,
            estimated: false,
        });
    }

    /// The stream has ended; a thinking block that never stopped is worthless.
    pub fn end(&mut self, _into: &mut Assembler) {
        self.blocks.clear();
    }
}

fn index(event: &Value) -> u64 {
    event.get("index").and_then(Value::as_u64).unwrap_or(0)
}

fn finish(stop_reason: Option<&Value>, into: &mut Assembler) {
    match stop_reason.and_then(Value::as_str) {
        None | Some("") => {}
        Some("tool_use") => into.finish(Finish::ToolCalls),
        Some("max_tokens") => into.finish(Finish::Length),
        Some("refusal") => into.finish(Finish::Refusal),
        Some("model_context_window_exceeded") => into.finish(Finish::WindowExceeded),
        // A pause happens only around tools that run at the provider, which we never ask for.
        Some("end_turn" | "stop_sequence" | "pause_turn") => into.finish(Finish::Stop),
        Some(other) => {
            tracing::warn!(stop_reason = other, "unknown stop reason, taken as the end of the turn");
            into.finish(Finish::Stop);
        }
    }
}
