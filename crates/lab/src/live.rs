//! Live mode: the real product as a process of its own, real sockets, a real store, real
//! sandboxes, a fake provider, and faults that are real (SIGKILL, closed connections).
//!
//! The order: repositories and providers, the product, the load with the faults on their time line,
//! the wait until everything has ended, the harvest (what the store holds, what the workspaces
//! contain), the end of the product. Everything that happens goes into one history, which the
//! checker then judges without help from here.

mod chat;
pub(crate) mod client;
mod config;
mod database;
mod fault;
mod fleet;
mod harvest;
pub(crate) mod host;
mod load;
mod process;
mod sample;
pub(crate) mod usage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use evenkeel_env::Env;
use evenkeel_sandbox::{Launcher, SandboxConfig};
use futures_util::future::BoxFuture;

pub(crate) use chat::arrivals as chat_arrivals;
pub(crate) use sample::{Look, Sample};

use crate::check::{Entry, History, Recorder};
use crate::provider::{self, Control, Counters, FakeConfig};
use crate::scenario::{Protect, Scenario, StoreChoice};
use crate::sim::{Depth, Plant, REPOSITORIES, Rehearsal, World};
use crate::task::{Facts, Script, Solver, Verifier, all, available};
use fleet::Fleet;

/// What a live run needs to know.
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    pub(crate) protect: Protect,
    /// Replicas of the product.
    pub(crate) replicas: usize,
    /// Their store.
    pub(crate) store: StoreChoice,
    /// The product's executable.
    pub(crate) program: PathBuf,
    /// The folder for data, logs and repositories.
    pub(crate) root: PathBuf,
    /// How deep a virtual run goes.
    pub(crate) depth: Depth,
    /// The simulated world; none for a live run.
    pub(crate) world: Option<Arc<World>>,
    /// A mistake in the simulated store.
    pub(crate) plant: Plant,
    /// Moments of the load, counted from its beginning, at which it is read what each component has
    /// done; with none nothing is.
    pub(crate) readings: Vec<Duration>,
    /// Told now and then how far it is.
    pub(crate) progress: Arc<dyn Progress>,
}

/// Is told how far a run is.
pub(crate) trait Progress: Send + Sync {
    /// Something worth a line of its own.
    fn say(&self, text: &str);
    /// The numbers of this moment.
    fn show(&self, sample: &Sample);
}

/// What a live run left.
pub(crate) struct Measured {
    pub(crate) history: History,
    pub(crate) samples: Vec<Sample>,
    pub(crate) providers: BTreeMap<String, Counters>,
    /// Milliseconds on the providers' clocks when the load began.
    pub(crate) provider_offsets: BTreeMap<String, u64>,
    /// The wall clock when the load began, in milliseconds.
    pub(crate) began_wall_ms: u64,
    /// The router's own account at the end.
    pub(crate) router: serde_json::Value,
    pub(crate) left_out: Vec<String>,
    /// What each component had done: before and after the calm, at the moments that were wanted, and
    /// at the end. Empty unless it was wanted.
    pub(crate) usage: Vec<usage::Reading>,
}

/// Runs a scenario for real.
pub(crate) fn run(env: &Env, plan: Plan) -> BoxFuture<'static, anyhow::Result<Measured>> {
    let env = env.part("live");
    Box::pin(async move {
        fleet::check(&plan)?;
        let recorder = Recorder::new(&env);
        let tasks = if plan.scenario.is_chat() { None } else { Some(Tasks::prepare(&env, &plan).await?) };
        let providers = start_providers(&env, &plan.scenario).await?;
        plan.progress.say("Starting the product and its fake providers.");
        let fleet = Arc::new(Fleet::start(&env, &plan, &providers, &recorder).await?);
        let run = Run { env, plan, recorder, tasks, providers, fleet };
        let measured = run.all().await;
        run.fleet.end().await;
        run.providers.values().for_each(Control::stop);
        measured
    })
}

struct Run {
    env: Env,
    plan: Plan,
    recorder: Recorder,
    /// What is needed for coding tasks; none for a chat.
    tasks: Option<Tasks>,
    providers: BTreeMap<String, Control>,
    fleet: Arc<Fleet>,
}

/// The coding tasks of a load, with their repositories and what examines their results.
struct Tasks {
    examiner: Examiner,
    scripts: Vec<&'static Script>,
    repositories: BTreeMap<&'static str, PathBuf>,
    left_out: Vec<String>,
    /// Which script the first task plays.
    first: usize,
}

impl Tasks {
    async fn prepare(env: &Env, plan: &Plan) -> anyhow::Result<Self> {
        let (scripts, left_out) = scripts(plan)?;
        left_out.iter().for_each(|sentence| plan.progress.say(sentence));
        let examiner = Examiner::new(env, plan, &scripts).await?;
        let mut repositories = BTreeMap::new();
        for script in &scripts {
            repositories.insert(script.name, examiner.repository(script).await?);
        }
        let first = usize::try_from(plan.seed).unwrap_or_default();
        Ok(Self { examiner, scripts, repositories, left_out, first })
    }

