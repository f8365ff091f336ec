//! Fenced writes that do not end the run: a step, a park, a release.

use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{CommitStep, Park, Release, TakeSteered, Written};
use evenkeel_core::run::{BusyPolicy, EndReason, RunState, WaitReason, Waiting};

use super::{Context, cancel, guard, log};
use crate::record::{RunRow, ThreadRow};
use crate::rows::Rowed;

fn done(thread: &ThreadRow, cancelling: bool) -> Written {
    Written::Done { seq_last: thread.seq_last, cancelling, steered: false }
}

/// Appends the events of a step.
pub(super) fn commit_step(ctx: &mut Context<'_>, request: &CommitStep) -> Rowed<Written> {
    let Some((mut thread, mut run)) = guard::holder(ctx, &request.fence)? else {
        return Ok(Written::Fenced);
    };
    if request.seq_base != thread.seq_last {
        return Ok(Written::SeqConflict { seq_last: thread.seq_last });
    }
    if let Some(effect) = log::effect_conflict(ctx, &run, &request.events)? {
        return Ok(Written::EffectExists(effect));
    }
    log::append_all(ctx, &mut thread, &mut run, &request.events)?;
    thread.updated_at = ctx.now.wall;
    run.updated_at = ctx.now.wall;
    ctx.rows.save_progress(&run)?;
    ctx.rows.save_thread(&thread)?;
    let cancelling = run.state == RunState::Cancelling;
    let steered = !cancelling && thread.n_waiting > 0 && ctx.rows.has_queued(thread.n, BusyPolicy::Steer)?;
    Ok(Written::Done { seq_last: thread.seq_last, cancelling, steered })
}

/// Takes waiting messages of the policy `steer` into the active run, in order of arrival. Those that
/// are asked of another assistant, or of an earlier state, are no part of what it does: they wait.
pub(super) fn take_steered(ctx: &mut Context<'_>, request: &TakeSteered) -> Rowed<Written> {
    let Some((mut thread, mut run)) = guard::holder(ctx, &request.fence)? else {
        return Ok(Written::Fenced);
    };
    if run.state == RunState::Cancelling {
        return Ok(done(&thread, true));
    }
    let assistant = ctx.rows.spec(run.n)?.assistant;
    for mut steering in ctx.rows.queued(thread.n, u32::MAX)? {
        if steering.busy_policy != BusyPolicy::Steer || steering.attempt > 0 {
            continue;
        }
        let spec = ctx.rows.spec(steering.n)?;
        if spec.assistant == assistant && spec.from_seq.is_none() {
            log::append_messages(ctx, &mut thread, &mut run, request.step, spec.messages)?;
            cancel::end_waiting(ctx, &mut thread, &mut steering, EndReason::Steered { into: run.id })?;
        }
    }
    thread.updated_at = ctx.now.wall;
    run.updated_at = ctx.now.wall;
    ctx.rows.save_progress(&run)?;
    ctx.rows.save_thread(&thread)?;
    Ok(done(&thread, false))
}

/// Stores a run as waiting. It keeps its thread: later turns wait for it. If a cancel is stored the
/// owner's giving up is the proof that it has stopped, and the run ends `cancelled` instead.
pub(super) fn park(ctx: &mut Context<'_>, request: &Park) -> Rowed<Written> {
    let Some((mut thread, mut run)) = guard::holder(ctx, &request.fence)? else {
        return Ok(Written::Fenced);
    };
    if let Some(effect) = log::effect_conflict(ctx, &run, &request.events)? {
        return Ok(Written::EffectExists(effect));
    }
    log::append_all(ctx, &mut thread, &mut run, &request.events)?;
    if run.state == RunState::Cancelling {
        return give_up_cancelled(ctx, thread, run);
    }
    let parked =
        EventBody::Parked { on: request.on, reason: request.reason.clone(), until_hint: request.until_hint };
    // The step that waits is the one after the last checkpoint.
    let step = request.events.last().map_or(run.step, |event| event.step);
    log::append(ctx, &mut thread, &mut run, step, &parked)?;
    run.wait = Some(Waiting {
        on: request.on,
        reason: request.reason.clone(),
        since: ctx.now.wall,
        until_hint: request.until_hint,
        route: request.route.clone(),
        approvals: request.approvals.clone(),
    });
    // A question that nobody answers wakes its run when it expires, and not before.
    run.not_before = request.until_hint.filter(|_| request.on == WaitReason::Approval);
    thread.asks = request.on == WaitReason::Approval;
    run.state = RunState::Waiting;
    run.ready = false;
    run.owner = None;
    log::save(ctx, &mut thread, &mut run)?;
    Ok(done(&thread, false))
}

/// Queues a run again as the next of its thread, or ends it if a cancel is stored.
pub(super) fn release(ctx: &mut Context<'_>, request: &Release) -> Rowed<Written> {
    let Some((mut thread, mut run)) = guard::holder(ctx, &request.fence)? else {
        return Ok(Written::Fenced);
    };
    if run.state == RunState::Cancelling {
        return give_up_cancelled(ctx, thread, run);
    }
    run.state = RunState::Queued;
    run.ready = true;
    run.owner = None;
    log::save(ctx, &mut thread, &mut run)?;
    Ok(done(&thread, false))
}

fn give_up_cancelled(ctx: &mut Context<'_>, mut thread: ThreadRow, mut run: RunRow) -> Rowed<Written> {
    let outcome = cancel::stopped(&run);
    cancel::end_unowned(ctx, &mut thread, &mut run, &outcome)?;
    Ok(done(&thread, true))
}
