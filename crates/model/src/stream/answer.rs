//! The assembler: pieces of a stream become one answer, or the reason why they do not.
//!
//! Decoders of both wires put their pieces here under keys of their wire (a block index, a call
//! index). Only [`Assembler::finish`] makes an answer, and only when the wire's terminal rule was
//! met, every call has a name and arguments that are a JSON object, and there is something in it.

use evenkeel_core::id::{CallId, MessageId, RunId};
use evenkeel_core::message::{Block, Message, Provenance, Role, ToolCall, Usage};
use evenkeel_core::port::feed::Provisional;
use serde_json::{Map, Value};

/// How a stream said that it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model is done.
    Stop,
    /// The model waits for tools.
    ToolCalls,
    /// The output limit cut it.
    Length,
    /// The model or a filter of the provider refuses. A final answer; nobody routes around it.
    Refusal,
    /// The context ran out: to be compacted, not failed over.
    WindowExceeded,
}

impl Finish {
    /// The word in a model reply.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::Refusal => "refusal",
            Self::WindowExceeded => "window_exceeded",
        }
    }
}

/// What a decoder made of one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progressed {
    /// Pieces for whoever watches.
    pub pieces: Vec<Provisional>,
    /// Bytes of content in the event; 0 when it was no progress.
    pub content_bytes: usize,
}

/// Where a part belongs on its wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The one text of an OpenAI message.
    Text,
    /// The one reasoning text of an OpenAI message.
    Reasoning,
    /// A call of an OpenAI message: index on the wire, and how many calls had it before.
    Call(u64, u32),
    /// A block of an Anthropic message.
    Block(u64),
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Call { wire_id: Option<String>, name: String, args: String, call_idx: u32 },
    Opaque(String),
}

/// A complete answer, still without its place in a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The assistant message.
    pub message: Message,
    /// How it ended.
    pub finish: Finish,
    /// Its tokens.
    pub usage: Usage,
}

/// Why pieces are no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomplete {
    /// The terminal event is missing: the stream was cut.
    #[error("the stream ended without its terminal event")]
    NoTerminal,
    /// The model produced something unusable.
    #[error("{0}")]
    Malformed(String),
}

/// Names the message of an answer.
#[derive(Clone, Debug)]
pub struct Place {
    /// The run.
    pub run: RunId,
    /// The step.
    pub step: u32,
    /// The deployment's provider and model.
    pub from: Provenance,
}

/// Collects the pieces of one attempt.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    parts: Vec<(Key, Part)>,
    finish: Option<Finish>,
    n_calls: u32,
    usage: Usage,
    usage_seen: bool,
    content_bytes: usize,
    /// Bytes of text so far, over all parts.
    text_bytes: usize,
}

impl Assembler {
    /// Text of the part at `key`.
    pub fn text(&mut self, key: Key, piece: &str, progressed: &mut Progressed) {
        if piece.is_empty() {
            return;
        }
        match self.part(key, || Part::Text(String::new())) {
            Part::Text(text) => text.push_str(piece),
            _ => return,
        }
        self.moved(piece.len(), progressed);
        progressed.pieces.push(Provisional::Text { offset: self.text_bytes, text: piece.to_owned() });
        self.text_bytes += piece.len();
    }

    /// A piece of something that only its provider understands. Progress, but not shown.
    pub fn hidden(&mut self, piece: &str, progressed: &mut Progressed) {
        self.moved(piece.len(), progressed);
    }

    /// A finished provider-bound block, as raw JSON text.
    pub fn opaque(&mut self, key: Key, raw: String) {
        match self.part(key, || Part::Opaque(String::new())) {
            Part::Opaque(kept) => *kept = raw,
            part => *part = Part::Opaque(raw),
        }
    }

    /// A call begins, or its id or name arrives late.
    pub fn call(&mut self, key: Key, wire_id: Option<&str>, name: &str, progressed: &mut Progressed) {
        let next_idx = self.n_calls;
        let is_new = self.find(key).is_none();
        let part = self.part(key, || Part::Call {
            wire_id: None,
            name: String::new(),
            args: String::new(),
            call_idx: next_idx,
        });
        let Part::Call { wire_id: known_id, name: known_name, call_idx, .. } = part else {
            return;
        };
        if known_id.is_none() {
            *known_id = wire_id.filter(|id| !id.is_empty()).map(str::to_owned);
        }
        let is_named = known_name.is_empty() && !name.is_empty();
        if is_named {
            name.clone_into(known_name);
        }
        let call_idx = *call_idx;
        self.n_calls += u32::from(is_new);
        if is_named {
            self.moved(name.len(), progressed);
            let name = Some(name.to_owned());
            progressed.pieces.push(Provisional::ToolCall { call_idx, name, args_piece: String::new() });
        }
    }

    /// A piece of a call's arguments.
    pub fn args(&mut self, key: Key, piece: &str, progressed: &mut Progressed) {
        let Some(Part::Call { args, call_idx, .. }) = self.find(key) else {
            return;
        };
        // Some servers send a placeholder object first and the real one after it.
        if args == "{}" && piece.trim_start().starts_with('{') {
            args.clear();
        }
        args.push_str(piece);
        let call_idx = *call_idx;
        self.moved(piece.len(), progressed);
        if !piece.is_empty() {
            let args_piece = piece.to_owned();
            progressed.pieces.push(Provisional::ToolCall { call_idx, name: None, args_piece });
        }
    }

