//! What an assistant is: its prompt, model route, tools and limits. Comes from the configuration.

use serde::{Deserialize, Serialize};

/// Limits of one run; a run that meets one ends `failed` with that cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunLimits {
    /// Steps a run may take.
    pub steps_max: u32,
    /// Wall time from acceptance, waiting included, in milliseconds.
    pub wall_ms_max: u64,
    /// Input plus output tokens over all attempts.
    pub tokens_max: u64,
    /// Time limit of one tool call in milliseconds.
    pub tool_ms_max: u64,
    /// Characters of a tool's output shown to the model.
    pub tool_output_chars_max: usize,
    /// Output tokens asked of the model in one call.
    pub output_tokens_max: u32,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            steps_max: 200,
            wall_ms_max: 60 * 60 * 1000,
            tokens_max: 5_000_000,
            tool_ms_max: 120_000,
            tool_output_chars_max: 16_000,
            output_tokens_max: 8_192,
        }
    }
}

/// An assistant: built in (`coder`, `chat`) or declared in the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Its name, also the graph name on the LangGraph wire.
    pub name: String,
    /// One sentence for lists.
    pub description: String,
    /// The system prompt.
    pub system_prompt: String,
    /// The model route in the router's configuration.
    pub route: String,
    /// Names of the tools offered, in this fixed order (prompt caches depend on it).
    pub tools: Vec<String>,
    /// Whether runs get a workspace of their own.
    pub workspace: bool,
    /// Limits of its runs.
    pub limits: RunLimits,
}