    /// The script of a task of the load: all of them in turn, beginning where the seed says.
    fn script(&self, task: usize) -> &'static Script {
        self.scripts[(self.first + task) % self.scripts.len()]
    }
}

/// Makes repositories of tasks and judges what became of them.
enum Examiner {
    /// By running their tests.
    Sandbox(Verifier),
    /// By comparing with the rehearsal.
    Rehearsed(Arc<Rehearsal>),
}

impl Examiner {
    async fn new(env: &Env, plan: &Plan, scripts: &[&'static Script]) -> anyhow::Result<Self> {
        if let Some(world) = &plan.world {
            let rehearsal = Arc::new(Rehearsal::of(env, &plan.root, scripts).await?);
            world.rehearsed(rehearsal.clone());
            return Ok(Self::Rehearsed(rehearsal));
        }
        let launcher =
            Launcher::start(env, SandboxConfig::default()).context("start sandboxes for the examination")?;
        Ok(Self::Sandbox(Verifier::new(env, launcher, plan.root.clone())))
    }

    async fn repository(&self, script: &'static Script) -> anyhow::Result<PathBuf> {
        match self {
            Self::Sandbox(verifier) => verifier.repository(script).await,
            Self::Rehearsed(rehearsal) => {
                rehearsal.repository(script)?;
                Ok(PathBuf::from(REPOSITORIES).join(script.name))
            }
        }
    }

    async fn examine(&self, script: &Script, diff: &str, label: &str) -> anyhow::Result<Facts> {
        match self {
            Self::Sandbox(verifier) => verifier.examine(script, diff, label).await,
            Self::Rehearsed(rehearsal) => rehearsal.examine(script, diff),
        }
    }
}

impl Run {
    async fn all(&self) -> anyhow::Result<Measured> {
        let mut readings = usage::calm(self).await;
        self.recorder.restart();
        let began_wall_ms = self.env.wall().ms();
        let offset = |(name, control): (&String, &Control)| (name.clone(), control.now_ms());
        let provider_offsets = self.providers.iter().map(offset).collect();
        self.recorder.add(|_| Entry::Begin {
            scenario: self.plan.scenario.name.clone(),
            seed: self.plan.seed,
            protect: self.plan.protect.as_str().to_owned(),
            answer_within_s: self.plan.scenario.answer_within_s(),
        });
        let faults = fault::start(self);
        let sampler = sample::start(self);
        if let Some(readings) = &mut readings {
            readings.begin(self);
        }
        match &self.tasks {
            Some(tasks) => load::run(self, tasks).await,
            None => chat::run(self).await,
        }
        faults.settle(&self.fleet).await;
        self.providers.values().for_each(Control::heal_all);
        let usage = match readings {
            Some(readings) => readings.finish().await,
            None => Vec::new(),
        };
        let samples = sampler.finish();
        let router = self.fleet.door().get("/v1/router").await.unwrap_or_default();
        match &self.tasks {
            Some(tasks) => harvest::tasks(self, tasks).await,
            None => chat::harvest(self).await,
        }
        .context("read what the store holds")?;
        harvest::rest(self).await;
        let counters = self.providers.iter().map(|(name, control)| (name.clone(), control.counters()));
        Ok(Measured {
            history: self.recorder.history(),
            samples,
            providers: counters.collect(),
            provider_offsets,
            began_wall_ms,
            router,
            usage,
            left_out: self.tasks.as_ref().map(|tasks| tasks.left_out.clone()).unwrap_or_default(),
        })
    }

    /// How long after the beginning everything must have ended.
    fn limit(&self) -> Duration {
        let scenario = &self.plan.scenario;
        let busy_s = scenario.traffic.duration_s.max(scenario.last_heal_s());
        Duration::from_secs_f64(busy_s + scenario.traffic.settle_s)
    }
}

/// The tasks that run. A simulation needs none of their programs, so it runs all of them everywhere.
fn scripts(plan: &Plan) -> anyhow::Result<(Vec<&'static Script>, Vec<String>)> {
    let everything = || (all().iter().collect(), Vec::new());
    let (mut scripts, left_out) = if plan.world.is_some() { everything() } else { available() };
    let wanted = &plan.scenario.traffic.tasks;
    scripts.retain(|script| wanted.is_empty() || wanted.iter().any(|name| name == script.name));
    if scripts.is_empty() {
        bail!("No task can run on this machine. {}", left_out.join(" "));
    }
    Ok((scripts, left_out))
}

async fn start_providers(env: &Env, scenario: &Scenario) -> anyhow::Result<BTreeMap<String, Control>> {
    let mut providers = BTreeMap::new();
    for provider in &scenario.provider {
        let mut fake = FakeConfig::new(&provider.name, Arc::new(Solver));
        fake.timing = scenario.model.clone();
        fake.keys = vec![config::KEY.to_owned()];
        fake.context_tokens = Some(provider.context_tokens);
        fake.streams_max = usize::try_from(provider.limits.streams).ok();
        providers.insert(provider.name.clone(), provider::start(env, fake).await?);
    }
    Ok(providers)
}
