//! The time line: every fault of the scenario begins and ends at its time.
//!
//! What holds: whatever was broken is healed, also when the load is over before the fault's time is.
//! Nothing else may be left broken when the results are read, or what is found then is the fault's.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Generator;
use evenkeel_env::{Task, watch};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::Run;
use super::fleet::Fleet;
use super::host::Host;
use crate::check::{Entry, Recorder};
use crate::link;
use crate::provider::Control;
use crate::scenario::{Action, PlannedFault, Target};
use crate::sim::World;

/// The faults that were started.
pub(super) struct Line {
    tasks: Vec<Task>,
    /// Whether the load is over: what is broken is then healed at once, and nothing else breaks.
    over: watch::Sender<bool>,
}

impl Line {
    /// Heals what is broken, and waits until everything is up that a fault had left down.
    pub(super) async fn settle(self, fleet: &Fleet) {
        self.over.send_replace(true);
        for task in self.tasks {
            // A fault that panicked has said so; what it left down is brought up below.
            drop(task.join().await);
        }
        fleet.settle().await;
    }
}

/// Starts the time line.
pub(super) fn start(run: &Run) -> Line {
    let generator = run.env.generator.part("faults");
    let mut tasks = Vec::new();
    let (over, watched) = watch::channel(false);
    for (idx, planned) in run.plan.scenario.faults.iter().enumerate() {
        for (begins_s, ends_s) in planned.spans() {
            let one = One {
                planned: planned.clone(),
                begins: Instant::now() + Duration::from_secs_f64(begins_s),
                ends: Instant::now() + Duration::from_secs_f64(ends_s),
                fleet: run.fleet.clone(),
                provider: run.providers.get(planned.target_name().trim_start_matches("provider:")).cloned(),
                world: run.plan.world.clone(),
                recorder: run.recorder.clone(),
                generator: generator.part(&idx.to_string()),
                over: watched.clone(),
            };
            tasks.push(run.env.spawner.spawn("lab-fault", one.all()));
        }
    }
    Line { tasks, over }
}

struct One {
    planned: PlannedFault,
    begins: Instant,
    ends: Instant,
    fleet: Arc<Fleet>,
    provider: Option<Control>,
    /// The simulation; faults that only it has are refused before a live run begins.
    world: Option<Arc<World>>,
    recorder: Recorder,
    generator: Generator,
    over: watch::Receiver<bool>,
}

impl One {
    fn all(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if !self.reaches(self.begins).await {
                return;
            }
            match &self.planned.action {
                Action::Provider(fault) => {
                    let Some(provider) = &self.provider else { return };
                    let id = provider.set(fault.clone());
                    self.until_end(async || provider.heal(id)).await;
                }
                Action::Kill { times, down_s } => self.kills(*times, Duration::from_secs_f64(*down_s)).await,
                Action::Stop => {
                    let Some(replica) = self.replica() else { return };
                    replica.stop();
                    self.until_end(async || replica.go_on()).await;
                }
                Action::SlowStore { factor, base_ms } => {
                    self.fleet.slow_store(Some((*factor, *base_ms))).await;
                    self.until_end(|| self.fleet.slow_store(None)).await;
                }
                Action::RestartStore { down_s } => {
                    self.fleet.restart_store(Duration::from_secs_f64(*down_s), |on| self.note(on)).await;
                }
                Action::Trouble(trouble) => {
                    let Some(world) = &self.world else { return };
                    let id = world.twin().add(*trouble);
                    self.until_end(async || world.twin().heal(id)).await;
                }
                Action::Clock { by_s } => self.clock((by_s * 1_000.0) as i64).await,
                Action::RollingRestart { pause_s } => self.roll(Duration::from_secs_f64(*pause_s)).await,
                Action::Link(fault) => self.link(*fault).await,
            }
        })
    }

    /// Waits for this instant; `false` if the load was over before it came.
    async fn reaches(&self, at: Instant) -> bool {
        let mut over = self.over.clone();
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => false,
            () = tokio::time::sleep_until(at) => true,
        }
    }

    /// Waits for the fault's end, then heals it; both instants go into the history.
    async fn until_end<F: Future<Output = ()>>(&self, heal: impl FnOnce() -> F) {
        self.note(true);
        self.reaches(self.ends).await;
        heal().await;
        self.note(false);
    }

    async fn link(&self, fault: link::Fault) {
        let Target::Link(link) = self.planned.target else { return };
        let set: Vec<_> = self.fleet.ways(link).into_iter().map(|way| (way.set(fault), way)).collect();
        self.until_end(async || set.iter().for_each(|(id, way)| way.heal(*id))).await;
    }

    /// A clock that is wrong, and then set right.
    async fn clock(&self, by_ms: i64) {
        let Some(world) = &self.world else { return };
        let name = match self.planned.target {
            Target::Store => None,
            _ => self.replica().map(|replica| replica.name().to_owned()),
        };
        world.shift_clock(name.as_deref(), by_ms);
        self.until_end(async || world.shift_clock(name.as_deref(), -by_ms)).await;
    }

    /// The replica that the fault is aimed at, or any one.
    fn replica(&self) -> Option<Arc<dyn Host>> {
        let number = match self.planned.target {
            Target::Replica(number) => Some(number),
            _ => None,
        };
        self.fleet.replica(number, &self.generator)
    }

    /// Kills at random moments, each followed by a restart. One at a time: a moment that falls into
    /// the restart before it comes directly after it.
    async fn kills(&self, times: u32, down: Duration) {
        for moment in self.moments(times) {
            if !self.reaches(moment).await {
                return;
            }
            let Some(replica) = self.replica() else { return };
            replica.kill().await;
            self.note(true);
            self.reaches(Instant::now() + down).await;
            replica.start_again().await;
            self.note(false);
        }
    }

    /// Drains each replica in turn and starts it again, as a deploy does.
    async fn roll(&self, pause: Duration) {
        for replica in self.fleet.replicas() {
            self.note(true);
            replica.drain().await;
            replica.start_again().await;
            self.note(false);
            if !self.reaches(Instant::now() + pause).await {
                return;
            }
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
