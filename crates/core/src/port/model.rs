//! The model port: one call in, exactly one complete answer out, or an honest reason why not now.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::feed::Provisional;
use crate::id::{ReplicaId, RunId, TenantId};
use crate::message::{Message, ToolSpec, Usage};
use crate::run::{Attempt, Class};
use crate::{Error, Wall};

/// What a call is for; compaction has its own slots and never offers tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A step of an agent.
    Step,
    /// A summary of older context.
    Compaction,
}

/// How one replica finds one deployment. Replicas tell each other with their heartbeats, so that an
/// outage costs the provider one probe at a time and not one a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The deployment, with its key.
    pub deployment: String,
    /// Whether its breaker lets no calls flow.
    pub cut: bool,
    /// Whether it is this replica that asks the deployment from time to time.
    pub probes: bool,
}

/// What one peer told last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHealth {
    /// Which.
    pub replica: ReplicaId,
    /// Whether it goes first where one of two must probe.
    pub goes_first: bool,
    /// Its deployments.
    pub health: Vec<Health>,
}

/// One model call.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The route in the router's configuration.
    pub route: String,
    /// Who pays.
    pub tenant: TenantId,
    /// For which run.
    pub run: RunId,
    /// For which step.
    pub step: u32,
    /// What for.
    pub purpose: Purpose,
    /// Interactive before batch.
    pub class: Class,
    /// Whether the run has begun: its steps go before new runs.
    pub begun: bool,
    /// No answer is wanted after this instant.
    pub deadline: Wall,
    /// The system prompt.
    pub system: String,
    /// The history, in the neutral form, valid (every call answered).
    pub messages: Vec<Message>,
    /// Tools offered, in fixed order; empty for compaction.
    pub tools: Vec<ToolSpec>,
    /// Output tokens asked for.
    pub output_tokens_max: u32,
    /// Attempts already made for this step before it was parked.
    pub prior_attempts: u32,
    /// The permit with which a parked run was woken; its call is the probe.
    pub permit: Option<Permit>,
    /// Whether another tier may answer.
    pub fallback: bool,
}

/// The right of one parked run to try again, handed out by a deployment that probes or ramps.
/// Dropping it unused gives its place back.
#[derive(Clone)]
pub struct Permit(pub Arc<dyn PermitToken>);

/// What the router keeps in a permit.
pub trait PermitToken: Send + Sync {
    /// The route that it is for.
    fn route(&self) -> &str;
    /// The deployment that hands it out.
    fn deployment(&self) -> &str;
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} on {})", self.0.route(), self.0.deployment())
    }
}

/// A complete answer.
#[derive(Clone, Debug)]
pub struct ModelReply {
    /// The assistant message: blocks in order, tool arguments valid JSON objects, call ids are the
    /// provider's (in `wire_id`) and ours (`CallId::of(run, step, idx)`).
    pub message: Message,
    /// `stop`, `tool_calls`, `length` or `refusal`.
    pub finish: String,
    /// Tokens of the answer itself.
    pub usage: Usage,
    /// Every attempt of this call, the last one `ok`.
    pub attempts: Vec<Attempt>,
}

/// How a call ended.
#[derive(Debug)]
pub enum ModelOutcome {
    /// The answer.
    Done(Box<ModelReply>),
    /// Not now: store the run as `waiting(model)` and give everything back.
    Park {
        /// When a look is next worth it, if known.
        until_hint: Option<Wall>,
        /// In words.
        reason: String,
        /// Attempts made so far in this call.
        attempts: Vec<Attempt>,
    },
    /// The context does not fit any window of the route: compact, then try once more.
    ContextTooLong {
        /// Attempts made so far in this call.
        attempts: Vec<Attempt>,
    },
    /// Never, with the cause.
    Fatal {
        /// The cause.
        error: Error,
        /// Attempts made so far in this call.
        attempts: Vec<Attempt>,
    },
}

/// Receives provisional pieces while a call runs.
pub trait Progress: Send + Sync {
    /// A piece of attempt `attempt` (counts from 1 over the step).
    fn piece(&self, attempt: u32, piece: Provisional);
}

/// A progress that nobody watches.
pub struct Unwatched;

impl Progress for Unwatched {
    fn piece(&self, _attempt: u32, _piece: Provisional) {}
}

/// What the harness must know of a route to manage context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteFacts {
    /// The smallest window of the route's first tier, in tokens.
    pub context_tokens: u64,
    /// Learnt bytes per token of the first tier.
    pub bytes_per_token: f64,
    /// How long a durable run may wait for the route in all.
    pub park_max: Duration,
}

/// The model router as the harness sees it.
pub trait Model: Send + Sync {
    /// Makes one call. Dropping the future cancels it upstream.
    fn call(&self, request: ModelRequest, progress: Arc<dyn Progress>) -> BoxFuture<'_, ModelOutcome>;

    /// Facts of a route; `None` if there is no such route.
    fn route(&self, route: &str) -> Option<RouteFacts>;

    /// How many runs are parked on `route`, so that the router probes and hands out permits only
    /// when somebody waits. The harness calls it whenever the number changes.
    fn parked(&self, route: &str, n_parked: usize);

    /// How its deployments are, for the other replicas; none if it knows of no others.
    fn health(&self) -> Vec<Health> {
        Vec::new()
    }

    /// What the living peers last told. Called after each heartbeat.
    fn heard(&self, peers: Vec<PeerHealth>) {
        drop(peers);
    }

    /// Waits until some route has a permit for a parked run. Each permit wakes one run.
    fn next_permit(&self) -> BoxFuture<'_, Permit>;
}
