//! The end of a turn by its owner.

use evenkeel_core::port::store::{CommitTurn, TurnCommitted};

use super::{Context, cancel, claim, guard, log};
use crate::rows::{Fault, Rowed};

/// Ends a run and hands its thread over, in one transaction.
pub(super) fn commit_turn(ctx: &mut Context<'_>, request: &CommitTurn) -> Rowed<TurnCommitted> {
    if !request.outcome.state.is_terminal() {
        let state = request.outcome.state.as_str();
        return Err(Fault::Misused(format!("a turn cannot end in the state {state}")));
    }
    let Some((mut thread, mut run)) = guard::holder(ctx, &request.fence)? else {
        return Ok(TurnCommitted::Fenced);
    };
    if ctx.guards.version && thread.version != request.version {
        return Ok(TurnCommitted::VersionConflict);
    }
    if let Some(effect) = log::effect_conflict(ctx, &run, &request.events)? {
        return Err(Fault::Misused(format!("effect {effect} is recorded already")));
    }
    let me = run.owner;
    log::append_all(ctx, &mut thread, &mut run, &request.events)?;
    let outcome = cancel::with_stop(&run, &request.outcome);
    log::end(ctx, &mut thread, &mut run, &outcome)?;
    thread.version += 1;
    run.version = Some(thread.version);
    let (version, seq_last) = (thread.version, thread.seq_last);
    run.updated_at = ctx.now.wall;
    ctx.rows.save_run(&run)?;
    let next = claim::hand_over(ctx, &mut thread, me.filter(|_| request.take_next))?;
    Ok(TurnCommitted::Done { version, seq_last, next: next.map(Box::new) })
}
