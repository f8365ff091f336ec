//! `evenkeel replicas`: the processes of a platform, as the one that is asked sees them.

use std::process::ExitCode;

use evenkeel_env::Env;
use serde_json::Value;

use crate::client::Connection;
use crate::cmd::Done;
use crate::output::{self, Style};

/// Arguments of `replicas`.
#[derive(clap::Args)]
#[command(after_help = "\
A gateway shows how each of its replicas is, since when, and what it has under way there. A replica shows
itself and the others as their heartbeats tell.")]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the replicas.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let rows = args.connection.open(env).get("/v1/replicas").await?;
    if args.json {
        output::json(&rows)?;
    } else {
        output::line(format_args!("{}", show(Style::stdout(), &rows)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(style: Style, rows: &Value) -> String {
    let rows: Vec<Vec<String>> = rows.as_array().into_iter().flatten().map(row).collect();
    let heading = ["ADDRESS", "STANDING", "SINCE", "RUNS", "REQUESTS", "SENT", "FAILED", "REPLICA"];
    output::table(style, &heading, &rows)
}

fn row(of: &Value) -> Vec<String> {
    let text = |key: &str| match &of[key] {
        Value::String(text) => output::safe(text),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let since = of["for_ms"].as_u64().map_or_else(String::new, |ms| format!("{} ago", output::duration(ms)));
    let me = if of["me"] == true { " (asked)" } else { "" };
    vec![
        format!("{}{me}", text("address")),
        text("standing"),
        since,
        text("running"),
        text("in_flight"),
        text("n_requests"),
        text("n_failed"),
        text("replica"),
    ]
}

#[cfg(test)]
mod tests;
