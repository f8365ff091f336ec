//! The series behind the charts of the HTML page.

use std::collections::BTreeMap;

use evenkeel_core::journal::EventBody;
use serde::Serialize;
use serde_json::Value;

use crate::check::{Entry, History, TaskEnd};
use crate::live::{Measured, Sample};
use crate::scenario::Scenario;

/// Everything that is drawn. Times are seconds since the load began.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Charts {
    /// How long the time axis is.
    end_s: f64,
    faults: Vec<Span>,
    /// Second by second.
    line: Vec<Second>,
    tasks: Vec<Dot>,
    /// Calls by provider, second and outcome.
    calls: BTreeMap<String, Vec<BTreeMap<&'static str, u64>>>,
    /// Breaker state by deployment: where each state begins.
    states: BTreeMap<String, Vec<(f64, String)>>,
    /// By deployment: seconds from the first failure to the opening, and to the first success after it.
    outages: BTreeMap<String, (Option<f64>, Option<f64>)>,
    /// Slots in use by component, at each look.
    slots: BTreeMap<String, Vec<(f64, f64)>>,
    limits: BTreeMap<&'static str, usize>,
    /// The age of the oldest parked and of the oldest queued run, second by second.
    ages: Vec<(f64, f64, f64)>,
    /// Attempts without an answer, by class.
    retried: BTreeMap<String, u64>,
    notes: Vec<String>,
}

/// A fault or a gap on the time axis.
#[derive(Clone, Debug, Serialize)]
struct Span {
    from_s: f64,
    to_s: f64,
    target: String,
    kind: String,
}

/// One second of the load.
#[derive(Clone, Debug, Default, Serialize)]
struct Second {
    arrived: u64,
    succeeded: u64,
    failed: u64,
    running: u64,
    parked: u64,
    queued: u64,
}

/// One task.
#[derive(Clone, Debug, Serialize)]
struct Dot {
    at_s: f64,
    took_s: Option<f64>,
    ok: bool,
    script: String,
}

/// Where a run stood between two instants.
struct Stay {
    from_s: f64,
    to_s: f64,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Queued,
    Running,
    Parked,
}

