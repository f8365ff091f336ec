//! Writing: all changes of a batch in one statement, which commits by itself.
//!
//! The statement locks the batch's threads in the order of their ids, keeps those groups of threads
//! whose `rev` is what the decisions were made on and of which nothing exists that was taken to be
//! missing, writes only these, and returns them. No lock is held across a round trip, and two
//! batches never wait for each other in a circle.
//!
//! Each part of it is a function of the schema (`0003_writes.sql`), called in the order in which the
//! parts stand here: the server keeps the plans of functions, while parsing and planning all of it anew
//! took half of the database's time. Functions need nothing of a connection that a pooler does not
//! keep.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::run::{Class, RunState, WaitReason};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::changes::{Absent, Body, Footprint};
use super::load::scope;
use super::rows::PgRows;
use super::statement::Statement;
use crate::packed::{self, int};
use crate::record::RunRow;
use crate::rows::{Fault, Rowed};

/// A batch ready to be sent.
pub(super) struct Write {
    pub(super) statement: Statement,
    /// The group of each thread that is checked, and the `rev` that it must have.
    pub(super) checked: BTreeMap<ThreadId, (i32, u64)>,
}

/// Which threads hang together because one operation needs them all.
fn groups(footprints: &[Footprint]) -> BTreeMap<ThreadId, i32> {
    let mut group_of: BTreeMap<ThreadId, i32> = BTreeMap::new();
    for (idx, footprint) in footprints.iter().enumerate().filter(|(_, of)| !of.wrote.is_empty()) {
        let mine = i32::try_from(idx).unwrap_or(i32::MAX);
        let joined: BTreeSet<i32> =
            footprint.read.iter().filter_map(|thread| group_of.get(thread)).copied().collect();
        let group = joined.first().copied().unwrap_or(mine).min(mine);
        group_of.values_mut().filter(|of| joined.contains(of)).for_each(|of| *of = group);
        group_of.extend(footprint.read.iter().map(|thread| (*thread, group)));
    }
    group_of
}

/// Makes the statement of a pass; `None` if it changed nothing.
pub(super) fn write(
    rows: &PgRows<'_>,
    footprints: &[Footprint],
    batch: Uuid,
    fenced: Option<(Uuid, u64)>,
) -> Rowed<Option<Write>> {
    if rows.changes.dirty.is_empty() {
        return Ok(None);
    }
    let group_of = groups(footprints);
    let mut checked = BTreeMap::new();
    for (thread, group) in &group_of {
        if let Some(rev) = stored_rev(rows, *thread) {
            checked.insert(*thread, (*group, rev));
        }
    }
    let (statement, good, parts) = (Statement::default(), String::new(), Vec::new());
    let mut out = Builder { rows, group_of, statement, good, parts, batch };
    out.check(&checked, footprints);
    out.threads()?;
    out.metadata();
    out.runs()?;
    out.queues();
    out.log();
    out.names();
    out.blobs();
    out.deletions();
    if let Some((writer, n)) = fenced {
        out.fenced(writer, n);
    }
    let mut statement = out.statement;
    statement.sql = format!("WITH ok AS MATERIALIZED (SELECT {} AS grps)\nSELECT ok.grps", out.good);
    for part in out.parts {
        statement.sql.push_str(",\n");
        statement.sql.push_str(&part);
    }
    statement.sql.push_str("\nFROM ok");
    Ok(Some(Write { statement, checked }))
}

/// The `rev` in the database: 0 for a thread that is not there.
fn stored_rev(rows: &PgRows<'_>, thread: ThreadId) -> Option<u64> {
    if rows.changes.new_threads.contains(&thread) {
        return Some(0);
    }
    let fact = rows.work.threads.get(&thread).or_else(|| rows.thread_fact(thread));
    fact.map(|fact| fact.rev)
}

