//! One simulated process of the product: the same configuration and the same code as the real one,
//! as a group of tasks on the simulation's thread.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, SnapshotId, ThreadId};
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::Store;
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_core::run::Repository;
use evenkeel_env::Env;
use evenkeel_server::app::store::Opened;
use evenkeel_server::app::{Grounds, Running, start_on, workspaces};
use evenkeel_server::config::Environment;
use evenkeel_server::{Config, Overrides};

use super::World;
use super::group::{Group, GroupSpawn};
use super::net::HostNet;
use super::runner::PaperRunner;
use super::store::StoreLink;
use crate::check::{Entry, Recorder};
use crate::live::client::Door;
use crate::live::host::{ANY_PORT, Host};

/// A drain that takes longer is a finding of its own; the process is then killed.
const END_WITHIN: Duration = Duration::from_secs(60);

/// What a simulated process is started with.
pub(crate) struct Launch {
    /// Its name in the log.
    pub(crate) name: String,
    /// Its configuration, listening on [`ANY_PORT`].
    pub(crate) config: String,
    /// Keys of the configuration that the command line of a real process would set.
    pub(crate) set: Vec<(String, String)>,
    /// Its way to the store; a gateway has none.
    pub(crate) store: Option<Arc<StoreLink>>,
}

/// A simulated process.
pub(crate) struct SimHost {
    world: Arc<World>,
    launch: Launch,
    name: Arc<str>,
    recorder: Recorder,
    address: OnceLock<String>,
    state: Mutex<State>,
    starting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    n_starts: u32,
    up: Option<Up>,
    slowness: Option<(f64, u64)>,
}

struct Up {
    group: Arc<Group>,
    running: Running,
}

impl SimHost {
    /// Starts the process and waits until it listens.
    pub(crate) async fn start(
        world: &Arc<World>,
        launch: Launch,
        recorder: &Recorder,
    ) -> anyhow::Result<Arc<Self>> {
        let host = Arc::new(Self {
            world: world.clone(),
            name: launch.name.as_str().into(),
            launch,
            recorder: recorder.clone(),
            address: OnceLock::new(),
            state: Mutex::default(),
            starting: tokio::sync::Mutex::new(()),
        });
        host.run().await?;
        Ok(host)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self) -> anyhow::Result<()> {
        let (n_start, slowness) = {
            let mut state = self.state();
            state.n_starts += 1;
            (state.n_starts, state.slowness)
        };
        let group = Group::new();
        let env = Env {
            clock: self.world.clock_of(&self.name),
            generator: self.world.env.generator.part(&format!("{} {n_start}", self.name)),
            spawner: Arc::new(GroupSpawn(group.clone())),
            net: Arc::new(HostNet { network: self.world.network.clone(), name: self.name.clone() }),
        };
        let config = self.config()?;
        let store = self.launch.store.clone();
        let grounds = store.map(|store| self.grounds(&env, &config, store)).transpose()?;
        self.world.log.line(&self.name, format_args!("starts"));
        let running = start_on(env, config, grounds).await?;
        self.address.get_or_init(|| format!("http://{}", running.address()));
        self.state().up = Some(Up { group, running });
        if let Some((factor, base_ms)) = slowness {
            self.tell_slowness(factor, base_ms).await;
        }
        Ok(())
    }

    fn config(&self) -> anyhow::Result<Config> {
        let listen = self.address.get().map_or(ANY_PORT, |address| address.trim_start_matches("http://"));
        let text = self.launch.config.replace(ANY_PORT, listen);
        let overrides = Overrides { environment: Environment::default(), set: self.launch.set.clone() };
        Config::parse(&self.launch.name, &text, &overrides).context("read a process's configuration")
    }

    fn grounds(&self, env: &Env, config: &Config, store: Arc<StoreLink>) -> anyhow::Result<Grounds> {
        let runner = PaperRunner {
            rehearsal: self.world.rehearsal(),
            generator: env.generator.part("runner"),
            log: self.world.log.clone(),
            name: self.name.clone(),
        };
        let (inner, forge) = workspaces(env, config)?;
        Ok(Grounds {
            engine: Opened::of(store as Arc<dyn Store>),
            sandbox: None,
            runner: Arc::new(runner),
            workspaces: Arc::new(Renamed { inner, root: self.world.root.clone() }),
            forge,
        })
    }

