//! Scenarios: one TOML file per promise.
//!
//! A file says what runs (topology with the limits of every component), what load is put on it,
//! what breaks when, and which goals must hold. Unknown keys and impossible values are refused with
//! file and line, because a scenario that does not say what its author meant proves nothing.

mod chat;
mod embedded;
mod fault;
mod read;
#[cfg(test)]
mod tests;
mod topology;
mod trouble;

use evenkeel_core::Error;
use evenkeel_model::config::DeploymentLimits;
use evenkeel_server::config::Limits;
use serde::Deserialize;

pub use chat::{Chat, Door};
pub use embedded::{Listed, list};
pub use evenkeel_core::control::Protect;
pub use fault::{Action, Link, PlannedFault, Target};
pub use read::{find, find_with_plan, parse};
pub use topology::{StoreChoice, StoreKind, Topology};
pub use trouble::Trouble;

use crate::provider::{Timing, WireKind};
use crate::task::Shape;

/// One scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it shows, in one sentence.
    pub about: String,
    /// The seed, unless the command line names another.
    pub seed: u64,
    /// Whether the product protects what runs.
    pub protect: Protect,
    /// What runs.
    pub topology: Topology,
    /// The load.
    pub traffic: Traffic,
    /// How turns fall on threads, if the load is a chat.
    pub chat: Chat,
    /// How fast the model is.
    pub model: Timing,
    /// The providers, first tier first.
    pub provider: Vec<Provider>,
    /// Limits of the product's components.
    pub limits: Limits,
    /// What breaks, read from `[[fault]]`.
    pub faults: Vec<PlannedFault>,
    /// What must hold.
    pub goals: Goals,
}

/// The load: an open loop, which does not wait for the product.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// What each client asks for.
    pub shape: Shape,
    /// Tasks a second.
    pub rate_per_s: f64,
    /// Seconds.
    pub duration_s: f64,
    /// Only these tasks; all if empty.
    #[serde(default)]
    pub tasks: Vec<String>,
    /// Seconds that the last tasks are waited for after the load and the last fault have ended.
    #[serde(default = "settle_s")]
    pub settle_s: f64,
}

impl Traffic {
    /// Tasks in all.
    #[must_use]
    pub fn n_tasks(&self) -> usize {
        (self.rate_per_s * self.duration_s).round() as usize
    }
}

/// A provider with its one deployment.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Its name: the target `provider:NAME` of faults.
    pub name: String,
    /// The wire it speaks.
    pub wire: WireKind,
    /// What it grants.
    #[serde(default)]
    pub limits: DeploymentLimits,
    /// The model's window; small enough that the big tasks are compacted.
    #[serde(default = "context_tokens")]
    pub context_tokens: u64,
}

/// What must hold at the end.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goals {
    /// Share of submitted tasks that succeed.
    pub success_min: f64,
    /// 99th percentile of task time.
    #[serde(default)]
    pub p99_max_s: Option<f64>,
    /// The same, over the 99th percentile without any fault.
    #[serde(default)]
    pub p99_over_base_max_s: Option<f64>,
    /// Where the 99th percentile without any fault comes from.
    #[serde(default)]
    pub base: Base,
    /// Accepted tasks without an end.
    pub lost_max: u64,
    /// Tasks with an effect that happened twice.
    pub doubled_max: u64,
    /// Calls to a provider while it was down.
    #[serde(default)]
    pub calls_while_down_max: Option<u64>,
    /// Requests of clients without a good answer at most.
    #[serde(default)]
    pub broken_requests_max: Option<u64>,
    /// Claims after a crash at least: a kill that hit nothing proves nothing.
    #[serde(default)]
    pub resumed_min: Option<u64>,
    /// Times that runs were parked at least.
    #[serde(default)]
    pub parked_min: Option<u64>,
    /// Writes refused by fencing at least.
    #[serde(default)]
    pub fenced_min: Option<u64>,
}

/// Where the figures without any fault come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// From the tasks that ended before the first fault.
    #[default]
    BeforeFault,
    /// From a run of its own without faults, for tasks too long to end before the first one.
    OwnRun,
}

