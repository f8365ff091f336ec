//! `evenkeel drain`: the orderly end of a process, from elsewhere.

use std::process::ExitCode;
use std::time::Duration;

use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::client::Connection;
use crate::cmd::Done;
use crate::output;

/// Between two looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Arguments of `drain`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel drain --server http://127.0.0.1:7071     and wait until it has ended
  evenkeel drain --no-wait

It is what SIGTERM does: nothing new is admitted, runs are handed to the other replicas at their next step
boundary, streams end so that clients (or the gateway for them) go on elsewhere, and the process exits.")]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Return as soon as it was told
    #[arg(long)]
    no_wait: bool,
    /// Seconds to wait for its end
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
}

/// Tells a process to drain and waits until nobody listens there any more.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let server = args.connection.open(env);
    server.post("/v1/drain", &json!({})).await?;
    if args.no_wait {
        output::line(format_args!("{} is draining", server.address()))?;
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} is draining", server.address());
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    while Instant::now() < deadline {
        sleep(LOOK_EVERY).await;
        if let Err(error) = server.get("/healthz").await
            && error.code == Code::ServerUnreachable
        {
            output::line(format_args!("{} has ended", server.address()))?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    Err(Error::new(
        Code::Draining,
        Origin::Ours,
        format!("{} still serves after {} s.", server.address(), args.wait),
        "It ends after server.drain_timeout at the latest; wait longer, or look at what it runs.",
    )
    .into())
}
