//! The harvest: after everything has ended, what the store holds of each task, what its workspace
//! contained, and what the providers and the product counted.

use std::time::Duration;

use anyhow::Context as _;
use evenkeel_core::journal::Event;
use evenkeel_core::run::{Run as StoredRun, RunState};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;
use tokio::time::Instant;

use super::client::Door;
use super::{Run, Sample, Tasks};
use crate::check::Entry;

const PAGE: usize = 1_000;
const N_EXAMINED_AT_ONCE: usize = 2;
const IDLE_WITHIN: Duration = Duration::from_secs(15);
/// Components whose slots must be free when nothing runs. The gateway and the API serve the
/// harvest itself.
const IDLE: [&str; 6] = ["harness", "policy", "tools", "sandbox", "compactor", "store"];

/// Reads what became of coding tasks into the history.
pub(super) async fn tasks(run: &Run, tasks: &Tasks) -> anyhow::Result<()> {
    let door = run.fleet.door();
    let mut ended = Vec::new();
    for task in Asked::all(run) {
        ended.extend(store(run, &door, &task).await?);
    }
    run.plan.progress.say(match run.plan.world {
        None => "Checking the results: each task's tests run again in a fresh sandbox.",
        Some(_) => "Checking the results: each task's files are compared with those of its rehearsal.",
    });
    let examined =
        stream::iter(ended).map(|end| examine(run, tasks, end)).buffer_unordered(N_EXAMINED_AT_ONCE);
    let examined: Vec<anyhow::Result<()>> = examined.collect().await;
    examined.into_iter().collect()
}

/// Reads what is left in use, and what the providers counted.
pub(super) async fn rest(run: &Run) {
    idle(run).await;
    for (name, control) in &run.providers {
        let counters = control.counters();
        run.recorder.add(|_| Entry::Provider {
            name: name.clone(),
            calls_while_down: counters.calls_while_down,
            streams: counters.streams as u64,
            validation_failures: counters.validation_failures,
            violations: counters.violations,
        });
    }
}

/// A task as its client left it.
struct Asked {
    task: usize,
    thread: String,
    run: Option<String>,
}

impl Asked {
    fn all(run: &Run) -> Vec<Self> {
        let mut tasks: Vec<Self> = Vec::new();
        for entry in run.recorder.history().entries {
            match entry {
                Entry::Invoke { task, thread, attempt: 1, .. } => {
                    tasks.push(Self { task, thread, run: None })
                }
                Entry::Accepted { task, run, .. } => {
                    if let Some(asked) = tasks.iter_mut().find(|asked| asked.task == task) {
                        asked.run = Some(run);
                    }
                }
                _ => {}
            }
        }
        tasks
    }
}

/// A task that completed, with what it changed.
struct End {
    task: usize,
    diff: String,
}

async fn store(run: &Run, door: &Door, asked: &Asked) -> anyhow::Result<Option<End>> {
    let task = asked.task;
    // A thread that never came to be has no runs.
    let runs = door.read(&format!("/threads/{}/runs?limit=100", asked.thread)).await?.unwrap_or_default();
    let ids = runs.as_array().into_iter().flatten().filter_map(|run| run["run_id"].as_str());
    let ids: Vec<String> = ids.map(str::to_owned).collect();
    run.recorder.add(|_| Entry::Thread { task, runs: ids.clone() });
    let Some(id) = asked.run.clone().filter(|id| ids.contains(id)).or_else(|| ids.into_iter().next()) else {
        return Ok(None);
    };
    let stored: StoredRun = typed(here(door, &format!("/v1/runs/{id}")).await?).context("read a run")?;
    let events = events(door, &id).await?;
    let completed = stored.state == RunState::Completed;
    let diff = stored.outcome.as_ref().and_then(|outcome| outcome.diff.clone());
    run.recorder.add(|_| Entry::Stored { task, run: Box::new(stored), events });
    Ok(completed.then(|| End { task, diff: diff.unwrap_or_default() }))
}

async fn events(door: &Door, run: &str) -> anyhow::Result<Vec<Event>> {
    let mut events: Vec<Event> = Vec::new();
    let mut after = Some(0);
    while let Some(seq) = after {
        let page = here(door, &format!("/v1/runs/{run}/events?after={seq}&limit={PAGE}")).await?;
        events.extend(typed::<Vec<Event>>(page["events"].clone()).context("read the events of a run")?);
        after = page["next_after"].as_u64();
    }
    Ok(events)
}

/// Reads what must be there.
pub(super) async fn here(door: &Door, path: &str) -> anyhow::Result<Value> {
    door.read(path).await?.with_context(|| format!("{path} is not there"))
}

pub(super) fn typed<T: serde::de::DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    serde_json::from_value(value).context("the product's answer has another shape")
}

async fn examine(run: &Run, tasks: &Tasks, end: End) -> anyhow::Result<()> {
    let label = format!("task-{}", end.task);
    let facts = tasks.examiner.examine(tasks.script(end.task), &end.diff, &label).await?;
    run.recorder.add(|_| Entry::Examined { task: end.task, facts });
    Ok(())
}

/// Waits until no slot is in use; what is still in use then goes into the history.
async fn idle(run: &Run) {
    let until = Instant::now() + IDLE_WITHIN;
    let mut fenced = 0;
    for (name, door) in run.fleet.replica_doors() {
        let sample = loop {
            let mut sample = Sample::default();
            sample.add_metrics(&door.text("/metrics").await.unwrap_or_default());
            let busy = IDLE.iter().any(|component| sample.slots.get(*component).is_some_and(|n| *n > 0.0));
            if !busy || Instant::now() >= until {
                break sample;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        };
        for component in IDLE {
            if let Some(in_use) = sample.slots.get(component) {
                let in_use = *in_use as u64;
                run.recorder.add(|_| Entry::Idle { component: format!("{component} of {name}"), in_use });
            }
        }
        // One number of the whole store, which each replica shows.
        fenced = sample.fenced.max(fenced);
    }
    run.recorder.add(|_| Entry::Fenced { n: fenced });
}
