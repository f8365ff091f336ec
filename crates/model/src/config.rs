//! What an operator writes of providers, deployments, routes and the router itself.
//!
//! Unknown keys are errors, because a protection that is configured but not enforced is worse than
//! none. Durations are texts (`"400ms"`, `"5s"`, `"10m"`). Keys are named, never written:
//! `env:NAME` or `file:PATH`; a literal is refused unless it begins with `test:`.

mod check;
mod keys;
mod span;

use std::collections::BTreeMap;

use evenkeel_core::control::Protect;
use evenkeel_core::message::Usage;
use serde::{Deserialize, Serialize};

pub use keys::ProviderKeys;
pub use span::Span;

/// The router's part of the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterConfig {
    /// Companies' APIs by name.
    pub providers: BTreeMap<String, ProviderConfig>,
    /// Endpoints with their limits by name.
    pub deployments: BTreeMap<String, DeploymentConfig>,
    /// Model routes by name: what an agent asks for.
    pub routes: BTreeMap<String, RouteConfig>,
    /// Constants of the router.
    pub router: RouterSettings,
}

/// Which wire a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// OpenAI chat completions, and whatever is compatible with it.
    Openai,
    /// Anthropic messages.
    Anthropic,
}

/// One provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// Its wire.
    pub kind: ProviderKind,
    /// Where it is; `/chat/completions` or `/v1/messages` is added.
    pub base_url: String,
    /// Its keys: `env:NAME`, `file:PATH` or `test:...`. None: requests carry no key.
    #[serde(default)]
    pub keys: Vec<String>,
    /// Deployments of one domain are suspected together when one of them cannot be reached;
    /// the provider's own name if absent.
    #[serde(default)]
    pub failure_domain: Option<String>,
    /// What a compatible server can and cannot do.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Further texts by which this provider says that the context is too long.
    #[serde(default)]
    pub context_too_long: Vec<String>,
}

/// What a compatible server can and cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capabilities {
    /// OpenAI wire: takes `stream_options`.
    pub stream_options: bool,
    /// OpenAI wire: wants `max_completion_tokens` rather than `max_tokens`.
    pub max_completion_tokens: bool,
    /// OpenAI wire: wants its own reasoning text back.
    pub replay_reasoning: bool,
    /// Anthropic wire: takes `cache_control`.
    pub cache_control: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            stream_options: true,
            max_completion_tokens: false,
            replay_reasoning: false,
            cache_control: true,
        }
    }
}

/// One configured endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeploymentConfig {
    /// The provider's name.
    pub provider: String,
    /// The model's name on the provider's wire.
    pub model: String,
    /// What the provider grants per key.
    #[serde(default)]
    pub limits: DeploymentLimits,
    /// The model's window in tokens.
    #[serde(default = "context_tokens_default")]
    pub context_tokens: u64,
    /// Whether the model thinks long before its first content (limits are four times as long).
    #[serde(default)]
    pub reasoning: bool,
    /// Whether it gets nothing, from the start on, until an operator enables it.
    #[serde(default)]
    pub drained: bool,
    /// USD per million tokens.
    #[serde(default)]
    pub price: Option<Price>,
}

fn context_tokens_default() -> u64 {
    200_000
}

/// What a provider grants per key. Headers of its answers can lower these figures, never raise them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeploymentLimits {
    /// Streams at the same time.
    pub streams: u32,
    /// Calls a minute.
    pub calls_per_min: u64,
    /// Input tokens a minute.
    pub input_tokens_per_min: u64,
}

impl Default for DeploymentLimits {
    fn default() -> Self {
        Self { streams: 600, calls_per_min: 20_000, input_tokens_per_min: 200_000_000 }
    }
}

/// USD per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input.
    pub input: f64,
    /// Input read from the provider's cache; as `input` if absent.
    #[serde(default)]
    pub cached_input: Option<f64>,
    /// Output.
    pub output: f64,
}

