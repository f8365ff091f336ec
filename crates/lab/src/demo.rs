//! `evenkeel demo`: System 1 with its outage, told in words that a newcomer understands.

use std::path::PathBuf;

use anyhow::Context as _;
use evenkeel_env::Env;
use futures_util::future::BoxFuture;

use crate::report::Report;
use crate::run::{RunOptions, run};
use crate::scenario::Protect;

/// What can be asked of the demo.
#[derive(Clone, Debug, Default)]
pub struct DemoOptions {
    /// Where the HTML report goes; `evenkeel-demo.html` in the temporary folder if absent.
    pub html: Option<PathBuf>,
    /// Also run the same load without protection, which takes as long again.
    pub compare: bool,
    /// The product's executable; this one if absent.
    pub program: Option<PathBuf>,
}

const SCENARIO: &str = "system1-as-given";

/// Runs the demo and tells its story on standard output. `pass` of the report says whether every
/// task finished.
///
/// # Errors
/// If the set-up fails.
pub fn demo(env: &Env, options: DemoOptions) -> BoxFuture<'static, anyhow::Result<Report>> {
    let env = env.clone();
    Box::pin(async move {
        let html = options.html.unwrap_or_else(|| std::env::temp_dir().join("evenkeel-demo.html"));
        println!("{}", opening());
        let run_options = RunOptions {
            scenario: SCENARIO.to_owned(),
            compare: options.compare,
            html: Some(html.clone()),
            program: options.program,
            ..RunOptions::default()
        };
        let mut report = run(&env, run_options).await?;
        // The demo's promise is that every task finishes; its exit code says just that.
        report.pass &= report.counts.completed == report.counts.submitted;
        let html = html.canonicalize().context("find the report")?;
        println!("{}", closing(&report));
        println!("The report with all charts: file://{}", html.display());
        Ok(report)
    })
}

fn opening() -> String {
    [
        "This shows what Evenkeel is for. Nothing to install, no keys: the model provider is a fake one.",
        "",
        "For 45 seconds two coding tasks a second come in. Each is real work on a small repository with a",
        "failing test: the agent lists, reads, searches and edits files, runs the tests in a sandbox, and",
        "commits. Only the thinking is played back. After 20 seconds the model provider goes down for 30",
        "seconds: every connection to it is refused. A plain platform loses two of three tasks here.",
        "",
    ]
    .join("\n")
}

fn closing(report: &Report) -> String {
    let counts = &report.counts;
    let all = counts.completed == counts.submitted;
    let verdict = if all {
        format!("All {} tasks finished, and the tests of each pass in a fresh sandbox.", counts.submitted)
    } else {
        format!("{} of {} tasks finished. That is less than promised.", counts.completed, counts.submitted)
    };
    let how = format!(
        "While it was down the provider was called {} times: the breaker opened, calls went to the second\n\
         provider, and {}. {} answers that broke in the middle were thrown away and asked for again.\n\
         No task was lost ({}) and no effect happened twice ({}).",
        counts.calls_while_down,
        match counts.parked {
            0 => "no run had to wait".to_owned(),
            n => format!("runs that could not go on waited at their last checkpoint ({n} times)"),
        },
        counts.retried_calls,
        counts.lost,
        counts.doubled,
    );
    let against =
        format!("See the opposite with: evenkeel lab run {SCENARIO} --protect {}", Protect::None.as_str());
    [verdict, how, against].join("\n")
}
