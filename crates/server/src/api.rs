//! The agent API: accepts runs, tells of them, streams their events.
//!
//! The primary door is the LangGraph Agent Server dialect; `/v1` is our own. Handlers hold no state:
//! they parse with `wire`, ask the store with the caller's tenant in every question, and show.

mod approvals;
mod assistants;
mod attach;
mod cancel;
mod create;
mod forget;
pub(crate) mod hint;
mod lab;
mod openapi;
mod operator;
mod refuse;
pub(crate) mod replicas;
mod runs;
mod search;
mod state;
mod stop;
mod thread_log;
mod threads;

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::port::store::{RunRef, ThreadRef};
use evenkeel_core::run::{EndReason, Run};
use evenkeel_core::thread::Thread;

use http::Method;
use serde_json::{Value, json};

use crate::app::Shared;
use crate::wire::refusal::{Refusal, malformed, no_run, no_thread};
use crate::wire::schema;
use openapi::{Door, Operation, does, gives, lists, streams};

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const PATCH: Method = Method::PATCH;
const DELETE: Method = Method::DELETE;

/// What a handler gives back.
type Answer = Result<Response, Refusal>;

/// The agent API.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    agents(Door::default()).router().merge(refuse::routes())
}

/// Paths for operators and the lab.
pub(crate) fn operators() -> Router<Arc<Shared>> {
    ours(Door::default()).router().merge(replicas::routes()).merge(lab::routes())
}

/// The description of everything that a replica serves, as OpenAPI.
pub(crate) fn document() -> Value {
    ours(agents(health(Door::default()))).document()
}

fn agents(door: Door) -> Door {
    stateless(runs_on_threads(threads_and_state(assistants(door))))
}

fn ours(door: Door) -> Door {
    approvals::serve(thread_log::serve(operator::serve(door)))
}

fn health(door: Door) -> Door {
    door.beside("/ok", gives("ok", "Whether the server is there", "Ok"))
        .beside("/info", gives("info", "What the server is", "Info"))
        .beside("/healthz", gives("healthz", "Whether the process lives", "Any"))
        .beside("/readyz", gives("readyz", "Whether it should get traffic", "Any"))
        .beside("/openapi.json", gives("openapi", "This document", "Any"))
}

fn assistants(door: Door) -> Door {
    door.serve(
        POST,
        "/assistants/search",
        assistants::search,
        lists("assistants_search", "Lists assistants", "Assistant").body("AssistantSearch"),
    )
    .serve(
        POST,
        "/assistants/count",
        assistants::count,
        gives("assistants_count", "Counts assistants", "Any").body("AssistantSearch"),
    )
    .serve(
        GET,
        "/assistants/{assistant}",
        assistants::get_one,
        gives("assistants_get", "An assistant by name or id", "Assistant"),
    )
    .serve(
        GET,
        "/assistants/{assistant}/graph",
        assistants::graph,
        gives("assistants_graph", "Its graph", "Graph"),
    )
    .serve(
        GET,
        "/assistants/{assistant}/schemas",
        assistants::schemas,
        gives("assistants_schemas", "Schemas of its input and state", "Schemas"),
    )
}

fn threads_and_state(door: Door) -> Door {
    let modes = schema::words(&schema::THREAD_MODES);
    door.serve(
        POST,
        "/threads",
        threads::create,
        gives("threads_create", "Makes a thread", "Thread").body("ThreadCreate"),
    )
    .serve(
        POST,
        "/threads/search",
        search::search,
        lists("threads_search", "Lists threads", "Thread").body("ThreadSearch"),
    )
    .serve(
        POST,
        "/threads/count",
        search::count,
        gives("threads_count", "Counts threads", "Any").body("ThreadSearch"),
    )
    .serve(GET, "/threads/{thread}", threads::get_one, gives("threads_get", "A thread", "Thread"))
    .serve(
        PATCH,
        "/threads/{thread}",
        threads::patch,
        gives("threads_patch", "Changes metadata and busy policy", "Thread").body("ThreadPatch"),
    )
    .serve(
        DELETE,
        "/threads/{thread}",
        threads::delete,
        does("threads_delete", "Stops what is open on a thread and removes it", 204),
    )
    .serve(
        GET,
        "/threads/{thread}/stream",
        attach::thread_stream,
        streams("threads_stream", "All runs of a thread, without end").resumes(modes),
    )
    .serve(GET, "/threads/{thread}/state", state::newest, gives("state_get", "The newest state", "State"))
    .serve(
        POST,
        "/threads/{thread}/state",
        state::write,
        gives("state_write", "Changes the state of a thread that is not busy", "StateWritten")
            .body("StateWrite"),
    )
    .serve(
        POST,
        "/threads/{thread}/state/checkpoint",
        state::at_by_body,
        gives("state_at_body", "The state at a checkpoint", "State").body("StateAt"),
    )
    .serve(
        GET,
        "/threads/{thread}/state/{checkpoint}",
        state::at,
        gives("state_at", "The state at a checkpoint", "State"),
    )
    .serve(
        GET,
        "/threads/{thread}/history",
        state::history,
        lists("history", "States, newest first", "State")
            .query("limit", schema::number())
            .query("before", schema::path_part("checkpoint")),
    )
    .serve(
        POST,
        "/threads/{thread}/history",
        state::history_by_body,
        lists("history_body", "States, newest first", "State").body("History"),
    )
}

