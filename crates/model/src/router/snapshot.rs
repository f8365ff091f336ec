//! What the router shows of itself: for `GET /v1/router`, `evenkeel router`, the metrics and the
//! lab's charts.

use std::collections::BTreeMap;

use evenkeel_core::Wall;
use serde::Serialize;

/// Everything at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RouterSnapshot {
    /// When it was taken.
    pub at: Wall,
    /// Deployments (one entry per key), by name.
    pub deployments: BTreeMap<String, DeploymentSnapshot>,
    /// Routes, by name.
    pub routes: BTreeMap<String, RouteSnapshot>,
    /// Retries that the pool's budget would grant now.
    pub retry_budget_level: f64,
    /// Output tokens of attempts that were thrown away, by error class.
    pub wasted_tokens: BTreeMap<String, u64>,
    /// Streams that ended without their terminal event.
    pub truncated_streams: u64,
    /// Calls by how they ended: `done`, `park`, `context_too_long`, `fatal`, `cancelled`.
    pub calls: BTreeMap<String, u64>,
    /// The last state changes of all deployments, oldest first.
    pub transitions: Vec<TransitionSnapshot>,
}

/// One deployment with one key.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeploymentSnapshot {
    /// The provider's name.
    pub provider: String,
    /// The model's name on the wire.
    pub model: String,
    /// `closed`, `suspect`, `open`, `half_open` or `ramping`.
    pub state: String,
    /// Since when it is in this state.
    pub since: Wall,
    /// Why it changed to this state.
    pub reason: String,
    /// When it is next tried, while open.
    pub next_probe: Option<Wall>,
    /// Paused by the provider until then.
    pub throttled_until: Option<Wall>,
    /// Disabled (no credit, no rights) until then.
    pub disabled_until: Option<Wall>,
    /// Drained by an operator.
    pub drained: bool,
    /// Streams that it may have now.
    pub limit: u32,
    /// Streams that the configuration allows.
    pub limit_configured: u32,
    /// Streams in flight.
    pub in_flight: u32,
    /// Permits handed out and not yet used.
    pub permits_outstanding: u32,
    /// Calls by outcome: `ok` or the error class.
    pub outcomes: BTreeMap<String, u64>,
    /// Attempts started while it was open or half-open, the probes.
    pub probes: u64,
    /// Permits handed out.
    pub permits: u64,
    /// Second attempts made here beside a late one elsewhere.
    pub hedges: u64,
    /// Of these, how many had content first.
    pub hedges_won: u64,
    /// Time to first content.
    pub first_content_ms: SummarySnapshot,
    /// From the first failure to the opening, last time.
    pub seconds_to_detect: Option<f64>,
    /// From the opening to the first success, last time.
    pub seconds_to_recover: Option<f64>,
    /// Times it opened.
    pub n_opened: u64,
    /// Learnt bytes per input token.
    pub bytes_per_token: f64,
    /// Tokens of complete answers: input.
    pub input_tokens: u64,
    /// Tokens of complete answers: input read from the provider's cache.
    pub cached_input_tokens: u64,
    /// Tokens of complete answers: output.
    pub output_tokens: u64,
    /// What all attempts cost in millionths of a US dollar, wasted or not; 0 without a price.
    pub cost_micro_usd: u64,
    /// More than half of the last calls were refused as malformed: something is wrong with this
    /// deployment or with what we send to it.
    pub refusals_alarm: bool,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RouteSnapshot {
    /// Runs parked on it.
    pub parked: u64,
    /// Calls that wait for a free stream.
    pub waiting: u64,
    /// Permits handed out and not yet used.
    pub permits_outstanding: u64,
    /// Deployments by tier.
    pub tiers: Vec<Vec<String>>,
}

/// Quantiles in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SummarySnapshot {
    /// Values seen.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// Largest.
    pub max: u64,
}

/// One state change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransitionSnapshot {
    /// When.
    pub at: Wall,
    /// The deployment.
    pub deployment: String,
    /// From.
    pub from: String,
    /// To.
    pub to: String,
    /// Why.
    pub reason: String,
}
