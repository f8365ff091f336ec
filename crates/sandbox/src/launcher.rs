//! The launcher: the server's side of the sandbox.
//!
//! It holds ready keepers, gives one to each command, reads what the command writes, and ends it
//! when its time or its output is used up. It decides nothing about isolation: that is the
//! helper's work, on the other side of the socket.

mod capture;
mod keepers;
mod session;

use std::sync::Arc;

use evenkeel_core::port::runner::{Command, Exit, LimitHit, Runner, RunnerLimits};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use evenkeel_env::net::Net;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::config::{Isolation, SandboxConfig};
use crate::doctor;
use crate::network::{Counters, Label, NetworkCounts, PROXY_PORT, Proxy};
use crate::wire::{Failure, Reply, Request};
use keepers::{Keepers, socket_pair};
use session::{Ending, Serving};

/// Runs commands in fresh sandboxes.
pub struct Launcher {
    config: SandboxConfig,
    keepers: Arc<Keepers>,
    net: Arc<dyn Net>,
    counters: Counters,
}

impl Launcher {
    /// Examines the host, refuses it if it cannot isolate as the configuration demands, and makes
    /// ready. Runs the helper once and waits for it: call it while starting, within a runtime.
    ///
    /// # Errors
    /// `config-invalid` for a read-only path that cannot be shown; `sandbox-unavailable` when the host lacks what isolation needs, or lacks a mechanism that
    /// `allow_degraded` does not name.
    pub fn start(env: &Env, config: SandboxConfig) -> Result<Arc<Self>, Error> {
        config.check()?;
        match config.isolation {
            Isolation::Native | Isolation::Bubblewrap => {
                let report = doctor::examine_with(&config);
                report.admit(&config.allow_degraded)?;
                tracing::info!(kernel = report.kernel, isolation = ?config.isolation, "sandbox ready");
            }
            Isolation::None => tracing::warn!(
                "commands of runs are NOT isolated: sandbox.isolation is \"none\"; \
                 they have the files and the network of this server's user"
            ),
        }
        let keepers = Keepers::new(env, &config);
        keepers.warm_up();
        Ok(Arc::new(Self { config, keepers, net: env.net.clone(), counters: Counters::default() }))
    }

    /// How the attempts of commands to reach a host went.
    #[must_use]
    pub fn network(&self) -> NetworkCounts {
        self.counters.read()
    }

    /// The limits of a command whose caller has no wishes.
    #[must_use]
    pub fn limits(&self) -> &RunnerLimits {
        &self.config.limits
    }

    async fn run_once(&self, command: Command) -> Result<Exit, Failure> {
        let begun = Instant::now();
        let Command { tenant, run, argv, workspace, read_only, cwd, mut env, stdin, limits, hosts } = command;
        // Without isolation the network is the host's own, and there is nothing to serve.
        let network = !hosts.is_empty() && self.config.isolation != Isolation::None;
        if network {
            env.extend(proxy_variables());
        }
        let request = Request { argv, workspace, read_only, cwd, env, limits, network };
        let mut keeper = self.keepers.take().await?;
        let proxy = Proxy::new(self.net.as_ref(), &self.counters, hosts, Label { tenant, run });
        let (ours, theirs) = if network { Some(socket_pair()?).unzip() } else { (None, None) };
        let serving = Serving {
            channel: theirs,
            proxy: async {
                if let Some(channel) = ours {
                    proxy.serve(channel).await;
                }
            },
        };
        let ending = session::run(&mut keeper, &request, stdin, serving).await?;
        self.keepers.give_back(keeper);
        let mut exit = exit_of(ending, &request)?;
        exit.refused = proxy.refused();
        exit.ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(exit)
    }
}

impl Runner for Launcher {
    fn run(&self, command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        Box::pin(async move { self.run_once(command).await.map_err(failed) })
    }
}

fn exit_of(ending: Ending, request: &Request) -> Result<Exit, Failure> {
    let (code, signal, limit) = match ending.reply {
        Reply::Ended { code, signal, workspace_full: true, .. } => (code, signal, Some(LimitHit::Workspace)),
        Reply::Ended { code, signal, out_of_memory, cpu_ms, .. } => {
            // What the launcher ended itself says more than the signal it used for that. With a code
            // the command ended in the very moment before, by itself.
            let own = ending.limit.filter(|_| code.is_none());
            let limit = own.or_else(|| limit_hit(code, signal, out_of_memory, cpu_ms, &request.limits));
            (code, signal, limit)
        }
        Reply::Failed(failure) => return Err(failure),
    };
    let (stdout, stderr, bytes_dropped) = ending.output;
    Ok(Exit { code, signal, limit, stdout, stderr, bytes_dropped, ms: 0, refused: Vec::new() })
}

/// What programs look at to find their proxy. There is none on the loopback device itself.
fn proxy_variables() -> impl Iterator<Item = (String, String)> {
    let names = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"];
    let proxies = names.map(|name| (name, format!("http://127.0.0.1:{PROXY_PORT}")));
    let direct = ["no_proxy", "NO_PROXY"].map(|name| (name, "localhost,127.0.0.1,::1".to_owned()));
    proxies.into_iter().chain(direct).map(|(name, value)| (name.to_owned(), value))
}

/// The limit that the way of ending shows. A shell reports a signal of its child as 128 + signal.
fn limit_hit(
    code: Option<i32>,
    signal: Option<i32>,
    out_of_memory: bool,
    cpu_ms: u64,
    limits: &RunnerLimits,
) -> Option<LimitHit> {
    let signal = signal.or_else(|| code.filter(|code| *code > 128).map(|code| code - 128));
    if out_of_memory && code != Some(0) {
        return Some(LimitHit::Memory);
    }
    match signal {
        Some(libc::SIGXCPU) => Some(LimitHit::Cpu),
        Some(libc::SIGXFSZ) => Some(LimitHit::FileSize),
        Some(libc::SIGKILL) if cpu_ms >= limits.cpu_s.saturating_mul(1000) => Some(LimitHit::Cpu),
        _ => None,
    }
}

fn failed(failure: Failure) -> Error {
    Error::new(
        Code::SandboxFailed,
        Origin::Ours,
        format!("The sandbox could not be made: {failure}."),
        "Run `evenkeel doctor` to see what this host enforces and what it lacks.",
    )
    .retryable()
}

#[cfg(test)]
mod tests;
