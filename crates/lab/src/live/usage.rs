//! What each component did so far, read at chosen moments: the measure of the capacity plan.
//!
//! Everything is a total since the start, so that two readings give what was done between them. The
//! lab's own looks and the replicas' upkeep are in it too; the calm before the load, in which nothing
//! else happens, says how much of each second that is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_env::Task;
use tokio::time::{Instant, sleep, sleep_until};

use super::fleet::Fleet;
use super::{Run, sample};
use crate::check::Recorder;
use crate::provider::Control;

/// How long the product is looked at before the load begins.
const CALM: Duration = Duration::from_secs(8);

/// Requests that count against the gateway's calls a minute.
pub(crate) const CALLS: &str = "calls";
/// Operations that write to the store.
pub(crate) const COMMITS: &str = "commits";
/// The prefix of a provider's name, for its calls with the time of their streams.
pub(crate) const STREAMS: &str = "streams:";
/// The same for its input tokens.
pub(crate) const TOKENS_IN: &str = "tokens_in:";
/// The same for its output tokens.
pub(crate) const TOKENS_OUT: &str = "tokens_out:";

/// Operations that change what is stored for a run.
const WRITES: [&str; 7] =
    ["create_thread", "admit", "commit_step", "commit_turn", "park", "release", "cancel"];

/// How often something was used, and for how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// Times.
    pub(crate) n: f64,
    /// Seconds, where that means anything.
    pub(crate) held_s: f64,
}

/// Totals by what is used: components by their names in `[limits]`, and the constants above.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// Seconds since the load began.
    pub(crate) at_s: f64,
    /// Whether every process answered. One that was killed does not, and has lost what it counted.
    pub(crate) complete: bool,
    pub(crate) totals: BTreeMap<String, Used>,
}

impl Reading {
    /// What was done since an earlier reading; `at_s` is the time between them.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = |name: &str| earlier.totals.get(name).copied().unwrap_or_default();
        let part = |(name, now): (&String, &Used)| {
            let before = before(name);
            (name.clone(), Used { n: now.n - before.n, held_s: now.held_s - before.held_s })
        };
        let complete = self.complete && earlier.complete;
        Self { at_s: self.at_s - earlier.at_s, complete, totals: self.totals.iter().map(part).collect() }
    }

    /// What was used of this.
    pub(crate) fn of(&self, name: &str) -> Used {
        self.totals.get(name).copied().unwrap_or_default()
    }

    fn used(&mut self, name: &str) -> &mut Used {
        self.totals.entry(name.to_owned()).or_default()
    }

    /// Adds what a process shows of itself. The edge is where traffic enters.
    pub(super) fn add_metrics(&mut self, text: &str, at_edge: bool, behind: bool) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let label = |key: &str| {
                let (_, rest) = name.split_once(&format!("{key}=\""))?;
                rest.split_once('"').map(|(label, _)| label)
            };
            let component =
                label("component").filter(|name| if *name == "gateway" { at_edge } else { behind });
            match (name.split('{').next(), component) {
                (Some("evenkeel_slots_taken_total"), Some(component)) => self.used(component).n += value,
                (Some("evenkeel_slots_held_seconds_total"), Some(component)) => {
                    self.used(component).held_s += value;
                }
                (Some("evenkeel_http_requests_total"), _) if at_edge => self.used(CALLS).n += value,
                (Some("evenkeel_store_operations_total"), _)
                    if behind && label("op").is_some_and(|op| WRITES.contains(&op)) =>
                {
                    self.used(COMMITS).n += value;
                }
                _ => {}
            }
        }
    }

    fn add_provider(&mut self, name: &str, control: &Control) {
        let counters = control.counters();
        let held_s = counters.stream_ms as f64 / 1_000.0;
        *self.used(&format!("{STREAMS}{name}")) = Used { n: counters.calls as f64, held_s };
        self.used(&format!("{TOKENS_IN}{name}")).n = counters.input_tokens as f64;
        self.used(&format!("{TOKENS_OUT}{name}")).n = counters.output_tokens as f64;
    }
}

/// What is read: the edge, the replicas behind it, the providers.
#[derive(Clone)]
struct Sources {
    fleet: Arc<Fleet>,
    single: bool,
    providers: BTreeMap<String, Control>,
    recorder: Recorder,
}

impl Sources {
    fn of(run: &Run) -> Self {
        let (fleet, providers, recorder) = (run.fleet.clone(), run.providers.clone(), run.recorder.clone());
        Self { fleet, single: run.plan.replicas == 1, providers, recorder }
    }

    /// Over connections of its own, so that none of an earlier reading is about to be closed.
    async fn read(&self) -> Reading {
        let at_s = self.recorder.now_ms() as f64 / 1_000.0;
        let mut reading = Reading { at_s, complete: true, ..Reading::default() };
        for (name, control) in &self.providers {
            reading.add_provider(name, control);
        }
        let edge = (!self.single).then(|| (self.fleet.door(), true, false));
        let replicas = self.fleet.replica_doors().into_iter().map(|(_, door)| (door, self.single, true));
        for (door, at_edge, behind) in replicas.chain(edge) {
            match door.text("/metrics").await {
                Ok(text) => reading.add_metrics(&text, at_edge, behind),
                Err(_) => reading.complete = false,
            }
        }
        reading
    }
}

/// The readings of a run that wants any, so far.
pub(super) struct Readings {
    sources: Sources,
    read: Arc<Mutex<Vec<Reading>>>,
    /// Reads at the moments that are wanted.
    task: Option<Task>,
}

/// Looks at the product while nothing happens: the first two readings, the second at 0 s. Nothing if
/// none are wanted.
pub(super) async fn calm(run: &Run) -> Option<Readings> {
    if run.plan.readings.is_empty() {
        return None;
    }
    let sources = Sources::of(run);
    let looks = sample::start(run);
    let first = sources.read().await;
    sleep(CALM).await;
    let second = sources.read().await;
    drop(looks.finish());
    let shift = second.at_s;
    let read = [first, second].map(|reading| Reading { at_s: reading.at_s - shift, ..reading });
    Some(Readings { sources, read: Arc::new(Mutex::new(read.into())), task: None })
}

impl Readings {
    /// Reads from now on at the moments that are wanted.
    pub(super) fn begin(&mut self, run: &Run) {
        let (sources, read, began) = (self.sources.clone(), self.read.clone(), Instant::now());
        let wanted = run.plan.readings.clone();
        let work = async move {
            for after in wanted {
                sleep_until(began + after).await;
                let reading = sources.read().await;
                read.lock().unwrap_or_else(PoisonError::into_inner).push(reading);
            }
        };
        self.task = Some(run.env.spawner.spawn("lab-usage", Box::pin(work)));
    }

    /// All of them, and a last one of now.
    pub(super) async fn finish(self) -> Vec<Reading> {
        if let Some(task) = &self.task {
            task.abort();
        }
        let mut read = std::mem::take(&mut *self.read.lock().unwrap_or_else(PoisonError::into_inner));
        read.push(self.sources.read().await);
        read
    }
}
