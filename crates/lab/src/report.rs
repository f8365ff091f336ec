//! The result of a run: goals, figures, violations; for scripts (JSON), people (a table) and
//! engineers (one HTML page with charts).

mod charts;
pub mod html;
mod probes;
pub mod terminal;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::check::{self, Counts, History, Tally, TaskEnd, Violation};
use crate::live::Measured;
use crate::scenario::{Protect, Scenario};
use crate::sim::Trace;

pub(crate) use charts::Charts;
pub(crate) use probes::SOMETIMES;

/// The result of one run. Its JSON is fixed: scripts depend on it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// `live` or `virtual`.
    pub mode: &'static str,
    /// Depth of a virtual run.
    pub depth: Option<&'static str>,
    /// The seed.
    pub seed: u64,
    /// The store's engine.
    pub store: &'static str,
    /// Replicas of the product.
    pub replicas: usize,
    /// With or without protection.
    pub protect: Protect,
    /// Real seconds.
    pub wall_s: f64,
    /// Virtual seconds.
    pub virtual_s: Option<f64>,
    /// Tasks and events, counted.
    pub counts: Counts,
    /// Share of submitted tasks that succeeded.
    pub success_rate: f64,
    /// Task time of those that succeeded.
    pub latency_s: Latency,
    /// Each goal with what was measured.
    pub goals: Vec<Goal>,
    /// Properties that do not hold.
    pub violations: Vec<Violation>,
    /// Of a virtual run the hash of its event log; of a live one that of every task's calls and end.
    pub digest: String,
    /// Whether every goal holds and no property is violated.
    pub pass: bool,

    /// What the scenario shows.
    #[serde(skip)]
    pub about: String,
    /// How each task ended.
    #[serde(skip)]
    pub ends: Vec<TaskEnd>,
    /// Everything that was recorded.
    #[serde(skip)]
    pub history: History,
    /// Which of the things happened that must happen sometimes.
    #[serde(skip)]
    pub probes: BTreeSet<String>,
    /// The event log of a virtual run, if it was wanted.
    #[serde(skip)]
    pub trace: Vec<String>,
    #[serde(skip)]
    pub(crate) charts: Charts,
}

/// How a run was made.
#[derive(Clone, Debug)]
pub(crate) struct How {
    pub(crate) seed: u64,
    pub(crate) protect: Protect,
    pub(crate) store: &'static str,
    pub(crate) replicas: usize,
    pub(crate) wall_s: f64,
    /// The 99th percentile of a run without faults, if there was one.
    pub(crate) base_s: Option<f64>,
    /// What only a virtual run has.
    pub(crate) trace: Option<Trace>,
}

/// Quantiles of task time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Latency {
    /// Quantiles of these seconds; zeros if there are none.
    #[must_use]
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            // The smallest value that at least this share of all do not exceed.
            let rank = (share * seconds.len() as f64).ceil().max(1.0) as usize;
            seconds.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: at(0.50), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
}

/// One goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The key in the scenario file.
    pub name: &'static str,
    /// What must hold.
    pub limit: f64,
    /// What was measured; nothing if it could not be.
    pub measured: Option<f64>,
    /// Whether it holds.
    pub pass: bool,
}

/// Tasks that must have ended before the first fault for their time to count as the base.
const N_BASE_MIN: usize = 10;

impl Report {
    /// Judges what was measured.
    pub(crate) fn new(scenario: &Scenario, how: &How, measured: Measured) -> Self {
        let How { seed, protect, store, replicas, wall_s, base_s, ref trace } = *how;
        let checked = check::history(&measured.history);
        let tally = Tally::of(&measured.history, &checked.violations);
        let latency_s = Latency::of(seconds(&tally.ends, None));
        let base = base_s.or_else(|| base(scenario, &tally.ends));
        let n_submitted = tally.counts.submitted.max(1) as f64;
        let success_rate = tally.counts.completed as f64 / n_submitted;
        let goals = goals(scenario, &tally.counts, success_rate, latency_s, base);
        let pass = checked.pass && goals.iter().all(|goal| goal.pass);
        Self {
            scenario: scenario.name.clone(),
            mode: if trace.is_some() { "virtual" } else { "live" },
            depth: trace.as_ref().map(|trace| trace.depth.as_str()),
            seed,
            store,
            replicas,
            protect,
            wall_s,
            virtual_s: trace.as_ref().map(|trace| trace.virtual_s),
            success_rate,
            latency_s,
            goals,
            violations: checked.violations,
            digest: match trace {
                Some(trace) => trace.digest.clone(),
                None => digest(&tally.ends, &measured.history),
            },
            probes: probes::of(&measured, &tally.counts),
            trace: trace.as_ref().map(|trace| trace.lines.clone()).unwrap_or_default(),
            pass,
            about: scenario.about.clone(),
            charts: Charts::new(scenario, &tally.ends, &measured),
            counts: tally.counts,
            ends: tally.ends,
            history: measured.history,
        }
    }
}

