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

const N: usize = 200;

/// Measures and prints.
pub(crate) async fn measure(env: &Env) -> Result<()> {
    println!("\nsandbox: /bin/true from start to exit, milliseconds, {N} runs each");
    println!("  launcher       at a time    min     p50     p99");
    let launcher = Launcher::start(env, SandboxConfig::default())?;
    let folder = tempfile::tempdir()?;
    let mut medians = Vec::new();
    for at_a_time in [1, 8] {
        let one = || ours(env.clone(), launcher.clone(), folder.path().to_owned());
        one().await?;
        let measured = times(at_a_time, one).await?;
        show("evenkeel", at_a_time, &measured);
        medians.push(measured.value_at_quantile(0.5) as f64);
    }
    let bwrap = ["/usr/bin/bwrap", "/usr/local/bin/bwrap"].into_iter().find(|path| Path::new(path).is_file());
    let Some(bwrap) = bwrap else {
        println!("  bubblewrap     not installed");
        return Ok(());
    };
    for (at_a_time, ours) in [1, 8].into_iter().zip(medians) {
        let measured = times(at_a_time, || theirs(bwrap)).await?;
        show("bubblewrap", at_a_time, &measured);
        let share = ours / measured.value_at_quantile(0.5).max(1) as f64;
        judge(&format!("median with {at_a_time} at a time"), share, 0.5, "of bubblewrap's");
    }
    Ok(())
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
    let mut histogram = Histogram::new(3)?;
    let mut running: JoinSet<Result<Duration>> = JoinSet::new();
    for _ in 0..N {
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
