//! The series behind the charts of the HTML page.

use std::collections::BTreeMap;

use evenkeel_core::id::RunId;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::run::Run;
use serde::Serialize;
use serde_json::Value;

use crate::check::{Entry, History, TaskEnd};
use crate::live::{Look, Measured, Sample};
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
    /// `task`, or `turn` of a chat.
    unit: &'static str,
    /// Time of what arrived in each second: median, 99th percentile and longest, where there is any.
    quantiles: Vec<(f64, f64, f64, f64)>,
    /// Each replica at each look.
    replicas: BTreeMap<String, Vec<(f64, Look)>>,
    /// The threads of a chat.
    threads: Option<Threads>,
    notes: Vec<String>,
}

/// How the turns of a chat fell on its threads.
#[derive(Clone, Debug, Default, Serialize)]
struct Threads {
    n: usize,
    /// Turns on the thread with the most.
    turns_max: usize,
    /// Turns that waited for the turn before them.
    queued: usize,
    /// The longest wait of a turn for its thread, in seconds.
    queued_max_s: f64,
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
        // Slots are counted over all replicas, so their limits are too.
        let n = measured.samples.iter().map(|sample| sample.replicas.len()).max().unwrap_or_default().max(1);
        Self {
            end_s,
            faults: faults(scenario, &measured.history),
            line: line(ends, &stays, end_s),
            tasks: dots(ends),
            unit: if scenario.is_chat() { "turn" } else { "task" },
            quantiles: quantiles(ends),
            replicas: replicas(&measured.samples),
            threads: scenario.is_chat().then(|| threads(&measured.history, &stays)),
            calls: calls(measured, end_s),
            states: states(measured),
            outages: outages(&measured.router),
            slots: slots(&measured.samples),
            limits: BTreeMap::from([
                ("harness", n * limits.harness.slots),
                ("tools", n * limits.tools.slots),
                ("sandbox", n * limits.sandbox.slots),
                ("policy", n * limits.policy.slots),
                ("compactor", n * limits.compactor.slots),
                ("store", n * limits.store.slots),
                ("api", n * limits.api.slots),
                ("gateway", n * limits.gateway.slots),
            ]),
            ages: ages(&stays, end_s),
            retried: retried(&measured.history),
            notes: measured.left_out.clone(),
        }
    }
}

impl Charts {
    /// What the load consists of: `task`, or `turn` of a chat.
    pub(crate) fn unit(&self) -> &'static str {
        self.unit
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// Dots that a page shows at most; of more, every so manieth, and those that did not succeed first.
const N_DOTS: usize = 1_200;

fn dots(ends: &[TaskEnd]) -> Vec<Dot> {
    let failed = ends.iter().filter(|end| !end.ok).take(N_DOTS / 2);
    let succeeded = ends.iter().filter(|end| end.ok);
    let every = ends.len().div_ceil(N_DOTS).max(1);
    failed.chain(succeeded.step_by(every)).map(dot).collect()
}

fn quantiles(ends: &[TaskEnd]) -> Vec<(f64, f64, f64, f64)> {
    let mut by_second: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for end in ends {
        if let Some(told) = end.told_ms {
            let took_s = seconds(told.saturating_sub(end.asked_ms));
            by_second.entry(end.asked_ms / 1_000).or_default().push(took_s);
        }
    }
    let row = |(second, took): (u64, Vec<f64>)| {
        let of = super::Latency::of(took);
        (second as f64, of.p50, of.p99, of.max)
    };
    by_second.into_iter().map(row).collect()
}

fn replicas(samples: &[Sample]) -> BTreeMap<String, Vec<(f64, Look)>> {
    let mut replicas: BTreeMap<String, Vec<(f64, Look)>> = BTreeMap::new();
    for sample in samples {
        for (name, look) in &sample.replicas {
            replicas.entry(name.clone()).or_default().push((seconds(sample.t), *look));
        }
    }
    replicas
}

fn threads(history: &History, stays: &[Stay]) -> Threads {
    let mut threads = Threads::default();
    for entry in &history.entries {
        if let Entry::Log { runs, .. } = entry {
            threads.n += 1;
            threads.turns_max = threads.turns_max.max(runs.len());
        }
    }
    let waits = stays.iter().filter(|stay| stay.place == Place::Queued).map(|stay| stay.to_s - stay.from_s);
    for wait_s in waits.filter(|wait_s| *wait_s > QUEUED_S) {
        threads.queued += 1;
        threads.queued_max_s = threads.queued_max_s.max(wait_s);
    }
    threads
}

/// A claim that takes longer has waited for something.
const QUEUED_S: f64 = 0.1;

fn dot(end: &TaskEnd) -> Dot {
    let took_s = end.told_ms.map(|told| seconds(told.saturating_sub(end.asked_ms)));
    Dot { at_s: seconds(end.asked_ms), took_s, ok: end.ok, script: end.script.clone() }
}

/// Faults whose instants are known only afterwards.
const HAPPENED: [&str; 3] = ["kill", "restart", "rolling_restart"];

/// Planned faults, but kills and restarts where they really happened.
fn faults(scenario: &Scenario, history: &History) -> Vec<Span> {
    let planned = scenario.faults.iter().filter(|fault| !HAPPENED.contains(&fault.kind()));
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
            Entry::Fault { kind, on: true, t, .. } if HAPPENED.contains(&kind.as_str()) => {
                killed_s = Some(seconds(*t))
            }
            Entry::Fault { kind, on: false, t, target } if HAPPENED.contains(&kind.as_str()) => {
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
        match entry {
            Entry::Stored { run, events, .. } => add_stays(&mut stays, run, events.iter(), began_wall_ms),
            Entry::Log { runs, events, .. } => {
                let mut own: BTreeMap<RunId, Vec<&Event>> = BTreeMap::new();
                for event in events {
                    own.entry(event.run).or_default().push(event);
                }
                for run in runs {
                    let events = own.get(&run.id).into_iter().flatten().copied();
                    add_stays(&mut stays, run, events, began_wall_ms);
                }
            }
            _ => {}
        }
    }
    stays
}

fn add_stays<'a>(
    stays: &mut Vec<Stay>,
    run: &Run,
    events: impl Iterator<Item = &'a Event>,
    began_wall_ms: u64,
) {
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
    for stay in stays {
        let first = stay.from_s.ceil() as usize;
        for second in line.iter_mut().take(stay.to_s.ceil() as usize).skip(first) {
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
        let (Entry::Stored { events, .. } | Entry::Log { events, .. }) = entry else { continue };
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
