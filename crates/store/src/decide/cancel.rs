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

use super::{Context, claim, guard, log};
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
    let mut thread = ctx.rows.thread_of(run.thread_n)?;
    if run.state != RunState::Cancelling {
        let step = run.step;
        log::append(ctx, &mut thread, &mut run, step, &EventBody::CancelRequested)?;
    }
    if request.force || !guard::is_held(run.state) {
        end_unowned(ctx, &mut thread, &mut run, &cancelled())?;
        return Ok(Cancelled::Done);
    }
    if run.state != RunState::Cancelling {
        run.state = RunState::Cancelling;
        log::save(ctx, &mut thread, &mut run)?;
    }
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
    log::end(ctx, thread, run, outcome)?;
    let was_active = thread.active == Some(run.id);
    if run.attempt > 0 {
        thread.version += 1;
        run.version = Some(thread.version);
    }
    if was_active {
        // A waiting turn behind a live owner must not raise that owner's epoch.
        thread.epoch += 1;
    } else {
        thread.n_waiting = thread.n_waiting.saturating_sub(1);
    }
    run.updated_at = ctx.now.wall;
    ctx.rows.save_run(run)?;
    if was_active {
        claim::hand_over(ctx, thread, None).map(drop)
    } else {
        thread.updated_at = ctx.now.wall;
        ctx.rows.save_thread(thread)
    }
}

/// Ends a run that was never claimed and waits behind another. Saves the run; the thread row is
/// changed but not yet saved.
pub(super) fn end_waiting(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    reason: EndReason,
) -> Rowed<()> {
    log::end(ctx, thread, run, &Outcome { reason: Some(reason), ..cancelled() })?;
    thread.n_waiting = thread.n_waiting.saturating_sub(1);
    run.updated_at = ctx.now.wall;
    ctx.rows.save_run(run)
}

/// How a cancelled run ends.
pub(super) fn cancelled() -> Outcome {
    Outcome { state: RunState::Cancelled, reason: None, error: None, text: String::new(), diff: None }
}

fn expired(run: &RunRow) -> Outcome {
    let message = match &run.wait {
        Some(wait) => format!("The deadline passed while the run waited: {}.", wait.reason),
        None => "The deadline passed before the run was started.".to_owned(),
    };
    let error = Error::new(Code::RunDeadline, Origin::Ours, message, "Send it again with a later deadline.");
    Outcome { state: RunState::Expired, reason: None, error: Some(error), text: String::new(), diff: None }
}
