//! `evenkeel mcp files|grep|git`: the built-in tool servers for any MCP client, over stdio.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use evenkeel_core::port::runner::Runner;
use evenkeel_env::Env;
use evenkeel_sandbox::{Launcher, SandboxConfig};
use evenkeel_tools::mcp::{ServerKind, serve_stdio};

use crate::cmd::Done;
use crate::output;

/// Arguments of `mcp`.
#[derive(clap::Args)]
#[command(after_help = "\
For the configuration of an MCP client:
  { \"command\": \"evenkeel\", \"args\": [\"mcp\", \"files\", \"--workspace\", \"/path/to/repository\"] }

Files are opened beneath the workspace only, whatever a path says. git runs inside the sandbox.")]
pub(crate) struct Args {
    /// Which server: files, grep or git
    server: ServerKind,
    /// The directory that it serves
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
}

/// Serves until stdin ends. Stdout belongs to the protocol; the log goes to stderr.
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
    serve_stdio(env, args.server, workspace, runner).await?;
    Ok(ExitCode::SUCCESS)
}
