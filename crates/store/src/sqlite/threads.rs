//! Lists of threads, and the removal of one with everything that belongs to it.

use evenkeel_core::port::store::{ListThreads, ThreadSort};
use evenkeel_core::run::RunState;
use evenkeel_core::thread::Thread;
use rusqlite::{Connection, params, params_from_iter};
use serde_json::Value;

use super::body::{self, int};
use super::columns;
use super::fault::faulty;
use crate::record::ThreadRow;
use crate::rows::{self, Rowed};

const SELECT: &str = "SELECT t.n, t.id, t.tenant, t.created_at, t.updated_at, t.version, t.epoch, t.seq_last, \
     t.context_from, t.active, t.n_waiting, t.newest_run, t.busy_policy, t.context_at, t.asks, t.metadata, r.state \
     FROM threads t LEFT JOIN runs r ON r.id = t.newest_run";

/// The threads of a list. Metadata is compared here, not in SQL: it may be moved out of its row.
pub(super) fn list(conn: &Connection, list: &ListThreads) -> Rowed<Vec<Thread>> {
    let offset = usize::try_from(list.offset).unwrap_or(usize::MAX);
    let limit = usize::try_from(list.limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    let mut n_passed = 0;
    each(conn, list, |thread| {
        n_passed += 1;
        if n_passed > offset && found.len() < limit {
            found.push(thread);
        }
        found.len() < limit
    })?;
    Ok(found)
}

/// How many threads the list has without its limit.
pub(super) fn count(conn: &Connection, list: &ListThreads) -> Rowed<u64> {
    if list.metadata.as_object().is_none_or(serde_json::Map::is_empty) {
        let (from, params) = condition(list);
        let sql = format!("SELECT count(*) FROM threads t LEFT JOIN runs r ON r.id = t.newest_run{from}");
        let mut select = conn.prepare_cached(&sql).map_err(faulty)?;
        return select.query_row(params_from_iter(params), |row| row.get(0).map(body::uint)).map_err(faulty);
    }
    let mut n = 0;
    each(conn, list, |_| {
        n += 1;
        true
    })?;
    Ok(n)
}

/// Hands each thread of the list to `take` in its order, until that has enough.
fn each(conn: &Connection, list: &ListThreads, mut take: impl FnMut(Thread) -> bool) -> Rowed<()> {
    let (from, params) = condition(list);
    let column = match list.sort {
        ThreadSort::Id => "t.id",
        ThreadSort::CreatedAt => "t.created_at",
        ThreadSort::UpdatedAt => "t.updated_at",
    };
    let way = if list.descending { "DESC" } else { "ASC" };
    let sql = format!("{SELECT}{from} ORDER BY {column} {way}, t.id {way}");
    let mut select = conn.prepare_cached(&sql).map_err(faulty)?;
    let mut rows = select.query(params_from_iter(params)).map_err(faulty)?;
    while let Some(row) = rows.next().map_err(faulty)? {
        let metadata: Value = body::read(conn, row, 15)?;
        if !rows::has_members(&metadata, &list.metadata) {
            continue;
        }
        let newest: Option<String> = row.get(16).map_err(faulty)?;
        let newest = newest.as_deref().and_then(RunState::parse);
        let thread = columns::thread(row).map_err(faulty)?.into_thread(metadata, newest);
        if !take(thread) {
            break;
        }
    }
    Ok(())
}

/// The condition of a list and its parameters.
fn condition(list: &ListThreads) -> (String, Vec<rusqlite::types::Value>) {
    let mut sql = " WHERE t.tenant = ?1".to_owned();
    let mut params: Vec<rusqlite::types::Value> = vec![list.tenant.as_str().to_owned().into()];
    if let Some(busy) = list.busy {
        sql.push_str(if busy { " AND t.active IS NOT NULL" } else { " AND t.active IS NULL" });
    }
    if !list.newest.is_empty() {
        let words: Vec<String> = list.newest.iter().map(|state| format!("'{}'", state.as_str())).collect();
        sql.push_str(&format!(" AND r.state IN ({})", words.join(", ")));
    }
    if !list.ids.is_empty() {
        let marks: Vec<&str> = list.ids.iter().map(|_| "?").collect();
        sql.push_str(&format!(" AND t.id IN ({})", marks.join(", ")));
        params.extend(list.ids.iter().map(|id| id.0.as_bytes().to_vec().into()));
    }
    (sql, params)
}

/// In this order no row names one that is gone already.
const DELETE: [&str; 11] = [
    "DELETE FROM accepted_messages WHERE thread = ?1",
    "DELETE FROM idempotency_keys WHERE (tenant, scope) IN (SELECT tenant, id FROM threads WHERE n = ?1)",
    "DELETE FROM idempotency_keys WHERE scope = x'' AND run IN (SELECT n FROM runs WHERE thread = ?1)",
    "DELETE FROM effects WHERE run IN (SELECT n FROM runs WHERE thread = ?1)",
    "DELETE FROM events WHERE thread = ?1",
    "DELETE FROM run_specs WHERE run IN (SELECT n FROM runs WHERE thread = ?1)",
    "DELETE FROM run_outcomes WHERE run IN (SELECT n FROM runs WHERE thread = ?1)",
    "DELETE FROM runs WHERE thread = ?1",
    // Blobs that only this thread names.
    "DELETE FROM blobs WHERE id IN (SELECT blob FROM blob_names m WHERE m.thread = ?1 AND NOT EXISTS
     (SELECT 1 FROM blob_names o WHERE o.blob = m.blob AND o.thread <> ?1))",
    "DELETE FROM blob_names WHERE thread = ?1",
    "DELETE FROM threads WHERE n = ?1",
];

/// Removes a thread.
pub(super) fn delete(conn: &Connection, thread: &ThreadRow) -> Rowed<()> {
    for sql in DELETE {
        conn.prepare_cached(sql).map_err(faulty)?.execute(params![int(thread.n)]).map_err(faulty)?;
    }
    Ok(())
}
