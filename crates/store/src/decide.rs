//! What each operation means, written once for every engine.
//!
//! A decision loads rows, settles its answer, and only then writes; a refused operation therefore
//! leaves nothing behind even in an engine without savepoints. It takes the engine's clock as an
//! argument and knows no time, randomness or IO of its own.
//!
//! | transition of a run | where |
//! |---|---|
//! | nothing -> queued | `admit` |
//! | queued, waiting, running -> running (a claim) | `claim` |
//! | running -> running, with new events | `write` |
//! | running -> waiting, running -> queued | `write` (park, release) |
//! | running, cancelling -> an end | `turn`, and `cancel` when forced |
//! | queued, waiting -> cancelled, expired | `cancel` |
//! | running -> cancelling | `cancel` |
//! | waiting -> queued, when a person answered | `answer` |
//!
//! `thread` makes, changes and removes threads, and writes what no run writes.
//! `busy` says what a new turn does to those before it, and joins turns.
//! `log` appends events and reads their meaning; `hand_over` gives a thread to its next turn;
//! `replica` keeps leases; `read` answers questions.

mod admit;
mod answer;
mod busy;
mod cancel;
mod claim;
mod guard;
mod log;
mod plain;
mod read;
mod replica;
mod thread;
mod turn;
mod write;

use evenkeel_core::port::store::{Op, Reply, TurnCommitted, Written};
use evenkeel_core::run::{Run, RunState};
use evenkeel_core::thread::Thread;
use evenkeel_core::{Mono, Wall};

pub use guard::Guards;
pub(crate) use read::read;

use crate::record::{Replicas, RunRow, ThreadRow};
use crate::rows::{Rowed, Rows};

/// The engine's clock, read when the operation arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) wall: Wall,
    pub(crate) mono: Mono,
}

/// What a decision works on.
pub(crate) struct Context<'a> {
    pub(crate) rows: &'a mut dyn Rows,
    pub(crate) replicas: &'a mut Replicas,
    pub(crate) now: Now,
    pub(crate) guards: Guards,
}

/// Carries out any operation inside the transaction of `ctx`.
pub(crate) fn apply(ctx: &mut Context<'_>, op: &Op) -> Rowed<Reply> {
    Ok(match op {
        Op::CreateThread(request) => Reply::CreateThread(thread::create(ctx, request)?),
        Op::UpdateThread(request) => Reply::UpdateThread(thread::update(ctx, request)?),
        Op::DeleteThread(request) => Reply::DeleteThread(thread::delete(ctx, request)?),
        Op::WriteState(request) => Reply::WriteState(thread::write_state(ctx, request)?),
        Op::Admit(request) => {
            plain::before_admit(ctx, request)?;
            Reply::Admit(admit::admit(ctx, request)?)
        }
        Op::CommitStep(request) => Reply::CommitStep(write::commit_step(ctx, request)?),
        Op::TakeSteered(request) => Reply::TakeSteered(write::take_steered(ctx, request)?),
        Op::CommitTurn(request) => {
            plain::before_commit(ctx, request)?;
            Reply::CommitTurn(turn::commit_turn(ctx, request)?)
        }
        Op::Park(request) => Reply::Park(write::park(ctx, request)?),
        Op::Answer(request) => Reply::Answer(answer::answer(ctx, request)?),
        Op::Release(request) => Reply::Release(write::release(ctx, request)?),
        Op::Wake(request) => Reply::Wake(claim::wake(ctx, request)?),
        Op::ClaimReady(request) => Reply::ClaimReady(claim::claim_ready(ctx, request)?),
        Op::Steal(request) => Reply::Steal(claim::steal(ctx, request)?),
        Op::Cancel(request) => Reply::Cancel(cancel::cancel(ctx, request)?),
        Op::DeleteRun(request) => Reply::DeleteRun(thread::delete_run(ctx, request)?),
        Op::Expire(request) => Reply::Expire(cancel::expire(ctx, request)?),
        Op::Heartbeat(request) => Reply::Heartbeat(replica::heartbeat(ctx, request)?),
        Op::Leave(replica) => {
            ctx.replicas.leave(*replica);
            Reply::Leave(())
        }
        Op::PutBlob(request) => Reply::PutBlob(ctx.rows.put_blob(&request.bytes)?),
        Op::PutKey(key) => Reply::PutKey(ctx.rows.put_api_key(key)?),
        Op::RemoveKey(hash) => Reply::RemoveKey(ctx.rows.remove_api_key(hash)?),
        Op::GetThread(_)
        | Op::ListThreads(_)
        | Op::CountThreads(_)
        | Op::GetRun(_)
        | Op::ListRuns(_)
        | Op::ReadEvents(_)
        | Op::ReadTails(_)
        | Op::ReadEffects(_)
        | Op::GetBlob(_)
        | Op::FindKey(_)
        | Op::ListKeys(())
        | Op::Counts(())
        | Op::CountParked(())
        | Op::ListHeld(_) => read(ctx.rows, op)?,
    })
}

/// Whether the reply says that a write was fenced.
pub(crate) fn is_fenced(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::CommitStep(Written::Fenced)
            | Reply::TakeSteered(Written::Fenced)
            | Reply::Park(Written::Fenced)
            | Reply::Release(Written::Fenced)
            | Reply::CommitTurn(TurnCommitted::Fenced)
    )
}

/// A thread as the contract shows it, with all that is stored beside its row.
fn whole_thread(rows: &mut dyn Rows, row: ThreadRow) -> Rowed<Thread> {
    let metadata = rows.metadata(row.n)?;
    let newest = match row.newest_run {
        Some(run) => rows.run(&row.tenant, run)?,
        None => None,
    };
    Ok(row.into_thread(metadata, newest.map(|run| run.state)))
}

/// A run as the contract shows it, with all that is stored beside its row.
fn whole_run(rows: &mut dyn Rows, row: RunRow) -> Rowed<Run> {
    let spec = rows.spec(row.n)?;
    let outcome = if row.state.is_terminal() { rows.outcome(row.n)? } else { None };
    let position = match row.state {
        RunState::Queued => rows.n_queued_before(row.thread_n, row.n)?,
        _ => 0,
    };
    Ok(row.into_run(position, spec, outcome))
}