struct Builder<'a, 'b> {
    rows: &'a PgRows<'b>,
    group_of: BTreeMap<ThreadId, i32>,
    statement: Statement,
    /// The call that says which groups are written.
    good: String,
    /// The calls that write, in order.
    parts: Vec<String>,
    batch: Uuid,
}

/// Column arrays of one part: each value is pushed row by row, then all are bound in order.
#[derive(Default)]
struct Table {
    groups: Vec<i32>,
    columns: Vec<Column>,
}

enum Column {
    Id(Vec<Option<Uuid>>),
    Int(Vec<Option<i64>>),
    Flag(Vec<bool>),
    Text(Vec<Option<String>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

/// One value of a row.
enum Value {
    Id(Option<Uuid>),
    Int(Option<i64>),
    Flag(bool),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

impl Table {
    fn push(&mut self, group: i32, row: Vec<Value>) {
        if self.columns.is_empty() {
            self.columns = row.iter().map(Column::for_value).collect();
        }
        self.groups.push(group);
        for (column, value) in self.columns.iter_mut().zip(row) {
            column.push(value);
        }
    }

    fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

impl Column {
    fn for_value(value: &Value) -> Self {
        match value {
            Value::Id(_) => Self::Id(Vec::new()),
            Value::Int(_) => Self::Int(Vec::new()),
            Value::Flag(_) => Self::Flag(Vec::new()),
            Value::Text(_) => Self::Text(Vec::new()),
            Value::Bytes(_) => Self::Bytes(Vec::new()),
        }
    }

    fn push(&mut self, value: Value) {
        match (self, value) {
            (Self::Id(values), Value::Id(value)) => values.push(value),
            (Self::Int(values), Value::Int(value)) => values.push(value),
            (Self::Flag(values), Value::Flag(value)) => values.push(value),
            (Self::Text(values), Value::Text(value)) => values.push(value),
            (Self::Bytes(values), Value::Bytes(value)) => values.push(value),
            // A row has the shape of the first: both are written in one place.
            _ => {}
        }
    }

    fn bind(self, statement: &mut Statement) -> String {
        fn cast(
            statement: &mut Statement,
            values: impl ToSql + Sync + Send + 'static,
            of: Type,
            name: &str,
        ) -> String {
            format!("{}::{name}[]", statement.bind(values, of))
        }
        match self {
            Self::Id(values) => cast(statement, values, Type::UUID_ARRAY, "uuid"),
            Self::Int(values) => cast(statement, values, Type::INT8_ARRAY, "int8"),
            Self::Flag(values) => cast(statement, values, Type::BOOL_ARRAY, "bool"),
            Self::Text(values) => cast(statement, values, Type::TEXT_ARRAY, "text"),
            Self::Bytes(values) => cast(statement, values, Type::BYTEA_ARRAY, "bytea"),
        }
    }
}

fn id(value: Uuid) -> Value {
    Value::Id(Some(value))
}

fn number(value: u64) -> Value {
    Value::Int(Some(int(value)))
}

fn text(value: impl Into<String>) -> Value {
    Value::Text(Some(value.into()))
}

fn bytes(value: impl Into<Vec<u8>>) -> Value {
    Value::Bytes(Some(value.into()))
}

/// A body in its two columns.
fn body(body: &Body) -> [Value; 2] {
    let (json, blob) = body.columns();
    [Value::Text(json.map(str::to_owned)), Value::Bytes(blob.map(<[u8]>::to_vec))]
}

impl Builder<'_, '_> {
    fn group(&self, thread: ThreadId) -> i32 {
        self.group_of.get(&thread).copied().unwrap_or(-1)
    }

    /// A call of a function with the groups and columns of a table, behind what else it takes.
    fn call(&mut self, name: &str, first: &[String], table: Table) -> Option<String> {
        if table.is_empty() {
            return None;
        }
        let mut arguments = first.to_vec();
        arguments.push(format!("{}::int4[]", self.statement.bind(table.groups, Type::INT4_ARRAY)));
        for column in table.columns {
            arguments.push(column.bind(&mut self.statement));
        }
        Some(format!("evenkeel.write_{name}({})", arguments.join(", ")))
    }

    /// Adds a part that writes the rows of a table whose groups are good.
    fn part(&mut self, name: &str, table: Table) {
        let call = self.call(name, &["ok.grps".to_owned()], table);
        self.parts.extend(call);
    }

    /// Locks the threads and settles which groups are written.
    fn check(&mut self, checked: &BTreeMap<ThreadId, (i32, u64)>, footprints: &[Footprint]) {
        let ids: Vec<Uuid> = checked.keys().map(|thread| thread.0).collect();
        let groups: Vec<i32> = checked.values().map(|(group, _)| *group).collect();
        let revs: Vec<i64> = checked.values().map(|(_, rev)| int(*rev)).collect();
        let ids = self.statement.bind(ids, Type::UUID_ARRAY);
        let groups = self.statement.bind(groups, Type::INT4_ARRAY);
        let revs = self.statement.bind(revs, Type::INT8_ARRAY);
        let check = format!("evenkeel.write_check({ids}::uuid[], {groups}::int4[], {revs}::int8[])");
        let known = self.known(footprints);
        // The locks are taken first: arguments are evaluated in their order.
        self.good = match known.is_empty() {
            true => check,
            false => format!("evenkeel.write_except({check}, {})", known.join(" || ")),
        };
    }

    /// Calls that find the groups of which something exists that was taken to be missing.
    fn known(&mut self, footprints: &[Footprint]) -> Vec<String> {
        let (mut keys, mut messages, mut runs) = (Table::default(), Table::default(), Table::default());
        for footprint in footprints.iter().filter(|of| !of.wrote.is_empty()) {
            let Some(group) = footprint.wrote.first().map(|thread| self.group(*thread)) else { continue };
            for absent in &footprint.absent {
                match absent {
                    Absent::Key(name) => keys.push(
                        group,
                        vec![text(name.tenant.as_str()), id(scope(name.scope)), bytes(name.key.clone())],
                    ),
                    Absent::Message(thread, word) => {
                        messages.push(group, vec![id(thread.0), bytes(word.clone())])
                    }
                    Absent::Run(run) => runs.push(group, vec![id(run.0)]),
                }
            }
        }
        let calls = [("known_keys", keys), ("known_messages", messages), ("known_runs", runs)];
        calls.into_iter().filter_map(|(name, table)| self.call(name, &[], table)).collect()
    }

    fn threads(&mut self) -> Rowed<()> {
        let (mut new, mut old) = (Table::default(), Table::default());
        for thread in self.rows.changes.dirty.difference(&self.rows.changes.deleted) {
            let fact = self.rows.thread_fact(*thread);
            let fact = fact.ok_or_else(|| Fault::Misused(format!("thread {thread} is not known")))?;
            let row = &fact.row;
            let is_new = self.rows.changes.new_threads.contains(thread);
            let mut values = vec![
                id(thread.0),
                number(row.updated_at.0),
                number(fact.rev + 1),
                number(fact.places),
                Value::Flag(row.active.is_some()),
                Value::Id(row.newest_run.map(|run| run.0)),
                text(packed::json(row)?),
            ];
            let table = if is_new { &mut new } else { &mut old };
            if is_new {
                values.extend([text(row.tenant.as_str()), number(row.created_at.0)]);
            }
            let group = self.group_of.get(thread).copied().unwrap_or(-1);
            table.push(group, values);
        }
        let mark = self.statement.bind(self.batch, Type::UUID);
        let first = ["ok.grps".to_owned(), format!("{mark}::uuid")];
        for (name, table) in [("new_threads", new), ("old_threads", old)] {
            let call = self.call(name, &first, table);
            self.parts.extend(call);
        }
        Ok(())
    }

    fn metadata(&mut self) {
        let mut table = Table::default();
        for (thread, value) in &self.rows.changes.metadata {
            let [json, blob] = body(value);
            table.push(self.group(*thread), vec![id(thread.0), json, blob]);
        }
        self.part("metadata", table);
    }

    fn runs(&mut self) -> Rowed<()> {
        let (mut new, mut old, mut ended) = (Table::default(), Table::default(), Table::default());
        let mut specs = Table::default();
        // In order of arrival, which the identity column follows.
        let mut runs: Vec<RunId> = self.rows.changes.runs.iter().copied().collect();
        runs.sort_by_key(|run| self.rows.run_fact(*run).map(|fact| (fact.row.thread, fact.place)));
        for run in runs {
            let Some(fact) = self.rows.run_fact(run) else { continue };
            let row = &fact.row;
            let group = self.group(row.thread);
            let [json, blob] = match self.rows.changes.outcomes.get(&run) {
                Some(outcome) => body(outcome),
                None => [Value::Text(None), Value::Bytes(None)],
            };
            let now =
                vec![id(run.0), text(row.state.as_str()), Value::Flag(fact.hidden), text(packed::json(row)?)];
            if let Some(spec) = self.rows.changes.new_runs.get(&run) {
                let mut values = now;
                values.extend([id(row.thread.0), text(row.tenant.as_str()), number(fact.place), json, blob]);
                new.push(group, values);
                let [json, blob] = body(spec);
                specs.push(group, vec![id(run.0), json, blob]);
            } else if self.rows.changes.outcomes.contains_key(&run) {
                let mut values = now;
                values.extend([json, blob]);
                ended.push(group, values);
            } else {
                old.push(group, now);
            }
        }
        self.part("new_runs", new);
        self.part("specs", specs);
        self.part("old_runs", old);
        self.part("ended_runs", ended);
        Ok(())
    }

    /// The queues: a row while a run is open.
    fn queues(&mut self) {
        let (mut new, mut old, mut gone) = (Table::default(), Table::default(), Table::default());
        let mut runs: Vec<RunId> = self.rows.changes.runs.iter().copied().collect();
        runs.sort_by_key(|run| self.rows.run_fact(*run).map(|fact| (fact.row.thread, fact.place)));
        for run in runs {
            let Some(fact) = self.rows.run_fact(run) else { continue };
            let row = &fact.row;
            let group = self.group(row.thread);
            let is_new = self.rows.changes.new_runs.contains_key(&run);
            match (is_new, row.state.is_terminal()) {
                (true, true) => {}
                (true, false) => {
                    let mut values = queue_values(row);
                    values.extend([id(row.thread.0), number(class_rank(row.class)), number(row.deadline.0)]);
                    new.push(group, values);
                }
                (false, true) => gone.push(group, vec![id(run.0)]),
                (false, false) if self.is_requeued(row) => old.push(group, queue_values(row)),
                (false, false) => {}
            }
        }
        self.part("new_open", new);
        self.part("old_open", old);
        self.part("no_longer_open", gone);
    }

    /// Whether a queue sees another run than is stored.
    fn is_requeued(&self, row: &RunRow) -> bool {
        self.rows.stored_run(row.id).is_none_or(|before| {
            let wait = |row: &RunRow| row.wait.as_ref().map(|wait| (wait.on, wait.route.clone()));
            before.state != row.state
                || before.ready != row.ready
                || before.not_before != row.not_before
                || before.owner != row.owner
                || wait(before) != wait(row)
        })
    }

    fn log(&mut self) {
        let (mut events, mut effects) = (Table::default(), Table::default());
        for event in &self.rows.changes.events {
            let [json, blob] = body(&event.body);
            events.push(
                self.group(event.thread),
                vec![
                    id(event.thread.0),
                    number(event.seq),
                    id(event.run.0),
                    number(u64::from(event.step)),
                    number(event.at.0),
                    json,
                    blob,
                ],
            );
        }
        for ((run, word), (thread, marks)) in &self.rows.changes.effects {
            let (intended, settled) = (marks.intended.map(int), marks.settled.map(int));
            effects.push(
                self.group(*thread),
                vec![id(run.0), bytes(word.clone()), Value::Int(intended), Value::Int(settled)],
            );
        }
        self.part("new_events", events);
        self.part("new_effects", effects);
    }

    /// Keys, messages and authors: what must exist at most once.
    fn names(&mut self) {
        let (mut keys, mut messages, mut writers) = (Table::default(), Table::default(), Table::default());
        for (name, (thread, run, at)) in &self.rows.changes.keys {
            keys.push(
                self.group(*thread),
                vec![
                    text(name.tenant.as_str()),
                    id(scope(name.scope)),
                    bytes(name.key.clone()),
                    id(thread.0),
                    id(run.0),
                    number(at.0),
                ],
            );
        }
        for ((thread, word), run) in &self.rows.changes.messages {
            messages.push(self.group(*thread), vec![id(thread.0), bytes(word.clone()), id(run.0)]);
        }
        for (writer, thread) in &self.rows.changes.writers {
            writers.push(self.group(*thread), vec![id(writer.0), id(thread.0)]);
        }
        self.part("new_keys", keys);
        // A message of a run that was taken over by another stays with the first.
        self.part("new_messages", messages);
        self.part("new_writers", writers);
    }

    /// Blobs are stored whether their group is written or not: they are named by what they hold.
    fn blobs(&mut self) {
        let (mut blobs, mut names) = (Table::default(), Table::default());
        for (hash, body) in &self.rows.changes.blobs {
            let packed = packed::pack(body);
            blobs.push(
                0,
                vec![
                    bytes(*hash),
                    number(body.len() as u64),
                    Value::Flag(packed.is_some()),
                    bytes(packed.unwrap_or_else(|| body.clone())),
                ],
            );
        }
        for (hash, thread) in &self.rows.changes.blob_names {
            names.push(self.group(*thread), vec![bytes(*hash), id(thread.0)]);
        }
        self.part("new_blobs", blobs);
        self.part("new_blob_names", names);
    }

    /// Threads with everything that hangs on them.
    fn deletions(&mut self) {
        let mut table = Table::default();
        for thread in &self.rows.changes.deleted {
            table.push(self.group(*thread), vec![id(thread.0)]);
        }
        self.part("deletions", table);
    }

    fn fenced(&mut self, writer: Uuid, n: u64) {
        let writer = self.statement.bind(writer, Type::UUID);
        let n = self.statement.bind(int(n), Type::INT8);
        self.parts.push(fenced_call(&writer, &n));
    }
}

/// Stores how many writes a counter has seen refused.
pub(super) fn fenced_call(writer: &str, n: &str) -> String {
    format!("evenkeel.write_fenced({writer}::uuid, {n}::int8)")
}

/// What the queues see of a run.
fn queue_values(row: &RunRow) -> Vec<Value> {
    let wait = row.wait.as_ref().filter(|_| row.state == RunState::Waiting);
    vec![
        id(row.id.0),
        text(row.state.as_str()),
        Value::Flag(row.ready),
        Value::Int(row.not_before.map(|at| int(at.0))),
        Value::Id(row.owner.map(|owner| owner.0)),
        Value::Text(wait.map(|wait| wait_word(wait.on).to_owned())),
        Value::Text(wait.and_then(|wait| wait.route.clone())),
    ]
}

/// Interactive sorts before batch.
fn class_rank(class: Class) -> u64 {
    match class {
        Class::Interactive => 0,
        Class::Batch => 1,
    }
}

pub(super) fn wait_word(on: WaitReason) -> &'static str {
    match on {
        WaitReason::Model => "model",
        WaitReason::Tool => "tool",
        WaitReason::Approval => "approval",
        WaitReason::Budget => "budget",
    }
}
