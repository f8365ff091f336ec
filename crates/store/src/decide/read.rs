//! Reads: operations that change nothing, and that an engine may answer beside its writer.

use evenkeel_core::port::store::{Counts, GetBlob, Op, Reply};
use evenkeel_core::run::RunState;

use super::{whole_run, whole_thread};
use crate::rows::{Fault, Rowed, Rows};

/// The states in the order in which they are told.
const STATES: [RunState; 8] = [
    RunState::Queued,
    RunState::Running,
    RunState::Waiting,
    RunState::Cancelling,
    RunState::Completed,
    RunState::Failed,
    RunState::Cancelled,
    RunState::Expired,
];

/// Answers a read. `n_fenced` of the counts is the engine's to fill in: it keeps that number.
pub(crate) fn read(rows: &mut dyn Rows, op: &Op) -> Rowed<Reply> {
    Ok(match op {
        Op::GetThread(of) => {
            let row = rows.thread(&of.tenant, of.thread)?;
            Reply::GetThread(row.map(|row| whole_thread(rows, row)).transpose()?)
        }
        Op::ListThreads(list) => Reply::ListThreads(rows.list_threads(list)?),
        Op::CountThreads(list) => Reply::CountThreads(rows.count_threads(list)?),
        Op::GetRun(of) => {
            let row = rows.run(&of.tenant, of.run)?;
            Reply::GetRun(row.map(|row| whole_run(rows, row)).transpose()?)
        }
        Op::ListRuns(list) => {
            let listed = rows.list_runs(list)?;
            Reply::ListRuns(listed.into_iter().map(|row| whole_run(rows, row)).collect::<Rowed<_>>()?)
        }
        Op::ReadEvents(range) => Reply::ReadEvents(match rows.thread(&range.tenant, range.thread)? {
            Some(thread) => rows.events(thread.n, range.after_seq, range.limit)?,
            None => Vec::new(),
        }),
        Op::ReadTails(threads) => {
            let mut tails = Vec::with_capacity(threads.len());
            for of in threads {
                let found = rows.thread(&of.tenant, of.thread)?;
                tails.extend(found.map(|row| (of.thread, row.seq_last)));
            }
            Reply::ReadTails(tails)
        }
        Op::ReadEffects(of) => Reply::ReadEffects(match rows.run(&of.tenant, of.run)? {
            Some(run) => rows.effects(&run)?,
            None => Vec::new(),
        }),
        Op::GetBlob(range) => Reply::GetBlob(rows.blob(&range.blob)?.map(|bytes| cut(&bytes, range))),
        Op::FindKey(hash) => Reply::FindKey(rows.api_key(hash)?),
        Op::ListKeys(()) => Reply::ListKeys(rows.api_keys()?),
        Op::Counts(()) => Reply::Counts(Counts {
            runs: every_state(rows.n_by_state()?),
            parked: rows.n_parked_by_route()?,
            n_fenced: 0,
        }),
        Op::ListHeld(owner) => Reply::ListHeld(rows.held(*owner)?),
        Op::CountParked(()) => Reply::CountParked(rows.n_parked_by_route()?),
        _ => return Err(Fault::Misused(format!("{} is not a read", op.name()))),
    })
}

/// All states in their order, those without runs too.
fn every_state(found: Vec<(RunState, u64)>) -> Vec<(RunState, u64)> {
    let count = |state| found.iter().filter(|(of, _)| *of == state).map(|(_, n)| n).sum();
    STATES.into_iter().map(|state| (state, count(state))).collect()
}

fn cut(bytes: &[u8], range: &GetBlob) -> Vec<u8> {
    let from = usize::try_from(range.offset).unwrap_or(usize::MAX);
    let limit = usize::try_from(range.limit).unwrap_or(usize::MAX);
    bytes.iter().skip(from).take(limit).copied().collect()
}
