//! `evenkeel runs list|show|events|cancel`: what the server's runs are doing and have done.

pub(crate) mod journal;

use std::process::ExitCode;

use evenkeel_core::id::RunId;
use evenkeel_core::journal::Event;
use evenkeel_core::run::{Run, RunState};
use evenkeel_env::Env;
use serde_json::{Value, json};

use crate::client::{Connection, Server};
use crate::cmd::Done;
use crate::cmd::explain::story::{told, wait_word};
use crate::output::{self, Paint, Style, brief, duration};

/// Arguments of `runs`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel runs list --state waiting
  evenkeel runs show RUN --diff > change.patch
  evenkeel runs events RUN --follow
  evenkeel runs cancel RUN")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    connection: Connection,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Newest runs first
    List {
        /// Only runs in this state
        #[arg(long, value_parser = state)]
        state: Option<RunState>,
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// One run: where it stands, what it used, how it ended
    Show {
        /// Its id
        run: RunId,
        /// Print only what it changed, as a patch
        #[arg(long)]
        diff: bool,
    },
    /// The journal of a run
    Events {
        /// Its id
        run: RunId,
        /// Go on until the run ends
        #[arg(long, short)]
        follow: bool,
    },
    /// Ask for a run to be stopped; what it changed is kept
    Cancel {
        /// Its id
        run: RunId,
    },
}

fn state(text: &str) -> Result<RunState, String> {
    RunState::parse(text).ok_or_else(|| {
        "one of queued, running, waiting, cancelling, completed, failed, cancelled, expired".to_owned()
    })
}

/// Carries out the action.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let server = args.connection.open(env);
    match args.action {
        Action::List { state, limit } => list(&server, state, limit, args.json).await,
        Action::Show { run, diff } => show(&server, run, diff, args.json).await,
        Action::Events { run, follow } => events(&server, run, follow, args.json).await,
        Action::Cancel { run } => cancel(&server, run).await,
    }
}

async fn list(server: &Server, state: Option<RunState>, limit: u32, json: bool) -> Done {
    let state = state.map(|state| format!("&state={}", state.as_str())).unwrap_or_default();
    let answer = server.get(&format!("/v1/runs?limit={limit}{state}")).await?;
    if json {
        output::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runs: Vec<Run> = journal::typed(answer)?;
    if runs.is_empty() {
        output::line(format_args!("no runs"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    let heading = ["RUN", "STATE", "ASSISTANT", "STEPS", "CLAIMS", "ACCEPTED", "TOOK", "ASKED"];
    output::line(format_args!("{}", output::table(Style::stdout(), &heading, &rows)))?;
    Ok(ExitCode::SUCCESS)
}

fn row(run: &Run) -> Vec<String> {
    let asked = run.spec.messages.last().map(|message| message.joined_text()).unwrap_or_default();
    let took = run.updated_at.since(run.created_at);
    vec![
        run.id.to_string(),
        run.state.as_str().to_owned(),
        run.spec.assistant.clone(),
        run.step.to_string(),
        run.attempt.to_string(),
        run.created_at.iso().chars().take(19).collect(),
        duration(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        brief(&asked, 48),
    ]
}

async fn show(server: &Server, id: RunId, diff: bool, json: bool) -> Done {
    let run = journal::run(server, id).await?;
    if diff {
        let changed = run.outcome.as_ref().and_then(|outcome| outcome.diff.as_deref()).unwrap_or_default();
        output::text(changed)?;
    } else if json {
        output::json(&serde_json::to_value(&run)?)?;
    } else {
        output::line(format_args!("{}", card(Style::stdout(), &run)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A run as a list of facts.
pub(crate) fn card(style: Style, run: &Run) -> String {
    let mut lines = vec![
        format!("run       {}", run.id),
        format!("thread    {}", run.thread),
        format!("assistant {}", run.spec.assistant),
        format!("state     {}", style.state(run.state.as_str())),
    ];
    if let Some(wait) = &run.wait {
        lines.push(format!(
            "waits for {} since {}: {}",
            wait_word(wait.on),
            wait.since.iso(),
            output::safe(&wait.reason)
        ));
        lines.extend(wait.until_hint.map(|at| format!("          next look at {}", at.iso())));
    }
    lines.push(format!("accepted  {}", run.created_at.iso()));
    lines.push(format!("changed   {}", run.updated_at.iso()));
    lines.push(format!("steps     {} of at most {}", run.step, run.spec.limits.steps_max));
    lines.push(format!("claims    {}", run.attempt));
    lines.push(format!("tokens    {} in, {} out", run.usage.input_tokens, run.usage.output_tokens));
    if let Some(outcome) = &run.outcome {
        if let Some(error) = &outcome.error {
            lines.push(format!("error     {}", style.paint(Paint::Red, output::safe(&error.message))));
            lines.push(format!("          {}", output::safe(&error.remedy)));
            lines.push(format!("          evenkeel explain {}", error.code));
        }
        if !outcome.text.is_empty() {
            lines.push(format!("answer    {}", output::safe(&outcome.text)));
        }
        if let Some(delivered) = &outcome.delivered {
            lines.push(format!("delivered {} as {}", delivered.branch, delivered.commit));
            let address = delivered.pull_request.iter();
            lines.extend(address.map(|address| format!("          {}", output::safe(address))));
        }
        let n_lines = outcome.diff.as_deref().unwrap_or_default().lines().count();
        if n_lines > 0 {
            lines.push(format!("diff      {n_lines} lines: evenkeel runs show {} --diff", run.id));
        }
    }
    lines.join("\n")
}

/// Prints events as they are stored; with `follow`, until the run has ended.
async fn events(server: &Server, id: RunId, follow: bool, json: bool) -> Done {
    let mut after = 0;
    loop {
        // The row is read first: a run that has ended then has all its events behind it.
        let run = journal::run(server, id).await?;
        let page = journal::page(server, id, after).await?;
        for event in &page.events {
            after = event.seq;
            print_event(event, json)?;
        }
        after = page.next_after.unwrap_or(after);
        let behind = page.next_after.is_some() || !page.events.is_empty();
        if !behind && (!follow || run.state.is_terminal()) {
            return Ok(ExitCode::SUCCESS);
        }
        if !behind {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
    }
}

fn print_event(event: &Event, json: bool) -> anyhow::Result<()> {
    if json {
        output::line(format_args!("{}", serde_json::to_string(event)?))?;
        return Ok(());
    }
    let (kind, text) = told(&event.body).unwrap_or_else(|| raw(event));
    output::line(format_args!(
        "{:>6}  {}  step {:>3}  {kind:<10} {text}",
        event.seq,
        event.at.iso(),
        event.step
    ))?;
    Ok(())
}

/// The type of an event and its JSON, for those that a story does not tell one by one.
fn raw(event: &Event) -> (&'static str, String) {
    let body = serde_json::to_value(&event.body).unwrap_or(Value::Null);
    let kind = body.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    ("", format!("{kind} {}", brief(&body.to_string(), 160)))
}

async fn cancel(server: &Server, id: RunId) -> Done {
    let run = journal::run(server, id).await?;
    server.post(&format!("/threads/{}/runs/{id}/cancel", run.thread), &json!({})).await?;
    println!("cancelling {id}; `evenkeel runs show {id}` says when it has stopped");
    Ok(ExitCode::SUCCESS)
}
