//! Turns as a platform without any protection has them: for the comparison of the lab, never chosen
//! by a configuration that serves people.
//!
//! A second message does not wait: its turn reads the thread's state at once, beside the turn that
//! is under way, and each turn writes the whole state that it read together with its own messages.
//! The last write wins. In the log that is a `Rewound` to the state that was read, followed by the
//! turn; what others wrote in between no longer counts.
//!
//! Only interactive turns are treated so. Durable tasks have their thread alone anyway.

use evenkeel_core::journal::EventBody;
use evenkeel_core::port::store::{Admit, CommitTurn};
use evenkeel_core::run::{Class, RunState};

use super::{Context, log};
use crate::record::{RunRow, ThreadRow};
use crate::rows::Rowed;

/// Before a message is accepted: a turn under way does not keep the thread, and what it has brought
/// into the log is no part of the state that the new one reads.
pub(super) fn before_admit(ctx: &mut Context<'_>, request: &Admit) -> Rowed<()> {
    if !is_plain(ctx, request.spec.class) {
        return Ok(());
    }
    let Some(mut thread) = ctx.rows.thread(&request.tenant, request.thread)? else { return Ok(()) };
    let Some(active) = thread.active.take() else { return Ok(()) };
    if let Some(mut run) = ctx.rows.run(&request.tenant, active)?
        && run.class == Class::Interactive
    {
        rewind(ctx, &mut thread, &mut run)?;
    }
    ctx.rows.save_thread(&thread)
}

/// Before a turn that succeeded is written: if others have written since it read the state, its own
/// state goes over theirs.
pub(super) fn before_commit(ctx: &mut Context<'_>, request: &CommitTurn) -> Rowed<()> {
    let fence = &request.fence;
    let (Some(mut thread), Some(mut run)) =
        (ctx.rows.thread(&fence.tenant, fence.thread)?, ctx.rows.run(&fence.tenant, fence.run)?)
    else {
        return Ok(());
    };
    let alone = thread.active == Some(run.id);
    if alone || !is_plain(ctx, run.class) || request.outcome.state != RunState::Completed {
        return Ok(());
    }
    rewind(ctx, &mut thread, &mut run)?;
    let spec = ctx.rows.spec(run.n)?;
    let step = run.step;
    log::append_messages(ctx, &mut thread, &mut run, step, spec.messages)?;
    ctx.rows.save_thread(&thread)
}

fn is_plain(ctx: &Context<'_>, class: Class) -> bool {
    !ctx.guards.alone && class == Class::Interactive
}

/// Goes back to the state that `run` read at its claim; one that was never claimed wrote nothing.
fn rewind(ctx: &mut Context<'_>, thread: &mut ThreadRow, run: &mut RunRow) -> Rowed<()> {
    let Some(to) = run.base.as_ref().map(|base| base.seq) else { return Ok(()) };
    let step = run.step;
    log::append(ctx, thread, run, step, &EventBody::Rewound { to, cause: "overwritten".to_owned() })
}
