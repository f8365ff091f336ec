//! Claims: every way in which a replica becomes the runner of a run.
//!
//! A claim raises the thread's epoch, so the fence of whoever held it before is dead from here on.
//! The first claim also brings the turn's messages into the log, behind a `Rewound` where the turn
//! builds on an earlier state: a message enters the conversation when its turn begins, not when it
//! arrives.

use evenkeel_core::id::ReplicaId;
use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{Claim, ClaimReady, Fence, Steal, Wake};
use evenkeel_core::run::{BusyPolicy, RunState};

use super::{Context, busy, cancel, log};
use crate::record::{Base, RunRow, ThreadRow};
use crate::rows::Rowed;

/// Makes `me` the runner of the active run of `thread` and saves both rows.
pub(super) fn claim(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    run: &mut RunRow,
    me: ReplicaId,
) -> Rowed<Claim> {
    let spec = ctx.rows.spec(run.n)?;
    if run.attempt == 0 {
        run.base = Some(Base { seq: thread.seq_last, context_from: thread.context_from });
        if let Some(from) = spec.from_seq {
            let back = EventBody::Rewound { to: from.min(thread.seq_last), cause: "fork".to_owned() };
            log::append(ctx, thread, run, 0, &back)?;
        }
    }
    thread.epoch += 1;
    thread.asks = false;
    run.attempt += 1;
    run.state = RunState::Running;
    run.ready = false;
    run.not_before = None;
    run.wait = None;
    run.owner = Some(me);
    let step = run.step;
    let claimed = EventBody::RunClaimed { epoch: thread.epoch, attempt: run.attempt };
    log::append(ctx, thread, run, step, &claimed)?;
    if run.attempt == 1 {
        log::append_messages(ctx, thread, run, step, spec.messages.clone())?;
        if run.busy_policy == BusyPolicy::Merge {
            busy::join(ctx, thread, run, &spec)?;
        }
    }
    log::save(ctx, thread, run)?;
    Ok(Claim {
        fence: Fence { tenant: thread.tenant.clone(), thread: thread.id, run: run.id, epoch: thread.epoch },
        version: thread.version,
        context_from: thread.context_from,
        seq_last: thread.seq_last,
        thread_created_at: thread.created_at,
        run: run.clone().into_run(0, spec, None),
    })
}

/// Whether a run that could be claimed need not wait for its instant.
pub(super) fn is_due(ctx: &Context<'_>, run: &RunRow) -> bool {
    run.not_before.is_none_or(|at| at <= ctx.now.wall)
}

/// Gives a thread whose active run has ended to its next turn: claimed for `taker`, or ready for
/// whoever claims it. Saves the thread and the next run.
///
/// This happens in the transaction that ended the run, so "finish" and "take the next" can never
/// miss each other.
pub(super) fn hand_over(
    ctx: &mut Context<'_>,
    thread: &mut ThreadRow,
    taker: Option<ReplicaId>,
) -> Rowed<Option<Claim>> {
    thread.updated_at = ctx.now.wall;
    let Some(mut next) = ctx.rows.queued(thread.n, 1)?.pop() else {
        thread.active = None;
        ctx.rows.save_thread(thread)?;
        return Ok(None);
    };
    thread.active = Some(next.id);
    thread.n_waiting = thread.n_waiting.saturating_sub(1);
    if let Some(me) = taker.filter(|_| is_due(ctx, &next)) {
        return claim(ctx, thread, &mut next, me).map(Some);
    }
    next.ready = true;
    next.updated_at = ctx.now.wall;
    ctx.rows.save_run(&next)?;
    ctx.rows.save_thread(thread)?;
    Ok(None)
}

/// Claims parked runs that are due, most urgent first.
pub(super) fn wake(ctx: &mut Context<'_>, request: &Wake) -> Rowed<Vec<Claim>> {
    let runs = ctx.rows.parked(ctx.now.wall, request.on, request.route.as_deref(), request.limit)?;
    claim_each(ctx, &runs, request.me)
}

/// Claims queued runs whose thread is free, oldest first.
pub(super) fn claim_ready(ctx: &mut Context<'_>, request: &ClaimReady) -> Rowed<Vec<Claim>> {
    let runs = ctx.rows.ready(ctx.now.wall, request.limit)?;
    claim_each(ctx, &runs, request.me)
}

fn claim_each(ctx: &mut Context<'_>, runs: &[u64], me: ReplicaId) -> Rowed<Vec<Claim>> {
    let mut claims = Vec::with_capacity(runs.len());
    for run_n in runs {
        let mut run = ctx.rows.run_of(*run_n)?;
        let mut thread = ctx.rows.thread_of(run.thread_n)?;
        claims.push(claim(ctx, &mut thread, &mut run, me)?);
    }
    Ok(claims)
}

/// Claims what dead and lapsed replicas hold, oldest first. A run that its owner was told to cancel
/// is not run on: nobody is left to stop it, so it ends here.
pub(super) fn steal(ctx: &mut Context<'_>, request: &Steal) -> Rowed<Vec<Claim>> {
    let mut orphans = Vec::new();
    for owner in ctx.rows.owners()? {
        let gone = request.dead.contains(&owner) || ctx.replicas.lapsed(owner, ctx.now.mono);
        if owner == request.me || !gone {
            continue;
        }
        for run_n in ctx.rows.owned(owner, RunState::Cancelling, request.limit)? {
            let mut run = ctx.rows.run_of(run_n)?;
            let mut thread = ctx.rows.thread_of(run.thread_n)?;
            let outcome = cancel::stopped(&run);
            cancel::end_unowned(ctx, &mut thread, &mut run, &outcome)?;
        }
        orphans.extend(ctx.rows.owned(owner, RunState::Running, request.limit)?);
    }
    orphans.sort_unstable();
    orphans.truncate(usize::try_from(request.limit).unwrap_or(usize::MAX));
    claim_each(ctx, &orphans, request.me)
}
