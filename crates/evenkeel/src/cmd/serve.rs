//! `evenkeel serve`: the whole platform in one process, or one role of it, until it is told to stop.

use std::net::SocketAddr;
use std::process::ExitCode;

use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use evenkeel_server::config::{AuthMode, Role};
use evenkeel_server::{Config, Running};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cmd::Done;
use crate::cmd::configure::Choice;
use crate::output;

/// Arguments of `serve`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel serve                              loopback, open, SQLite under ./evenkeel-data
  evenkeel serve --config prod.toml
  evenkeel keys create ci && EVENKEEL_AUTH__MODE=keys evenkeel serve --listen 0.0.0.0:7070
  evenkeel serve --role gateway --peers http://10.0.0.5:7070,http://10.0.0.6:7070

SIGTERM, ctrl-c or `evenkeel drain` drains: nothing new is admitted, runs are handed back at their next step boundary and
go on after the restart. A second signal ends the process at once; runs then resume from their last
checkpoint all the same.")]
pub(crate) struct Args {
    #[command(flatten)]
    choice: Choice,
    /// The address to listen on (`server.listen`); port 0 picks a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// What this process does (`server.role`)
    #[arg(long, value_name = "all|gateway|api|worker")]
    role: Option<String>,
    /// The replicas behind a gateway, joined by commas (`gateway.peers`)
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    peers: Vec<String>,
    /// Where the other replicas reach this one (`replica.address`)
    #[arg(long, value_name = "HOST:PORT")]
    replica_address: Option<String>,
    /// Print {"listening":"http://..."} on stdout when ready, for scripts
    #[arg(long)]
    ready_json: bool,
    /// End when the process that started this one ends, however it ends
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

impl Args {
    fn load(&self) -> Result<Config, Error> {
        let peers = self.peers.iter().map(|peer| format!("{peer:?}")).collect::<Vec<_>>().join(", ");
        let set = [
            ("server.listen", self.listen.map(|address| address.to_string())),
            ("server.role", self.role.clone()),
            ("gateway.peers", (!peers.is_empty()).then(|| format!("[{peers}]"))),
            ("replica.address", self.replica_address.clone()),
        ];
        let set: Vec<_> = set.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        self.choice.load(&set)
    }

    /// Worker threads that the configuration asks for. An impossible configuration is reported when
    /// it is loaded to be served.
    pub(crate) fn workers(&self) -> Option<usize> {
        self.load().ok()?.server.workers
    }
}

/// Serves until a signal.
pub(crate) async fn run(env: Env, args: Args) -> Done {
    let config = args.load()?;
    output::log(&config.telemetry.log)?;
    if args.end_with_parent {
        end_with_parent()?;
    }
    // Installed before anything runs, so that a signal during the start is not missed.
    let mut stop = Stop::listen()?;
    let greeting = greeting(&config);
    let running = evenkeel_server::start(env, config).await?;
    let address = format!("http://{}", running.address());
    if args.ready_json {
        output::line(format_args!("{}", json!({ "listening": address, "pid": std::process::id() })))?;
    }
    output::aside(format_args!("evenkeel listens on {address}\n{greeting}"));
    tokio::select! {
        biased;
        () = stop.wait() => {}
        () = running.drain_asked() => {}
        () = running.wait() => return Err(cause_of_end(&running).into()),
    }
    output::aside(format_args!("draining; a second signal ends it at once"));
    end(running, &mut stop).await
}

/// From now on the end of the parent, also by SIGKILL, ends this process: a lab leaves nothing behind.
fn end_with_parent() -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
        Error::new(
            Code::Internal,
            Origin::Ours,
            format!("Cannot ask to end with the parent: {error}."),
            "Report it.",
        )
    })
}

/// Why it can no longer serve. Runs that were at work go on after the next start.
fn cause_of_end(running: &Running) -> Error {
    running.failure().unwrap_or_else(|| Error::internal("The listener ended."))
}

async fn end(running: Running, stop: &mut Stop) -> Done {
    tokio::select! {
        biased;
        () = stop.wait() => {
            output::aside(format_args!("ended at once; runs resume from their last checkpoint"));
            Ok(ExitCode::FAILURE)
        }
        () = running.shutdown() => Ok(ExitCode::SUCCESS),
    }
}

/// Who may call, in words.
fn greeting(config: &Config) -> String {
    if config.server.role == Role::Gateway {
        return format!("passes requests on to {}", config.gateway.peers.join(", "));
    }
    let dir = config.server.data_dir.display();
    match config.auth.mode {
        AuthMode::Open => format!(
            "open: everybody on this machine may call, and nobody else can reach it (data in {dir})\n\
             for API keys: stop it, `evenkeel keys create NAME --data-dir {dir}`, set auth.mode = \"keys\""
        ),
        AuthMode::Keys => format!(
            "callers need an API key (data in {dir})\n\
             a key is made while the server is stopped: `evenkeel keys create NAME --data-dir {dir}`"
        ),
    }
}

/// The signals that ask a process to stop.
pub(crate) struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    /// From now on SIGTERM and SIGINT no longer end the process.
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Error::new(
                    Code::Internal,
                    Origin::Ours,
                    format!("Cannot listen for signals: {error}."),
                    "Report it.",
                )
            })
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next of them. May be dropped and called again.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