impl Price {
    /// What these tokens cost in millionths of a US dollar: tokens times USD per million tokens.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "tokens of one attempt are far below 2^53, prices are not negative"
    )]
    pub fn micro_usd(&self, usage: Usage) -> u64 {
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let fresh = usage.input_tokens - cached;
        let cost = fresh as f64 * self.input
            + cached as f64 * self.cached_input.unwrap_or(self.input)
            + usage.output_tokens as f64 * self.output;
        cost.round() as u64
    }
}

/// One route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Tiers of deployments; a later tier is used only when no earlier one can take the call.
    pub tiers: Vec<Vec<String>>,
    /// How long a call may wait for a deployment.
    #[serde(default)]
    pub park: ParkConfig,
    /// What happens when a stream breaks in the middle.
    #[serde(default)]
    pub midstream: Midstream,
    /// Whether a later tier may answer at all.
    #[serde(default = "yes")]
    pub fallback: bool,
    /// Whether a second attempt may be made on another deployment when the first content is late.
    #[serde(default = "yes")]
    pub hedge: bool,
    /// Whether another deployment may be asked when one refuses the content.
    #[serde(default)]
    pub reroute_rejected: bool,
}

fn yes() -> bool {
    true
}

/// How long a call may wait for a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParkConfig {
    /// A durable run, in all.
    pub max: Span,
    /// A turn that a person waits for.
    pub interactive_max: Span,
}

impl Default for ParkConfig {
    fn default() -> Self {
        Self { max: Span::minutes(10), interactive_max: Span::seconds(5) }
    }
}

/// What happens when a stream breaks in the middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Midstream {
    /// The partial answer is voided and the call made again.
    #[default]
    Redo,
    /// The call fails over nowhere: it parks or fails.
    Fail,
}

/// Constants of the router, all with defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterSettings {
    /// Full protection, or none for the lab's comparison.
    pub protect: Protect,
    /// Limits on every attempt.
    pub timeouts: Timeouts,
    /// When a deployment is cut off and how it is tried again.
    pub breaker: BreakerConfig,
    /// How traffic comes back.
    pub ramp: RampConfig,
    /// Retries in proportion to successes.
    pub retry_budget: BudgetConfig,
    /// Second attempts beside late ones.
    pub hedge: HedgeConfig,
    /// The longest time a batch call waits for a free stream before it parks.
    pub batch_wait: Span,
    /// Calls that may wait for a free stream on one route.
    pub queue_max: usize,
    /// Upstream attempts of one call.
    pub attempts_per_call: u32,
    /// Upstream attempts of one step, parks included; probes do not end a step.
    pub attempts_per_step: u32,
    /// An unused permit comes back after this time.
    pub permit_lease: Span,
    /// A deployment is never paused longer than this by a `Retry-After`.
    pub retry_after_max: Span,
    /// How long a key without credit or rights is left alone when the provider states no date.
    pub disabled_for: Span,
    /// Weights of tenants in the fair queue; 1 if absent.
    pub tenant_weights: BTreeMap<String, u32>,
}

impl Default for RouterSettings {
    fn default() -> Self {
        Self {
            protect: Protect::Full,
            timeouts: Timeouts::default(),
            breaker: BreakerConfig::default(),
            ramp: RampConfig::default(),
            retry_budget: BudgetConfig::default(),
            hedge: HedgeConfig::default(),
            batch_wait: Span::seconds(2),
            queue_max: 10_000,
            attempts_per_call: 4,
            attempts_per_step: 12,
            permit_lease: Span::seconds(5),
            retry_after_max: Span::minutes(10),
            disabled_for: Span::minutes(10),
            tenant_weights: BTreeMap::new(),
        }
    }
}