fn one() -> u64 {
    1
}

fn settle_s() -> f64 {
    180.0
}

fn context_tokens() -> u64 {
    18_000
}

fn two_providers() -> Vec<Provider> {
    let provider = |name: &str, wire| Provider {
        name: name.to_owned(),
        wire,
        limits: DeploymentLimits::default(),
        context_tokens: context_tokens(),
    };
    vec![provider("primary", WireKind::Openai), provider("secondary", WireKind::Anthropic)]
}

impl Scenario {
    /// The same without faults.
    #[must_use]
    pub(crate) fn without_faults(&self) -> Self {
        let name = format!("{} without faults", self.name);
        Self {
            name,
            about: "The base: the same load, and nothing breaks.".to_owned(),
            faults: Vec::new(),
            ..self.clone()
        }
    }

    /// The same with this share of its load; all of it if none is given.
    ///
    /// # Errors
    /// `scenario-invalid` if the share is no share.
    pub(crate) fn with_load(mut self, share: Option<f64>) -> Result<Self, Error> {
        let share = share.unwrap_or(1.0);
        if !(share > 0.0 && share <= 100.0) {
            return Err(read::invalid(
                format!("{share} is no share of a load."),
                "Give --load a number above 0 and up to 100, such as 0.1 for a tenth.",
            ));
        }
        self.traffic.rate_per_s *= share;
        Ok(self)
    }

    /// Whether the load is turns of a chat.
    #[must_use]
    pub fn is_chat(&self) -> bool {
        self.traffic.shape == Shape::Chat
    }

    /// Seconds within which a turn must be answered to count as a success.
    #[must_use]
    pub fn answer_within_s(&self) -> Option<f64> {
        self.is_chat().then_some(self.chat.answer_within_s)
    }

    /// When the first fault begins, in seconds after the load began.
    #[must_use]
    pub fn first_fault_s(&self) -> Option<f64> {
        self.faults.iter().map(|fault| fault.at_s).reduce(f64::min)
    }

    /// When the last fault has been healed, in seconds after the load began.
    #[must_use]
    pub fn last_heal_s(&self) -> f64 {
        self.faults.iter().flat_map(PlannedFault::spans).map(|(_, ends_s)| ends_s).fold(0.0, f64::max)
    }

    /// Seconds of the longest fault that takes a provider away altogether.
    #[must_use]
    pub fn outage_s(&self) -> f64 {
        let outages = self.faults.iter().filter(|fault| match &fault.action {
            Action::Provider(fault) => fault.is_outage(),
            _ => false,
        });
        outages.map(|fault| fault.for_s).fold(0.0, f64::max)
    }

    /// What makes no sense, in words.
    fn problem(&self) -> Option<String> {
        let traffic = &self.traffic;
        if self.traffic.n_tasks() == 0 || traffic.rate_per_s <= 0.0 {
            return Some("traffic: rate_per_s times duration_s gives no task.".to_owned());
        }
        let unknown =
            traffic.tasks.iter().find(|name| !crate::task::all().iter().any(|script| script.name == **name));
        if let Some(name) = unknown {
            return Some(format!("traffic.tasks: there is no task {name}."));
        }
        if !(0.0..=1.0).contains(&self.goals.success_min) {
            return Some("goals.success_min is a share: from 0 to 1.".to_owned());
        }
        if self.provider.is_empty() {
            return Some("provider: at least one [[provider]] is needed.".to_owned());
        }
        if self.topology.replicas == 0 {
            return Some("topology.replicas is 0: nothing would run.".to_owned());
        }
        if let Some(problem) = self.chat.problem() {
            return Some(problem);
        }
        let names: Vec<&str> = self.provider.iter().map(|provider| provider.name.as_str()).collect();
        if let Some(name) = names.iter().find(|name| names.iter().filter(|other| other == name).count() > 1) {
            return Some(format!("provider: the name {name} is there twice."));
        }
        None
    }
}
