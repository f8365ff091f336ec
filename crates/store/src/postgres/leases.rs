//! Leases of replicas: one row each, judged by one clock, the database's.
//!
//! The decision is the same as in every engine; here its table is loaded before and stored after.

use evenkeel_core::Mono;
use evenkeel_core::id::{ReplicaId, RunId, ThreadId};
use evenkeel_core::port::store::Heartbeat;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::statement::{Statement, get, uint_at};
use crate::packed::int;
use crate::record::{Lease, Replicas};
use crate::rows::{Fault, Rowed};

/// Whose clock judges leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseClock {
    /// The database's: the only one that all replicas share.
    Database,
    /// That of the environment, for tests in which it is moved by hand.
    Environment,
}

/// All leases, with the database's clock in milliseconds in each row; at least one row.
pub(super) fn load() -> Statement {
    Statement::new(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8, r.id, r.until, r.address, r.draining, r.health \
         FROM (VALUES (1)) one LEFT JOIN evenkeel.replicas r ON true",
    )
}

/// The table, and the database's clock.
pub(super) fn loaded(rows: &[Row]) -> Rowed<(Replicas, Mono)> {
    let mut replicas = Replicas::default();
    let mut now = None;
    for row in rows {
        now = Some(Mono(uint_at(row, 0)?));
        if let Some(id) = get::<Option<uuid::Uuid>>(row, 1)? {
            let lease = Lease {
                until: Mono(uint_at(row, 2)?),
                address: get(row, 3)?,
                draining: get(row, 4)?,
                // What a newer version says in other words is not known, which is no harm.
                health: serde_json::from_str(&get::<String>(row, 5)?).unwrap_or_default(),
            };
            replicas.put(ReplicaId(id), lease);
        }
    }
    let now = now.ok_or_else(|| Fault::Unavailable("the database did not tell the time".to_owned()))?;
    Ok((replicas, now))
}

/// The runs that a replica was told to stop.
pub(super) fn cancelling(replica: ReplicaId) -> Statement {
    Statement::new(
        "SELECT run, thread FROM evenkeel.open_runs WHERE owner = $1 AND state = 'cancelling' ORDER BY n",
    )
    .with(replica.0, Type::UUID)
}

/// The rows of [`cancelling`].
pub(super) fn cancelled(rows: &[Row]) -> Rowed<Vec<(RunId, ThreadId)>> {
    rows.iter().map(|row| Ok((RunId(get(row, 0)?), ThreadId(get(row, 1)?)))).collect()
}

/// Stores the lease of a heartbeat, and forgets what lapsed long ago.
pub(super) fn store(beat: &Heartbeat, replicas: &Replicas, now: Mono) -> Rowed<[Statement; 2]> {
    let lease = replicas.get(beat.replica);
    let lease = lease.ok_or_else(|| Fault::Misused("a heartbeat left no lease".to_owned()))?;
    let put = Statement::new(
        "INSERT INTO evenkeel.replicas (id, until, address, draining, health) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (id) DO UPDATE SET until = excluded.until, address = excluded.address, \
         draining = excluded.draining, health = excluded.health",
    )
    .with(beat.replica.0, Type::UUID)
    .with(int(lease.until.0), Type::INT8)
    .with(lease.address.clone(), Type::TEXT)
    .with(lease.draining, Type::BOOL)
    .with(serde_json::to_string(&lease.health).unwrap_or_default(), Type::TEXT);
    let forget = Statement::new("DELETE FROM evenkeel.replicas WHERE until < $1")
        .with(int(now.0.saturating_sub(crate::record::FORGET_AFTER_MS)), Type::INT8);
    Ok([put, forget])
}

/// Forgets a replica.
pub(super) fn leave(replica: ReplicaId) -> Statement {
    Statement::new("DELETE FROM evenkeel.replicas WHERE id = $1").with(replica.0, Type::UUID)
}