impl Report {
    /// What the load consists of: `task`, or `turn` of a chat.
    pub(crate) fn unit(&self) -> &'static str {
        self.charts.unit()
    }
}

/// Task times in seconds of tasks that succeeded, only of those told before `before_ms` if given.
fn seconds(ends: &[TaskEnd], before_ms: Option<u64>) -> Vec<f64> {
    let ok = ends.iter().filter(|end| end.ok);
    let took = ok.filter_map(|end| end.told_ms.map(|told| (told, told.saturating_sub(end.asked_ms))));
    let took = took.filter(|(told, _)| before_ms.is_none_or(|before| *told < before));
    took.map(|(_, ms)| ms as f64 / 1_000.0).collect()
}

/// The 99th percentile without any fault: of the tasks that ended before the first one. Too few of
/// them are no measure.
fn base(scenario: &Scenario, ends: &[TaskEnd]) -> Option<f64> {
    let first_ms = scenario.first_fault_s().map_or(u64::MAX, |first_s| (first_s * 1_000.0) as u64);
    let seconds = seconds(ends, Some(first_ms));
    (seconds.len() >= N_BASE_MIN).then(|| Latency::of(seconds).p99)
}

fn goals(
    scenario: &Scenario,
    counts: &Counts,
    success_rate: f64,
    latency: Latency,
    base: Option<f64>,
) -> Vec<Goal> {
    let wanted = &scenario.goals;
    let at_least = |name, limit: f64, measured: f64| Goal {
        name,
        limit,
        measured: Some(measured),
        pass: measured >= limit,
    };
    let at_most = |name, limit: f64, measured: f64| Goal {
        name,
        limit,
        measured: Some(measured),
        pass: measured <= limit,
    };
    let mut goals = vec![at_least("success_min", wanted.success_min, success_rate)];
    goals.extend(wanted.p99_max_s.map(|limit| at_most("p99_max_s", limit, latency.p99)));
    goals.extend(wanted.p99_over_base_max_s.map(|limit| {
        let measured = base.map(|base| latency.p99 - base);
        Goal {
            name: "p99_over_base_max_s",
            limit,
            measured,
            pass: measured.is_some_and(|over| over <= limit),
        }
    }));
    goals.push(at_most("lost_max", wanted.lost_max as f64, counts.lost as f64));
    goals.push(at_most("doubled_max", wanted.doubled_max as f64, counts.doubled as f64));
    let calls = wanted.calls_while_down_max;
    goals.extend(
        calls.map(|limit| at_most("calls_while_down_max", limit as f64, counts.calls_while_down as f64)),
    );
    goals.extend(
        wanted
            .broken_requests_max
            .map(|limit| at_most("broken_requests_max", limit as f64, counts.broken_requests as f64)),
    );
    goals
        .extend(wanted.resumed_min.map(|limit| at_least("resumed_min", limit as f64, counts.resumed as f64)));
    goals.extend(wanted.fenced_min.map(|limit| at_least("fenced_min", limit as f64, counts.fenced as f64)));
    goals.extend(wanted.parked_min.map(|limit| at_least("parked_min", limit as f64, counts.parked as f64)));
    goals
}

/// The same seed and the same outcome give the same digest: scripts, ends and calls of every task,
/// without times and ids.
fn digest(ends: &[TaskEnd], history: &History) -> String {
    let mut hasher = blake3::Hasher::new();
    for end in ends {
        hasher.update(format!("{} {} {}\n", end.task, end.script, end.ok).as_bytes());
    }
    for entry in &history.entries {
        if let check::Entry::Stored { task, events, .. } = entry {
            for message in events.iter().filter_map(|event| match &event.body {
                evenkeel_core::journal::EventBody::AssistantMessage { message, .. } => Some(message),
                _ => None,
            }) {
                for call in message.tool_calls() {
                    let args = crate::task::canonical(&call.args);
                    hasher.update(format!("{task} {} {args}\n", call.name).as_bytes());
                }
            }
        }
    }
    hasher.finalize().to_hex().chars().take(16).collect()
}
