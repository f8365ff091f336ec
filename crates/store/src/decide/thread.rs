//! Threads: made, changed, removed; and what a client writes to them outside of any run.

use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{
    CreateThread, Deleted, ListRuns, RunRef, StateWrite, ThreadCreated, ThreadRef, UpdateThread, WriteState,
};
use evenkeel_core::thread::Thread;
use serde_json::Value;

use super::log::{self, Author};
use super::{Context, whole_thread};
use crate::record::ThreadRow;
use crate::rows::{Fault, Rowed};

pub(super) fn create(ctx: &mut Context<'_>, request: &CreateThread) -> Rowed<ThreadCreated> {
    if let Some(row) = ctx.rows.thread(&request.tenant, request.thread)? {
        return Ok(ThreadCreated::Exists(whole_thread(ctx.rows, row)?));
    }
    if ctx.rows.thread_id_taken(request.thread)? {
        return Ok(ThreadCreated::Taken);
    }
    let mut row = ThreadRow::new(request.tenant.clone(), request.thread, ctx.now.wall);
    row.busy_policy = request.busy_policy;
    ctx.rows.insert_thread(&row, &request.metadata)?;
    Ok(ThreadCreated::Created(row.into_thread(request.metadata.clone(), None)))
}

/// Merges metadata and sets the policy; version and epoch stay, so that no turn is disturbed.
pub(super) fn update(ctx: &mut Context<'_>, request: &UpdateThread) -> Rowed<Option<Thread>> {
    let Some(mut row) = ctx.rows.thread(&request.tenant, request.thread)? else {
        return Ok(None);
    };
    if let Value::Object(changes) = &request.metadata
        && !changes.is_empty()
    {
        let mut metadata = match ctx.rows.metadata(row.n)? {
            Value::Object(members) => members,
            _ => serde_json::Map::new(),
        };
        metadata.extend(changes.clone());
        ctx.rows.save_metadata(row.n, &Value::Object(metadata))?;
    }
    row.busy_policy = request.busy_policy.or(row.busy_policy);
    row.updated_at = ctx.now.wall;
    ctx.rows.save_thread(&row)?;
    whole_thread(ctx.rows, row).map(Some)
}

/// Removes a thread without an open run.
pub(super) fn delete(ctx: &mut Context<'_>, request: &ThreadRef) -> Rowed<Deleted> {
    let Some(row) = ctx.rows.thread(&request.tenant, request.thread)? else {
        return Ok(Deleted::NotFound);
    };
    if row.active.is_some() {
        return Ok(Deleted::Busy);
    }
    ctx.rows.delete_thread(&row)?;
    Ok(Deleted::Done)
}

/// Hides an ended run. Its key and its messages stay known: sent again they name this run for ever.
pub(super) fn delete_run(ctx: &mut Context<'_>, request: &RunRef) -> Rowed<Deleted> {
    let Some(run) = ctx.rows.run(&request.tenant, request.run)? else {
        return Ok(Deleted::NotFound);
    };
    if !run.state.is_terminal() {
        return Ok(Deleted::Busy);
    }
    ctx.rows.hide_run(run.n)?;
    let mut thread = ctx.rows.thread_of(run.thread_n)?;
    if thread.newest_run == Some(run.id) {
        let newest = ListRuns {
            tenant: Some(request.tenant.clone()),
            thread: Some(thread.id),
            states: Vec::new(),
            limit: 1,
            offset: 0,
        };
        thread.newest_run = ctx.rows.list_runs(&newest)?.pop().map(|row| row.id);
    }
    thread.updated_at = ctx.now.wall;
    ctx.rows.save_thread(&thread)?;
    Ok(Deleted::Done)
}

/// Appends a client's events to a thread that nobody works on. It counts as a turn: the version goes
/// up, and the epoch too, so that a write of an earlier owner is refused by both.
pub(super) fn write_state(ctx: &mut Context<'_>, request: &WriteState) -> Rowed<StateWrite> {
    let Some(mut thread) = ctx.rows.thread(&request.tenant, request.thread)? else {
        return Ok(StateWrite::NotFound);
    };
    if let Some(active) = thread.active {
        return Ok(StateWrite::Busy(active));
    }
    let of_a_client =
        |body: &EventBody| matches!(body, EventBody::StateWritten { .. } | EventBody::Rewound { .. });
    if !request.events.iter().all(|event| of_a_client(&event.body)) {
        return Err(Fault::Misused("a client writes no events of a run".to_owned()));
    }
    if ctx.rows.run_id_taken(request.writer)? {
        return Err(Fault::Misused(format!("{} is not a new writer", request.writer)));
    }
    thread.updated_at = ctx.now.wall;
    let author = Author { n: ctx.rows.insert_writer(&thread, request.writer)?, id: request.writer };
    for event in &request.events {
        log::write(ctx, &mut thread, author, event.step, &event.body)?;
    }
    thread.version += 1;
    thread.epoch += 1;
    ctx.rows.save_thread(&thread)?;
    Ok(StateWrite::Done { version: thread.version, seq_last: thread.seq_last })
}
