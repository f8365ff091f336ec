//! Accepting a turn.

use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::message::Usage;
use evenkeel_core::port::store::{Admit, Admitted};
use evenkeel_core::run::{BusyPolicy, RunState};
use serde_json::Value;

use super::busy::{self, Plan, Refused};
use super::{Context, claim, whole_run};
use crate::record::{RunRow, ThreadRow};
use crate::rows::Rowed;

/// Accepts a turn, or says why not. The order of the questions matters: a known request is answered
/// with its run before anything can refuse it, also when its thread is full by now.
pub(super) fn admit(ctx: &mut Context<'_>, request: &Admit) -> Rowed<Admitted> {
    if let Some(answer) = by_key(ctx, request)? {
        return Ok(answer);
    }
    let found = ctx.rows.thread(&request.tenant, request.thread)?;
    if let Some(answer) = by_ids(ctx, request, found.as_ref())? {
        return Ok(answer);
    }
    if found.is_none() && (!request.create_thread || ctx.rows.thread_id_taken(request.thread)?) {
        return Ok(Admitted::ThreadNotFound);
    }
    let active = found.as_ref().and_then(|thread| thread.active.map(|active| (thread, active)));
    let planned = match active {
        Some((thread, active)) => busy::plan(ctx, request, thread, active)?,
        None => Ok(Plan::default()),
    };
    let plan = match planned {
        Ok(plan) => plan,
        Err(Refused::Busy(active)) => return Ok(Admitted::Busy(active)),
        Err(Refused::Full) => return Ok(Admitted::Full),
    };
    let (mut thread, mut run, stopping) = store(ctx, request, found, plan)?;
    match request.claim_for {
        Some(me) if run.ready && claim::is_due(ctx, &run) => {
            let claim = claim::claim(ctx, &mut thread, &mut run, me)?;
            Ok(Admitted::Accepted {
                run: Box::new(claim.run.clone()),
                claim: Some(Box::new(claim)),
                stopping,
            })
        }
        _ => {
            ctx.rows.save_thread(&thread)?;
            let position = ctx.rows.n_queued_before(thread.n, run.n)?;
            let run = run.into_run(position, request.spec.clone(), None);
            Ok(Admitted::Accepted { run: Box::new(run), claim: None, stopping })
        }
    }
}

/// A key's scope is the tenant and, unless the request makes its own thread, the thread.
fn scope(request: &Admit) -> Option<ThreadId> {
    (!request.create_thread).then_some(request.thread)
}

fn by_key(ctx: &mut Context<'_>, request: &Admit) -> Rowed<Option<Admitted>> {
    let Some(key) = &request.key else {
        return Ok(None);
    };
    let known = ctx.rows.key_run(&request.tenant, scope(request), key)?;
    known.map(|run_n| replay(ctx, request, run_n)).transpose()
}

/// The run of an earlier request without a known key: the same run id (a request repeated after an
/// unknown outcome), or a message that the thread has accepted already.
fn by_ids(ctx: &mut Context<'_>, request: &Admit, thread: Option<&ThreadRow>) -> Rowed<Option<Admitted>> {
    if let Some(run) = ctx.rows.run(&request.tenant, request.run)? {
        let same = thread.is_some_and(|thread| thread.n == run.thread_n);
        return if same { replay(ctx, request, run.n).map(Some) } else { Ok(Some(Admitted::KeyConflict)) };
    }
    if ctx.rows.run_id_taken(request.run)? {
        return Ok(Some(Admitted::KeyConflict));
    }
    let Some(thread) = thread else {
        return Ok(None);
    };
    for message in &request.spec.messages {
        if let Some(run_n) = ctx.rows.message_run(thread.n, &message.id)? {
            let answer = replay(ctx, request, run_n)?;
            // From now on the key names this run too, so that it can never name another.
            if let (Admitted::Replayed(_), Some(key)) = (&answer, &request.key) {
                let run = ctx.rows.run_of(run_n)?;
                ctx.rows.insert_key(&request.tenant, scope(request), key, &run)?;
            }
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

fn replay(ctx: &mut Context<'_>, request: &Admit, run_n: u64) -> Rowed<Admitted> {
    let run = ctx.rows.run_of(run_n)?;
    if run.body_hash != request.body_hash {
        return Ok(Admitted::KeyConflict);
    }
    Ok(Admitted::Replayed(Box::new(whole_run(ctx.rows, run)?)))
}

/// Does what the policy asks for, and inserts the run, and the thread if it is new. The thread row is
/// changed but not yet saved.
fn store(
    ctx: &mut Context<'_>,
    request: &Admit,
    found: Option<ThreadRow>,
    plan: Plan,
) -> Rowed<(ThreadRow, RunRow, Vec<RunId>)> {
    let mut thread = match found {
        Some(thread) => thread,
        None => {
            let mut row = ThreadRow::new(request.tenant.clone(), request.thread, ctx.now.wall);
            row.n = ctx.rows.insert_thread(&row, &Value::Object(serde_json::Map::new()))?;
            row
        }
    };
    let stopping = busy::carry_out(ctx, &mut thread, plan)?;
    let mut run = new_run(ctx, request, &thread);
    run.n = ctx.rows.insert_run(&run, &request.spec)?;
    if let Some(key) = &request.key {
        ctx.rows.insert_key(&request.tenant, scope(request), key, &run)?;
    }
    for message in &request.spec.messages {
        ctx.rows.insert_message(thread.n, &message.id, run.n)?;
    }
    if run.ready {
        thread.active = Some(run.id);
    } else {
        thread.n_waiting += 1;
    }
    thread.newest_run = Some(run.id);
    thread.updated_at = ctx.now.wall;
    if run.busy_policy == BusyPolicy::Merge && !run.ready {
        busy::extend_window(ctx, request, &run)?;
    }
    Ok((thread, run, stopping))
}

fn new_run(ctx: &Context<'_>, request: &Admit, thread: &ThreadRow) -> RunRow {
    RunRow {
        n: 0,
        id: request.run,
        thread_n: thread.n,
        thread: thread.id,
        tenant: request.tenant.clone(),
        state: RunState::Queued,
        ready: thread.active.is_none(),
        not_before: busy::not_before(request, ctx.now.wall),
        stop: None,
        base: None,
        wait: None,
        step: 0,
        attempt: 0,
        owner: None,
        version: None,
        key: request.key.clone(),
        body_hash: request.body_hash.clone(),
        class: request.spec.class,
        busy_policy: request.spec.busy_policy,
        deadline: request.spec.deadline,
        created_at: ctx.now.wall,
        updated_at: ctx.now.wall,
        usage: Usage::default(),
    }
}
