//! Virtual mode: the product's own code on one thread, in virtual time, from one seed.
//!
//! ```text
//!   load, faults, checker           the same code as in live mode
//!   gateway, replicas               the same code and configuration; each is a group of tasks
//!   ------------------------------------------------------------------------------------------
//!   time, spawn, network, store, commands       twins from here
//! ```
//! What is simulated and what is not: HTTP, JSON, streams, router, harness, policy, file tools and
//! workspaces are the product's (workspaces on the real file system, in a temporary folder). The
//! store is the engine in memory, reached over a link that takes time. Commands and git are not
//! started (see `runner`), and tools are called without the MCP session in front of them. Computation
//! takes no time: what a run measures is waiting, never the speed of this machine.
//!
//! What holds: nothing of a run depends on the machine, the real clock or chance. One seed gives one
//! event log, byte for byte; the digest of a run is the hash of that log.

mod clock;
mod group;
mod host;
mod log;
mod net;
mod patch;
mod plant;
mod rehearse;
mod runner;
mod store;
mod swarm;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use evenkeel_core::{Generator, Wall};
use evenkeel_env::clock::VirtualClock;
use evenkeel_env::{Clock, Env};
use evenkeel_store::Guards;
use tokio::time::Instant;

pub(crate) use host::{Launch, REPOSITORIES, SimHost};
pub(crate) use plant::Plant;
pub(crate) use rehearse::Rehearsal;
pub(crate) use store::{StoreLink, Twin};
pub(crate) use swarm::SWARM;

use crate::live::{self, Measured, Plan};
use crate::scenario::{self, Protect, Scenario};
use clock::HostClock;
use group::{Group, GroupSpawn};
use log::Log;
use net::{HostNet, Network};

/// How much of the product a virtual run goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// HTTP over connections in memory.
    #[default]
    Http,
    /// Requests and the pieces of their answers are handed over as they are: the same handlers,
    /// without HTTP's codec and connections. It takes about a quarter less time.
    Direct,
}

impl Depth {
    /// Its name on the command line and in results.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Direct => "direct",
        }
    }
}

/// The wall clock of every virtual run begins here: 2026-01-01.
const WALL_START: Wall = Wall(1_767_225_600_000);

/// Everything that is simulated in one run.
pub(crate) struct World {
    /// The lab's own environment: its clock is everybody's.
    pub(crate) env: Env,
    network: Arc<Network>,
    log: Log,
    twin: Arc<Twin>,
    rehearsal: OnceLock<Arc<Rehearsal>>,
    root: PathBuf,
    /// Clocks of hosts by their names.
    clocks: Mutex<BTreeMap<String, Arc<HostClock>>>,
}

impl World {
    fn new(plan: &Plan, keep_log: bool) -> Arc<Self> {
        let log = Log::new(keep_log);
        let network = Network::new(&log, Duration::ZERO, plan.depth);
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::starting_at(WALL_START));
        let env = Env {
            clock,
            generator: Generator::from_seed(plan.seed),
            spawner: Arc::new(GroupSpawn(Group::new())),
            net: Arc::new(HostNet { network: network.clone(), name: "lab".into() }),
        };
        let guards = if plan.protect == Protect::None { Guards::PLAIN } else { Guards::ALL };
        let twin = Twin::new(&env, &log, guards, plan.plant);
        Arc::new(Self {
            env,
            network,
            log,
            twin,
            rehearsal: OnceLock::new(),
            root: plan.root.clone(),
            clocks: Mutex::default(),
        })
    }

    /// The clock of this host; it outlives the processes on it.
    fn clock_of(&self, host: &str) -> Arc<HostClock> {
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = clocks.entry(host.to_owned()).or_insert_with(|| HostClock::of_process(&self.env.clock));
        clock.clone()
    }

    /// Sets the clock of this host forward or back; that of the store without one.
    pub(crate) fn shift_clock(&self, host: Option<&str>, by_ms: i64) {
        self.log.line(host.unwrap_or("store"), format_args!("clock set by {by_ms} ms"));
        match host {
            Some(host) => self.clock_of(host).shift(by_ms),
            None => self.twin.clock().shift(by_ms),
        }
    }

    /// The server that keeps the data.
    pub(crate) fn twin(&self) -> &Arc<Twin> {
        &self.twin
    }

    /// From now on commands are those of these tasks.
    pub(crate) fn rehearsed(&self, rehearsal: Arc<Rehearsal>) {
        // One run prepares its tasks once.
        let _ = self.rehearsal.set(rehearsal);
    }

    fn rehearsal(&self) -> Option<Arc<Rehearsal>> {
        self.rehearsal.get().cloned()
    }
}

/// The scenario of this name or file, or the one that is drawn from the seed (1 if none is given).
pub(crate) fn find(name: &str, seed: Option<u64>) -> anyhow::Result<Scenario> {
    if name == SWARM {
        return Ok(swarm::draw(seed.unwrap_or(1)));
    }
    Ok(scenario::find(name)?)
}

/// What only a virtual run has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// How deep it went.
    pub(crate) depth: Depth,
    /// Seconds of virtual time.
    pub(crate) virtual_s: f64,
    /// The hash of the event log.
    pub(crate) digest: String,
    /// The lines, if they were wanted.
    pub(crate) lines: Vec<String>,
}

/// Runs a scenario in virtual time, on a thread of its own.
pub(crate) async fn run(env: &Env, plan: Plan, keep_log: bool) -> anyhow::Result<(Measured, Trace)> {
    let (done, result) = tokio::sync::oneshot::channel();
    // Nobody listens if the lab was given up; the thread ends with its run all the same.
    env.spawner.thread("lab-virtual", Box::new(move || drop(done.send(run_here(plan, keep_log)))));
    result.await.map_err(|_| anyhow!("The simulation's thread panicked; its message is above."))?
}

/// The same on this thread, which must not be one of a runtime.
pub(crate) fn run_here(mut plan: Plan, keep_log: bool) -> anyhow::Result<(Measured, Trace)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .context("start the runtime of a virtual run")?;
    runtime.block_on(async move {
        let (begun, depth) = (Instant::now(), plan.depth);
        let world = World::new(&plan, keep_log);
        plan.world = Some(world.clone());
        let measured = live::run(&world.env, plan).await?;
        for entry in &measured.history.entries {
            world.log.line("history", format_args!("{}", serde_json::to_string(entry)?));
        }
        let trace = Trace {
            depth,
            virtual_s: begun.elapsed().as_secs_f64(),
            digest: world.log.digest(),
            lines: world.log.take(),
        };
        Ok((measured, trace))
    })
}
