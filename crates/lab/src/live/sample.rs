//! What is looked at twice a second while a scenario runs: for the live line and the charts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_env::Task;
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;

use super::Run;
use super::client::Door;

const EVERY: Duration = Duration::from_millis(500);
/// Several replicas are looked at less often: what looking costs is taken from what is measured.
const EVERY_OF_SEVERAL: Duration = Duration::from_secs(1);

/// The name of a replica in its own metrics.
const ITSELF: &str = "";

/// One look.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Milliseconds since the load began.
    pub(crate) t: u64,
    /// Tasks or turns that clients asked for.
    pub(crate) submitted: usize,
    /// Those that ended well, by the client's knowledge.
    pub(crate) succeeded: usize,
    /// Those that ended otherwise.
    pub(crate) failed: usize,
    /// Runs parked on the model.
    pub(crate) parked: u64,
    /// Breaker state by deployment, as the first replica that answers has it.
    pub(crate) states: BTreeMap<String, String>,
    /// Slots in use by component, over all replicas.
    pub(crate) slots: BTreeMap<String, f64>,
    /// Callers that wait, by component.
    pub(crate) waiting: BTreeMap<String, f64>,
    /// Writes that the store refused by fencing. It is one number of the whole store, which every
    /// replica shows; the largest is the newest.
    pub(crate) fenced: u64,
    /// Each replica.
    pub(crate) replicas: BTreeMap<String, Look>,
    /// Milliseconds that the product took to show its router; none if it did not.
    pub(crate) answered_ms: Option<u64>,
}

/// One replica at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Look {
    /// Whether it answered.
    pub(crate) answers: bool,
    /// Whether its lease holds.
    pub(crate) lease: bool,
    /// Whether it admits nothing new.
    pub(crate) draining: bool,
    /// Runs that it drives.
    pub(crate) running: u64,
    /// Claims taken over from others, since it was started.
    pub(crate) stolen: u64,
    /// Claims lost to others, since it was started.
    pub(crate) fenced: u64,
}

pub(super) struct Sampler {
    task: Task,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl Sampler {
    pub(super) fn finish(self) -> Vec<Sample> {
        self.task.abort();
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn start(run: &Run) -> Sampler {
    let samples = Arc::new(Mutex::new(Vec::new()));
    let (kept, recorder, doors) = (samples.clone(), run.recorder.clone(), run.fleet.replica_doors());
    let progress = run.plan.progress.clone();
    let every = if doors.len() > 1 { EVERY_OF_SEVERAL } else { EVERY };
    let watch = async move {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let so_far = recorder.so_far();
            let mut sample = Sample {
                t: recorder.now_ms(),
                submitted: so_far.submitted,
                succeeded: so_far.succeeded,
                failed: so_far.failed,
                ..Sample::default()
            };
            let looks = join_all(doors.iter().map(|(_, door)| look(door, 2 * every))).await;
            for ((name, _), (router, metrics)) in doors.iter().zip(looks) {
                let mut one = Sample::default();
                one.add_router(&router);
                one.add_metrics(&metrics);
                if !router.is_null() && sample.answered_ms.is_none() {
                    sample.answered_ms = Some(recorder.now_ms() - sample.t);
                    (sample.states, sample.parked) = (one.states.clone(), one.parked);
                }
                sample.merge(name, &one, !router.is_null());
            }
            progress.show(&sample);
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        }
    };
    Sampler { task: run.env.spawner.spawn("lab-sample", Box::pin(watch)), samples }
}

/// What one replica shows of its router and its metrics; nothing if it does not in time.
async fn look(door: &Door, within: Duration) -> (Value, String) {
    let both = async { tokio::join!(door.get("/v1/router"), door.text("/metrics")) };
    match tokio::time::timeout(within, both).await {
        Ok((router, metrics)) => (router.unwrap_or_default(), metrics.unwrap_or_default()),
        Err(_) => (Value::Null, String::new()),
    }
}

impl Sample {
    fn merge(&mut self, name: &str, one: &Self, answers: bool) {
        for (component, n) in &one.slots {
            *self.slots.entry(component.clone()).or_default() += n;
        }
        for (component, n) in &one.waiting {
            *self.waiting.entry(component.clone()).or_default() += n;
        }
        self.fenced = self.fenced.max(one.fenced);
        let look = one.replicas.get(ITSELF).copied().unwrap_or_default();
        self.replicas.insert(name.to_owned(), Look { answers, ..look });
    }

    fn add_router(&mut self, router: &Value) {
        let routes = router["routes"].as_object().into_iter().flatten();
        self.parked = routes.filter_map(|(_, route)| route["parked"].as_u64()).sum();
        for (name, deployment) in router["deployments"].as_object().into_iter().flatten() {
            let throttled = deployment["throttled_until"].is_u64() || deployment["disabled_until"].is_u64();
            let state = deployment["state"].as_str().unwrap_or_default();
            let state = if throttled && state == "closed" { "throttled" } else { state };
            self.states.insert(name.clone(), state.to_owned());
        }
    }

    /// Reads `..._slots_in_use{component="x"} n` and `..._slots_waiting{component="x"} n`.
    pub(super) fn add_metrics(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            if name.starts_with("evenkeel_store_fenced") {
                self.fenced = value.parse::<f64>().unwrap_or_default() as u64;
            }
            self.add_look(name, value);
            let component = name.split_once("component=\"").and_then(|(_, rest)| rest.split_once('"'));
            let (Some((component, _)), Ok(value)) = (component, value.parse()) else { continue };
            let metric = name.split('{').next().unwrap_or_default();
            if metric.ends_with("slots_in_use") {
                self.slots.insert(component.to_owned(), value);
            } else if metric.ends_with("slots_waiting") {
                self.waiting.insert(component.to_owned(), value);
            }
        }
    }

    /// The figures of the replica whose metrics are read.
    fn add_look(&mut self, name: &str, value: &str) {
        let value = value.parse::<f64>().unwrap_or_default() as u64;
        let look = self.replicas.entry(ITSELF.to_owned()).or_default();
        match name.trim_end_matches("_total") {
            "evenkeel_harness_running" => look.running = value,
            "evenkeel_harness_stolen" => look.stolen = value,
            "evenkeel_harness_fenced" => look.fenced = value,
            "evenkeel_harness_lease_held" => look.lease = value > 0,
            "evenkeel_draining" => look.draining = value > 0,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
