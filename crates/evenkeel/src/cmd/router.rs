//! `evenkeel router`: how the model router sees its deployments, and the operator's three levers.

use std::process::ExitCode;

use evenkeel_env::Env;
use serde_json::{Value, json};

use crate::client::{Connection, Server};
use crate::cmd::Done;
use crate::output::{self, Style};

/// Arguments of `router`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel router                      state of every deployment, and why
  evenkeel router drain acme-large     send nothing new there; what runs there goes on
  evenkeel router enable acme-large    use it again, also after a provider refused its key or credit
  evenkeel router probe acme-large     do not wait for the next probe")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    connection: Connection,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Send nothing new to a deployment
    Drain {
        /// Its name in the configuration
        deployment: String,
    },
    /// Use a deployment again
    Enable {
        /// Its name in the configuration
        deployment: String,
    },
    /// Probe a deployment now
    Probe {
        /// Its name in the configuration
        deployment: String,
    },
}

/// Shows the router, after the operation if one was asked for.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let server = args.connection.open(env);
    match &args.action {
        None => {}
        Some(Action::Drain { deployment }) => operate(&server, deployment, "drain").await?,
        Some(Action::Enable { deployment }) => operate(&server, deployment, "enable").await?,
        Some(Action::Probe { deployment }) => operate(&server, deployment, "probe").await?,
    }
    let snapshot = server.get("/v1/router").await?;
    if args.json {
        output::json(&snapshot)?;
    } else {
        output::line(format_args!("{}", show(Style::stdout(), &snapshot)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn operate(server: &Server, deployment: &str, operation: &str) -> anyhow::Result<()> {
    server.post(&format!("/v1/router/{deployment}/{operation}"), &json!({})).await?;
    Ok(())
}

/// The snapshot as tables: deployments, routes, the newest transitions.
fn show(style: Style, snapshot: &Value) -> String {
    let now = snapshot["at"].as_u64().unwrap_or(0);
    let mut sections = vec![deployments(style, snapshot, now), routes(style, snapshot)];
    let transitions = snapshot["transitions"].as_array().cloned().unwrap_or_default();
    let lines: Vec<String> = transitions.iter().rev().take(8).map(|change| transition(change, now)).collect();
    if !lines.is_empty() {
        sections.push(format!("newest changes\n{}", lines.join("\n")));
    }
    sections.join("\n\n")
}

/// The entries of an object, in its order.
fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => output::safe(text),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn ago(now: u64, at: &Value) -> String {
    at.as_u64().map_or_else(String::new, |at| format!("{} ago", output::duration(now.saturating_sub(at))))
}

fn deployments(style: Style, snapshot: &Value, now: u64) -> String {
    let rows: Vec<Vec<String>> = entries(&snapshot["deployments"])
        .map(|(name, of)| {
            vec![
                name.clone(),
                standing(of),
                ago(now, &of["since"]),
                format!("{} of {}", text(&of["in_flight"]), text(&of["limit"])),
                outcomes(&of["outcomes"]),
                format!("{} ms", text(&of["first_content_ms"]["p50"])),
                next(of, now),
                text(&of["reason"]),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no deployments are configured: see docs/guide/quickstart.md".to_owned();
    }
    let heading = ["DEPLOYMENT", "STATE", "SINCE", "STREAMS", "CALLS", "FIRST", "NEXT TRY", "WHY"];
    output::table(style, &heading, &rows)
}

/// The breaker's state, and what an operator or the provider laid over it.
fn standing(of: &Value) -> String {
    let mut words = vec![text(&of["state"])];
    for (key, word) in [("throttled_until", "throttled"), ("disabled_until", "disabled")] {
        words.extend((!of[key].is_null()).then(|| word.to_owned()));
    }
    words.extend((of["drained"] == true).then(|| "drained".to_owned()));
    words.join(", ")
}

/// The instant of the next try, whatever holds it back the longest.
fn next(of: &Value, now: u64) -> String {
    let at =
        ["next_probe", "throttled_until", "disabled_until"].iter().filter_map(|key| of[*key].as_u64()).max();
    at.map_or_else(String::new, |at| format!("in {}", output::duration(at.saturating_sub(now))))
}

fn outcomes(value: &Value) -> String {
    let shown: Vec<String> = entries(value).map(|(outcome, n)| format!("{n} {outcome}")).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}

fn routes(style: Style, snapshot: &Value) -> String {
    let rows: Vec<Vec<String>> = entries(&snapshot["routes"])
        .map(|(name, of)| {
            let tiers = of["tiers"].as_array().cloned().unwrap_or_default();
            let tier = |tier: &Value| -> String {
                tier.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" | ")
            };
            let tiers: Vec<String> = tiers.iter().map(tier).collect();
            vec![name.clone(), tiers.join(", then "), text(&of["parked"]), text(&of["waiting"])]
        })
        .collect();
    output::table(style, &["ROUTE", "TIERS", "PARKED", "WAITING"], &rows)
}

fn transition(change: &Value, now: u64) -> String {
    let [deployment, from, to, reason] = ["deployment", "from", "to", "reason"].map(|key| text(&change[key]));
    format!("  {:>14}  {deployment}: {from} -> {to}, {reason}", ago(now, &change["at"]))
}

#[cfg(test)]
mod tests;
