//! Names of spans' attributes, in one table, after OpenTelemetry's conventions for generative AI.

/// The version of the conventions that this table follows; sent as the scope's schema.
pub(super) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

pub(super) const OPERATION: &str = "gen_ai.operation.name";
pub(super) const PROVIDER: &str = "gen_ai.provider.name";
pub(super) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(super) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(super) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(super) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub(super) const AGENT_NAME: &str = "gen_ai.agent.name";
pub(super) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(super) const TOOL_NAME: &str = "gen_ai.tool.name";
pub(super) const TOOL_CALL: &str = "gen_ai.tool.call.id";
pub(super) const ERROR_TYPE: &str = "error.type";

// Our own, where the conventions have no word.
pub(super) const RUN: &str = "evenkeel.run.id";
pub(super) const TENANT: &str = "evenkeel.tenant";
pub(super) const STEP: &str = "evenkeel.step";
pub(super) const ATTEMPT: &str = "evenkeel.attempt";
pub(super) const DEPLOYMENT: &str = "evenkeel.deployment";
pub(super) const CACHED_TOKENS: &str = "evenkeel.usage.cached_input_tokens";
pub(super) const FIRST_CONTENT_MS: &str = "evenkeel.first_content_ms";
pub(super) const SETTLED: &str = "evenkeel.effect.settled";
pub(super) const EFFECT: &str = "evenkeel.effect.id";
pub(super) const OUTPUT_CHARS: &str = "evenkeel.output_chars";
