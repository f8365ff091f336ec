//! Lists of threads.

use evenkeel_core::port::store::{ListThreads, ThreadSort};
use evenkeel_core::run::RunState;
use evenkeel_core::thread::Thread;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::load::{texts, uuids};
use super::statement::{Statement, body_at, get, json_at, must, uint_at};
use crate::record::ThreadRow;
use crate::rows::{self, Rowed};

/// Metadata is compared here and not in SQL: it may be moved out of its row, and may hold what
/// PostgreSQL's JSON does not take. A list that asks for none is cut by the database.
fn asks_metadata(list: &ListThreads) -> bool {
    list.metadata.as_object().is_some_and(|members| !members.is_empty())
}

pub(super) fn list(list: &ListThreads) -> Statement {
    let mut ask = Statement::default();
    let from = from(&mut ask, list);
    let column = match list.sort {
        ThreadSort::Id => "t.id",
        ThreadSort::CreatedAt => "t.created_at",
        ThreadSort::UpdatedAt => "t.updated_at",
    };
    let way = if list.descending { "DESC" } else { "ASC" };
    let cut = match asks_metadata(list) {
        true => String::new(),
        false => {
            let limit = ask.bind(i64::from(list.limit), Type::INT8);
            format!(" LIMIT {limit} OFFSET {}", ask.bind(i64::from(list.offset), Type::INT8))
        }
    };
    ask.sql = format!(
        "SELECT t.row, r.state, m.body, b.size, b.packed, b.bytes {from} ORDER BY {column} {way}, t.id {way}{cut}"
    );
    ask
}

pub(super) fn count(list: &ListThreads) -> Statement {
    let mut ask = Statement::default();
    let from = from(&mut ask, list);
    let what = if asks_metadata(list) { "0::bigint, m.body, b.size, b.packed, b.bytes" } else { "count(*)" };
    ask.sql = format!("SELECT {what} {from}");
    ask
}

fn from(ask: &mut Statement, list: &ListThreads) -> String {
    let mut sql = format!(
        "FROM evenkeel.threads t LEFT JOIN evenkeel.runs r ON r.id = t.newest_run \
         LEFT JOIN evenkeel.thread_metadata m ON m.thread = t.id \
         LEFT JOIN evenkeel.blobs b ON b.id = m.blob WHERE t.tenant = {}",
        ask.bind(list.tenant.0.clone(), Type::TEXT)
    );
    if let Some(busy) = list.busy {
        sql.push_str(if busy { " AND t.busy" } else { " AND NOT t.busy" });
    }
    if !list.newest.is_empty() {
        let states = texts(list.newest.iter().map(|state| state.as_str()));
        sql.push_str(&format!(" AND r.state = ANY({})", ask.bind(states, Type::TEXT_ARRAY)));
    }
    if !list.ids.is_empty() {
        let ids = uuids(list.ids.iter().map(|id| id.0));
        sql.push_str(&format!(" AND t.id = ANY({})", ask.bind(ids, Type::UUID_ARRAY)));
    }
    sql
}

pub(super) fn listed(list: &ListThreads, found: &[Row]) -> Rowed<Vec<Thread>> {
    let mut threads = Vec::new();
    let (mut n_passed, at_most) = (0, usize::try_from(list.limit).unwrap_or(usize::MAX));
    for row in found {
        let metadata = metadata(row, 2)?;
        if !rows::has_members(&metadata, &list.metadata) {
            continue;
        }
        n_passed += 1;
        if asks_metadata(list) && (n_passed <= list.offset || threads.len() >= at_most) {
            continue;
        }
        let newest = get::<Option<&str>>(row, 1)?.map(RunState::parse);
        let newest = newest.map(|state| must(state, "a known state")).transpose()?;
        threads.push(json_at::<ThreadRow>(row, 0)?.into_thread(metadata, newest));
    }
    Ok(threads)
}

pub(super) fn counted(list: &ListThreads, found: &[Row]) -> Rowed<u64> {
    if !asks_metadata(list) {
        return found.first().map_or(Ok(0), |row| uint_at(row, 0));
    }
    let mut n = 0;
    for row in found {
        n += u64::from(rows::has_members(&metadata(row, 1)?, &list.metadata));
    }
    Ok(n)
}

fn metadata(row: &Row, idx: usize) -> Rowed<Value> {
    Ok(body_at(row, idx)?.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
}
