//! `evenkeel mcp files|grep|git`: the built-in tool servers for any MCP client, over stdio or HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use evenkeel_core::port::runner::Runner;
use evenkeel_env::Env;
use evenkeel_sandbox::{Launcher, SandboxConfig};
use evenkeel_tools::mcp::{ServerKind, serve_http, serve_stdio};

use crate::cmd::Done;
use crate::output;

/// Arguments of `mcp`.
#[derive(clap::Args)]
#[command(after_help = "\
For the configuration of an MCP client:
  { \"command\": \"evenkeel\", \"args\": [\"mcp\", \"files\", \"--workspace\", \"/path/to/repository\"] }

With --http the server is at http://ADDRESS/mcp (streamable HTTP), for clients on this machine.

Files are opened beneath the workspace only, whatever a path says. git runs inside the sandbox.")]
pub(crate) struct Args {
    /// Which server: files, grep or git
    server: ServerKind,
    /// The directory that it serves
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
    /// Serve by HTTP on this loopback address instead of stdin and stdout; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
}

/// Serves until stdin ends, or by HTTP until it is stopped. Stdout belongs to the protocol; the log
/// goes to stderr.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    output::log("warn")?;
    let workspace = args.workspace.canonicalize().map_err(|error| {
        output::usage(
            format!("The workspace {} cannot be opened: {error}.", args.workspace.display()),
            "Name an existing directory with --workspace.",
        )
    })?;
    let runner: Option<Arc<dyn Runner>> = match args.server {
        ServerKind::Git => Some(Launcher::start(env, SandboxConfig::default())?),
        ServerKind::Files | ServerKind::Grep => None,
    };
    match args.http {
        None => serve_stdio(env, args.server, workspace, runner).await?,
        Some(address) => {
            let ready = Box::new(|address: SocketAddr| {
                output::aside(format_args!("serving MCP at http://{address}/mcp"))
            });
            serve_http(env, args.server, workspace, runner, address, ready).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
