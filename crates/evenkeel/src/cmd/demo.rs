//! `evenkeel demo`: no keys, nothing to install; a provider goes down and every task finishes.

mod playground;
mod replicas;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use evenkeel_env::Env;
use evenkeel_lab::DemoOptions;

use crate::cmd::Done;

/// Arguments of `demo`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel demo                  about two minutes, exit code 0 if every task finished
  evenkeel demo --compare        also without protection, side by side in the report
  evenkeel demo --serve          leave a server with a fake provider running, to try the API
  evenkeel demo --serve --replicas 3
                                 three of them over a PostgreSQL of their own, behind a gateway")]
pub(crate) struct Args {
    /// Where the report goes
    #[arg(long, value_name = "FILE", conflicts_with = "serve")]
    html: Option<PathBuf>,
    /// Also run the same load without protection
    #[arg(long, conflicts_with = "serve")]
    compare: bool,
    /// Do not run the demo: start a server with a fake provider beside it and leave it running
    #[arg(long)]
    serve: bool,
    /// With --serve: the address of the server
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070", requires = "serve")]
    listen: SocketAddr,
    /// With --serve: start this many replicas over a local PostgreSQL, and a gateway at the address
    #[arg(long, value_name = "N", requires = "serve", value_parser = clap::value_parser!(u8).range(1..=16))]
    replicas: Option<u8>,
    /// With --serve: where the server keeps its data
    #[arg(long, value_name = "DIR", default_value = "evenkeel-data", requires = "serve")]
    data_dir: PathBuf,
}

/// Runs the demo.
pub(crate) async fn run(env: Env, args: Args) -> Done {
    if args.serve {
        return playground::run(env, args.listen, args.data_dir, args.replicas).await;
    }
    let options = DemoOptions { html: args.html, compare: args.compare, ..DemoOptions::default() };
    let report = evenkeel_lab::demo(&env, options).await?;
    Ok(if report.pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
