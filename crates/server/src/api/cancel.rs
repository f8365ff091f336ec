//! Cancelling a run: the intent is stored first, then whoever runs it is told.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use evenkeel_core::port::store::{Cancel, Cancelled};
use evenkeel_core::{Code, Error};
use http::StatusCode;
use serde::Deserialize;

use super::{Answer, attach, find_run, run_id, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::wire::refusal::{malformed, no_run, unsupported};

/// What a cancel may be asked with.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CancelQuery {
    wait: Option<String>,
    action: Option<String>,
}

pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((thread, run)): Path<(String, String)>,
    Query(query): Query<CancelQuery>,
) -> Answer {
    let (thread, run) = (thread_id(&thread)?, run_id(&run)?);
    match query.action.as_deref() {
        None | Some("interrupt") => {}
        Some("rollback") => return Err(unsupported("action=rollback is not offered by this server.").into()),
        Some(_) => return Err(malformed("`action` is not known.", "Send interrupt.").into()),
    }
    let wait = matches!(query.wait.as_deref().map(str::to_ascii_lowercase).as_deref(), Some("true" | "1"));
    let run = find_run(&shared, &caller.tenant, thread, run).await?;
    match shared
        .store
        .cancel(Cancel { tenant: caller.tenant, run: run.id, force: false, undo: false })
        .await?
    {
        Cancelled::NotFound => return Err(no_run().into()),
        Cancelled::Ended => return Err(ended().into()),
        // Ended at once: the thread may be free for its next turn.
        Cancelled::Done => shared.dispatch.nudge(),
        Cancelled::Cancelling => {
            shared.dispatch.cancel(run.id);
            if run.owner.is_some() {
                shared.hint(run.owner);
            }
        }
    }
    shared.hub.touch(thread);
    if wait {
        return Ok(attach::stopped(&shared, &run).await?);
    }
    Ok(StatusCode::ACCEPTED.into_response())
}

fn ended() -> Error {
    Error::client(Code::RunEnded, "No runs found to cancel.", "The run has ended; read its state instead.")
}
