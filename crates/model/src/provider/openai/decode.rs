//! OpenAI chat completions: decoding of streams.
//!
//! Complete means that `finish_reason` was seen. `[DONE]` alone proves nothing, and its absence
//! after `finish_reason` does no harm. Servers that call themselves compatible differ in many small
//! things; each line below that looks odd is one of them.

use std::collections::BTreeMap;

use evenkeel_core::message::Usage;
use serde_json::Value;

use crate::provider::Decoded;
use crate::stream::answer::{Assembler, Finish, Key, Progressed};

/// The decoder of one attempt.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The newest call at each index: how many had it before, and its id.
    calls: BTreeMap<u64, (u32, Option<String>)>,
    reasoning: String,
    refused: bool,
    n_unreadable: u32,
}

impl Decoder {
    /// Decodes one event.
    pub fn event(&mut self, data: &str, into: &mut Assembler) -> Decoded {
        if data.trim() == "[DONE]" {
            return Decoded { is_last: true, ..Decoded::default() };
        }
        match serde_json::from_str::<Value>(data) {
            Ok(chunk) => self.chunk(&chunk, into),
            Err(error) => self.unreadable(&error, into),
        }
    }

    /// An unreadable event is passed over, unless it may have held a piece of a call's arguments.
    fn unreadable(&mut self, error: &serde_json::Error, into: &Assembler) -> Decoded {
        self.n_unreadable += 1;
        let inside_call = !self.calls.is_empty() && !into.is_finished();
        let broken = (inside_call || self.n_unreadable > 8)
            .then(|| format!("an event of the stream is no valid JSON: {error}"));
        Decoded { broken, ..Decoded::default() }
    }

    /// Decodes one chunk, or a whole answer.
    pub fn chunk(&mut self, chunk: &Value, into: &mut Assembler) -> Decoded {
        let mut decoded = Decoded::default();
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            decoded.error = Some(error.clone());
            return decoded;
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            into.report_usage(read_usage(usage));
        }
        // The usage chunk has no choices at all.
        let choices = chunk.get("choices").and_then(Value::as_array);
        let first = choices.and_then(|choices| {
            choices.iter().find(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0)
        });
        if let Some(choice) = first {
            self.choice(choice, into, &mut decoded.progressed);
        }
        decoded
    }

    fn choice(&mut self, choice: &Value, into: &mut Assembler, progressed: &mut Progressed) {
        if let Some(delta) = choice.get("delta").or_else(|| choice.get("message")) {
            self.delta(delta, into, progressed);
        }
        match choice.get("finish_reason").and_then(Value::as_str) {
            None | Some("") => {}
            Some("length" | "max_tokens") => into.finish(Finish::Length),
            Some("tool_calls" | "function_call") => into.finish(Finish::ToolCalls),
            Some("content_filter") => into.finish(Finish::Refusal),
            Some(_) if self.refused => into.finish(Finish::Refusal),
            Some("stop") => into.finish(Finish::Stop),
            Some(other) => {
                tracing::warn!(finish_reason = other, "unknown finish reason, taken as stop");
                into.finish(Finish::Stop);
            }
        }
    }

    fn delta(&mut self, delta: &Value, into: &mut Assembler, progressed: &mut Progressed) {
        for key in ["reasoning_content", "reasoning"] {
            if let Some(piece) = delta.get(key).and_then(Value::as_str).filter(|piece| !piece.is_empty()) {
                self.reasoning.push_str(piece);
                into.hidden(piece, progressed);
                break;
            }
        }
        if let Some(piece) = delta.get("content").and_then(Value::as_str) {
            into.text(Key::Text, piece, progressed);
        }
        if let Some(piece) = delta.get("refusal").and_then(Value::as_str).filter(|piece| !piece.is_empty()) {
            self.refused = true;
            into.text(Key::Text, piece, progressed);
        }
        let calls = delta.get("tool_calls").and_then(Value::as_array);
        for (position, call) in calls.into_iter().flatten().enumerate() {
            self.call(position as u64, call, into, progressed);
        }
        if let Some(function) = delta.get("function_call").filter(|function| function.is_object()) {
            self.function(0, None, function, into, progressed);
        }
    }

    fn call(&mut self, position: u64, call: &Value, into: &mut Assembler, progressed: &mut Progressed) {
        let index = call.get("index").and_then(Value::as_u64).unwrap_or(position);
        let id = call.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
        let function = call.get("function").unwrap_or(&Value::Null);
        self.function(index, id, function, into, progressed);
    }

    fn function(
        &mut self,
        index: u64,
        id: Option<&str>,
        function: &Value,
        into: &mut Assembler,
        progressed: &mut Progressed,
    ) {
        let (nth, known) = self.calls.entry(index).or_default();
        match (known.as_deref(), id) {
            // The same index under another id is another call.
            (Some(known_id), Some(id)) if known_id != id => {
                *nth += 1;
                *known = Some(id.to_owned());
            }
            (None, Some(id)) => *known = Some(id.to_owned()),
            _ => {}
        }
        let key = Key::Call(index, *nth);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        into.call(key, id, name, progressed);
        match function.get("arguments") {
            Some(Value::String(piece)) => into.args(key, piece, progressed),
            Some(object @ Value::Object(_)) => into.args(key, &object.to_string(), progressed),
            _ => {}
        }
    }

    /// The stream has ended.
    pub fn end(&mut self, into: &mut Assembler) {
        if !self.reasoning.is_empty() {
            into.opaque(Key::Reasoning, Value::String(std::mem::take(&mut self.reasoning)).to_string());
        }
    }
}

fn read_usage(usage: &Value) -> Usage {
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    Usage {
        input_tokens: count("/prompt_tokens"),
        cached_input_tokens: count("/prompt_tokens_details/cached_tokens"),
        output_tokens: count("/completion_tokens"),
        estimated: false,
    }
}
