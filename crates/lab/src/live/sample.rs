//! What is looked at twice a second while a scenario runs: for the live line and the charts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_env::Task;
use serde::Serialize;
use serde_json::Value;

use super::Run;
use crate::check::{Entry, History};

const EVERY: Duration = Duration::from_millis(500);

/// One look.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Milliseconds since the load began.
    pub(crate) t: u64,
    /// Tasks that clients asked for.
    pub(crate) submitted: usize,
    /// Tasks that ended well, by the client's knowledge.
    pub(crate) succeeded: usize,
    /// Tasks that ended otherwise.
    pub(crate) failed: usize,
    /// Runs parked on the model.
    pub(crate) parked: u64,
    /// Breaker state by deployment.
    pub(crate) states: BTreeMap<String, String>,
    /// Slots in use by component.
    pub(crate) slots: BTreeMap<String, f64>,
    /// Callers that wait, by component.
    pub(crate) waiting: BTreeMap<String, f64>,
    /// Writes that the product refused by fencing.
    pub(crate) fenced: u64,
    /// Milliseconds that the product took to show its router; none if it did not.
    pub(crate) answered_ms: Option<u64>,
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
    let (kept, recorder, door) = (samples.clone(), run.recorder.clone(), run.product.client());
    let progress = run.plan.progress.clone();
    let watch = async move {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut sample = Sample { t: recorder.now_ms(), ..Sample::default() };
            sample.add_history(&recorder.history());
            let look = async { (door.get("/v1/router").await, door.text("/metrics").await) };
            if let Ok((router, metrics)) = tokio::time::timeout(2 * EVERY, look).await {
                sample.answered_ms = router.is_ok().then(|| recorder.now_ms() - sample.t);
                sample.add_router(&router.unwrap_or_default());
                sample.add_metrics(&metrics.unwrap_or_default());
            }
            progress.show(&sample);
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        }
    };
    Sampler { task: run.env.spawner.spawn("lab-sample", Box::pin(watch)), samples }
}

impl Sample {
    fn add_history(&mut self, history: &History) {
        for entry in &history.entries {
            match entry {
                Entry::Invoke { attempt: 1, .. } => self.submitted += 1,
                Entry::Ok { status, .. } if status == "success" => self.succeeded += 1,
                Entry::Ok { .. } | Entry::Fail { .. } => self.failed += 1,
                _ => {}
            }
        }
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
                self.fenced += value.parse::<f64>().unwrap_or_default() as u64;
            }
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
}