impl Charts {
    pub(crate) fn new(scenario: &Scenario, ends: &[TaskEnd], measured: &Measured) -> Self {
        let stays = stays(&measured.history, measured.began_wall_ms);
        let last_told = ends.iter().filter_map(|end| end.told_ms).max().unwrap_or_default();
        let end_s = (last_told as f64 / 1_000.0)
            .max(scenario.traffic.duration_s)
            .max(scenario.last_heal_s().min(600.0))
            + 2.0;
        let limits = &scenario.limits;
        Self {
            end_s,
            faults: faults(scenario, &measured.history),
            line: line(ends, &stays, end_s),
            tasks: ends.iter().map(dot).collect(),
            calls: calls(measured, end_s),
            states: states(measured),
            outages: outages(&measured.router),
            slots: slots(&measured.samples),
            limits: BTreeMap::from([
                ("harness", limits.harness.slots),
                ("tools", limits.tools.slots),
                ("sandbox", limits.sandbox.slots),
                ("policy", limits.policy.slots),
                ("compactor", limits.compactor.slots),
                ("store", limits.store.slots),
                ("api", limits.api.slots),
                ("gateway", limits.gateway.slots),
            ]),
            ages: ages(&stays, end_s),
            retried: retried(&measured.history),
            notes: measured.left_out.clone(),
        }
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

fn dot(end: &TaskEnd) -> Dot {
    let took_s = end.told_ms.map(|told| seconds(told.saturating_sub(end.asked_ms)));
    Dot { at_s: seconds(end.asked_ms), took_s, ok: end.ok, script: end.script.clone() }
}

/// Planned faults, but kills where they really happened.
fn faults(scenario: &Scenario, history: &History) -> Vec<Span> {
    let planned = scenario.faults.iter().filter(|fault| fault.kind() != "kill");
    let mut spans: Vec<Span> = planned
        .flat_map(|fault| {
            let span = |(from_s, to_s)| Span {
                from_s,
                to_s,
                target: fault.target_name(),
                kind: fault.kind().to_owned(),
            };
            fault.spans().into_iter().map(span).collect::<Vec<_>>()
        })
        .collect();
    let mut killed_s = None;
    for entry in &history.entries {
        match entry {
            Entry::Fault { kind, on: true, t, .. } if kind == "kill" => killed_s = Some(seconds(*t)),
            Entry::Fault { kind, on: false, t, target } if kind == "kill" => {
                let from_s = killed_s.take().unwrap_or_else(|| seconds(*t));
                spans.push(Span { from_s, to_s: seconds(*t), target: target.clone(), kind: kind.clone() });
            }
            _ => {}
        }
    }
    spans
}

/// Where every run stood when, from the stored events.
fn stays(history: &History, began_wall_ms: u64) -> Vec<Stay> {
    let mut stays = Vec::new();
    for entry in &history.entries {
        let Entry::Stored { run, events, .. } = entry else { continue };
        let at_s = |wall: evenkeel_core::Wall| seconds(wall.ms().saturating_sub(began_wall_ms));
        let (mut since_s, mut place) = (at_s(run.created_at), Place::Queued);
        for event in events {
            let next = match event.body {
                EventBody::RunClaimed { .. } => Some(Place::Running),
                EventBody::Parked { .. } => Some(Place::Parked),
                EventBody::RunEnded { .. } => None,
                _ => continue,
            };
            stays.push(Stay { from_s: since_s, to_s: at_s(event.at), place });
            since_s = at_s(event.at);
            match next {
                Some(next) => place = next,
                None => break,
            }
        }
    }
    stays
}

fn line(ends: &[TaskEnd], stays: &[Stay], end_s: f64) -> Vec<Second> {
    let n_seconds = end_s.ceil() as usize;
    let mut line = vec![Second::default(); n_seconds];
    for end in ends {
        if let Some(second) = line.get_mut((end.asked_ms / 1_000) as usize) {
            second.arrived += 1;
        }
        if let Some(second) = end.told_ms.and_then(|told| line.get_mut((told / 1_000) as usize)) {
            second.succeeded += u64::from(end.ok);
            second.failed += u64::from(!end.ok);
        }
    }
    for (idx, second) in line.iter_mut().enumerate() {
        let now_s = idx as f64;
        for stay in stays.iter().filter(|stay| (stay.from_s..stay.to_s).contains(&now_s)) {
            match stay.place {
                Place::Queued => second.queued += 1,
                Place::Running => second.running += 1,
                Place::Parked => second.parked += 1,
            }
        }
    }
    line
}

fn calls(measured: &Measured, end_s: f64) -> BTreeMap<String, Vec<BTreeMap<&'static str, u64>>> {
    let n_seconds = end_s.ceil() as usize;
    let of_provider = |(name, counters): (&String, &crate::provider::Counters)| {
        let offset = measured.provider_offsets.get(name).copied().unwrap_or_default() / 1_000;
        let mut seconds = vec![BTreeMap::new(); n_seconds];
        for (second, outcomes) in &counters.by_second {
            let idx = second.saturating_sub(offset) as usize;
            if let Some(place) = seconds.get_mut(idx) {
                *place = outcomes.clone();
            }
        }
        (name.clone(), seconds)
    };
    measured.providers.iter().map(of_provider).collect()
}

/// The router's own transitions are exact, but go with the process; after a kill the looks must do.
fn states(measured: &Measured) -> BTreeMap<String, Vec<(f64, String)>> {
    let mut states: BTreeMap<String, Vec<(f64, String)>> = BTreeMap::new();
    let was_killed = measured.history.entries.iter().any(|entry| match entry {
        Entry::Fault { kind, .. } => kind == "kill",
        entry => matches!(entry, Entry::Crash { .. }),
    });
    if !was_killed {
        for name in measured.router["deployments"].as_object().into_iter().flatten().map(|(name, _)| name) {
            states.insert(name.clone(), vec![(0.0, "closed".to_owned())]);
        }
        for change in measured.router["transitions"].as_array().into_iter().flatten() {
            let at_ms = change["at"].as_u64().unwrap_or_default().saturating_sub(measured.began_wall_ms);
            let words = (change["deployment"].as_str(), change["to"].as_str());
            if let (Some(name), Some(to)) = words {
                states.entry(name.to_owned()).or_default().push((seconds(at_ms), to.to_owned()));
            }
        }
        return states;
    }
    for sample in &measured.samples {
        for (name, state) in &sample.states {
            let changes = states.entry(name.clone()).or_default();
            if changes.last().is_none_or(|(_, last)| last != state) {
                changes.push((seconds(sample.t), state.clone()));
            }
        }
    }
    states
}

/// What the router measured of the last outage of each deployment.
fn outages(router: &Value) -> BTreeMap<String, (Option<f64>, Option<f64>)> {
    let deployments = router["deployments"].as_object().into_iter().flatten();
    let figures = deployments.map(|(name, deployment)| {
        (name.clone(), (deployment["seconds_to_detect"].as_f64(), deployment["seconds_to_recover"].as_f64()))
    });
    figures.filter(|(_, (detect, recover))| detect.is_some() || recover.is_some()).collect()
}

fn slots(samples: &[Sample]) -> BTreeMap<String, Vec<(f64, f64)>> {
    let mut slots: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples {
        for (component, n) in &sample.slots {
            slots.entry(component.clone()).or_default().push((seconds(sample.t), *n));
        }
    }
    slots
}

fn ages(stays: &[Stay], end_s: f64) -> Vec<(f64, f64, f64)> {
    let oldest = |now_s: f64, place: Place| {
        let there =
            stays.iter().filter(|stay| stay.place == place && (stay.from_s..stay.to_s).contains(&now_s));
        there.map(|stay| now_s - stay.from_s).fold(0.0, f64::max)
    };
    let row = |second: usize| {
        let now_s = second as f64;
        (now_s, oldest(now_s, Place::Parked), oldest(now_s, Place::Queued))
    };
    (0..end_s.ceil() as usize).map(row).collect()
}

fn retried(history: &History) -> BTreeMap<String, u64> {
    let mut retried = BTreeMap::new();
    for entry in &history.entries {
        let Entry::Stored { events, .. } = entry else { continue };
        for event in events {
            if let EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } =
                &event.body
            {
                for attempt in attempts.iter().filter(|attempt| attempt.outcome != "ok") {
                    *retried.entry(attempt.outcome.clone()).or_default() += 1;
                }
            }
        }
    }
    retried
}
