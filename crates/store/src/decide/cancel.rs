//! Ends that no owner commits: cancelled and expired runs.
//!
//! A run that was never claimed leaves no trace in the conversation: it ends without a version. One
//! that was claimed has written to the log, so its end raises the version like any other turn's,
//! and the epoch too, so that a late write of an earlier owner is refused by both.

use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{Cancel, Cancelled, Expire};
use evenkeel_core::run::{EndReason, Outcome, RunState};
use evenkeel_core::{Code, Error, Origin};

use super::{Context, busy, claim, guard, log};
use crate::record::{RunRow, ThreadRow};
use crate::rows::Rowed;

/// Stores the intent to cancel; carries it out at once if nobody has to be stopped for it.
pub(super) fn cancel(ctx: &mut Context<'_>, request: &Cancel) -> Rowed<Cancelled> {
    let Some(mut run) = ctx.rows.run(&request.tenant, request.run)? else {
        return Ok(Cancelled::NotFound);
    };
    if run.state.is_terminal() {
        return Ok(Cancelled::Ended);
    }
    let reason = if request.undo { EndReason::Undone } else { EndReason::Requested };
    let mut thread = ctx.rows.thread_of(run.thread_n)?;
    if request.force || !guard::is_held(run.state) {
        if run.state != RunState::Cancelling {
            let step = run.step;
            log::append(ctx, &mut thread, &mut run, step, &EventBody::CancelRequested)?;
        }
        busy::strengthen(&mut run, reason);
        let outcome = stopped(&run);
        end_unowned(ctx, &mut thread, &mut run, &outcome)?;
        return Ok(Cancelled::Done);
    }
    busy::stop(ctx, &mut thread, &mut run, reason)?;
    thread.updated_at = ctx.now.wall;
    ctx.rows.save_thread(&thread)?;
    Ok(Cancelled::Cancelling)
}

/// Ends queued and waiting runs whose deadline has passed.
pub(super) fn expire(ctx: &mut Context<'_>, request: &Expire) -> Rowed<Vec<(ThreadId, RunId)>> {
    let mut ended = Vec::new();
    for run_n in ctx.rows.overdue(ctx.now.wall, request.limit)? {
        let mut run = ctx.rows.run_of(run_n)?;
        let mut thread = ctx.rows.thread_of(run.thread_n)?;
        let outcome = expired(&run);
        end_unowned(ctx, &mut thread, &mut run, &outcome)?;
        ended.push((run.thread, run.id));
    }
    Ok(ended)
}

/// Ends a run in the name of the store and passes its thread on. Saves everything.
pub(super) fn end_unowned(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    outcome: &Outcome,
) -> Rowed<()> {
    if thread.active == Some(run.id) {
        end_active(ctx, thread, run, outcome)?;
        return claim::hand_over(ctx, thread, None).map(drop);
    }
    end_behind(ctx, thread, run, outcome)?;
    thread.updated_at = ctx.now.wall;
    ctx.rows.save_thread(thread)
}

/// Ends the run that holds the thread. Saves the run; the caller hands the thread over.
pub(super) fn end_active(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    outcome: &Outcome,
) -> Rowed<()> {
    log::end(ctx, thread, run, outcome)?;
    if run.attempt > 0 {
        thread.version += 1;
        run.version = Some(thread.version);
    }
    thread.epoch += 1;
    run.updated_at = ctx.now.wall;
    ctx.rows.save_run(run)
}

/// Ends a run that was never claimed and waits behind another. Saves the run; the thread row is
/// changed but not yet saved.
pub(super) fn end_waiting(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    reason: EndReason,
) -> Rowed<()> {
    run.stop = Some(reason);
    let outcome = stopped(run);
    end_behind(ctx, thread, run, &outcome)
}

/// The owner of the active run keeps its epoch: its claim still holds.
fn end_behind(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    outcome: &Outcome,
) -> Rowed<()> {
    log::end(ctx, thread, run, outcome)?;
    thread.n_waiting = thread.n_waiting.saturating_sub(1);
    run.updated_at = ctx.now.wall;
    ctx.rows.save_run(run)
}

/// How a run ends that was told to stop, without more of its own.
pub(super) fn stopped(run: &RunRow) -> Outcome {
    Outcome {
        state: RunState::Cancelled,
        reason: run.stop,
        error: None,
        text: String::new(),
        diff: None,
        delivered: None,
    }
}

/// How a run ends whose owner says how: one that came to its own end before it could be stopped keeps
/// that, unless it is undone.
pub(super) fn with_stop(run: &RunRow, outcome: &Outcome) -> Outcome {
    let undone = run.stop.is_some_and(EndReason::undoes);
    if undone {
        return Outcome { diff: outcome.diff.clone(), ..stopped(run) };
    }
    let reason = run.stop.filter(|_| outcome.state == RunState::Cancelled);
    Outcome { reason, ..outcome.clone() }
}

fn expired(run: &RunRow) -> Outcome {
    let message = match &run.wait {
        Some(wait) => format!("The deadline passed while the run waited: {}.", wait.reason),
        None => "The deadline passed before the run was started.".to_owned(),
    };
    let error = Error::new(Code::RunDeadline, Origin::Ours, message, "Send it again with a later deadline.");
    Outcome {
        state: RunState::Expired,
        reason: None,
        error: Some(error),
        text: String::new(),
        diff: None,
        delivered: None,
    }
}
