//! MCP: the built-in servers for others, and the client through which every tool is reached.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::port::runner::Runner;
use evenkeel_env::Env;
use futures_util::future::BoxFuture;

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

/// Serves one of the built-in servers on stdin and stdout until stdin ends. `git` needs a runner.
///
/// # Errors
/// `config-invalid` without a runner for `git`; `workspace-failed` if there is no such directory.
pub fn serve_stdio(
    _env: &Env,
    _kind: ServerKind,
    _workspace: PathBuf,
    _runner: Option<Arc<dyn Runner>>,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(async { Err(Error::internal("Tool servers are not built yet.")) })
}
