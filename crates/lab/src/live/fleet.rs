//! Everything of the product that runs: the store, the replicas, the gateway in front of them, and
//! the links between them.
//!
//! ```text
//!   clients --- gateway --- replica 1..N --- store
//!                               |
//!                               +----------- providers
//! ```
//! A link that the scenario breaks is a proxy; any other is a direct connection, so that the lab
//! takes no more of the machine than it needs. One replica has no gateway: it is the whole product.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use evenkeel_core::Generator;
use evenkeel_env::Env;
use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::Plan;
use super::client::Door;
use super::config::{self, Place};
use super::database::Database;
use super::host::Host;
use super::process::{Launch, Real};
use crate::check::{Entry, Recorder};
use crate::link::{self, Proxy};
use crate::provider::Control;
use crate::scenario::{Action, Link, Target};
use crate::sim::{self, SimHost, StoreLink};

/// How long a gateway may take to find its replicas up.
const UP_WITHIN: Duration = Duration::from_secs(20);

/// The running product.
pub(super) struct Fleet {
    env: Env,
    replicas: Vec<Arc<dyn Host>>,
    gateway: Option<Arc<dyn Host>>,
    database: Database,
    /// Ways that can be broken, by the link that each is; to several providers there are several.
    links: BTreeMap<Link, Vec<Way>>,
    entry: Vec<String>,
    recorder: Recorder,
}

/// A way between two components that can be broken.
#[derive(Clone)]
pub(super) enum Way {
    /// Connections through a proxy.
    Proxy(Arc<Proxy>),
    /// Operations of a replica on the simulated store.
    Store(Arc<StoreLink>),
}

impl Way {
    /// Breaks it, until it is healed by the number that is returned.
    pub(super) fn set(&self, fault: link::Fault) -> u64 {
        match self {
            Self::Proxy(proxy) => proxy.set(fault),
            Self::Store(link) => link.set(fault),
        }
    }

    /// Takes a fault back.
    pub(super) fn heal(&self, id: u64) {
        match self {
            Self::Proxy(proxy) => proxy.heal(id),
            Self::Store(link) => link.heal(id),
        }
    }
}

impl Fleet {
    /// Starts the store, then the replicas one after the other, then the gateway.
    pub(super) async fn start(
        env: &Env,
        plan: &Plan,
        providers: &BTreeMap<String, Control>,
        recorder: &Recorder,
    ) -> anyhow::Result<Self> {
        let database = Database::start(env, &plan.store, plan.world.as_ref()).await?;
        let mut fleet = Self {
            env: env.clone(),
            replicas: Vec::new(),
            gateway: None,
            database,
            links: BTreeMap::new(),
            entry: Vec::new(),
            recorder: recorder.clone(),
        };
        for n in 1..=plan.replicas {
            let replica = fleet.start_replica(plan, providers, n).await;
            match replica {
                Ok(replica) => fleet.replicas.push(replica),
                Err(error) => {
                    fleet.end().await;
                    return Err(error);
                }
            }
        }
        fleet.open_entry(plan).await?;
        if let Err(error) = fleet.all_up().await {
            fleet.end().await;
            return Err(error);
        }
        Ok(fleet)
    }

