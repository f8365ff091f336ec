//! This program again, as the fake provider or as a server, and what `/proc` says of a process.

use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use evenkeel_env::{Env, process};
use evenkeel_lab::provider::{self, Brain, FakeConfig, Timing, WireKind};
use evenkeel_lab::task::{Conversation, Reply, Solver};
use evenkeel_server::{Config, Overrides};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin};

/// A child that says where it listens and ends when its stdin closes, also when we are killed.
pub(crate) struct Started {
    /// Where it listens.
    pub(crate) address: String,
    /// The process.
    pub(crate) process: Child,
    _stdin: ChildStdin,
}

/// Starts this program in another role.
pub(crate) async fn start(args: &[&str]) -> Result<Started> {
    let mut command = process::command(std::env::current_exe()?);
    command.args(args).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().context("start this program again")?;
    let stdin = process.stdin.take().context("the child's stdin")?;
    let stdout = process.stdout.take().context("the child's stdout")?;
    let line = BufReader::new(stdout).lines().next_line().await?;
    let Some(address) = line else { bail!("`{}` ended before it listened", args.join(" ")) };
    Ok(Started { address, process, _stdin: stdin })
}

/// Says the same to everybody: this many words, about a token each.
struct Talk {
    words: usize,
}

impl Brain for Talk {
    fn answer(&self, _conversation: &Conversation) -> Reply {
        Reply { text: "word ".repeat(self.words), calls: Vec::new() }
    }
}

/// The role of a provider: `WORDS FIRST_TOKEN_MS TOKENS_PER_S`, or `solver` for the lab's tasks.
pub(crate) async fn provider(env: &Env, args: &[&str]) -> Result<()> {
    let fake = match args {
        ["solver"] => FakeConfig::new("bench", Arc::new(Solver)),
        [words, first_token_ms, tokens_per_s] => {
            let mut fake = FakeConfig::new("bench", Arc::new(Talk { words: words.parse()? }));
            let first_token_ms = first_token_ms.parse()?;
            let tokens_per_s = tokens_per_s.parse()?;
            fake.timing = Timing { first_token_ms, tokens_per_s, jitter: 0.0, ..Timing::default() };
            fake
        }
        _ => bail!("as-provider WORDS FIRST_TOKEN_MS TOKENS_PER_S | solver"),
    };
    let control = provider::start(env, fake).await?;
    println!("{}", control.base_url(WireKind::Openai));
    until_orphaned().await
}

/// The role of a server with this configuration file.
pub(crate) async fn server(env: &Env, config: &str) -> Result<()> {
    let config = Config::load(Some(config.as_ref()), &Overrides::of_process())?;
    let running = evenkeel_server::start(env.clone(), config).await?;
    println!("http://{}", running.address());
    until_orphaned().await?;
    running.shutdown().await;
    Ok(())
}

async fn until_orphaned() -> Result<()> {
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    Ok(())
}

/// A configuration with one OpenAI-compatible provider at `base_url`, and what is given besides.
pub(crate) fn config(base_url: &str, besides: &str) -> String {
    format!(
        "{besides}\n[providers.bench]\nkind = \"openai\"\nbase_url = \"{base_url}\"\n\
         [deployments.bench]\nprovider = \"bench\"\nmodel = \"bench\"\ncontext_tokens = 200000\n\
         limits = {{ streams = 6000, calls_per_min = 6000000, input_tokens_per_min = 20000000000 }}\n\
         [routes.default]\ntiers = [[\"bench\"]]\n"
    )
}

/// Resident memory of a process in MiB.
pub(crate) fn rss_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// CPU seconds of a process so far, at the kernel's usual 100 ticks a second.
pub(crate) fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold spaces; the fields behind it do not.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// What a figure means depends on where it was measured.
pub(crate) fn conditions() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = read("/proc/meminfo");
    let memory =
        memory.lines().next().unwrap_or_default().split_whitespace().nth(1).unwrap_or("0").to_owned();
    let load = read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ");
    format!(
        "conditions: {cores} cores of{}, {} MiB, Linux {}, load {load}, {}",
        model.trim_start_matches(['\t', ':']),
        memory.parse::<u64>().unwrap_or(0) / 1024,
        read("/proc/sys/kernel/osrelease").trim(),
        if cfg!(debug_assertions) { "DEBUG BUILD: figures mean nothing" } else { "release build" },
    )
}
