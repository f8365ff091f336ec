//! One process of the product: started, killed, stopped and continued, drained, and started again
//! on the same data and the same port.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use evenkeel_core::port::BoxFuture;
use evenkeel_env::{Env, process, watch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use super::client::Door;
use super::host::{ANY_PORT, Host};
use crate::check::{Entry, Recorder};

const READY_WITHIN: Duration = Duration::from_secs(60);
const END_WITHIN: Duration = Duration::from_secs(30);
const N_CRASHES_MAX: u32 = 5;

/// What a process is started with.
pub(super) struct Launch {
    /// Its name in messages and of its files: `replica-1`, `gateway`.
    pub(super) name: String,
    /// The executable.
    pub(super) program: PathBuf,
    /// Arguments after `serve`.
    pub(super) arguments: Vec<String>,
    /// Its configuration, listening on [`ANY_PORT`].
    pub(super) config: String,
    /// The folder for its configuration and its log.
    pub(super) root: PathBuf,
}

/// A running process of the product.
struct Process {
    env: Env,
    launch: Launch,
    config_path: PathBuf,
    log: PathBuf,
    recorder: Recorder,
    address: OnceLock<String>,
    pid: Mutex<Option<Pid>>,
    /// Counts the ends of processes; waited for after a kill.
    ended: watch::Sender<u64>,
    /// Whether the next end is one of ours.
    expected: AtomicBool,
    /// Held while a process is being started again.
    starting: tokio::sync::Mutex<()>,
    /// How slow its store is to be; set again after each start.
    slowness: Mutex<Option<(f64, u64)>>,
}

impl Process {
    /// Writes the configuration, starts the process and waits until it listens.
    async fn start(env: &Env, launch: Launch, recorder: &Recorder) -> anyhow::Result<Arc<Self>> {
        let process = Arc::new(Self {
            env: env.clone(),
            config_path: launch.root.join(format!("{}.toml", launch.name)),
            log: launch.root.join(format!("{}.log", launch.name)),
            launch,
            recorder: recorder.clone(),
            address: OnceLock::new(),
            pid: Mutex::new(None),
            ended: watch::Sender::new(0),
            expected: AtomicBool::new(false),
            starting: tokio::sync::Mutex::new(()),
            slowness: Mutex::new(None),
        });
        process.write_config(ANY_PORT).await?;
        process.clone().run().await?;
        let address = process.address.get().context("the product did not say where it listens")?;
        // A restart must listen where the clients look for it.
        process.write_config(address.trim_start_matches("http://")).await?;
        Ok(process)
    }

    /// Whether a process runs.
    fn is_up(&self) -> bool {
        self.pid.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn name(&self) -> &str {
        &self.launch.name
    }

    fn address(&self) -> String {
        self.address.get().cloned().unwrap_or_default()
    }

    fn door(&self) -> Door {
        Door::new(&self.env, vec![self.address()])
    }

    async fn write_config(&self, listen: &str) -> anyhow::Result<()> {
        let text = self.launch.config.replace(ANY_PORT, listen);
        tokio::fs::write(&self.config_path, text).await.context("write the product's configuration")
    }

    /// Starts the process and waits until it says that it listens.
    async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .context("open the product's log")?;
        let mut command = process::command(&self.launch.program);
        command.arg("serve").arg("--config").arg(&self.config_path);
        command.args(["--ready-json", "--end-with-parent"]).args(&self.launch.arguments);
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("RUST_BACKTRACE", "1");
        command.env("HOME", self.config_path.parent().unwrap_or(&self.config_path));
        // What the operator sets for the product counts here too, over the scenario.
        command.envs(std::env::vars().filter(|(name, _)| name.starts_with("EVENKEEL_")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child =
            command.spawn().with_context(|| format!("start {}", self.launch.program.display()))?;
        let ready = tokio::time::timeout(READY_WITHIN, ready_line(&mut child)).await;
        let address = match ready {
            Ok(Ok(address)) => address,
            Ok(Err(error)) => bail!("{} did not start: {error:#}\n{}", self.name(), self.last_words().await),
            Err(_) => bail!(
                "{} was not ready after {} s.\n{}",
                self.name(),
                READY_WITHIN.as_secs(),
                self.last_words().await
            ),
        };
        self.address.get_or_init(|| address);
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        *self.pid.lock().unwrap_or_else(PoisonError::into_inner) = pid;
        self.clone().watch(child);
        if let Some((factor, base_ms)) = *self.slowness.lock().unwrap_or_else(PoisonError::into_inner) {
            let process = self.clone();
            self.env.spawner.spawn(
                "lab-slow-store",
                Box::pin(async move { process.tell_slowness(factor, base_ms).await }),
            );
        }
        Ok(())
    }

    /// Notices the end of the process, whoever caused it. One that nobody caused is a finding; the
    /// process is then started again, as a supervisor would.
    fn watch(self: Arc<Self>, mut child: Child) {
        let spawner = self.env.spawner.clone();
        spawner.spawn(
            "lab-watch",
            Box::pin(async move {
                let status = child.wait().await;
                let expected = self.expected.swap(false, Ordering::SeqCst);
                *self.pid.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.ended.send_modify(|n| *n += 1);
                if expected {
                    return;
                }
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                let text = format!("{}: {status}. {}", self.name(), self.last_words().await);
                self.recorder.add(|t| Entry::Crash { text, t });
                let n_crashes = *self.ended.borrow();
                if n_crashes <= u64::from(N_CRASHES_MAX) {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    self.start_unless_up().await;
                }
            }),
        );
    }

    async fn last_words(&self) -> String {
        let log = tokio::fs::read(&self.log).await.unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines.iter().skip(lines.len().saturating_sub(8)).copied().collect::<Vec<_>>().join("\n")
    }

    async fn signal_and_wait(&self, signal: Signal) {
        let mut ended = self.ended.subscribe();
        ended.mark_unchanged();
        self.expected.store(true, Ordering::SeqCst);
        if !self.signal(signal) {
            self.expected.store(false, Ordering::SeqCst);
            return;
        }
        // The sender lives as long as self, so this waits for the end itself.
        drop(tokio::time::timeout(END_WITHIN, ended.changed()).await);
    }

    /// Sends a signal; false if no process runs.
    fn signal(&self, signal: Signal) -> bool {
        let pid = *self.pid.lock().unwrap_or_else(PoisonError::into_inner);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    async fn start_unless_up(self: Arc<Self>) {
        let starting = self.clone();
        let _one_at_a_time = starting.starting.lock().await;
        if self.is_up() {
            return;
        }
        let recorder = self.recorder.clone();
        if let Err(error) = self.clone().run().await {
            recorder.add(|t| Entry::Crash {
                text: format!("{} could not be started again: {error:#}", self.name()),
                t,
            });
        }
    }

    async fn tell_slowness(&self, factor: f64, base_ms: u64) {
        let body = serde_json::json!({"factor": factor, "base_ms": base_ms});
        if let Err(trouble) = self.door().post("/v1/lab/store", None, &body).await {
            tracing::warn!(%trouble, "the store's speed could not be set");
        }
    }
}

/// The process as faults see it.
pub(super) struct Real(Arc<Process>);

impl Real {
    /// Starts a process; see [`Process::start`].
    pub(super) async fn start(env: &Env, launch: Launch, recorder: &Recorder) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self(Process::start(env, launch, recorder).await?)))
    }
}

impl Host for Real {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn address(&self) -> String {
        self.0.address()
    }

    fn door(&self) -> Door {
        self.0.door()
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.signal_and_wait(Signal::KILL))
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.signal_and_wait(Signal::TERM))
    }

    fn stop(&self) {
        self.0.signal(Signal::STOP);
    }

    fn go_on(&self) {
        self.0.signal(Signal::CONT);
    }

    fn start_again(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.clone().start_unless_up())
    }

    fn slow_store(&self, slowness: Option<(f64, u64)>) -> BoxFuture<'_, ()> {
        *self.0.slowness.lock().unwrap_or_else(PoisonError::into_inner) = slowness;
        let (factor, base_ms) = slowness.unwrap_or((1.0, 0));
        Box::pin(self.0.tell_slowness(factor, base_ms))
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.go_on();
            self.0.signal_and_wait(Signal::TERM).await;
            self.0.signal_and_wait(Signal::KILL).await;
        })
    }
}

/// Reads `{"listening": "http://HOST:PORT"}` and lets the rest of stdout run away.
async fn ready_line(child: &mut Child) -> anyhow::Result<String> {
    let stdout = child.stdout.take().context("stdout is piped")?;
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await.context("read the product's output")? {
        let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
        if let Some(address) = value["listening"].as_str() {
            return Ok(address.to_owned());
        }
    }
    bail!("it ended before it listened")
}