    /// Waits until the gateway knows every replica to be up: only then does it send all requests of a
    /// thread to one of them. A load that begins earlier finds its first threads scattered.
    async fn all_up(&self) -> anyhow::Result<()> {
        let Some(gateway) = &self.gateway else { return Ok(()) };
        let door = gateway.door();
        let is_up = |row: &Value| row["standing"] == "up";
        let waiting = async {
            loop {
                match door.get("/v1/replicas").await {
                    Ok(Value::Array(rows)) if rows.iter().all(is_up) => return,
                    _ => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        timeout(UP_WITHIN, waiting).await.context("the gateway does not find all replicas up")
    }

    async fn start_replica(
        &mut self,
        plan: &Plan,
        providers: &BTreeMap<String, Control>,
        n: usize,
    ) -> anyhow::Result<Arc<dyn Host>> {
        let store = match self.database.port() {
            Some(port) => self.link(plan, Link::Store(Some(n)), port).await?,
            None => None,
        };
        let mut ports = BTreeMap::new();
        for (name, control) in providers {
            let port = control.address().port();
            let through = self.link(plan, Link::Providers(Some(n)), port).await?;
            ports.insert(name.clone(), through.unwrap_or(port));
        }
        let place = Place { store_url: self.database.url(store).await, provider_ports: ports };
        let (name, role) = (format!("replica-{n}"), config::replica_role(plan));
        let config = config::replica(plan, &place).context("write a replica's configuration")?;
        let Some(world) = &plan.world else {
            let arguments = vec!["--role".to_owned(), role.to_owned()];
            let (program, root) = (plan.program.clone(), plan.root.clone());
            let launch = Launch { name, program, arguments, config, root };
            return Ok(Real::start(&self.env, launch, &self.recorder).await?);
        };
        let store = world.twin().link(&name);
        self.links.entry(Link::Store(Some(n))).or_default().push(Way::Store(store.clone()));
        let set = vec![("server.role".to_owned(), role.to_owned())];
        let launch = sim::Launch { name, config, set, store: Some(store) };
        Ok(SimHost::start(world, launch, &self.recorder).await?)
    }

    async fn start_gateway(&self, plan: &Plan, ports: &[u16]) -> anyhow::Result<Arc<dyn Host>> {
        let (name, peers) = ("gateway".to_owned(), config::peers(ports));
        let config = config::gateway(plan).context("write the gateway's configuration")?;
        let Some(world) = &plan.world else {
            let arguments = ["--role", "gateway", "--peers", &peers.join(",")].map(str::to_owned).to_vec();
            let (program, root) = (plan.program.clone(), plan.root.clone());
            let launch = Launch { name, program, arguments, config, root };
            return Ok(Real::start(&self.env, launch, &self.recorder).await?);
        };
        let set = [("server.role", "gateway".to_owned()), ("gateway.peers", format!("{peers:?}"))];
        let set = set.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let launch = sim::Launch { name, config, set, store: None };
        Ok(SimHost::start(world, launch, &self.recorder).await?)
    }

    /// A proxy in front of `port` if the scenario breaks this link; its port.
    async fn link(&mut self, plan: &Plan, link: Link, port: u16) -> anyhow::Result<Option<u16>> {
        let breaks = plan.scenario.faults.iter().any(|fault| match fault.target {
            Target::Link(target) => target.covers(link),
            _ => false,
        });
        if !breaks {
            return Ok(None);
        }
        let proxy = Proxy::start(&self.env, port).await?;
        let through = proxy.port();
        self.links.entry(link).or_default().push(Way::Proxy(proxy));
        Ok(Some(through))
    }

    /// Where clients come in: the gateway, or without one the replicas themselves.
    async fn open_entry(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let mut inner = Vec::new();
        for (idx, replica) in self.replicas.clone().iter().enumerate() {
            let port = replica.port().context("a replica listens on a port")?;
            let link = if plan.replicas > 1 { Link::Gateway(Some(idx + 1)) } else { Link::Clients };
            inner.push(self.link(plan, link, port).await?.unwrap_or(port));
        }
        if plan.replicas > 1 {
            let gateway = self.start_gateway(plan, &inner).await?;
            let port = gateway.port().context("the gateway listens on a port")?;
            self.gateway = Some(gateway);
            inner = vec![self.link(plan, Link::Clients, port).await?.unwrap_or(port)];
        }
        self.entry = inner.into_iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        Ok(())
    }

    /// Where clients ask.
    pub(super) fn entry(&self) -> Vec<String> {
        self.entry.clone()
    }

    /// A client that comes in where clients do.
    pub(super) fn entry_door(&self) -> Door {
        Door::new(&self.env, self.entry.clone())
    }

    /// A client of the whole, for the lab's own questions.
    pub(super) fn door(&self) -> Door {
        let bases = match &self.gateway {
            Some(gateway) => vec![gateway.address()],
            None => self.replicas.iter().map(|replica| replica.address()).collect(),
        };
        Door::new(&self.env, bases)
    }

    /// Clients of each replica alone, with their names.
    pub(super) fn replica_doors(&self) -> Vec<(String, Door)> {
        self.replicas.iter().map(|replica| (replica.name().to_owned(), replica.door())).collect()
    }

    /// The replica of this number, or any one.
    pub(super) fn replica(&self, number: Option<usize>, generator: &Generator) -> Option<Arc<dyn Host>> {
        let n = self.replicas.len();
        let idx = match number {
            Some(number) => number - 1,
            None => usize::try_from(generator.below(n as u64)).unwrap_or_default(),
        };
        self.replicas.get(idx).cloned()
    }

    /// All replicas, in order.
    pub(super) fn replicas(&self) -> &[Arc<dyn Host>] {
        &self.replicas
    }

    /// The ways that a fault on this link is set on.
    pub(super) fn ways(&self, link: Link) -> Vec<Way> {
        let covered = self.links.iter().filter(|(one, _)| link.covers(**one));
        covered.flat_map(|(_, ways)| ways.clone()).collect()
    }

    /// Makes every replica's store slow, or fast again with `None`.
    pub(super) async fn slow_store(&self, slowness: Option<(f64, u64)>) {
        join_all(self.replicas.iter().map(|replica| replica.slow_store(slowness))).await;
    }

    /// Restarts the store. SQLite lives in the product's process, so that is restarted.
    pub(super) async fn restart_store(&self, down: Duration, mut note: impl FnMut(bool)) {
        if let (true, Some(replica)) = (self.database.is_inside(), self.replicas.first()) {
            replica.kill().await;
            note(true);
            sleep(down).await;
            replica.start_again().await;
            note(false);
            return;
        }
        if let Err(error) = self.database.restart(down, note).await {
            let text = format!("The store could not be restarted: {error:#}");
            self.recorder.add(|t| Entry::Crash { text, t });
        }
    }

    /// Brings everything up that a fault has left down.
    pub(super) async fn settle(&self) {
        for process in self.processes() {
            process.go_on();
            process.start_again().await;
        }
    }

    fn processes(&self) -> impl Iterator<Item = &Arc<dyn Host>> {
        self.replicas.iter().chain(&self.gateway)
    }

    /// The orderly end of everything.
    pub(super) async fn end(&self) {
        if let Some(gateway) = &self.gateway {
            gateway.end().await;
        }
        join_all(self.replicas.iter().map(|replica| replica.end())).await;
    }
}

/// Refuses what cannot run together.
pub(super) fn check(plan: &Plan) -> anyhow::Result<()> {
    let one_only = plan.store.engine() == "sqlite" && plan.replicas > 1;
    if one_only {
        bail!(
            "SQLite is the store of one replica, and {} are asked for. Give --store postgres, or --replicas 1.",
            plan.replicas
        );
    }
    for fault in &plan.scenario.faults {
        if let (Some(instead), true) = (fault.live_instead(), plan.world.is_none()) {
            bail!(
                "The fault '{}' on {} exists only in virtual time. Give --virtual, or {instead}.",
                fault.kind(),
                fault.target_name()
            );
        }
        let own_clock = matches!((&fault.target, &fault.action), (Target::Store, Action::Clock { .. }));
        if own_clock && plan.store.engine() == "sqlite" {
            bail!(
                "A fault is aimed at the store's clock, and SQLite has none of its own. Give --store postgres, or aim it at the process."
            );
        }
        let wanted = match fault.target {
            Target::Replica(n)
            | Target::Link(Link::Gateway(Some(n)) | Link::Store(Some(n)) | Link::Providers(Some(n))) => n,
            _ => 1,
        };
        if wanted > plan.replicas {
            bail!("A fault is aimed at {}, and there are {} replicas.", fault.target_name(), plan.replicas);
        }
        let between = matches!(fault.target, Target::Link(Link::Store(_) | Link::Gateway(_)));
        if between && plan.store.engine() == "sqlite" && matches!(fault.action, Action::Link(_)) {
            bail!(
                "A fault is aimed at {}, which SQLite does not have. Give --store postgres.",
                fault.target_name()
            );
        }
    }
    Ok(())
}

/// The folder that all replicas share: what a volume is to them on several machines.
pub(super) fn data_dir(plan: &Plan) -> PathBuf {
    plan.root.join("data")
}
