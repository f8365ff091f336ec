//! What one task or turn asks of each component, measured from a virtual run without faults.
//!
//! Slots say how often they were taken and how long they were held, provider and edge how often they
//! were called. What a run of the same product without any load does in the same time (upkeep, and
//! the lab's own looks) is counted apart: it does not grow with the rate.

use evenkeel_core::journal::{Event, EventBody};
use serde::Serialize;

use super::keys::Keys;
use crate::check::{Entry, History};
use crate::live::usage::{CALLS, COMMITS, Reading, STREAMS, TOKENS_IN, TOKENS_OUT, Used};
use crate::scenario::Scenario;

/// The components of both systems, in the order in which a request meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Component {
    /// Where traffic enters; the load balancer of a chat.
    Gateway,
    /// Accepts runs and reads of them.
    Api,
    /// Runs at work.
    Harness,
    /// The providers of all tiers.
    Model,
    /// Judges tool calls.
    Policy,
    /// Files, search, git and MCP servers.
    Tools,
    /// Runs commands.
    Sandbox,
    /// Summarises long contexts.
    Compactor,
    /// Checkpoints; the state of threads.
    Store,
    /// Spans of everything.
    Tracing,
}

impl Component {
    /// All of them.
    pub(crate) const ALL: [Self; 10] = [
        Self::Gateway,
        Self::Api,
        Self::Harness,
        Self::Model,
        Self::Policy,
        Self::Tools,
        Self::Sandbox,
        Self::Compactor,
        Self::Store,
        Self::Tracing,
    ];

    /// Its name in `[limits]`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Api => "api",
            Self::Harness => "harness",
            Self::Model => "model",
            Self::Policy => "policy",
            Self::Tools => "tools",
            Self::Sandbox => "sandbox",
            Self::Compactor => "compactor",
            Self::Store => "store",
            Self::Tracing => "tracing",
        }
    }
}

/// What a limit limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Of {
    Connections,
    Slots,
    Streams,
    /// One turn at a time on the one thread that everybody writes to.
    #[serde(rename = "hot thread")]
    HotThread,
    #[serde(rename = "calls/min")]
    Calls,
    #[serde(rename = "input tokens/min")]
    TokensIn,
    #[serde(rename = "commits/s")]
    Commits,
    #[serde(rename = "spans/min")]
    Spans,
}

impl Of {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Slots => "slots",
            Self::Streams => "streams",
            Self::HotThread => "the hot thread",
            Self::Calls => "calls/min",
            Self::TokensIn => "input tokens/min",
            Self::Commits => "commits/s",
            Self::Spans => "spans/min",
        }
    }

    /// Seconds of the time that the limit is written for; 1 for what is in use at once.
    pub(crate) fn per_s(self) -> f64 {
        match self {
            Self::Calls | Self::TokensIn | Self::Spans => 60.0,
            _ => 1.0,
        }
    }

    /// Whether it is a number in use at once, rather than a number in a time.
    pub(crate) fn is_held(self) -> bool {
        matches!(self, Self::Connections | Self::Slots | Self::Streams | Self::HotThread)
    }
}

/// What one task or turn takes of one limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Demand {
    pub(crate) component: Component,
    pub(crate) of: Of,
    /// How often.
    pub(crate) visits: f64,
    /// Seconds of a slot in all, or how many of a rate.
    pub(crate) cost: f64,
    /// In use, or used a second, without any load.
    pub(crate) idle: f64,
    /// In use at once, or a second.
    pub(crate) limit: f64,
}

impl Demand {
    /// Mean seconds of one visit; none for a rate, or without a visit.
    pub(crate) fn service_s(&self) -> Option<f64> {
        (self.of.is_held() && self.visits > 0.0).then(|| self.cost / self.visits)
    }

    /// Little's law: what is in use at once, or used a second, at this rate.
    pub(crate) fn needed(&self, rate_per_s: f64) -> f64 {
        self.idle + rate_per_s * self.cost
    }

    /// The rate at which all of the limit is in use.
    pub(crate) fn saturates_at(&self) -> Option<f64> {
        (self.cost > 0.0).then(|| ((self.limit - self.idle) / self.cost).max(0.0))
    }
}

