//! Reading and removing runs.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use evenkeel_core::Error;
use evenkeel_core::port::store::{Cancel, Deleted, ListRuns, RunRef};
use evenkeel_core::run::{Run, RunState};
use evenkeel_core::thread::Thread;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::{Answer, find_run, find_thread, is_undone, run_id, stop, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::{Path, Query};
use crate::wire;
use crate::wire::refusal::malformed;

/// Runs that one answer lists at most.
pub(super) const LIST_MAX: u32 = 1000;

/// What a list may be asked for.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    limit: Option<u32>,
    offset: Option<u32>,
    status: Option<String>,
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ListQuery>,
) -> Answer {
    let thread = find_thread(&shared, &caller.tenant, thread_id(&id)?).await?;
    let states = match query.status.as_deref() {
        None | Some("") => Vec::new(),
        Some(word) => wire::run::states(word).ok_or_else(|| {
            malformed(
                format!("status `{word}` is not known."),
                "Use pending, running, error, success, timeout or interrupted.",
            )
        })?,
    };
    let page = Page { offset: query.offset.unwrap_or(0), limit: query.limit.unwrap_or(10).min(LIST_MAX) };
    let status = query.status.as_deref().filter(|word| !word.is_empty());
    let runs = shown(&shared, &thread, (&states, status), page).await?;
    Ok(Json(runs.iter().map(wire::run::run).collect::<Vec<Value>>()).into_response())
}

#[derive(Clone, Copy)]
struct Page {
    offset: u32,
    limit: u32,
}

/// The runs of this status that the dialect shows: without those that were undone.
async fn shown(
    shared: &Shared,
    thread: &Thread,
    (states, status): (&[RunState], Option<&str>),
    page: Page,
) -> Result<Vec<Run>, Error> {
    let is_meant =
        |run: &Run| !is_undone(run) && status.is_none_or(|status| wire::run::status_of(run) == status);
    let (mut shown, mut n_read, mut n_passed) = (Vec::new(), 0, 0);
    while shown.len() < page.limit as usize {
        let request = ListRuns {
            tenant: Some(thread.tenant.clone()),
            thread: Some(thread.id),
            states: states.to_vec(),
            limit: LIST_MAX,
            offset: n_read,
        };
        let found = shared.store.list_runs(request).await?;
        let n_found = u32::try_from(found.len()).unwrap_or(LIST_MAX);
        n_read += n_found;
        for run in found.into_iter().filter(is_meant) {
            n_passed += 1;
            if n_passed > page.offset && shown.len() < page.limit as usize {
                shown.push(run);
            }
        }
        if n_found < LIST_MAX {
            break;
        }
    }
    Ok(shown)
}

pub(super) async fn get_one(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((thread, run)): Path<(String, String)>,
) -> Answer {
    let run = find_run(&shared, &caller.tenant, thread_id(&thread)?, run_id(&run)?).await?;
    Ok(Json(wire::run::run(&run)).into_response())
}

/// Removes a run; one that is open is stopped first. What it said stays in the thread.
pub(super) async fn delete(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((thread, run)): Path<(String, String)>,
) -> Answer {
    let thread = thread_id(&thread)?;
    let run = find_run(&shared, &caller.tenant, thread, run_id(&run)?).await?;
    let (tenant, named) = (caller.tenant.clone(), RunRef { tenant: caller.tenant, run: run.id });
    if shared.store.delete_run(named.clone()).await? == Deleted::Busy {
        stop::stop(&shared, &run, Cancel { tenant, run: run.id, force: true, undo: false }).await?;
        shared.store.delete_run(named).await?;
    }
    shared.hub.touch(thread);
    Ok(StatusCode::NO_CONTENT.into_response())
}
