//! Between columns and stored shapes: the words for states and reasons, and the order of columns.

use evenkeel_core::Wall;
use evenkeel_core::approval::Approval;
use evenkeel_core::id::{IdempotencyKey, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::message::Usage;
use evenkeel_core::port::store::ApiKey;
use evenkeel_core::run::{BusyPolicy, Class, EndReason, RunState, WaitReason, Waiting};
use rusqlite::Row;
use rusqlite::types::Type;
use uuid::Uuid;

use super::body::uint;
use crate::record::{Base, RunRow, ThreadRow};

const WAITS: [(WaitReason, &str); 4] = [
    (WaitReason::Model, "model"),
    (WaitReason::Tool, "tool"),
    (WaitReason::Approval, "approval"),
    (WaitReason::Budget, "budget"),
];

const POLICIES: [(BusyPolicy, &str); 7] = [
    (BusyPolicy::Enqueue, "enqueue"),
    (BusyPolicy::Reject, "reject"),
    (BusyPolicy::Interrupt, "interrupt"),
    (BusyPolicy::Rollback, "rollback"),
    (BusyPolicy::Steer, "steer"),
    (BusyPolicy::Merge, "merge"),
    (BusyPolicy::Latest, "latest"),
];

fn word_of<T: PartialEq>(words: &[(T, &'static str)], value: &T) -> &'static str {
    let found = words.iter().find(|(of, _)| of == value);
    found.map(|(_, word)| *word).expect("every value has its word in the table")
}

fn value_of<T: Copy>(words: &[(T, &'static str)], row: &Row<'_>, idx: usize) -> rusqlite::Result<T> {
    let text: String = row.get(idx)?;
    let found = words.iter().find(|(_, word)| *word == text);
    found.map(|(value, _)| *value).ok_or_else(|| unknown(idx, text))
}

/// A word that no version up to this one has written.
fn unknown(idx: usize, text: String) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(idx, text, Type::Text)
}

pub(super) fn wait_word(on: WaitReason) -> &'static str {
    word_of(&WAITS, &on)
}

pub(super) fn policy_word(policy: BusyPolicy) -> &'static str {
    word_of(&POLICIES, &policy)
}

/// Interactive sorts before batch.
pub(super) fn class_rank(class: Class) -> i64 {
    match class {
        Class::Interactive => 0,
        Class::Batch => 1,
    }
}

/// The scope of an idempotency key: empty for the whole tenant.
pub(super) fn scope(thread: Option<ThreadId>) -> Vec<u8> {
    thread.map_or_else(Vec::new, |thread| thread.0.as_bytes().to_vec())
}

pub(super) fn optional_id(id: Option<Uuid>) -> Option<[u8; 16]> {
    id.map(Uuid::into_bytes)
}

pub(super) fn uuid_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<Uuid> {
    row.get::<_, [u8; 16]>(idx).map(Uuid::from_bytes)
}

fn optional_uuid_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<Option<Uuid>> {
    Ok(row.get::<_, Option<[u8; 16]>>(idx)?.map(Uuid::from_bytes))
}

fn optional_wall_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<Option<Wall>> {
    Ok(row.get::<_, Option<i64>>(idx)?.map(uint).map(Wall))
}

fn wall_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<Wall> {
    row.get(idx).map(uint).map(Wall)
}

pub(super) fn state_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<RunState> {
    let text: String = row.get(idx)?;
    RunState::parse(&text).ok_or_else(|| unknown(idx, text))
}

/// The columns of `select_thread`.
pub(super) fn thread(row: &Row<'_>) -> rusqlite::Result<ThreadRow> {
    Ok(ThreadRow {
        n: row.get(0).map(uint)?,
        id: ThreadId(uuid_at(row, 1)?),
        tenant: TenantId(row.get(2)?),
        created_at: wall_at(row, 3)?,
        updated_at: wall_at(row, 4)?,
        version: row.get(5).map(uint)?,
        epoch: row.get(6).map(uint)?,
        seq_last: row.get(7).map(uint)?,
        context_from: row.get(8).map(uint)?,
        active: optional_uuid_at(row, 9)?.map(RunId),
        n_waiting: row.get(10)?,
        newest_run: optional_uuid_at(row, 11)?.map(RunId),
        busy_policy: optional_policy_at(row, 12)?,
        context_at: row.get(13).map(uint)?,
        asks: row.get(14)?,
    })
}

/// The columns of `select_run`.
pub(super) fn run(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    Ok(RunRow {
        n: row.get(0).map(uint)?,
        id: RunId(uuid_at(row, 1)?),
        thread_n: row.get(2).map(uint)?,
        thread: ThreadId(uuid_at(row, 3)?),
        tenant: TenantId(row.get(4)?),
        state: state_at(row, 5)?,
        ready: row.get(6)?,
        wait: waiting(row)?,
        step: row.get(12)?,
        attempt: row.get(13)?,
        owner: optional_uuid_at(row, 14)?.map(ReplicaId),
        version: row.get::<_, Option<i64>>(15)?.map(uint),
        not_before: optional_wall_at(row, 27)?,
        stop: stop_at(row, 28)?,
        base: base(row)?,
        key: row.get::<_, Option<String>>(16)?.map(IdempotencyKey),
        body_hash: row.get(17)?,
        class: if row.get::<_, i64>(18)? == 0 { Class::Interactive } else { Class::Batch },
        busy_policy: value_of(&POLICIES, row, 19)?,
        deadline: wall_at(row, 20)?,
        created_at: wall_at(row, 21)?,
        updated_at: wall_at(row, 22)?,
        usage: Usage {
            input_tokens: row.get(23).map(uint)?,
            cached_input_tokens: row.get(24).map(uint)?,
            output_tokens: row.get(25).map(uint)?,
            estimated: row.get(26)?,
        },
    })
}

/// Columns 29 and 30 of `select_run`.
fn base(row: &Row<'_>) -> rusqlite::Result<Option<Base>> {
    let seq: Option<i64> = row.get(29)?;
    let context_from: Option<i64> = row.get(30)?;
    Ok(seq.zip(context_from).map(|(seq, from)| Base { seq: uint(seq), context_from: uint(from) }))
}

fn stop_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<Option<EndReason>> {
    let Some(json) = row.get::<_, Option<String>>(idx)? else {
        return Ok(None);
    };
    serde_json::from_str(&json).map(Some).map_err(|_| unknown(idx, json))
}

/// A stop as its column holds it.
pub(super) fn stop_json(stop: Option<EndReason>) -> Option<String> {
    stop.map(|stop| serde_json::to_string(&stop).expect("a reason is made of words and ids"))
}

fn approvals_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<Vec<Approval>> {
    let Some(json) = row.get::<_, Option<String>>(idx)? else {
        return Ok(Vec::new());
    };
    serde_json::from_str(&json).map_err(|_| unknown(idx, json))
}

/// What a person is asked as its column holds it.
pub(super) fn approvals_json(wait: &Waiting) -> Option<String> {
    let asked = Some(&wait.approvals).filter(|approvals| !approvals.is_empty())?;
    Some(serde_json::to_string(asked).expect("a question is made of words, ids and times"))
}

fn optional_policy_at(row: &Row<'_>, idx: usize) -> rusqlite::Result<Option<BusyPolicy>> {
    match row.get::<_, Option<String>>(idx)? {
        Some(_) => value_of(&POLICIES, row, idx).map(Some),
        None => Ok(None),
    }
}

/// Columns 7 to 11 and 31 of `select_run`.
fn waiting(row: &Row<'_>) -> rusqlite::Result<Option<Waiting>> {
    if row.get::<_, Option<String>>(7)?.is_none() {
        return Ok(None);
    }
    Ok(Some(Waiting {
        on: value_of(&WAITS, row, 7)?,
        reason: row.get(8)?,
        since: wall_at(row, 9)?,
        until_hint: optional_wall_at(row, 10)?,
        route: row.get(11)?,
        approvals: approvals_at(row, 31)?,
    }))
}

/// The columns of an API key in the order of its table.
pub(super) fn api_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    Ok(ApiKey {
        hash: row.get(0)?,
        tenant: TenantId(row.get(1)?),
        name: row.get(2)?,
        calls_per_min: row.get(3)?,
        expires_at: optional_wall_at(row, 4)?,
        created_at: wall_at(row, 5)?,
    })
}