/// What one task or turn makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Made {
    pub(crate) model_calls: f64,
    pub(crate) input_tokens: f64,
    pub(crate) output_tokens: f64,
    pub(crate) tool_calls: f64,
    pub(crate) sandbox_runs: f64,
    pub(crate) compactions: f64,
    pub(crate) store_operations: f64,
    pub(crate) commits: f64,
    pub(crate) spans: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) made: Made,
    pub(crate) demands: Vec<Demand>,
}

/// What was used for one unit, and each second without any load.
struct Share {
    unit: Reading,
    calm: Reading,
}

impl Share {
    fn of(usage: &[Reading], n_units: usize) -> Option<Self> {
        let [first, second, .., last] = usage else { return None };
        let (calm, all) = (second.since(first), last.since(second));
        if !calm.complete || !all.complete {
            return None;
        }
        let per_s = |used: Used| Used { n: used.n / calm.at_s, held_s: used.held_s / calm.at_s };
        let calm_s: std::collections::BTreeMap<_, _> =
            calm.totals.iter().map(|(name, used)| (name.clone(), per_s(*used))).collect();
        let own = |name: &String, used: &Used| {
            let calm = calm_s.get(name).copied().unwrap_or_default();
            let part = |total: f64, each_s: f64| ((total - each_s * all.at_s) / n_units as f64).max(0.0);
            Used { n: part(used.n, calm.n), held_s: part(used.held_s, calm.held_s) }
        };
        let unit = all.totals.iter().map(|(name, used)| (name.clone(), own(name, used))).collect();
        Some(Self { unit: Reading { totals: unit, ..all }, calm: Reading { totals: calm_s, ..calm } })
    }
}

impl Work {
    /// What `n_units` have done between the second and the last reading of a run.
    pub(crate) fn of(
        usage: &[Reading],
        history: &History,
        n_units: usize,
        limits: &Limited<'_>,
    ) -> Option<Self> {
        let Share { unit, calm } = Share::of(usage, n_units)?;
        let providers = || limits.scenario.provider.iter();
        let sum = |prefix: &str| -> Used {
            let each = providers().map(|provider| unit.of(&format!("{prefix}{}", provider.name)));
            each.fold(Used::default(), |a, b| Used { n: a.n + b.n, held_s: a.held_s + b.held_s })
        };
        let (streams, tokens_in) = (sum(STREAMS), sum(TOKENS_IN).n);
        let spans = n_spans(history) / n_units as f64;
        let made = Made {
            model_calls: streams.n,
            input_tokens: tokens_in,
            output_tokens: sum(TOKENS_OUT).n,
            tool_calls: n_of(history, |body| matches!(body, EventBody::EffectSettled(_))) / n_units as f64,
            sandbox_runs: unit.of("sandbox").n,
            compactions: unit.of("compactor").n,
            store_operations: unit.of("store").n,
            commits: unit.of(COMMITS).n,
            spans,
        };
        let rate = |component, of, n: f64, idle: f64| Demand {
            component,
            of,
            visits: n,
            cost: n,
            idle,
            limit: limits.of(component, of),
        };
        let held = |component: Component, of, used: Used, idle: f64| {
            let service_s = limits.keys.service_ms.get(component.name()).map(|ms| ms / 1_000.0);
            let cost = service_s.map_or(used.held_s, |service_s| used.n * service_s);
            Demand { component, of, visits: used.n, cost, idle, limit: limits.of(component, of) }
        };
        let slots = |component: Component, of| {
            held(component, of, unit.of(component.name()), calm.of(component.name()).held_s)
        };
        // Slots of the harness are also taken to look for work, and given back at once.
        let n_claims = n_of(history, |body| matches!(body, EventBody::RunClaimed { .. }));
        let mut demands = Vec::new();
        for component in Component::ALL {
            match component {
                Component::Gateway => {
                    demands.push(slots(component, Of::Connections));
                    demands.push(rate(component, Of::Calls, unit.of(CALLS).n, calm.of(CALLS).n));
                }
                Component::Model => {
                    demands.push(held(component, Of::Streams, streams, 0.0));
                    demands.push(rate(component, Of::Calls, streams.n, 0.0));
                    demands.push(rate(component, Of::TokensIn, tokens_in, 0.0));
                }
                Component::Harness => {
                    let used = Used { n: n_claims / n_units as f64, ..unit.of(component.name()) };
                    demands.push(held(component, Of::Slots, used, calm.of(component.name()).held_s));
                    if limits.scenario.is_chat() && limits.scenario.chat.hot_share > 0.0 {
                        let share = limits.scenario.chat.hot_share;
                        let hot = Used { n: used.n * share, held_s: used.held_s * share };
                        demands.push(held(component, Of::HotThread, hot, 0.0));
                    }
                }
                Component::Tracing => demands.push(rate(component, Of::Spans, spans, 0.0)),
                Component::Store => {
                    demands.push(slots(component, Of::Slots));
                    if limits.keys.commits_per_s.is_some() {
                        demands.push(rate(component, Of::Commits, made.commits, calm.of(COMMITS).n));
                    }
                }
                _ => demands.push(slots(component, Of::Slots)),
            }
        }
        Some(Self { made, demands })
    }
}

