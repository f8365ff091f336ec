//! `evenkeel policy`: read tool policies, ask them about one call, test them by a table of cases.

mod judge;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use evenkeel_env::Env;
use evenkeel_server::Config;
use evenkeel_tools::Policy;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cmd::Done;
use crate::cmd::configure::Choice;
use crate::output::{self, Paint, Style};
use judge::{Answer, Judge, Question};

/// Arguments of `policy`.
#[derive(clap::Args)]
#[command(after_help = "\
Judges as the server with this configuration does; nothing runs. A file of cases:

  [[case]]
  tool = \"bash\"
  args = { command = \"git push origin main\" }
  expect = \"ask\"                 # allow, deny, ask
  policies = [\"site/push\"]       # optional: these are among those that decide

Further keys of a case: agent, tenant.")]
pub(crate) struct Args {
    #[command(flatten)]
    choice: Choice,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Read policies and check them against the schema; a fault is told with file, line and column
    Check {
        /// Files to read beside those of the configuration
        files: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say what is decided about one call, part by part, and which policies decide
    Explain {
        /// A shell command; or use --tool and --args
        command: Option<String>,
        /// The tool
        #[arg(long, default_value = "bash")]
        tool: String,
        /// Its arguments as JSON
        #[arg(long, value_name = "JSON")]
        args: Option<String>,
        /// Whose call it is
        #[command(flatten)]
        place: Place,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Judge every case of a file; exit code 1 when one is decided otherwise than expected
    Test {
        /// The file of cases (TOML)
        cases: PathBuf,
        /// Whose calls these are
        #[command(flatten)]
        place: Place,
    },
}

/// Who calls, and where.
#[derive(clap::Args, Clone)]
struct Place {
    /// The assistant that calls
    #[arg(long, default_value = "coder")]
    agent: String,
    /// The tenant of its run
    #[arg(long, default_value = "default")]
    tenant: String,
    /// The workspace in which paths are looked up
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

/// One row of a file of cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    tool: String,
    #[serde(default)]
    args: Value,
    expect: String,
    #[serde(default)]
    policies: Vec<String>,
    agent: Option<String>,
    tenant: Option<String>,
}

/// Checks, explains or tests.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    output::log("error")?;
    let config = args.choice.load(&[])?;
    match args.what {
        What::Check { files, json } => check(config, files, json),
        What::Explain { command, tool, args, place, json } => {
            let args = match (args, command) {
                (Some(text), _) => serde_json::from_str(&text).context("read --args as JSON")?,
                (None, Some(command)) => json!({ "command": command }),
                (None, None) => json!({}),
            };
            explain(env, config, &place, &tool, args, json).await
        }
        What::Test { cases, place } => test(env, config, &place, &cases).await,
    }
}

fn check(config: Config, files: Vec<PathBuf>, json: bool) -> Done {
    let mut wanted = config.tools.policy;
    wanted.files.extend(files);
    let ids = Policy::load(&wanted)?.ids();
    if json {
        output::json(&json!({ "policies": ids }))?;
    } else {
        for id in &ids {
            output::line(format_args!("{id}"))?;
        }
        eprintln!("{} {} policies fit the schema", Style::stderr().paint(Paint::Green, "ok:"), ids.len());
    }
    Ok(ExitCode::SUCCESS)
}

async fn explain(env: &Env, config: Config, place: &Place, tool: &str, args: Value, json: bool) -> Done {
    let judge = Judge::start(env, config, &place.workspace).await?;
    let Place { agent, tenant, .. } = place;
    let answer = judge.ask(Question { tool, args, agent, tenant }).await;
    if json {
        output::json(&answer.to_json())?;
    } else {
        output::line(format_args!("{}", answer.told()))?;
    }
    Ok(if answer.verdict() == "allow" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn test(env: &Env, config: Config, place: &Place, path: &Path) -> Done {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let cases: Cases = toml::from_str(&text).with_context(|| format!("read {}", path.display()))?;
    let judge = Judge::start(env, config, &place.workspace).await?;
    let mut n_failed = 0;
    for case in &cases.case {
        let agent = case.agent.as_ref().unwrap_or(&place.agent);
        let tenant = case.tenant.as_ref().unwrap_or(&place.tenant);
        let answer = judge.ask(Question { tool: &case.tool, args: case.args.clone(), agent, tenant }).await;
        if let Some(fault) = fault_of(case, &answer) {
            n_failed += 1;
            output::line(format_args!("{} {}: {fault}", case.tool, case.args))?;
        }
    }
    let n_cases = cases.case.len();
    let style = Style::stderr();
    if n_failed > 0 {
        eprintln!("{} {n_failed} of {n_cases} cases", style.paint(Paint::Red, "failed:"));
        return Ok(ExitCode::FAILURE);
    }
    eprintln!("{} {n_cases} cases", style.paint(Paint::Green, "ok:"));
    Ok(ExitCode::SUCCESS)
}

/// What is otherwise than the case expects.
fn fault_of(case: &Case, answer: &Answer) -> Option<String> {
    if answer.verdict() != case.expect {
        let by = answer.policies().join(", ");
        return Some(format!("expected {}, is {} by {by}", case.expect, answer.verdict()));
    }
    let missing = case.policies.iter().find(|id| !answer.policies().contains(id))?;
    Some(format!("{missing} is not among {}", answer.policies().join(", ")))
}
