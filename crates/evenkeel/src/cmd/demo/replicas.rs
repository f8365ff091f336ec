//! Several replicas over a PostgreSQL of their own, behind a gateway, for trying things out: each
//! replica is a process that may be killed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_env::{Env, clock, process};
use evenkeel_server::{Config, Overrides};
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres, Stop as PostgresStop};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use crate::cmd::Done;
use crate::cmd::serve::Stop;

/// Time for a replica to start, and to end in order.
const PATIENCE: Duration = Duration::from_secs(60);
/// The variable that holds the replicas' secret.
const SECRET: &str = "EVENKEEL_PEER_SECRET";

/// One started replica.
struct Replica {
    child: Child,
    url: String,
    pid: u32,
}

/// Starts `n` replicas with this configuration and a gateway at `listen`; waits for a signal.
pub(super) async fn run(
    env: Env,
    stop: &mut Stop,
    n: usize,
    listen: SocketAddr,
    data_dir: &Path,
    config: &str,
) -> Done {
    let mut postgres = LocalPostgres::start(&env, LocalOptions::default()).await?;
    postgres.create_database("evenkeel").await?;
    let file = data_dir.join("replicas.toml");
    std::fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
    let store = postgres.url("evenkeel");
    let secret = secret();
    let mut replicas = Vec::new();
    for _ in 0..n {
        replicas.push(start(&file, data_dir, &store, &secret).await?);
    }
    let peers: Vec<&str> = replicas.iter().map(|replica| replica.url.as_str()).collect();
    let overrides = Overrides::of_process()
        .with("server.role", "gateway")
        .with("server.listen", listen.to_string())
        .with("gateway.peers", format!("{peers:?}"));
    let gateway = evenkeel_server::start(env, Config::parse("the gateway", "", &overrides)?).await?;
    eprintln!("{}", greeting(&format!("http://{}", gateway.address()), &replicas));
    stop.wait().await;
    gateway.shutdown().await;
    for replica in &mut replicas {
        end(replica).await;
    }
    postgres.stop(PostgresStop::Fast).await?;
    Ok(ExitCode::SUCCESS)
}

/// Starts one replica and waits until it serves. It shares the data directory with the others, so
/// that each finds the workspaces of the runs that it takes over.
async fn start(file: &Path, data_dir: &Path, store: &str, secret: &str) -> anyhow::Result<Replica> {
    let program = std::env::current_exe().context("find this program")?;
    let mut command = process::command(program);
    command.args(["serve", "--role", "api", "--listen", "127.0.0.1:0", "--ready-json", "--config"]);
    command.arg(file).arg("--data-dir").arg(data_dir);
    command.envs(std::env::vars_os());
    command.env("EVENKEEL_SERVER__STORE", store);
    command.env("EVENKEEL_REPLICA__SECRET", format!("env:{SECRET}")).env(SECRET, secret);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("start a replica")?;
    let stdout = child.stdout.take().context("read what a replica says")?;
    let mut lines = BufReader::new(stdout).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.context("wait for a replica")??;
    let said: Value = serde_json::from_str(&line.context("a replica ended")?).context("read its address")?;
    let url = said["listening"].as_str().context("read its address")?.to_owned();
    let pid = child.id().context("a replica ended")?;
    Ok(Replica { child, url, pid })
}

/// Ends a replica in order, if it still runs. ctrl-c in a terminal has told it already.
async fn end(replica: &mut Replica) {
    if let Some(pid) = replica.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // An error means that it has ended meanwhile.
        let _ = kill_process(pid, Signal::TERM);
    }
    if timeout(PATIENCE, replica.child.wait()).await.is_err() {
        eprintln!("replica {} does not end and is killed", replica.pid);
    }
}

/// A secret for as long as this lasts.
fn secret() -> String {
    let mut bytes = [0; 16];
    clock::os_random(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn greeting(gateway: &str, replicas: &[Replica]) -> String {
    let lines: Vec<String> =
        replicas.iter().map(|of| format!("  replica  {}  (kill -9 {})", of.url, of.pid)).collect();
    format!(
        "\n  gateway  {gateway}\n{}\n\nTry:\n  evenkeel replicas --server {gateway}\n  \
         evenkeel run \"hello\" --server {gateway}\n  evenkeel drain --server {}\n",
        lines.join("\n"),
        replicas.first().map_or("URL", |of| of.url.as_str())
    )
}