    async fn tell_slowness(&self, factor: f64, base_ms: u64) {
        let body = serde_json::json!({"factor": factor, "base_ms": base_ms});
        if let Err(trouble) = self.door().post("/v1/lab/store", None, &body).await {
            tracing::warn!(%trouble, "the store's speed could not be set");
        }
    }

    fn with_group(&self, act: impl FnOnce(&Group)) {
        if let Some(up) = &self.state().up {
            act(&up.group);
        }
    }
}

impl Host for SimHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> String {
        self.address.get().cloned().unwrap_or_default()
    }

    fn door(&self) -> Door {
        Door::new(&self.world.env, vec![self.address()])
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(up) = self.state().up.take() else { return };
            self.world.log.line(&self.name, format_args!("killed"));
            up.group.kill().await;
        })
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // Its port is taken until it has ended: whoever starts it again waits for that.
            let _one_at_a_time = self.starting.lock().await;
            let Some(Up { group, running }) = self.state().up.take() else { return };
            self.world.log.line(&self.name, format_args!("drains"));
            if tokio::time::timeout(END_WITHIN, running.shutdown()).await.is_err() {
                let text =
                    format!("{} did not end within {} s of its drain", self.name, END_WITHIN.as_secs());
                self.recorder.add(|t| Entry::Crash { text, t });
            }
            group.kill().await;
        })
    }

    fn stop(&self) {
        self.world.log.line(&self.name, format_args!("stopped"));
        self.with_group(Group::stop);
    }

    fn go_on(&self) {
        self.world.log.line(&self.name, format_args!("goes on"));
        self.with_group(Group::go_on);
    }

    fn start_again(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _one_at_a_time = self.starting.lock().await;
            if self.state().up.is_some() {
                return;
            }
            if let Err(error) = self.run().await {
                let text = format!("{} could not be started again: {error:#}", self.name);
                self.recorder.add(|t| Entry::Crash { text, t });
            }
        })
    }

    fn slow_store(&self, slowness: Option<(f64, u64)>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.state().slowness = slowness;
            let (factor, base_ms) = slowness.unwrap_or((1.0, 0));
            self.tell_slowness(factor, base_ms).await;
        })
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.go_on();
            self.kill().await;
        })
    }
}

/// Where repositories of tasks lie in the words of a virtual run. The folder on this machine has
/// another name each time, and no trace of it may get into the log.
pub(crate) const REPOSITORIES: &str = "/lab/repositories";

/// Workspaces whose repositories have the names of the simulation.
struct Renamed {
    inner: Arc<dyn Workspaces>,
    root: PathBuf,
}

impl Workspaces for Renamed {
    fn open(
        &self,
        thread: ThreadId,
        run: RunId,
        repository: Repository,
    ) -> BoxFuture<'_, Result<(PathBuf, SnapshotId), Error>> {
        let repository = match repository {
            Repository::Directory(written) => {
                let name = written.strip_prefix(REPOSITORIES).map(|name| name.to_owned());
                Repository::Directory(name.map_or(written, |name| {
                    let path = self.root.join("repositories").join(name.trim_start_matches('/'));
                    path.display().to_string()
                }))
            }
            other => other,
        };
        self.inner.open(thread, run, repository)
    }

    fn snapshot(&self, thread: ThreadId) -> BoxFuture<'_, Result<SnapshotId, Error>> {
        self.inner.snapshot(thread)
    }

    fn restore(&self, thread: ThreadId, snapshot: SnapshotId) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.restore(thread, snapshot)
    }

    fn diff(&self, thread: ThreadId, from: SnapshotId) -> BoxFuture<'_, Result<String, Error>> {
        self.inner.diff(thread, from)
    }

    fn remove(&self, thread: ThreadId) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.remove(thread)
    }
}
