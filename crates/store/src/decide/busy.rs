//! What a new turn does to the turns before it on its thread: the busy policies.
//!
//! | policy | active, owned | active, not owned | waiting |
//! |---|---|---|---|
//! | `enqueue`, `steer`, `merge` | stays | stays | stay |
//! | `reject` | stays; the new turn is refused | stays; refused | stay |
//! | `interrupt` | is told to stop, what it did is kept | ends so | end so |
//! | `rollback` | is told to stop, what it did is undone | ends so | end so |
//! | `latest` | stays | ends if of this policy and never begun | end if of this policy |
//!
//! Everything happens in the transaction that stores the new turn. What `steer` and `merge` do comes
//! later: in `take_steered`, and in the claim that joins waiting turns.

use std::time::Duration;

use evenkeel_core::Wall;
use evenkeel_core::id::RunId;
use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{Admit, MergeWindow};
use evenkeel_core::run::{BusyPolicy, EndReason, RunSpec, RunState};

use super::{Context, cancel, claim, guard, log};
use crate::record::{RunRow, ThreadRow};
use crate::rows::Rowed;

/// What is to happen to earlier turns, settled before the first write.
#[derive(Default)]
pub(super) struct Plan {
    /// The owned run that is told to stop.
    stop: Option<(RunRow, EndReason)>,
    /// Runs that nobody owns; they end at once.
    ends: Vec<(RunRow, EndReason)>,
}

/// Why a turn is not accepted.
pub(super) enum Refused {
    /// The thread has this active run.
    Busy(RunId),
    /// Too many turns wait.
    Full,
}

/// What the request does to the turns of a thread that is busy with `active`.
pub(super) fn plan(
    ctx: &mut Context<'_>,
    request: &Admit,
    thread: &ThreadRow,
    active: RunId,
) -> Rowed<Result<Plan, Refused>> {
    let by = request.run;
    let plan = match request.spec.busy_policy {
        BusyPolicy::Reject => return Ok(Err(Refused::Busy(active))),
        BusyPolicy::Enqueue | BusyPolicy::Steer | BusyPolicy::Merge => Plan::default(),
        BusyPolicy::Interrupt => replace_all(ctx, thread, active, EndReason::Interrupted { by })?,
        BusyPolicy::Rollback => replace_all(ctx, thread, active, EndReason::RolledBack { by })?,
        BusyPolicy::Latest => supersede(ctx, thread, by)?,
    };
    let ends_active = plan.ends.iter().any(|(run, _)| run.id == active);
    let n_ends = u32::try_from(plan.ends.len()).unwrap_or(u32::MAX);
    let n_waiting = (thread.n_waiting + u32::from(ends_active)).saturating_sub(n_ends);
    // Where the active run ends, a waiting turn takes its place, or else the new one.
    let n_behind = if ends_active { n_waiting.saturating_sub(1) } else { n_waiting };
    let waits = !ends_active || n_waiting > 0;
    if waits && n_behind >= request.n_waiting_max { Ok(Err(Refused::Full)) } else { Ok(Ok(plan)) }
}

fn replace_all(ctx: &mut Context<'_>, thread: &ThreadRow, active: RunId, reason: EndReason) -> Rowed<Plan> {
    let mut plan = Plan::default();
    // Parked and owned runs are in no queue, and only the active one can be either.
    if let Some(run) = ctx.rows.run(&thread.tenant, active)? {
        match run.state {
            state if guard::is_held(state) => plan.stop = Some((run, reason)),
            RunState::Queued => {}
            _ => plan.ends.push((run, reason)),
        }
    }
    plan.ends.extend(ctx.rows.queued(thread.n, u32::MAX)?.into_iter().map(|run| (run, reason)));
    Ok(plan)
}

fn supersede(ctx: &mut Context<'_>, thread: &ThreadRow, by: RunId) -> Rowed<Plan> {
    let waiting = ctx.rows.queued(thread.n, u32::MAX)?.into_iter();
    let earlier = waiting.filter(|run| run.busy_policy == BusyPolicy::Latest && run.attempt == 0);
    Ok(Plan { stop: None, ends: earlier.map(|run| (run, EndReason::Superseded { by })).collect() })
}

