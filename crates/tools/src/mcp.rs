//! MCP: the client through which every tool is reached, and the built-in servers for others.
//!
//! Built-in servers run in this process and are reached over an in-memory pipe, one session for
//! each run and kind, opened when first used; foreign servers are child processes or are reached by
//! streamable HTTP. All speak the same protocol through the same client, so a call passes the same deadline, cancel and output
//! cap whoever answers it. A call that times out or is dropped sends `notifications/cancelled` and
//! hurts nothing else. A lost session is opened once more for the call that found it lost.

pub(crate) mod foreign;
#[cfg(test)]
mod fuzz;
mod http;
mod listen;
pub(crate) mod local;
mod process;
pub(crate) mod session;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Runner, RunnerLimits};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use futures_util::future::BoxFuture;

use crate::blocking::Blocking;
use crate::builtin::{Context, Server};
use crate::policy::facts;

/// Longest message of a foreign server; a longer one is dropped, and its call fails or times out.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// The key in a result's `_meta` under which our servers return facts about a call.
pub(crate) const FACTS: &str = "evenkeel/facts";

/// The key in a request's `_meta` that carries the effect's id: the same when a call is repeated.
pub(crate) const EFFECT: &str = "evenkeel/effect";

/// One of the built-in servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerKind {
    /// Reads and changes files.
    Files,
    /// Searches files.
    Grep,
    /// Asks git, inside the sandbox.
    Git,
}

impl ServerKind {
    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Grep => "grep",
            Self::Git => "git",
        }
    }
}

impl std::str::FromStr for ServerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = [Self::Files, Self::Grep, Self::Git];
        let found = kinds.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not one of files, grep, git"))
    }
}

/// Serves one of the built-in servers on stdin and stdout until stdin ends. `git` needs a runner.
///
/// # Errors
/// `config-invalid` without a runner for `git`; `workspace-failed` if there is no such directory.
pub fn serve_stdio(
    env: &Env,
    kind: ServerKind,
    workspace: PathBuf,
    runner: Option<Arc<dyn Runner>>,
) -> BoxFuture<'static, Result<(), Error>> {
    let env = env.clone();
    Box::pin(async move {
        let server = standalone(&env, kind, workspace, runner).await?;
        local::serve(server, (tokio::io::stdin(), tokio::io::stdout())).await
    })
}

/// Serves one of the built-in servers over streamable HTTP on a loopback address, for ever, at every
/// path. `ready` is called with the address once it listens.
///
/// # Errors
/// As [`serve_stdio`]; `address-refused` beyond loopback, `address-in-use`.
pub fn serve_http(
    env: &Env,
    kind: ServerKind,
    workspace: PathBuf,
    runner: Option<Arc<dyn Runner>>,
    address: SocketAddr,
    ready: Box<dyn FnOnce(SocketAddr) + Send>,
) -> BoxFuture<'static, Result<(), Error>> {
    let env = env.clone();
    Box::pin(async move {
        let server = standalone(&env, kind, workspace, runner).await?;
        listen::serve(&env, server, address, ready).await
    })
}

/// A built-in server for a client of its own, outside of any run.
async fn standalone(
    env: &Env,
    kind: ServerKind,
    workspace: PathBuf,
    runner: Option<Arc<dyn Runner>>,
) -> Result<Server, Error> {
    if kind == ServerKind::Git && runner.is_none() {
        return Err(Error::new(
            Code::ConfigInvalid,
            Origin::Ours,
            "The git server has no sandbox to run git in.",
            "Enable the sandbox; evenkeel doctor says what it needs.",
        ));
    }
    let pool = Blocking::start(env, "tool-files", 2);
    let checked = workspace.clone();
    let opened = pool.run(move || crate::beneath::Root::open(&checked).map(|_| ())).await;
    if let Ok(Err(refusal)) = opened {
        return Err(Error::client(
            Code::WorkspaceFailed,
            refusal.0,
            "Name an existing directory with --workspace.",
        ));
    }
    let context = Context {
        tenant: TenantId::from("local"),
        run: RunId::new(env.wall(), &env.generator),
        workspace,
        pool,
        runner,
        limits: RunnerLimits::default(),
        readable: Arc::new(|path| !facts::is_credential(path)),
    };
    Ok(Server::new(kind, context))
}

pub(crate) fn lost(server: &str, why: impl std::fmt::Display) -> Error {
    Error::new(
        Code::ToolServerLost,
        Origin::Tool,
        format!("The tool server {server} went away: {why}."),
        "Try again; the server is started anew. If it stays away, go on without it.",
    )
}
