//! Messages in the neutral form: what is stored, and rendered anew for each provider wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{CallId, MessageId};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The person or client.
    User,
    /// The model.
    Assistant,
    /// Results of the calls in the assistant message directly before.
    Tool,
}

/// Which provider and model produced a block; provider-bound blocks go back only to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Provenance {
    /// The provider's name in the configuration.
    pub provider: String,
    /// The model's name on the provider's wire.
    pub model: String,
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Plain text; never empty in a stored message.
    Text {
        /// The text.
        text: String,
    },
    /// The model asks for a tool.
    ToolCall(ToolCall),
    /// What a call returned.
    ToolResult(ToolResult),
    /// A provider's reasoning or other opaque item, kept byte-identical (as JSON text) for replay
    /// to the same provider and model only.
    Opaque {
        /// The raw JSON text of the block on its provider's wire.
        raw: String,
        /// Where it came from.
        from: Provenance,
    },
}

/// A call that the model asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Our own id (see [`CallId`]).
    pub id: CallId,
    /// The tool's name.
    pub name: String,
    /// Arguments: a JSON object that was valid when the message was committed.
    pub args: Value,
    /// The provider's own id of the call, kept for traces and for replay to the same provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_id: Option<String>,
}

/// What a call returned to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call that this answers.
    pub call_id: CallId,
    /// The tool's name, kept so that a stub can name it.
    pub name: String,
    /// The text shown to the model.
    pub text: String,
    /// Whether the model should take it as a failure.
    pub is_error: bool,
}

/// One message of a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Unique in its thread.
    pub id: MessageId,
    /// Who speaks.
    pub role: Role,
    /// The parts, in order.
    pub blocks: Vec<Block>,
}

impl Message {
    /// A message of one text block.
    #[must_use]
    pub fn text(id: impl Into<MessageId>, role: Role, text: impl Into<String>) -> Self {
        Self { id: id.into(), role, blocks: vec![Block::Text { text: text.into() }] }
    }

    /// All text blocks joined by newlines.
    #[must_use]
    pub fn joined_text(&self) -> String {
        let texts: Vec<&str> = self
            .blocks
            .iter()
            .filter_map(|block| match block {
                Block::Text { text } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        texts.join("\n")
    }

    /// The calls that this message asks for, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            _ => None,
        })
    }

    /// The results that this message holds, in order.
    pub fn tool_results(&self) -> impl Iterator<Item = &ToolResult> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolResult(result) => Some(result),
            _ => None,
        })
    }
}

/// Tokens of one model response in one canonical form: `input` includes cached input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// All input tokens, cached ones included.
    pub input_tokens: u64,
    /// Input tokens read from the provider's cache.
    pub cached_input_tokens: u64,
    /// Output tokens, reasoning included.
    pub output_tokens: u64,
    /// True when the provider reported nothing and the figures are our estimate.
    pub estimated: bool,
}

impl Usage {
    /// Adds another response's tokens to a total.
    pub fn add(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.cached_input_tokens += other.cached_input_tokens;
        self.output_tokens += other.output_tokens;
        self.estimated |= other.estimated;
    }
}

/// A tool as offered to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Unique name, `^[a-zA-Z0-9_-]{1,64}$`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments (an object schema).
    pub input_schema: Value,
}
