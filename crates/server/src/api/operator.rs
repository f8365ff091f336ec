//! `/v1`: our own words, for operators, the command line and the lab.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::id::TenantId;
use evenkeel_core::port::store::{ListRuns, ReadEvents, RunRef};
use evenkeel_core::run::{Run, RunState};
use evenkeel_core::{Code, Error};
use evenkeel_model::Operation;
use serde::Deserialize;
use serde_json::{Value, json};

use super::openapi::{Door, gives, lists};
use super::{Answer, GET, POST, run_id, runs::LIST_MAX};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::wire::refusal::{malformed, no_run};
use crate::wire::schema;

/// Events that are read for one answer at most.
const EVENTS_MAX: u32 = 1000;

pub(super) fn serve(door: Door) -> Door {
    let states = json!({ "type": "string", "pattern": "^[a-z,]*$" });
    door.serve(GET, "/v1/router", router, gives("router", "Deployments, routes, transitions", "Any"))
        .serve(
            POST,
            "/v1/router/{deployment}/{operation}",
            operate,
            gives("router_operate", "Drains, enables or probes a deployment", "Any"),
        )
        .serve(
            GET,
            "/v1/runs",
            list,
            lists("stored_runs", "Runs in Evenkeel's own words", "StoredRun").paged().query("state", states),
        )
        .serve(
            GET,
            "/v1/runs/{run}",
            get_one,
            gives("stored_run", "A run in Evenkeel's own words", "StoredRun"),
        )
        .serve(
            GET,
            "/v1/runs/{run}/events",
            events,
            gives("stored_events", "The journal of a run", "Events")
                .query("after", schema::number())
                .query("limit", schema::number()),
        )
        .serve(GET, "/v1/limits", limits, gives("limits", "Slots of each component", "Any"))
        .serve(GET, "/v1/stats", stats, gives("stats", "Counts of runs and events", "Any"))
}

async fn router(State(shared): State<Arc<Shared>>) -> Answer {
    Ok(Json(shared.routing.snapshot()).into_response())
}

async fn operate(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((deployment, word)): Path<(String, String)>,
) -> Answer {
    caller.must_operate()?;
    let operation = match word.as_str() {
        "drain" => Operation::Drain,
        "enable" => Operation::Enable,
        "probe" => Operation::Probe,
        _ => {
            return Err(Error::client(
                Code::NotFound,
                format!("There is no operation `{word}` on a deployment."),
                "Use drain, enable or probe.",
            )
            .into());
        }
    };
    shared.routing.operate(&deployment, operation)?;
    tracing::info!(deployment, operation = word, "operator changed a deployment");
    Ok(Json(shared.routing.snapshot()).into_response())
}

/// What a list of runs may be asked for.
#[derive(Debug, Default, Deserialize)]
struct RunsQuery {
    /// States, joined by commas.
    state: Option<String>,
    limit: Option<u32>,
    offset: Option<u32>,
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<RunsQuery>,
) -> Answer {
    let words = query.state.as_deref().unwrap_or_default();
    let states: Result<Vec<RunState>, Error> = words
        .split(',')
        .filter(|word| !word.is_empty())
        .map(|word| {
            RunState::parse(word).ok_or_else(|| {
                malformed(
                    format!("state `{word}` is not known."),
                    "Use queued, running, waiting, cancelling, completed, failed, cancelled or expired.",
                )
            })
        })
        .collect();
    let request = ListRuns {
        tenant: (!caller.operator).then_some(caller.tenant),
        thread: None,
        states: states?,
        limit: query.limit.unwrap_or(100).min(LIST_MAX),
        offset: query.offset.unwrap_or(0),
    };
    Ok(Json(shared.store.list_runs(request).await?).into_response())
}

/// Whose run is asked for: only an operator may name a tenant.
#[derive(Debug, Default, Deserialize)]
struct RunQuery {
    tenant: Option<String>,
    after: Option<u64>,
    limit: Option<u32>,
}

async fn find(shared: &Shared, caller: &Caller, run: &str, query: &RunQuery) -> Result<Run, Error> {
    let tenant = match &query.tenant {
        Some(tenant) if *tenant != caller.tenant.0 => {
            caller.must_operate()?;
            TenantId(tenant.clone())
        }
        _ => caller.tenant.clone(),
    };
    shared.store.get_run(RunRef { tenant, run: run_id(run)? }).await?.ok_or_else(no_run)
}

async fn get_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(run): Path<String>,
    Query(query): Query<RunQuery>,
) -> Answer {
    Ok(Json(find(&shared, &caller, &run, &query).await?).into_response())
}

/// Events of a run as they are stored. `next_after` is where the next page begins; the last page
/// has none.
async fn events(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(run): Path<String>,
    Query(query): Query<RunQuery>,
) -> Answer {
    let run = find(&shared, &caller, &run, &query).await?;
    let limit = query.limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX);
    let after_seq = query.after.unwrap_or(0);
    let request = ReadEvents { tenant: run.tenant, thread: run.thread, after_seq, limit };
    let page = shared.store.read_events(request).await?;
    let full = page.len() >= limit as usize;
    let next_after = page.last().filter(|_| full).map(|event| event.seq);
    let events: Vec<_> = page.into_iter().filter(|event| event.run == run.id).collect();
    Ok(Json(json!({ "events": events, "next_after": next_after })).into_response())
}

async fn limits(State(shared): State<Arc<Shared>>) -> Answer {
    let shown = shared.slots.gauges().into_iter().map(|gauges| {
        json!({
            "component": gauges.component,
            "in_use": gauges.in_use,
            "in_use_peak": gauges.in_use_peak,
            "limit": gauges.limit,
            "waiting": gauges.waiting,
            "n_waited": gauges.n_waited,
            "n_refused": gauges.n_refused,
            "wait_total_s": gauges.wait_total_s,
            "wait_max_s": gauges.wait_max_s,
        })
    });
    Ok(Json(shown.collect::<Vec<Value>>()).into_response())
}

async fn stats(State(shared): State<Arc<Shared>>, Extension(caller): Extension<Caller>) -> Answer {
    caller.must_operate()?;
    let counts = shared.store.counts(()).await?;
    let runs: serde_json::Map<String, Value> =
        counts.runs.iter().map(|(state, n)| (state.as_str().to_owned(), json!(n))).collect();
    let parked: serde_json::Map<String, Value> =
        counts.parked.iter().map(|(route, n)| (route.clone(), json!(n))).collect();
    let body = json!({
        "replica": shared.dispatch.replica(),
        "draining": shared.is_draining(),
        "runs": runs,
        "parked": parked,
        "n_fenced": counts.n_fenced,
        "harness": shared.dispatch.stats(),
        "n_streams": shared.hub.n_followers(),
        "spans": shared.exporter.stats(),
    });
    Ok(Json(body).into_response())
}
