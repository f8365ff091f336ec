//! `evenkeel approvals list|show|approve|deny`: what runs ask of a person, and the answers.

use std::process::ExitCode;

use evenkeel_env::Env;
use serde_json::{Value, json};

use crate::client::{Connection, Server};
use crate::cmd::Done;
use crate::output::{self, brief};

/// Arguments of `approvals`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel approvals list
  evenkeel approvals show APPROVAL
  evenkeel approvals approve APPROVAL
  evenkeel approvals deny APPROVAL --note \"use the staging host\"")]
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
    /// What waits for an answer now
    List {
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// One question with its whole arguments, and its answer if it has one
    Show {
        /// Its id
        approval: String,
        #[command(flatten)]
        of: Of,
    },
    /// Let the call run, once, as it was asked
    Approve {
        /// Its id
        approval: String,
        /// Words that are kept with the answer
        #[arg(long, default_value = "")]
        note: String,
        #[command(flatten)]
        of: Of,
    },
    /// Do not let it run
    Deny {
        /// Its id
        approval: String,
        /// What the model is told
        #[arg(long, default_value = "")]
        note: String,
        #[command(flatten)]
        of: Of,
    },
}

/// Whose question it is.
#[derive(clap::Args)]
struct Of {
    /// The tenant, for an operator's key
    #[arg(long)]
    tenant: Option<String>,
}

/// Carries out the action.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let server = args.connection.open(env);
    match args.action {
        Action::List { limit } => list(&server, limit, args.json).await,
        Action::Show { approval, of } => {
            let shown = server.get(&path(&approval, &of)).await?;
            tell(&shown, args.json)
        }
        Action::Approve { approval, note, of } => {
            answer(&server, &path(&approval, &of), ("approve", &note), args.json).await
        }
        Action::Deny { approval, note, of } => {
            answer(&server, &path(&approval, &of), ("deny", &note), args.json).await
        }
    }
}

fn path(approval: &str, of: &Of) -> String {
    let tenant = of.tenant.as_ref().map(|tenant| format!("?tenant={tenant}")).unwrap_or_default();
    format!("/v1/approvals/{approval}{tenant}")
}

async fn list(server: &Server, limit: u32, json: bool) -> Done {
    let found = server.get(&format!("/v1/approvals?limit={limit}")).await?;
    let heading = ["APPROVAL", "TENANT", "TOOL", "REASON", "EXPIRES"];
    output::listing(&found, json, "nothing waits for an approval", &heading, row)?;
    Ok(ExitCode::SUCCESS)
}

fn row(approval: &Value) -> Vec<String> {
    let text = |key: &str| approval[key].as_str().unwrap_or_default();
    vec![
        text("id").to_owned(),
        brief(text("tenant"), 16),
        brief(text("tool"), 24),
        brief(text("reason"), 60),
        text("expires_at").chars().take(19).collect(),
    ]
}

async fn answer(server: &Server, path: &str, (decision, note): (&str, &str), json: bool) -> Done {
    let shown = server.post(path, &json!({ "decision": decision, "note": note })).await?;
    tell(&shown, json)
}

/// Everything that an answer is bound to, whole: a person must see what would run.
fn tell(approval: &Value, json: bool) -> Done {
    if json {
        output::json(approval)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = |key: &str| approval[key].as_str().unwrap_or_default();
    for (label, key) in [
        ("approval", "id"),
        ("state", "state"),
        ("run", "run_id"),
        ("thread", "thread_id"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("reason", "reason"),
        ("expires", "expires_at"),
    ] {
        output::line(format_args!("{label:<9} {}", output::safe(text(key))))?;
    }
    let said = &approval["answer"];
    if let Some(decision) = said["decision"].as_str() {
        let (by, note) = (said["by"].as_str().unwrap_or_default(), said["note"].as_str().unwrap_or_default());
        output::line(format_args!("answer    {}", output::safe(&format!("{decision} {by} {note}"))))?;
    }
    let args = serde_json::to_string_pretty(&approval["args"])?;
    output::line(format_args!("arguments\n{}", output::safe(&args)))?;
    Ok(ExitCode::SUCCESS)
}
