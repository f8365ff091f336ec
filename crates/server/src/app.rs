//! Builds every part in order, and serves.
//!
//! [`start`] is the whole product in one process: store, slots, router, sandbox, tools, workspaces,
//! harness, then the edge; or, in the role of a gateway, the edge in front of other processes. [`serve`] is the edge alone over parts that are given: it is what `start`
//! ends with, and what tests put scripted parts behind.

mod dispatch;
mod engine;
mod gateway;
pub(crate) mod hints;
mod running;
mod shared;
mod slots;
pub mod store;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::control::Protect;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::forge::Forge;
use evenkeel_core::port::model::Model;
use evenkeel_core::port::runner::Runner;
use evenkeel_core::port::store::{Store, StoreClient};
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::{Env, Listener};
use evenkeel_harness::{Harness, HarnessConfig, HarnessSlots, Parts};
use evenkeel_model::{ProviderKeys, Router};
use evenkeel_sandbox::Launcher;
use evenkeel_store::slow::SlowStore;
use evenkeel_tools::workspace::ShadowWorkspaces;
use evenkeel_tools::{GitForge, Hosts, ToolSlots, Toolbox};

pub use dispatch::{Dispatch, Routing};
use engine::EngineKeeper;
pub use running::Running;
pub(crate) use shared::Shared;
pub use slots::ComponentSlots;

use crate::config::{Config, Role};
use crate::stream::Hub;
use crate::telemetry::{Exporter, Metrics};

/// The parts behind the edge.
pub struct EdgeParts {
    /// Threads, runs, events; with the limits of the store component in front.
    pub store: StoreClient,
    /// The engine with its speed control, when the lab is open.
    pub slow: Option<Arc<SlowStore>>,
    /// Where streams are fed.
    pub hub: Arc<Hub>,
    /// Who runs what was admitted.
    pub dispatch: Arc<dyn Dispatch>,
    /// The router, as operators see it.
    pub routing: Arc<dyn Routing>,
    /// Slots of all components.
    pub slots: ComponentSlots,
    /// Counters and gauges.
    pub metrics: Arc<Metrics>,
    /// Spans on their way to the collector.
    pub exporter: Exporter,
}

/// The parts of a replica that touch the machine: the real ones, or the twins of a simulation.
pub struct Grounds {
    /// The store's engine.
    pub engine: store::Opened,
    /// Runs commands in isolation.
    pub runner: Arc<dyn Runner>,
    /// The same where it is the real one, for what it counts.
    pub sandbox: Option<Arc<Launcher>>,
    /// Files of runs.
    pub workspaces: Arc<dyn Workspaces>,
    /// Where results are delivered.
    pub forge: Arc<dyn Forge>,
}

impl Grounds {
    /// The real ones, as the configuration names them.
    ///
    /// # Errors
    /// What the first of them says that cannot start.
    async fn real(env: &Env, config: &Config) -> Result<Self, Error> {
        let engine = store::open(env, config).await?;
        tracing::info!(engine = ?config.server.store, data_dir = %config.server.data_dir.display(), "store ready");
        let runner = Launcher::start(&env.part("sandbox"), config.sandbox.clone())?;
        let sandbox = Some(runner.clone());
        let (workspaces, forge) = workspaces(env, config)?;
        Ok(Self { engine, runner, sandbox, workspaces, forge })
    }
}

/// Workspaces, and the forge to which their results go.
pub type Places = (Arc<dyn Workspaces>, Arc<dyn Forge>);

/// The workspaces below the data directory, and where their results can be delivered.
///
/// # Errors
/// `config-invalid` for a host whose token comes from nowhere.
pub fn workspaces(env: &Env, config: &Config) -> Result<Places, Error> {
    let environment = config.environment.clone();
    let variable = Arc::new(move |name: &str| environment.get(name).map(str::to_owned));
    let hosts = Hosts::new(env, &config.git, variable)?;
    let root = config.server.data_dir.join("workspaces");
    let allowed = config.workspaces.allowed();
    let workspaces = ShadowWorkspaces::new(&env.part("workspaces"), root, allowed, hosts.clone());
    let forge = GitForge::new(env, config.server.data_dir.join("deliveries"), hosts);
    tracing::info!(
        sources = config.workspaces.sources.len(),
        hosts = config.git.hosts.len(),
        "workspaces ready"
    );
    Ok((workspaces, forge))
}

/// Starts the whole product in this process.
///
/// # Errors
/// What the first part that cannot start says; nothing keeps running then.
#[must_use]
pub fn start(env: Env, config: Config) -> BoxFuture<'static, Result<Running, Error>> {
    start_on(env, config, None)
}

