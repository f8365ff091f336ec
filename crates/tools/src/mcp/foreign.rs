//! Foreign tool servers: child processes that speak MCP on stdin and stdout, and servers that are
//! reached by streamable HTTP.
//!
//! ```text
//! stopped --first use--> starting --handshake--> open --child or pipe ends--> lost
//!                           |  ^                                               |
//!                    failed |  +------------- next use, after the backoff -----+
//!                           v
//!                        backoff (0.5 s, doubling, at most 30 s; 0 after a session that worked)
//! ```
//! One session per server serves all runs. A server gets an environment of its own, never ours,
//! and a process group of its own that ends with it ([`super::process`]): what it started does not
//! outlive it.
//! When we are killed, the end of its stdin tells it to go.

use std::process::Stdio;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_env::Env;
use rmcp::model::Tool;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::ChildStderr;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::process::Process;
use super::session::{Session, handshake};
use super::{MESSAGE_BYTES_MAX, http, lost};
use crate::config::McpServerConfig;

const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Directories in which a server's program is looked up.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One configured server.
pub(crate) struct Foreign {
    pub(crate) name: String,
    pub(crate) config: McpServerConfig,
    env: Env,
    state: Mutex<State>,
    /// The tools as last listed; kept when the server goes away, so that what agents are offered
    /// does not change with it.
    tools: std::sync::Mutex<Option<Arc<Vec<Tool>>>>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    n_failures: u32,
    retry_at: Option<Instant>,
}

impl State {
    fn is_open(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.session.is_open())
    }
}

struct Open {
    session: Arc<Session>,
    /// Kills a server of our own when dropped.
    _process: Option<Process>,
}

impl Foreign {
    pub(crate) fn new(env: &Env, name: String, config: McpServerConfig) -> Self {
        Self { name, config, env: env.clone(), state: Mutex::default(), tools: std::sync::Mutex::default() }
    }

    /// The open session, started if need be. Waits out the backoff; the caller's own limit ends
    /// the wait.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Error> {
        loop {
            let mut state = self.state.lock().await;
            match state.retry_at.filter(|at| *at > Instant::now() && !state.is_open()) {
                None => return self.open(&mut state).await,
                Some(at) => {
                    drop(state);
                    tokio::time::sleep_until(at).await;
                }
            }
        }
    }

    async fn open(&self, state: &mut State) -> Result<Arc<Session>, Error> {
        if let Some(open) = state.open.as_ref().filter(|open| open.session.is_open()) {
            return Ok(open.session.clone());
        }
        if state.open.take().is_some() {
            // It worked until now: the first restart is at once, the next ones are not.
            state.n_failures = 0;
        }
        state.retry_at = Some(Instant::now() + backoff(state.n_failures));
        state.n_failures = state.n_failures.saturating_add(1);
        let limit = Duration::from_millis(self.config.start_ms_max);
        let started = tokio::time::timeout(limit, self.start()).await;
        let (open, tools) = started.map_err(|_| lost(&self.name, "it did not start in time"))??;
        let session = open.session.clone();
        state.open = Some(open);
        *self.tools.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tools));
        tracing::info!(server = %self.name, "tool server started");
        Ok(session)
    }

    /// Gives up a session that turned out to be lost, unless another was opened already.
    pub(crate) async fn forget(&self, session: &Arc<Session>) {
        let mut state = self.state.lock().await;
        if state.open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.session, session)) {
            state.open = None;
            state.n_failures = 0;
        }
    }

    /// A call was answered: the next loss is a first one.
    pub(crate) async fn worked(&self) {
        let mut state = self.state.lock().await;
        state.n_failures = 0;
        state.retry_at = None;
    }

    /// The tools that the configuration lets through, by name.
    pub(crate) async fn tools(&self) -> Result<Vec<Tool>, Error> {
        if self.known_tools().is_none() {
            // Every model call asks what there is, so nobody waits here for a broken server's
            // backoff: until it is over, the server offers nothing.
            let mut state = self.state.lock().await;
            if state.retry_at.is_some_and(|at| at > Instant::now()) && !state.is_open() {
                return Err(lost(&self.name, "it did not start, and is tried again soon"));
            }
            self.open(&mut state).await?;
        }
        let all = self.known_tools().unwrap_or_default();
        let allowed = |tool: &&Tool| match &self.config.tools {
            Some(names) => names.iter().any(|name| *name == tool.name),
            None => true,
        };
        let mut tools: Vec<Tool> = all.iter().filter(allowed).cloned().collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tools)
    }

    fn known_tools(&self) -> Option<Arc<Vec<Tool>>> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn start(&self) -> Result<(Open, Vec<Tool>), Error> {
        let (session, process) = match (&self.config.url, &self.config.command) {
            (Some(url), _) => (self.connect(url).await?, None),
            (None, Some(program)) => {
                let (session, process) = self.launch(program).await?;
                (session, Some(process))
            }
            (None, None) => return Err(lost(&self.name, "it has neither a command nor a url")),
        };
        let tools = session.tools().await?;
        Ok((Open { session: Arc::new(session), _process: process }, tools))
    }

    async fn connect(&self, url: &str) -> Result<Session, Error> {
        let token = self.config.token.as_deref().map(resolved).transpose();
        let token = token.map_err(|missing| lost(&self.name, missing))?;
        handshake(&self.name, http::transport(&self.env, url, token)).await
    }

    async fn launch(&self, program: &str) -> Result<(Session, Process), Error> {
        let own = self.config.env.iter().map(|(name, value)| Ok((name, resolved(value)?)));
        let own = own.collect::<Result<Vec<_>, String>>().map_err(|missing| lost(&self.name, missing))?;
        let mut command = evenkeel_env::process::command(program);
        command
            .args(&self.config.args)
            .env("PATH", PATH)
            .env("HOME", "/tmp")
            .envs(own)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(|error| lost(&self.name, error))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = Process::of(child);
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(lost(&self.name, "it has no pipes"));
        };
        let log = log_of(self.name.clone(), stderr);
        drop(self.env.spawner.spawn("mcp-stderr", Box::pin(log)));
        let transport = AsyncRwTransport::new(stdout, stdin).with_max_line_length(MESSAGE_BYTES_MAX);
        let session = handshake(&self.name, transport).await?;
        let process = process.watched(&self.env, session.closer());
        Ok((session, process))
    }
}

/// A value, or what the variable that it names holds.
fn resolved(value: &str) -> Result<String, String> {
    match value.strip_prefix("env:") {
        Some(name) => std::env::var(name).map_err(|_| format!("the variable {name} is not set")),
        None => Ok(value.to_owned()),
    }
}

fn backoff(n_failures: u32) -> Duration {
    let factor = 1u32.checked_shl(n_failures.min(16)).unwrap_or(u32::MAX);
    BACKOFF_FIRST.saturating_mul(factor).min(BACKOFF_MAX)
}

/// Passes a server's own log on, line by line, cut, until it ends.
async fn log_of(server: String, stderr: ChildStderr) {
    let mut lines = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut lines).take(4096);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                tracing::debug!(%server, line = %String::from_utf8_lossy(&line).trim_end(), "tool server")
            }
        }
    }
}