/// What limits a topology.
pub(crate) struct Limited<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) keys: &'a Keys,
    pub(crate) replicas: usize,
}

impl Limited<'_> {
    /// How much there is of this: over all replicas, and over the providers of all tiers, since a
    /// call for which the first has no room goes to the next.
    pub(crate) fn of(&self, component: Component, of: Of) -> f64 {
        let limits = &self.scenario.limits;
        let each = self.replicas as f64;
        let provider = |value: fn(&evenkeel_model::config::DeploymentLimits) -> f64| -> f64 {
            self.scenario.provider.iter().map(|provider| value(&provider.limits)).sum()
        };
        match (component, of) {
            (Component::Gateway, Of::Connections) => limits.gateway.slots as f64,
            (Component::Gateway, _) => f64::from(limits.gateway.calls_per_min) / 60.0,
            (Component::Api, _) => limits.api.slots as f64 * each,
            (Component::Harness, Of::HotThread) => 1.0,
            (Component::Harness, _) => limits.harness.slots as f64 * each,
            (Component::Model, Of::Calls) => provider(|limits| limits.calls_per_min as f64 / 60.0),
            (Component::Model, Of::TokensIn) => provider(|limits| limits.input_tokens_per_min as f64 / 60.0),
            (Component::Model, _) => provider(|limits| f64::from(limits.streams)),
            (Component::Policy, _) => limits.policy.slots as f64 * each,
            (Component::Tools, _) => limits.tools.slots as f64 * each,
            (Component::Sandbox, _) => limits.sandbox.slots as f64 * each,
            (Component::Compactor, _) => limits.compactor.slots as f64 * each,
            (Component::Store, Of::Commits) => self.keys.commits_per_s.unwrap_or(f64::INFINITY),
            (Component::Store, _) => limits.store.slots as f64 * each,
            (Component::Tracing, _) => f64::from(limits.tracing.calls_per_min) / 60.0 * each,
        }
    }
}

/// Every stored event of a history.
pub(crate) fn events(history: &History) -> impl Iterator<Item = &Event> {
    history.entries.iter().flat_map(|entry| match entry {
        Entry::Stored { events, .. } | Entry::Log { events, .. } => events.as_slice(),
        _ => &[],
    })
}

/// How many events are such ones.
fn n_of(history: &History, is_one: fn(&EventBody) -> bool) -> f64 {
    events(history).filter(|event| is_one(&event.body)).count() as f64
}

/// One span for each run, step, attempt and tool call.
fn n_spans(history: &History) -> f64 {
    let spans = events(history).map(|event| match &event.body {
        EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } => {
            attempts.len()
        }
        EventBody::EffectSettled(_) | EventBody::Checkpoint { .. } | EventBody::RunEnded { .. } => 1,
        _ => 0,
    });
    spans.sum::<usize>() as f64
}