    /// The terminal event.
    pub fn finish(&mut self, finish: Finish) {
        self.finish = Some(finish);
    }

    /// Whether the terminal event was seen.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Reported tokens so far; the last report that is not zero wins.
    pub fn report_usage(&mut self, usage: Usage) {
        if usage.input_tokens > 0 || usage.output_tokens > 0 {
            self.usage = usage;
            self.usage_seen = true;
        }
    }

    /// Whether tokens were reported.
    #[must_use]
    pub fn has_usage(&self) -> bool {
        self.usage_seen
    }

    /// Tokens of the attempt, estimated where the provider reported none.
    #[must_use]
    pub fn usage(&self, estimated_input: u64) -> Usage {
        let output = (self.content_bytes as u64).div_ceil(4);
        if !self.usage_seen {
            return Usage {
                input_tokens: estimated_input,
                cached_input_tokens: 0,
                output_tokens: output,
                estimated: true,
            };
        }
        if self.finish.is_none() && self.usage.output_tokens < output {
            // Cut before the final report: what was reported at the start is too low.
            return Usage { output_tokens: output, estimated: true, ..self.usage };
        }
        self.usage
    }

    /// Makes the answer.
    ///
    /// # Errors
    /// When the stream was cut or the model produced something unusable.
    pub fn into_answer(self, place: &Place, estimated_input: u64) -> Result<Answer, Incomplete> {
        let finish = self.finish.ok_or(Incomplete::NoTerminal)?;
        let usage = self.usage(estimated_input);
        let mut parts = self.parts;
        parts.sort_by_key(|(key, _)| order(*key));
        let mut blocks = Vec::new();
        let mut call_idx = 0;
        for (_, part) in parts {
            match part {
                Part::Text(text) if text.trim().is_empty() => {}
                Part::Text(text) => blocks.push(Block::Text { text }),
                Part::Opaque(raw) => blocks.push(Block::Opaque { raw, from: place.from.clone() }),
                // A call under an output limit may be half a call that happens to parse: none of
                // them is kept, so nothing can be executed.
                Part::Call { .. } if finish == Finish::Length => {}
                Part::Call { wire_id, name, args, .. } => {
                    blocks.push(Block::ToolCall(tool_call(place, call_idx, wire_id, name, &args)?));
                    call_idx += 1;
                }
            }
        }
        let finish = settle_finish(finish, &mut blocks, call_idx > 0)?;
        let message = Message { id: message_id(place), role: Role::Assistant, blocks };
        Ok(Answer { message, finish, usage })
    }

    fn find(&mut self, key: Key) -> Option<&mut Part> {
        self.parts.iter_mut().find(|(known, _)| *known == key).map(|(_, part)| part)
    }

    fn part(&mut self, key: Key, new: impl FnOnce() -> Part) -> &mut Part {
        let at = self.parts.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.parts.push((key, new()));
            self.parts.len() - 1
        });
        &mut self.parts[at].1
    }

    fn moved(&mut self, n_bytes: usize, progressed: &mut Progressed) {
        self.content_bytes += n_bytes;
        progressed.content_bytes += n_bytes;
    }
}

/// Reasoning first, then text, then calls in the order of their index; blocks in their own order.
fn order(key: Key) -> (u8, u64, u32) {
    match key {
        Key::Reasoning => (0, 0, 0),
        Key::Text => (1, 0, 0),
        Key::Call(index, nth) => (2, index, nth),
        Key::Block(index) => (3, index, 0),
    }
}

fn message_id(place: &Place) -> MessageId {
    MessageId(format!("msg_{}_{}", place.run.0.simple(), place.step))
}

fn tool_call(
    place: &Place,
    call_idx: u32,
    wire_id: Option<String>,
    name: String,
    args: &str,
) -> Result<ToolCall, Incomplete> {
    if name.is_empty() {
        return Err(Incomplete::Malformed("a tool call has no name".to_owned()));
    }
    let args = if args.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str::<Map<_, _>>(args) };
    let args = args.map_err(|error| {
        Incomplete::Malformed(format!("the arguments of the call of {name} are no JSON object: {error}"))
    })?;
    Ok(ToolCall { id: CallId::of(place.run, place.step, call_idx), name, args: Value::Object(args), wire_id })
}

/// What the finish means given what is there.
fn settle_finish(finish: Finish, blocks: &mut Vec<Block>, has_calls: bool) -> Result<Finish, Incomplete> {
    let has_text = blocks.iter().any(|block| matches!(block, Block::Text { .. }));
    match finish {
        // Servers that say "stop" beside calls mean the calls, and those that say "tool_calls"
        // without any mean nothing.
        Finish::Stop | Finish::ToolCalls if has_calls => Ok(Finish::ToolCalls),
        Finish::Stop | Finish::ToolCalls if has_text => Ok(Finish::Stop),
        Finish::Stop | Finish::ToolCalls => Err(Incomplete::Malformed("the answer is empty".to_owned())),
        Finish::Length if !has_text => {
            let text = "(The output limit cut this reply inside a tool call or before its first word. \
                        Nothing was executed.)";
            blocks.push(Block::Text { text: text.to_owned() });
            Ok(finish)
        }
        Finish::Refusal if !has_text => {
            blocks.push(Block::Text { text: "(The model refused to answer.)".to_owned() });
            Ok(finish)
        }
        _ => Ok(finish),
    }
}