fn runs_on_threads(door: Door) -> Door {
    let modes = schema::words(&schema::MODES);
    let status = schema::words(&schema::RUN_STATUS);
    door.serve(
        POST,
        "/threads/{thread}/runs",
        create::background,
        gives("runs_create", "Creates a run", "Run").creates(),
    )
    .serve(
        GET,
        "/threads/{thread}/runs",
        runs::list,
        lists("runs_list", "Runs, newest first", "Run").paged().query("status", status),
    )
    .serve(
        POST,
        "/threads/{thread}/runs/stream",
        create::stream,
        streams("runs_create_stream", "Creates a run and streams it").creates(),
    )
    .serve(
        POST,
        "/threads/{thread}/runs/wait",
        create::wait,
        gives("runs_create_wait", "Creates a run and waits for its values", "Values").creates(),
    )
    .serve(GET, "/threads/{thread}/runs/{run}", runs::get_one, gives("runs_get", "A run", "Run"))
    .serve(
        DELETE,
        "/threads/{thread}/runs/{run}",
        runs::delete,
        does("runs_delete", "Stops a run and removes it from every list", 204),
    )
    .serve(
        GET,
        "/threads/{thread}/runs/{run}/join",
        attach::join,
        gives("runs_join", "Waits for the values of a run", "Values"),
    )
    .serve(
        GET,
        "/threads/{thread}/runs/{run}/stream",
        attach::stream,
        streams("runs_stream", "The events of a run").resumes(modes),
    )
    .serve(
        POST,
        "/threads/{thread}/runs/{run}/cancel",
        cancel::cancel,
        stops(gives("runs_cancel", "Stops a run", "Any"))
            .answers(202, json!({ "description": "Asked for." })),
    )
    .serve(
        POST,
        "/runs/cancel",
        cancel::cancel_many,
        stops(does("runs_cancel_many", "Stops several runs", 204)).body("RunsCancel"),
    )
}

fn stops(operation: Operation) -> Operation {
    let wait = json!({ "type": "boolean" });
    operation.query("wait", wait).query("action", schema::words(&["interrupt", "rollback"]))
}

fn stateless(door: Door) -> Door {
    door.serve(
        POST,
        "/runs",
        create::background_stateless,
        gives("stateless_create", "Creates a run on a thread of its own", "Run").creates(),
    )
    .serve(
        POST,
        "/runs/stream",
        create::stream_stateless,
        streams("stateless_stream", "The same, streamed").creates(),
    )
    .serve(
        POST,
        "/runs/wait",
        create::wait_stateless,
        gives("stateless_wait", "The same, waited for", "Values").creates(),
    )
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
async fn known_run(shared: &Shared, tenant: &TenantId, thread: ThreadId, run: RunId) -> Result<Run, Error> {
    let found = shared.store.get_run(RunRef { tenant: tenant.clone(), run }).await?;
    found.filter(|run| run.thread == thread).ok_or_else(no_run)
}

/// A run that the dialect shows: one that was undone is not there.
async fn find_run(shared: &Shared, tenant: &TenantId, thread: ThreadId, run: RunId) -> Result<Run, Error> {
    let run = known_run(shared, tenant, thread, run).await?;
    if is_undone(&run) { Err(no_run()) } else { Ok(run) }
}

fn is_undone(run: &Run) -> bool {
    run.outcome.as_ref().and_then(|outcome| outcome.reason).is_some_and(EndReason::undoes)
}

/// The run that waits for a person on a thread, if one does.
async fn asking_run(shared: &Shared, thread: &Thread) -> Result<Option<Run>, Error> {
    match thread.active {
        Some(run) if thread.asks => shared.store.get_run(RunRef { tenant: thread.tenant.clone(), run }).await,
        _ => Ok(None),
    }
}

/// The newest run of a thread.
async fn newest_run(shared: &Shared, thread: &Thread) -> Result<Option<Run>, Error> {
    match thread.newest_run {
        Some(run) => shared.store.get_run(RunRef { tenant: thread.tenant.clone(), run }).await,
        None => Ok(None),
    }
}
