//! Measurements of the parts, printed with their conditions; nothing here asserts a figure.
//!
//! Each measurement that needs a provider or a server runs it in a process of its own, so that what
//! is read from `/proc` belongs to the part that is measured. `README.md` says what each shows.

mod aim;
mod child;
mod latency;
mod load;
mod parked;
mod policy;
mod restart;
mod sandbox;
mod streams;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use evenkeel_env::Env;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NAMES: &str = "latency streams sandbox policy parked restart";
/// The slowest takes about two minutes on an idle machine.
const EACH_AT_MOST: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    if let Some(code) = evenkeel_sandbox::helper_main() {
        return code;
    }
    // A stream is an open file, and the usual limit is 1,024; a refusal shows as failed calls.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = match Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("start the runtime: {error}");
            return ExitCode::from(2);
        }
    };
    match runtime.block_on(run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &[String]) -> Result<()> {
    let env = Env::real();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["as-provider", rest @ ..] => return child::provider(&env, rest).await,
        ["as-server", config] => return child::server(&env, config).await,
        [] => {}
        names => {
            if let Some(name) = names.iter().find(|name| !NAMES.split(' ').any(|known| known == **name)) {
                anyhow::bail!(
                    "there is no measurement {name}; there are: {NAMES}, and `store` through cargo xtask bench"
                );
            }
        }
    }
    println!("{}", child::conditions());
    let wanted = |name: &str| words.is_empty() || words.contains(&name);
    let mut failed = Vec::new();
    for name in NAMES.split(' ').filter(|name| wanted(name)) {
        // One that hangs or fails does not take the others with it.
        match tokio::time::timeout(EACH_AT_MOST, one(&env, name)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed.push(format!("{name}: {error:#}")),
            Err(_) => failed.push(format!("{name}: not done after {} s", EACH_AT_MOST.as_secs())),
        }
    }
    anyhow::ensure!(failed.is_empty(), "not measured: {}", failed.join("; "));
    Ok(())
}

async fn one(env: &Env, name: &str) -> Result<()> {
    match name {
        "latency" => latency::measure(env).await,
        "streams" => streams::measure(env).await,
        "sandbox" => sandbox::measure(env).await,
        "policy" => policy::measure(env).await,
        "parked" => parked::measure(env).await,
        "restart" => restart::measure(env).await,
        other => anyhow::bail!("there is no measurement {other}"),
    }
}