/// The same on these grounds; a gateway stands on none.
///
/// # Errors
/// As [`start`].
#[must_use]
pub fn start_on(
    env: Env,
    config: Config,
    grounds: Option<Grounds>,
) -> BoxFuture<'static, Result<Running, Error>> {
    Box::pin(async move {
        let warnings = config.check()?;
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        // Before anything else: a replica whose heartbeat is known must not refuse its peers' probes.
        let listener = listen(&env, &config).await?;
        if config.server.role == Role::Gateway {
            return gateway::start(env, config, listener).await;
        }
        let agents = config.agents()?;
        let keys =
            ProviderKeys::read_with(&config.router, |name| config.environment.get(name).map(str::to_owned))?;
        let metrics = Metrics::new();
        let slots = ComponentSlots::new(&config.limits);
        let exporter = Exporter::start(&env, &config)?;

        let grounds = match grounds {
            Some(grounds) => grounds,
            None => Grounds::real(&env, &config).await?,
        };
        metrics.show_postgres(grounds.engine.postgres);
        metrics.show_sandbox(grounds.sandbox);
        let (keeper, engine) = EngineKeeper::new(&env, grounds.engine.store, grounds.engine.failure);
        let slow = config.server.lab.then(|| SlowStore::new(engine.clone()));
        let engine = slow.clone().map_or(engine, |slow| slow as Arc<dyn Store>);
        let limited =
            store::LimitedStore::new(engine, slots.store.clone(), metrics.clone(), exporter.clone(), &env);
        let store = StoreClient(limited);

        let mut router_config = config.router.clone();
        if config.protect == Protect::None {
            router_config.router.protect = Protect::None;
        }
        let router = Router::start(&env.part("router"), router_config, keys)?;
        tracing::info!(
            deployments = config.router.deployments.len(),
            routes = config.router.routes.len(),
            "model router ready"
        );

        let tool_slots = ToolSlots {
            policy: slots.policy.clone(),
            tools: slots.tools.clone(),
            sandbox: slots.sandbox.clone(),
        };
        let toolbox =
            Toolbox::start(&env.part("tools"), config.tools.clone(), grounds.runner, tool_slots).await?;
        tracing::info!("tools and policy ready");

        let hub = Hub::new(store.clone());
        let parts = Parts {
            store: store.clone(),
            model: router.clone() as Arc<dyn Model>,
            tools: toolbox,
            workspaces: grounds.workspaces,
            forge: grounds.forge,
            feed: hub.clone(),
            agents: agents.clone(),
            slots: HarnessSlots { harness: slots.harness.clone(), compactor: slots.compactor.clone() },
        };
        let harness = Harness::start(&env, harness_config(&config, address_of(&listener)?), parts);
        tracing::info!(replica = %harness.replica(), slots = config.limits.harness.slots, "harness ready");

        let dispatch = Arc::new(dispatch::Harnessed(harness));
        let parts = EdgeParts { store, slow, hub, dispatch, routing: router, slots, metrics, exporter };
        Ok(serve_on(env, config, parts, listener)?.keeping(keeper))
    })
}

/// Serves the edge over these parts.
///
/// # Errors
/// `address-in-use`, `address-refused`, `config-invalid`.
#[must_use]
pub fn serve(env: Env, config: Config, parts: EdgeParts) -> BoxFuture<'static, Result<Running, Error>> {
    Box::pin(async move {
        let listener = listen(&env, &config).await?;
        serve_on(env, config, parts, listener)
    })
}

fn serve_on(
    env: Env,
    config: Config,
    parts: EdgeParts,
    listener: Box<dyn Listener>,
) -> Result<Running, Error> {
    let address = address_of(&listener)?;
    let shared = Shared::new(env, config, parts, address)?;
    let running = Running::begin(shared, listener, address);
    tracing::info!(%address, "serving");
    Ok(running)
}

async fn listen(env: &Env, config: &Config) -> Result<Box<dyn Listener>, Error> {
    let address = config.server.listen;
    env.net.listen(address).await.map_err(|error| no_listener(address, &error))
}

/// Where it listens, with the port that was picked.
#[expect(clippy::borrowed_box, reason = "it is boxed wherever it is")]
fn address_of(listener: &Box<dyn Listener>) -> Result<SocketAddr, Error> {
    listener
        .local_address()
        .map_err(|error| Error::internal(format!("Cannot tell the address that is listened on: {error}.")))
}

fn no_listener(address: SocketAddr, error: &std::io::Error) -> Error {
    let (code, remedy) = match error.kind() {
        ErrorKind::AddrNotAvailable => {
            (Code::AddressRefused, "Set server.listen to an address of this machine.")
        }
        ErrorKind::PermissionDenied => (
            Code::AddressRefused,
            "Set server.listen to a port from 1024 up, or give the right to use this one.",
        ),
        _ => (
            Code::AddressInUse,
            "Stop the process that uses the address, or set server.listen to another one.",
        ),
    };
    Error::new(code, Origin::Ours, format!("Cannot listen on {address}: {error}."), remedy)
}

fn harness_config(config: &Config, listening: SocketAddr) -> HarnessConfig {
    let ms =
        |duration: crate::config::DurationText| u64::try_from(duration.0.as_millis()).unwrap_or(u64::MAX);
    let replica = &config.replica;
    HarnessConfig {
        address: replica.announced(listening),
        beat_every_ms: ms(replica.beat_every),
        lease_ttl_ms: ms(replica.lease_ttl),
        fence_after_ms: ms(replica.fence_after),
        protect: config.protect,
        approval_ms: ms(config.approvals.timeout),
        approval_on_timeout: config.approvals.on_timeout,
        ..HarnessConfig::default()
    }
}