/// Limits on every attempt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Resolving, TCP and TLS.
    pub connect: Span,
    /// From the request to the response's headers.
    pub headers: Span,
    /// From the headers to the first content, for a short input.
    pub first_content: Span,
    /// Added to `first_content` per 20,000 input tokens.
    pub first_content_per_20k_tokens: Span,
    /// What `first_content` may grow to for a deployment that is known to be slow.
    pub first_content_max: Span,
    /// While another deployment is ready, headers and first content are waited for four times as
    /// long as this deployment's own 95th percentile, but at least this long.
    pub first_content_elsewhere_min: Span,
    /// Between two pieces of content.
    pub idle: Span,
    /// Between two pieces of content while keep-alives arrive.
    pub idle_with_pings: Span,
    /// The whole attempt.
    pub attempt: Span,
    /// Output below this rate for `slow_after` is given up when another deployment is free.
    pub tokens_per_s_min: f64,
    /// See `tokens_per_s_min`.
    pub slow_after: Span,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Span::seconds(2),
            headers: Span::seconds(10),
            first_content: Span::seconds(10),
            first_content_per_20k_tokens: Span::seconds(1),
            first_content_max: Span::seconds(60),
            first_content_elsewhere_min: Span::seconds(2),
            idle: Span::seconds(10),
            idle_with_pings: Span::seconds(30),
            attempt: Span::seconds(120),
            tokens_per_s_min: 2.0,
            slow_after: Span::seconds(15),
        }
    }
}

/// When a deployment is cut off and how it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Weighted failures in a row that open it.
    pub consecutive: f64,
    /// Share of failures that opens it ...
    pub failure_share: f64,
    /// ... among at least this many calls ...
    pub failure_calls_min: u32,
    /// ... in this time.
    pub failure_window: Span,
    /// Connect failures in one second that open it.
    pub connect_failures: u32,
    /// Streams that must all be silent ...
    pub silent_streams: u32,
    /// ... for this long.
    pub silent_for: Span,
    /// First time open.
    pub open_first: Span,
    /// Growth of the time open from probe to probe.
    pub open_factor: f64,
    /// Longest time open during the first two minutes of an outage.
    pub open_max_early: Span,
    /// Longest time open until an outage is ten minutes old.
    pub open_max: Span,
    /// Longest time open afterwards.
    pub open_max_late: Span,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            consecutive: 5.0,
            failure_share: 0.5,
            failure_calls_min: 10,
            failure_window: Span::seconds(10),
            connect_failures: 3,
            silent_streams: 8,
            silent_for: Span::seconds(3),
            open_first: Span::seconds(1),
            open_factor: 1.5,
            open_max_early: Span::seconds(2),
            open_max: Span::seconds(8),
            open_max_late: Span::seconds(30),
        }
    }
}

/// How traffic comes back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RampConfig {
    /// Streams at first, at least.
    pub start_streams: u32,
    /// Streams at first, as a share of the configured limit.
    pub start_share: f64,
    /// Growth per step, together with one more stream.
    pub growth: f64,
    /// Length of a step.
    pub step: Span,
    /// What a rejection leaves of the limit.
    pub shrink: f64,
    /// No growth after a rejection for this long.
    pub hold: Span,
    /// Failures in one second that open the breaker again.
    pub failures: u32,
    /// Complete answers in a row before calls that could go elsewhere rely on it again.
    pub proofs: u32,
    /// Calls a second against those of the last good seconds.
    pub rate_factor: f64,
    /// The rate is bounded until this much time without a failure has passed.
    pub stable_after: Span,
}

impl Default for RampConfig {
    fn default() -> Self {
        Self {
            start_streams: 8,
            start_share: 0.05,
            growth: 1.10,
            step: Span::millis(250),
            shrink: 0.7,
            hold: Span::seconds(1),
            failures: 3,
            proofs: 3,
            rate_factor: 1.5,
            stable_after: Span::seconds(30),
        }
    }
}

/// Retries in proportion to successes, for the whole pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetConfig {
    /// Retries per success of the last ten seconds.
    pub share: f64,
    /// Retries a second that are always granted.
    pub per_s: f64,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self { share: 0.10, per_s: 3.0 }
    }
}

/// Second attempts: when the first content of a call is late and another deployment is sound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HedgeConfig {
    /// First content is late after this many times the deployment's own 95th percentile ...
    pub usual_factor: f64,
    /// ... but not before this.
    pub after_min: Span,
    /// What a second attempt costs the retry budget.
    pub cost: f64,
}

impl Default for HedgeConfig {
    fn default() -> Self {
        Self { usual_factor: 1.5, after_min: Span::millis(300), cost: 2.0 }
    }
}

#[cfg(test)]
mod tests;
