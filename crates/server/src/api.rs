//! The agent API: accepts runs, tells of them, streams their events.
//!
//! The primary door is the LangGraph Agent Server dialect; `/v1` is our own. Handlers hold no state:
//! they parse with `wire`, ask the store with the caller's tenant in every question, and show.

mod assistants;
mod attach;
mod cancel;
mod create;
pub(crate) mod hint;
mod lab;
mod operator;
mod refuse;
pub(crate) mod replicas;
mod runs;
mod thread_log;
mod threads;

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::port::store::{RunRef, ThreadRef};
use evenkeel_core::run::Run;
use evenkeel_core::thread::Thread;

use crate::app::Shared;
use crate::wire::refusal::{Refusal, malformed, no_run, no_thread};

/// What a handler gives back.
type Answer = Result<Response, Refusal>;

/// The agent API.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/assistants/search", post(assistants::search))
        .route("/assistants/count", post(assistants::count))
        .route("/assistants/{assistant}", get(assistants::get_one).patch(refuse::here).delete(refuse::here))
        .route("/assistants/{assistant}/graph", get(assistants::graph))
        .route("/assistants/{assistant}/schemas", get(assistants::schemas))
        .route("/threads", post(threads::create))
        .route("/threads/{thread}", get(threads::get_one).patch(refuse::here).delete(refuse::here))
        .route("/threads/{thread}/state", get(threads::state).post(refuse::here))
        .route("/threads/{thread}/history", get(threads::history).post(threads::history_by_body))
        .route("/threads/{thread}/runs", post(create::background).get(runs::list))
        .route("/threads/{thread}/runs/stream", post(create::stream))
        .route("/threads/{thread}/runs/wait", post(create::wait))
        .route("/threads/{thread}/runs/{run}", get(runs::get_one).delete(refuse::here))
        .route("/threads/{thread}/runs/{run}/join", get(attach::join))
        .route("/threads/{thread}/runs/{run}/stream", get(attach::stream))
        .route("/threads/{thread}/runs/{run}/cancel", post(cancel::cancel))
        .route("/runs", post(create::background_stateless))
        .route("/runs/stream", post(create::stream_stateless))
        .route("/runs/wait", post(create::wait_stateless))
        .merge(refuse::routes())
}

/// Paths for operators and the lab.
pub(crate) fn operators() -> Router<Arc<Shared>> {
    operator::routes().merge(replicas::routes()).merge(lab::routes())
}

/// A thread's id from a path.
fn thread_id(text: &str) -> Result<ThreadId, Error> {
    text.parse()
        .map_err(|_| malformed("Invalid thread ID: must be a UUID", "Send the id that POST /threads gave."))
}

/// A run's id from a path.
fn run_id(text: &str) -> Result<RunId, Error> {
    text.parse()
        .map_err(|_| malformed("Invalid run ID: must be a UUID", "Send the id that the run's creation gave."))
}

/// A thread of this tenant.
async fn find_thread(shared: &Shared, tenant: &TenantId, thread: ThreadId) -> Result<Thread, Error> {
    let found = shared.store.get_thread(ThreadRef { tenant: tenant.clone(), thread }).await?;
    found.ok_or_else(no_thread)
}

/// A run of this tenant on this thread.
async fn find_run(shared: &Shared, tenant: &TenantId, thread: ThreadId, run: RunId) -> Result<Run, Error> {
    let found = shared.store.get_run(RunRef { tenant: tenant.clone(), run }).await?;
    found.filter(|run| run.thread == thread).ok_or_else(no_run)
}

/// The newest run of a thread.
async fn newest_run(shared: &Shared, thread: &Thread) -> Result<Option<Run>, Error> {
    match thread.newest_run {
        Some(run) => shared.store.get_run(RunRef { tenant: thread.tenant.clone(), run }).await,
        None => Ok(None),
    }
}
