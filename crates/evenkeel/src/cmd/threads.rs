//! `evenkeel threads list|show|delete`: the conversations that a server keeps.

use std::process::ExitCode;

use evenkeel_core::Error;
use evenkeel_core::id::ThreadId;
use evenkeel_env::Env;
use http::Method;
use serde_json::{Value, json};

use crate::client::{Connection, Server};
use crate::cmd::Done;
use crate::output::{self, Paint, Style, brief};

/// Arguments of `threads`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel threads list --status busy
  evenkeel threads show THREAD
  evenkeel threads delete THREAD")]
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
    /// Newest threads first
    List {
        /// Only those in this state
        #[arg(long, value_parser = ["idle", "busy", "interrupted", "error"])]
        status: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// What was said on a thread
    Show {
        /// Its id
        thread: ThreadId,
    },
    /// Stop what is open on threads and remove them with everything that they hold
    Delete {
        /// Their ids
        #[arg(required = true)]
        threads: Vec<ThreadId>,
    },
}

/// Carries out the action.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let server = args.connection.open(env);
    match args.action {
        Action::List { status, limit } => list(&server, status, limit, args.json).await,
        Action::Show { thread } => show(&server, thread, args.json).await,
        Action::Delete { threads } => delete(&server, &threads, args.json).await,
    }
}

async fn list(server: &Server, status: Option<String>, limit: u32, json: bool) -> Done {
    let found = server.post("/threads/search", &json!({ "status": status, "limit": limit })).await?;
    let heading = ["THREAD", "STATUS", "MESSAGES", "CHANGED", "LAST"];
    output::listing(&found, json, "no threads", &heading, row)?;
    Ok(ExitCode::SUCCESS)
}

fn row(thread: &Value) -> Vec<String> {
    let text = |key: &str| thread[key].as_str().unwrap_or_default();
    let messages = thread["values"]["messages"].as_array().cloned().unwrap_or_default();
    let last = messages.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
    vec![
        text("thread_id").to_owned(),
        text("status").to_owned(),
        messages.len().to_string(),
        text("updated_at").chars().take(19).collect(),
        brief(last, 48),
    ]
}

async fn show(server: &Server, id: ThreadId, json: bool) -> Done {
    let thread = server.get(&format!("/threads/{id}")).await?;
    if json {
        output::json(&thread)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style::stdout();
    let text = |key: &str| thread[key].as_str().unwrap_or_default();
    output::line(format_args!("thread  {id}\nstatus  {}\nchanged {}", text("status"), text("updated_at")))?;
    for message in thread["values"]["messages"].as_array().into_iter().flatten() {
        let kind = message["type"].as_str().unwrap_or_default();
        let content = output::safe(message["content"].as_str().unwrap_or_default());
        output::line(format_args!("\n{}\n{content}", style.paint(Paint::Dim, kind)))?;
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let called =
                brief(&format!("{} {}", call["name"].as_str().unwrap_or_default(), call["args"]), 160);
            output::line(format_args!("{}", style.paint(Paint::Dim, format!("calls {called}"))))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes each; stops at the first that cannot be removed.
async fn delete(server: &Server, threads: &[ThreadId], json: bool) -> Done {
    for thread in threads {
        remove(server, *thread).await?;
        if json {
            output::line(format_args!("{}", json!({ "thread_id": thread, "deleted": true })))?;
        } else {
            output::line(format_args!("deleted {thread}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(server: &Server, thread: ThreadId) -> Result<(), Error> {
    server.json(Method::DELETE, &format!("/threads/{thread}"), None, &[]).await.map(drop)
}
