//! The time line: every fault of the scenario begins and ends at its time.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Generator;
use evenkeel_env::Task;
use futures_util::future::BoxFuture;
use rustix::process::Signal;
use tokio::time::Instant;

use super::Run;
use super::product::Product;
use crate::check::{Entry, Recorder};
use crate::provider::Control;
use crate::scenario::{Action, PlannedFault};

/// The faults that were started.
pub(super) struct Line {
    tasks: Vec<Task>,
}

impl Line {
    /// Ends what has not begun, and waits for the product to be up if a kill had just hit it.
    pub(super) async fn settle(self, product: &Arc<Product>) {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            // It was stopped on purpose.
            drop(task.join().await);
        }
        product.signal(Signal::CONT);
        product.clone().start_again().await;
    }
}

/// Starts the time line.
pub(super) fn start(run: &Run) -> Line {
    let generator = run.env.generator.part("faults");
    let mut tasks = Vec::new();
    for (idx, planned) in run.plan.scenario.faults.iter().enumerate() {
        for (begins_s, ends_s) in planned.spans() {
            let one = One {
                planned: planned.clone(),
                begins: Instant::now() + Duration::from_secs_f64(begins_s),
                ends: Instant::now() + Duration::from_secs_f64(ends_s),
                product: run.product.clone(),
                provider: run.providers.get(planned.target_name().trim_start_matches("provider:")).cloned(),
                recorder: run.recorder.clone(),
                generator: generator.part(&idx.to_string()),
            };
            tasks.push(run.env.spawner.spawn("lab-fault", one.all()));
        }
    }
    Line { tasks }
}

struct One {
    planned: PlannedFault,
    begins: Instant,
    ends: Instant,
    product: Arc<Product>,
    provider: Option<Control>,
    recorder: Recorder,
    generator: Generator,
}

impl One {
    fn all(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            tokio::time::sleep_until(self.begins).await;
            match &self.planned.action {
                Action::Provider(fault) => {
                    let Some(provider) = &self.provider else { return };
                    let id = provider.set(fault.clone());
                    self.note(true);
                    tokio::time::sleep_until(self.ends).await;
                    provider.heal(id);
                    self.note(false);
                }
                Action::Kill { times, down_s } => self.kills(*times, Duration::from_secs_f64(*down_s)).await,
                Action::Stop => {
                    self.product.signal(Signal::STOP);
                    self.note(true);
                    tokio::time::sleep_until(self.ends).await;
                    self.product.signal(Signal::CONT);
                    self.note(false);
                }
                Action::SlowStore { factor, base_ms } => {
                    self.product.slow_store(Some((*factor, *base_ms))).await;
                    self.note(true);
                    tokio::time::sleep_until(self.ends).await;
                    self.product.slow_store(None).await;
                    self.note(false);
                }
            }
        })
    }

    /// Kills at random moments, each followed by a restart. One at a time: a moment that falls into
    /// the restart before it comes directly after it.
    async fn kills(&self, times: u32, down: Duration) {
        for moment in self.moments(times) {
            tokio::time::sleep_until(moment).await;
            self.product.kill().await;
            self.note(true);
            tokio::time::sleep(down).await;
            self.product.clone().start_again().await;
            self.note(false);
        }
    }

    /// One moment in each of `times` equal parts of the fault's time; a single kill comes at once.
    fn moments(&self, times: u32) -> Vec<Instant> {
        if times == 1 {
            return vec![self.begins];
        }
        let part = (self.ends - self.begins) / times;
        (0..times).map(|idx| self.begins + part * idx + part.mul_f64(self.generator.unit())).collect()
    }

    fn note(&self, on: bool) {
        let (target, kind) = (self.planned.target_name(), self.planned.kind().to_owned());
        self.recorder.add(|t| Entry::Fault { target, kind, on, t });
    }
}
