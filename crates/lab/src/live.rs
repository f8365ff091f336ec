//! Live mode: the real product as a process of its own, real sockets, a real store, real
//! sandboxes, a fake provider, and faults that are real (SIGKILL, closed connections).
//!
//! The order: repositories and providers, the product, the load with the faults on their time line,
//! the wait until everything has ended, the harvest (what the store holds, what the workspaces
//! contain), the end of the product. Everything that happens goes into one history, which the
//! checker then judges without help from here.

mod client;
mod config;
mod fault;
mod harvest;
mod load;
mod product;
mod sample;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use evenkeel_env::Env;
use evenkeel_sandbox::{Launcher, SandboxConfig};
use futures_util::future::BoxFuture;

pub(crate) use sample::Sample;

use crate::check::{Entry, History, Recorder};
use crate::provider::{self, Control, Counters, FakeConfig};
use crate::scenario::{Protect, Scenario};
use crate::task::{Script, Solver, Verifier, available};
use product::Product;

/// What a live run needs to know.
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    pub(crate) protect: Protect,
    /// The product's executable.
    pub(crate) program: PathBuf,
    /// The folder for data, logs and repositories.
    pub(crate) root: PathBuf,
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
}

/// Runs a scenario for real.
pub(crate) fn run(env: &Env, plan: Plan) -> BoxFuture<'static, anyhow::Result<Measured>> {
    let env = env.part("live");
    Box::pin(async move {
        let (scripts, left_out) = scripts(&plan.scenario)?;
        left_out.iter().for_each(|sentence| plan.progress.say(sentence));
        let recorder = Recorder::new(&env);
        let launcher =
            Launcher::start(&env, SandboxConfig::default()).context("start sandboxes for the examination")?;
        let verifier = Verifier::new(&env, launcher, plan.root.clone());
        let mut repositories = BTreeMap::new();
        for script in &scripts {
            repositories.insert(script.name, verifier.repository(script).await?);
        }
        let providers = start_providers(&env, &plan.scenario).await?;
        let config = config::text(&plan, &providers).context("write the product's configuration")?;
        plan.progress.say("Starting the product and its fake providers.");
        let product = Product::start(&env, &plan, config, &recorder).await?;
        let run = Run { env, plan, recorder, verifier, scripts, repositories, providers, product };
        let measured = run.all(left_out).await;
        run.product.end().await;
        run.providers.values().for_each(Control::stop);
        measured
    })
}

struct Run {
    env: Env,
    plan: Plan,
    recorder: Recorder,
    verifier: Verifier,
    scripts: Vec<&'static Script>,
    repositories: BTreeMap<&'static str, PathBuf>,
    providers: BTreeMap<String, Control>,
    product: Arc<Product>,
}

impl Run {
    async fn all(&self, left_out: Vec<String>) -> anyhow::Result<Measured> {
        self.recorder.restart();
        let began_wall_ms = self.env.wall().ms();
        let offset = |(name, control): (&String, &Control)| (name.clone(), control.now_ms());
        let provider_offsets = self.providers.iter().map(offset).collect();
        self.recorder.add(|_| Entry::Begin {
            scenario: self.plan.scenario.name.clone(),
            seed: self.plan.seed,
            protect: self.plan.protect.as_str().to_owned(),
        });
        let faults = fault::start(self);
        let sampler = sample::start(self);
        load::run(self).await;
        faults.settle(&self.product).await;
        self.providers.values().for_each(Control::heal_all);
        let samples = sampler.finish();
        let router = self.product.client().get("/v1/router").await.unwrap_or_default();
        harvest::all(self).await.context("read what the store holds")?;
        let counters = self.providers.iter().map(|(name, control)| (name.clone(), control.counters()));
        Ok(Measured {
            history: self.recorder.history(),
            samples,
            providers: counters.collect(),
            provider_offsets,
            began_wall_ms,
            router,
            left_out,
        })
    }

    /// The script of a task of the load: all of them in turn, beginning where the seed says.
    fn script(&self, task: usize) -> &'static Script {
        let first = usize::try_from(self.plan.seed).unwrap_or_default();
        self.scripts[(first + task) % self.scripts.len()]
    }

    /// How long after the beginning everything must have ended.
    fn limit(&self) -> Duration {
        let scenario = &self.plan.scenario;
        let busy_s = scenario.traffic.duration_s.max(scenario.last_heal_s());
        Duration::from_secs_f64(busy_s + scenario.traffic.settle_s)
    }
}

fn scripts(scenario: &Scenario) -> anyhow::Result<(Vec<&'static Script>, Vec<String>)> {
    let (mut scripts, left_out) = available();
    let wanted = &scenario.traffic.tasks;
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