/// Carries a plan out. Replies with the owned runs that were told to stop. The thread row is changed
/// but not yet saved.
pub(super) fn carry_out(ctx: &mut Context<'_>, thread: &mut ThreadRow, plan: Plan) -> Rowed<Vec<RunId>> {
    let mut stopping = Vec::new();
    if let Some((mut run, reason)) = plan.stop {
        stop(ctx, thread, &mut run, reason)?;
        stopping.push(run.id);
    }
    let mut free = false;
    for (mut run, reason) in plan.ends {
        if thread.active == Some(run.id) {
            run.stop = Some(reason);
            let outcome = cancel::stopped(&run);
            cancel::end_active(ctx, thread, &mut run, &outcome)?;
            free = true;
        } else {
            cancel::end_waiting(ctx, thread, &mut run, reason)?;
        }
    }
    if free {
        claim::hand_over(ctx, thread, None)?;
    }
    Ok(stopping)
}

/// Stores why an owned run is to stop, and saves the run. Of several reasons the first stays, but
/// one that undoes takes the place of one that keeps.
pub(super) fn stop(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    reason: EndReason,
) -> Rowed<()> {
    strengthen(run, reason);
    if run.state != RunState::Cancelling {
        let step = run.step;
        log::append(ctx, thread, run, step, &EventBody::CancelRequested)?;
        run.state = RunState::Cancelling;
    }
    run.updated_at = ctx.now.wall;
    ctx.rows.save_run(run)
}

/// See [`stop`].
pub(super) fn strengthen(run: &mut RunRow, reason: EndReason) {
    let stays = run.stop.is_some_and(|stored| stored.undoes() || !reason.undoes());
    if !stays {
        run.stop = Some(reason);
    }
}

/// When a new turn may be started at the earliest.
pub(super) fn not_before(request: &Admit, now: Wall) -> Option<Wall> {
    let delayed = (request.delay_ms > 0).then(|| after(now, request.delay_ms));
    let merged = (request.spec.busy_policy == BusyPolicy::Merge).then(|| window_end(request.merge, now, now));
    delayed.max(merged)
}

fn window_end(window: MergeWindow, first: Wall, newest: Wall) -> Wall {
    after(newest, window.quiet_ms).min(after(first, window.cap_ms))
}

fn after(at: Wall, ms: u64) -> Wall {
    at.after(Duration::from_millis(ms))
}

/// A new turn of the policy `merge` keeps the window open of those directly before it: the first of
/// them is the one that is claimed.
pub(super) fn extend_window(ctx: &mut Context<'_>, request: &Admit, new: &RunRow) -> Rowed<()> {
    let mut first = None;
    for run in ctx.rows.queued(new.thread_n, u32::MAX)? {
        match is_mergeable(&run) {
            true if run.n < new.n => first = first.or(Some(run)),
            true => {}
            false => first = None,
        }
    }
    let Some(mut first) = first else {
        return Ok(());
    };
    first.not_before = Some(window_end(request.merge, first.created_at, ctx.now.wall));
    first.updated_at = ctx.now.wall;
    ctx.rows.save_run(&first)
}

fn is_mergeable(run: &RunRow) -> bool {
    run.busy_policy == BusyPolicy::Merge && run.attempt == 0
}

/// Takes the turns of the policy `merge` that wait directly behind a run of it into that run, at its
/// first claim. Those that are asked of another assistant, or of an earlier state, end the row.
pub(super) fn join(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    spec: &RunSpec,
) -> Rowed<()> {
    for mut joined in ctx.rows.queued(thread.n, u32::MAX)? {
        if joined.n <= run.n {
            continue;
        }
        if !is_mergeable(&joined) {
            break;
        }
        let theirs = ctx.rows.spec(joined.n)?;
        if theirs.assistant != spec.assistant || theirs.from_seq.is_some() {
            break;
        }
        let step = run.step;
        log::append_messages(ctx, thread, run, step, theirs.messages)?;
        cancel::end_waiting(ctx, thread, &mut joined, EndReason::Merged { into: run.id })?;
    }
    Ok(())
}
