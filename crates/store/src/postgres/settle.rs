//! The outcome of a write whose answer was lost.
//!
//! Nothing is repeated blindly. For each thread of the batch the database is asked whether it bears
//! the batch's mark. If not, its `rev` is raised first, in one statement with the look: should the
//! lost write still be on its way, it then finds another `rev` and changes nothing. So after this
//! question the answer stays true.

use std::collections::BTreeMap;

use evenkeel_core::id::ThreadId;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::connect::Line;
use super::fault::Trouble;
use super::statement::{Statement, get, uint_at};
use crate::packed::int;

/// What became of a group of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// The write did not happen and cannot happen any more.
    Not,
    /// It is durable.
    Happened,
    /// Others have written since, so that nobody can tell.
    Unknown,
}

const FENCE: &str = "WITH locked AS MATERIALIZED (SELECT t.id, t.rev FROM evenkeel.threads t WHERE t.id = ANY($1) \
     ORDER BY t.id FOR NO KEY UPDATE) \
     UPDATE evenkeel.threads t SET rev = t.rev + 1, mark = $3 FROM unnest($1::uuid[], $2::int8[]) u(id, rev), locked l \
     WHERE t.id = u.id AND l.id = u.id AND l.rev = u.rev";

/// Asks once. `fence` is the mark of this question; the same for each time that it is asked.
pub(super) async fn ask(
    line: &mut Line,
    checked: &BTreeMap<ThreadId, (i32, u64)>,
    batch: Uuid,
    fence: Uuid,
) -> Result<BTreeMap<i32, Fate>, Trouble> {
    let ids: Vec<Uuid> = checked.keys().map(|thread| thread.0).collect();
    let revs: Vec<i64> = checked.values().map(|(_, rev)| int(*rev)).collect();
    let statements = [
        Statement::new(FENCE)
            .with(ids.clone(), Type::UUID_ARRAY)
            .with(revs, Type::INT8_ARRAY)
            .with(fence, Type::UUID),
        Statement::new("SELECT id, rev, mark FROM evenkeel.threads WHERE id = ANY($1)")
            .with(ids, Type::UUID_ARRAY),
    ];
    let found = line.send(&statements).await?.pop().unwrap_or_default();
    let mut stored = BTreeMap::new();
    for row in &found {
        let columns = || Ok((ThreadId(get(row, 0)?), (uint_at(row, 1)?, get::<Uuid>(row, 2)?)));
        stored.extend([columns().map_err(Trouble::Broken)?]);
    }
    let mut fates: BTreeMap<i32, Fate> = BTreeMap::new();
    for (thread, (group, rev)) in checked {
        let fate = fate(stored.get(thread), *rev, batch, fence);
        let of_group = fates.entry(*group).or_insert(fate);
        *of_group = (*of_group).max(fate);
    }
    Ok(fates)
}

fn fate(stored: Option<&(u64, Uuid)>, expected: u64, batch: Uuid, fence: Uuid) -> Fate {
    match stored {
        Some((_, mark)) if *mark == batch => Fate::Happened,
        Some((_, mark)) if *mark == fence => Fate::Not,
        // Somebody else took the step that ours would have been.
        Some((rev, _)) if *rev == expected + 1 => Fate::Not,
        None if expected == 0 => Fate::Not,
        // It is gone: by us, or by somebody after us.
        None | Some(_) => Fate::Unknown,
    }
}
