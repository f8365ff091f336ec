//! Measures a command from start to exit: `start [N_AT_ONCE] [N] [PROGRAM ARGUMENT...]`.
//!
//! The helper must have been built beside it. Given a program, measures starting that instead
//! (`bwrap` with its arguments, for comparison).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Command, Runner, RunnerLimits};
use evenkeel_env::{Env, process};
use evenkeel_sandbox::{HelperProgram, Launcher, SandboxConfig};
use futures_util::future::join_all;
use tokio::time::Instant;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (n_at_once, n): (usize, usize) = (number(0, 1), number(1, 200));
    let program: Arc<[String]> = arguments.get(2..).unwrap_or_default().into();
    let env = Env::real();
    let launcher = program.is_empty().then(|| {
        let helper = HelperProgram::beside_current_exe().expect("evenkeel-sandbox-helper is built");
        Launcher::start(&env, SandboxConfig { helper, ..SandboxConfig::default() }).expect("a sandbox")
    });
    let workspace = std::env::temp_dir().join(format!("evenkeel-start-{}", std::process::id()));
    std::fs::create_dir(&workspace).expect("a directory");
    let mut times = Vec::new();
    for round in 0..n.div_ceil(n_at_once) + 1 {
        let runs = (0..n_at_once).map(|_| one(&env, launcher.as_ref(), workspace.clone(), program.clone()));
        let measured = join_all(runs).await;
        // The first round makes keepers ready.
        if round > 0 {
            times.extend(measured);
        }
    }
    let _ = std::fs::remove_dir(&workspace);
    times.sort();
    let ms = |index: usize| times[index.min(times.len() - 1)].as_secs_f64() * 1000.0;
    let (median, most) = (times.len() / 2, times.len() * 99 / 100);
    println!(
        "{n_at_once} at once, {} runs: min {:.1} median {:.1} p99 {:.1} ms",
        times.len(),
        ms(0),
        ms(median),
        ms(most)
    );
}

async fn one(
    env: &Env,
    launcher: Option<&Arc<Launcher>>,
    workspace: PathBuf,
    program: Arc<[String]>,
) -> Duration {
    let begun = Instant::now();
    match launcher {
        Some(launcher) => {
            let command = Command {
                tenant: TenantId("measured".to_owned()),
                run: RunId::new(env.wall(), &env.generator),
                argv: vec!["/bin/true".to_owned()],
                workspace,
                read_only: false,
                cwd: String::new(),
                env: Vec::new(),
                stdin: Vec::new(),
                limits: RunnerLimits::default(),
            };
            let exit = launcher.run(command).await.expect("it runs");
            assert_eq!(exit.code, Some(0), "{exit:?}");
        }
        None => {
            let status = process::command(&program[0]).args(&program[1..]).status().await.expect("it starts");
            assert!(status.success());
        }
    }
    begun.elapsed()
}
