//! From the start of a command to its end in a fresh sandbox, against bubblewrap if it is there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Command, Runner, RunnerLimits};
use evenkeel_env::{Env, process};
use evenkeel_sandbox::{Launcher, SandboxConfig};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::aim::judge;

/// Runs of one batch; the two launchers take turns, so that a machine that is busy is so for both.
const BATCH: usize = 10;
const ROUNDS: usize = 20;
/// Before each turn: what either leaves for later (the kernel takes namespaces apart, sandboxes are made
/// ahead) is not the other's load.
const SETTLE: Duration = Duration::from_millis(150);
/// Runs of the measurement without a pause.
const SUSTAINED: usize = 400;

/// Measures and prints.
pub(crate) async fn measure(env: &Env) -> Result<()> {
    println!("\nsandbox: /bin/true from start to exit, milliseconds, {} runs each, in turns", BATCH * ROUNDS);
    println!("  launcher      at a time     min     p50     p99");
    let launcher = Launcher::start(env, SandboxConfig::default())?;
    let folder = tempfile::tempdir()?;
    let ours = || ours(env.clone(), launcher.clone(), folder.path().to_owned());
    let bwrap = ["/usr/bin/bwrap", "/usr/local/bin/bwrap"].into_iter().find(|path| Path::new(path).is_file());
    for at_a_time in [1, 8] {
        // The first ones make the slots.
        times(at_a_time, ours).await?;
        let (mut evenkeel, mut bubblewrap) = (Histogram::new(3)?, Histogram::new(3)?);
        let mut ratios = Vec::new();
        for round in 0..ROUNDS {
            let Some(bwrap) = bwrap else {
                evenkeel.add(times(at_a_time, ours).await?)?;
                continue;
            };
            let theirs = || theirs(bwrap);
            let (one, other) = if round.is_multiple_of(2) {
                (times(at_a_time, ours).await?, times(at_a_time, theirs).await?)
            } else {
                let other = times(at_a_time, theirs).await?;
                (times(at_a_time, ours).await?, other)
            };
            ratios.push(one.value_at_quantile(0.5) as f64 / other.value_at_quantile(0.5).max(1) as f64);
            evenkeel.add(one)?;
            bubblewrap.add(other)?;
        }
        show("evenkeel", at_a_time, &evenkeel);
        if ratios.is_empty() {
            println!("  bubblewrap    not installed");
            continue;
        }
        show("bubblewrap", at_a_time, &bubblewrap);
        ratios.sort_by(f64::total_cmp);
        let [low, middle, high] =
            [ratios.len() / 10, ratios.len() / 2, ratios.len() * 9 / 10].map(|at| ratios[at]);
        println!("  ratio of the medians of each turn: p10 {low:.2}, p50 {middle:.2}, p90 {high:.2}");
        judge(&format!("median with {at_a_time} at a time"), middle, 0.5, "of bubblewrap's");
    }
    println!("  without a pause, 8 at a time: evenkeel {:.0} a second", sustained(ours).await?);
    if let Some(bwrap) = bwrap {
        let rate = sustained(|| theirs(bwrap)).await?;
        println!("  without a pause, 8 at a time: bubblewrap {rate:.0} a second");
    }
    tokio::time::sleep(SETTLE).await;
    idle_memory();
    Ok(())
}

/// What a slot costs that waits for its command: its keeper and the sandbox that the keeper holds ready,
/// each page shared with others counted in part.
fn idle_memory() {
    let helpers = children(std::process::id());
    // Our child is the nursery, its children are the keepers, theirs the sandboxes.
    let slots: Vec<u32> = helpers.iter().flat_map(|nursery| children(*nursery)).collect();
    let of_slots = slots.iter().flat_map(|keeper| std::iter::once(*keeper).chain(children(*keeper)));
    let sizes: Option<Vec<u64>> = of_slots.map(proportional_kib).collect();
    match sizes {
        Some(sizes) if !slots.is_empty() => {
            let each = sizes.iter().sum::<u64>() as f64 / slots.len() as f64;
            println!("  idle slots: {}, {each:.0} KiB each in {} processes", slots.len(), sizes.len());
        }
        _ => println!("  idle slots: {}, their memory cannot be read here", slots.len()),
    }
}

/// The children of a process, whichever of its threads started them.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    texts.collect::<String>().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn proportional_kib(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn show(name: &str, at_a_time: usize, times: &Histogram<u64>) {
    let ms = |us: u64| us as f64 / 1000.0;
    let [min, p50, p99] = [times.min(), times.value_at_quantile(0.5), times.value_at_quantile(0.99)].map(ms);
    println!("  {name:<12}  {at_a_time:>10}  {min:>6.1}  {p50:>6.1}  {p99:>6.1}");
}

async fn times<C>(at_a_time: usize, one: impl Fn() -> C) -> Result<Histogram<u64>>
where
    C: Future<Output = Result<Duration>> + Send + 'static,
{
    tokio::time::sleep(SETTLE).await;
    batch(at_a_time, BATCH.max(2 * at_a_time), one).await
}

/// Runs a second when nobody waits between them.
async fn sustained<C>(one: impl Fn() -> C) -> Result<f64>
where
    C: Future<Output = Result<Duration>> + Send + 'static,
{
    tokio::time::sleep(SETTLE).await;
    let begun = Instant::now();
    batch(8, SUSTAINED, one).await?;
    Ok(SUSTAINED as f64 / begun.elapsed().as_secs_f64())
}

async fn batch<C>(at_a_time: usize, n_runs: usize, one: impl Fn() -> C) -> Result<Histogram<u64>>
where
    C: Future<Output = Result<Duration>> + Send + 'static,
{
    let mut histogram = Histogram::new(3)?;
    let mut running: JoinSet<Result<Duration>> = JoinSet::new();
    for _ in 0..n_runs {
        if running.len() >= at_a_time
            && let Some(done) = running.join_next().await
        {
            histogram.record(u64::try_from(done??.as_micros())?)?;
        }
        running.spawn(one());
    }
    while let Some(done) = running.join_next().await {
        histogram.record(u64::try_from(done??.as_micros())?)?;
    }
    Ok(histogram)
}

async fn ours(env: Env, launcher: Arc<Launcher>, workspace: std::path::PathBuf) -> Result<Duration> {
    let command = Command {
        tenant: TenantId::from("bench"),
        run: RunId::new(env.wall(), &env.generator),
        argv: vec!["/bin/true".to_owned()],
        workspace,
        read_only: false,
        cwd: String::new(),
        env: Vec::new(),
        stdin: Vec::new(),
        limits: RunnerLimits::default(),
        hosts: Vec::new(),
    };
    let begun = Instant::now();
    let exit = launcher.run(command).await?;
    ensure!(exit.code == Some(0), "/bin/true ended with {exit:?}");
    Ok(begun.elapsed())
}

async fn theirs(bwrap: &'static str) -> Result<Duration> {
    let mut command = process::command(bwrap);
    command.args([
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ]);
    command.arg("/bin/true");
    let begun = Instant::now();
    let status = command.status().await?;
    ensure!(status.success(), "bubblewrap ended with {status}");
    Ok(begun.elapsed())
}
