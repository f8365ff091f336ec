//! Queues: which runs an operation may claim or end.
//!
//! A queue is only looked at here. Each run found becomes an operation of its own on the lane of its
//! thread, where it is looked at again before it is used: of two replicas that find the same run one
//! gets it, and the other loses nothing else by it.

use evenkeel_core::Mono;
use evenkeel_core::id::{ReplicaId, RunId, ThreadId};
use evenkeel_core::port::store::{ClaimReady, Expire, Op, Reply, Steal, Wake};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::statement::{Statement, get};
use super::write::wait_word;
use crate::decide::Now;
use crate::packed::int;
use crate::record::Replicas;
use crate::rows::Rowed;

/// A run that a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) run: RunId,
    pub(super) thread: ThreadId,
}

/// The statement that looks at the queue of an operation; `None` if it has none.
pub(super) fn look(op: &Op, now: Now) -> Option<Statement> {
    match op {
        Op::ClaimReady(of) => Some(
            Statement::new(
                "SELECT run, thread FROM evenkeel.open_runs WHERE ready AND coalesce(not_before, $1) <= $1 \
                 ORDER BY n LIMIT $2",
            )
            .with(int(now.wall.0), Type::INT8)
            .with(i64::from(of.limit), Type::INT8),
        ),
        Op::Wake(of) => Some(
            Statement::new(
                "SELECT run, thread FROM evenkeel.open_runs WHERE state = 'waiting' AND wait_on = $1 \
                 AND ($2::text IS NULL OR wait_route = $2) AND coalesce(not_before, $4) <= $4 \
                 ORDER BY class, deadline, n LIMIT $3",
            )
            .with(wait_word(of.on), Type::TEXT)
            .with(of.route.clone(), Type::TEXT)
            .with(i64::from(of.limit), Type::INT8)
            .with(int(now.wall.0), Type::INT8),
        ),
        Op::Expire(of) => Some(
            Statement::new(
                "SELECT run, thread FROM evenkeel.open_runs WHERE state IN ('queued', 'waiting') \
                 AND deadline <= $1 ORDER BY deadline, n LIMIT $2",
            )
            .with(int(now.wall.0), Type::INT8)
            .with(i64::from(of.limit), Type::INT8),
        ),
        Op::Steal(of) => Some(
            Statement::new(
                "SELECT run, thread, owner, state FROM evenkeel.open_runs \
                 WHERE owner IS NOT NULL AND owner <> $1 ORDER BY n",
            )
            .with(of.me.0, Type::UUID),
        ),
        _ => None,
    }
}

/// What the look found, in the order of the queue. For a steal only what dead and lapsed replicas
/// hold: first what they were told to stop, then what they ran.
pub(super) fn found(op: &Op, rows: &[Row], replicas: &Replicas, now: Mono) -> Rowed<Vec<Found>> {
    let Op::Steal(steal) = op else {
        return rows.iter().map(one).collect();
    };
    let limit = usize::try_from(steal.limit).unwrap_or(usize::MAX);
    let (mut stopping, mut running) = (Vec::new(), Vec::new());
    for row in rows {
        let owner = ReplicaId(get(row, 2)?);
        if !steal.dead.contains(&owner) && !replicas.lapsed(owner, now) {
            continue;
        }
        match get::<&str>(row, 3)? {
            "cancelling" => stopping.push(one(row)?),
            _ => running.push(one(row)?),
        }
    }
    stopping.truncate(limit);
    running.truncate(limit);
    stopping.extend(running);
    Ok(stopping)
}

fn one(row: &Row) -> Rowed<Found> {
    Ok(Found { run: RunId(get(row, 0)?), thread: ThreadId(get(row, 1)?) })
}

/// The same operation for one run.
pub(super) fn for_one(op: &Op) -> Op {
    match op {
        Op::ClaimReady(of) => Op::ClaimReady(ClaimReady { limit: 1, ..of.clone() }),
        Op::Wake(of) => Op::Wake(Wake { limit: 1, ..of.clone() }),
        Op::Expire(_) => Op::Expire(Expire { limit: 1 }),
        Op::Steal(of) => Op::Steal(Steal { limit: 1, ..of.clone() }),
        other => other.clone(),
    }
}

/// The replies for each run as one reply.
pub(super) fn together(op: &Op, replies: Vec<Reply>) -> Reply {
    let (mut claims, mut ended) = (Vec::new(), Vec::new());
    for reply in replies {
        match reply {
            Reply::ClaimReady(of) | Reply::Wake(of) | Reply::Steal(of) => claims.extend(of),
            Reply::Expire(of) => ended.extend(of),
            _ => {}
        }
    }
    match op {
        Op::Wake(_) => Reply::Wake(claims),
        Op::Steal(_) => Reply::Steal(claims),
        Op::Expire(_) => Reply::Expire(ended),
        _ => Reply::ClaimReady(claims),
    }
}
