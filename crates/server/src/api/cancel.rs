//! Cancelling runs: one, several of a thread, or all of a status.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::port::store::{Cancel, Cancelled};
use evenkeel_core::run::RunState;
use evenkeel_core::{Code, Error};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::{Answer, attach, find_run, run_id, stop, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::gateway::route::Sent;
use crate::wire::refusal::{malformed, no_run};

/// What a cancel may be asked with.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CancelQuery {
    wait: Option<String>,
    action: Option<String>,
}

impl CancelQuery {
    /// Whether what the run did is undone.
    fn undo(&self) -> Result<bool, Error> {
        match self.action.as_deref() {
            None | Some("interrupt") => Ok(false),
            Some("rollback") => Ok(true),
            Some(_) => Err(malformed("`action` is not known.", "Send interrupt or rollback.")),
        }
    }

    fn wait(&self) -> Result<bool, Error> {
        match self.wait.as_deref().map(str::to_ascii_lowercase).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(_) => Err(malformed("`wait` is not a boolean.", "Send true or false.")),
        }
    }
}

pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((thread, run)): Path<(String, String)>,
    Query(query): Query<CancelQuery>,
) -> Answer {
    let (thread, run) = (thread_id(&thread)?, run_id(&run)?);
    let (undo, wait) = (query.undo()?, query.wait()?);
    let run = find_run(&shared, &caller.tenant, thread, run).await?;
    let cancel = Cancel { tenant: caller.tenant, run: run.id, force: false, undo };
    match stop::stop(&shared, &run, cancel).await? {
        Cancelled::NotFound => return Err(no_run().into()),
        Cancelled::Ended => return Err(nothing_to_cancel().into()),
        Cancelled::Done | Cancelled::Cancelling => {}
    }
    if wait {
        return Ok(attach::stopped(&shared, &run).await?);
    }
    Ok(StatusCode::ACCEPTED.into_response())
}

/// `{"thread_id", "run_ids"}`, or `{"status"}` for all runs of the caller in it.
pub(super) async fn cancel_many(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<CancelQuery>,
    Extension(sent): Extension<Sent>,
) -> Answer {
    let undo = query.undo()?;
    let named = match Named::parse(&sent.json()?)? {
        Named::Runs(thread, runs) => runs.into_iter().rev().map(|run| (thread, run)).collect(),
        Named::States(states) => {
            let found = stop::open_runs(&shared, &caller.tenant, None, states).await?;
            found.into_iter().map(|run| (run.thread, run.id)).collect::<Vec<_>>()
        }
    };
    let mut n_stopped = 0;
    // From the end of the line: what waits is stopped before it can begin.
    for (thread, run) in named {
        let Ok(run) = find_run(&shared, &caller.tenant, thread, run).await else { continue };
        let cancel = Cancel { tenant: caller.tenant.clone(), run: run.id, force: false, undo };
        let cancelled = stop::stop(&shared, &run, cancel).await?;
        n_stopped += usize::from(matches!(cancelled, Cancelled::Done | Cancelled::Cancelling));
    }
    if n_stopped == 0 { Err(nothing_to_cancel().into()) } else { Ok(StatusCode::NO_CONTENT.into_response()) }
}

/// Which runs are meant.
enum Named {
    Runs(ThreadId, Vec<RunId>),
    States(&'static [RunState]),
}

impl Named {
    fn parse(body: &Value) -> Result<Self, Error> {
        if let Some(word) = body.get("status").and_then(Value::as_str) {
            return Ok(Self::States(match word {
                "pending" => &[RunState::Queued],
                "running" => &[RunState::Running, RunState::Waiting],
                "all" => &stop::OPEN,
                _ => return Err(malformed("`status` is not known.", "Send pending, running or all.")),
            }));
        }
        let thread = body.get("thread_id").and_then(Value::as_str);
        let runs = body.get("run_ids").and_then(Value::as_array).filter(|runs| !runs.is_empty());
        let (Some(thread), Some(runs)) = (thread, runs) else {
            return Err(malformed(
                "The body names no runs.",
                "Send {\"thread_id\":\"...\",\"run_ids\":[...]} or {\"status\":\"pending\"}.",
            ));
        };
        let runs: Result<Vec<RunId>, Error> =
            runs.iter().map(|run| run_id(run.as_str().unwrap_or_default())).collect();
        Ok(Self::Runs(thread_id(thread)?, runs?))
    }
}

fn nothing_to_cancel() -> Error {
    Error::client(Code::RunEnded, "No runs found to cancel.", "The run has ended; read its state instead.")
}
