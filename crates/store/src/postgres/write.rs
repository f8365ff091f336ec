//! Writing: all changes of a batch in one statement, which commits by itself.
//!
//! The statement locks the batch's threads in the order of their ids, keeps those groups of threads
//! whose `rev` is what the decisions were made on and of which nothing exists that was taken to be
//! missing, writes only these, and returns them. No lock is held across a round trip, and two
//! batches never wait for each other in a circle.

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
    let mut out = Builder { rows, group_of, statement: Statement::default(), parts: Vec::new(), batch };
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
    let parts = out.parts.join(",\n");
    let mut statement = out.statement;
    statement.sql = format!("WITH {parts}\nSELECT grp FROM ok");
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

    /// Adds a part that reads a table of values named `u`; `{u}` in the text is where it stands.
    fn part(&mut self, name: &str, table: Table, columns: &str, sql: &str) {
        if table.is_empty() {
            return;
        }
        let groups = self.statement.bind(table.groups, Type::INT4_ARRAY);
        let mut arrays = vec![format!("{groups}::int4[]")];
        for column in table.columns {
            arrays.push(column.bind(&mut self.statement));
        }
        let values = format!("unnest({}) WITH ORDINALITY u(grp, {columns}, ord)", arrays.join(", "));
        self.parts.push(format!("{name} AS ({})", sql.replace("{u}", &values)));
    }

    /// Locks the threads and settles which groups are written.
    fn check(&mut self, checked: &BTreeMap<ThreadId, (i32, u64)>, footprints: &[Footprint]) {
        let ids: Vec<Uuid> = checked.keys().map(|thread| thread.0).collect();
        let groups: Vec<i32> = checked.values().map(|(group, _)| *group).collect();
        let revs: Vec<i64> = checked.values().map(|(_, rev)| int(*rev)).collect();
        let ids = self.statement.bind(ids, Type::UUID_ARRAY);
        let groups = self.statement.bind(groups, Type::INT4_ARRAY);
        let revs = self.statement.bind(revs, Type::INT8_ARRAY);
        self.parts.push(format!(
            "checked AS (SELECT * FROM unnest({ids}::uuid[], {groups}::int4[], {revs}::int8[]) AS c(id, grp, rev))"
        ));
        self.parts.push(format!(
            "locked AS MATERIALIZED (SELECT t.id, t.rev FROM evenkeel.threads t WHERE t.id = ANY({ids}) \
             ORDER BY t.id FOR NO KEY UPDATE)"
        ));
        let known = self.known(footprints);
        let except =
            if known.is_empty() { String::new() } else { format!(" EXCEPT ({})", known.join(" UNION ALL ")) };
        self.parts.push(format!(
            "ok AS MATERIALIZED (SELECT c.grp FROM checked c LEFT JOIN locked l ON l.id = c.id GROUP BY c.grp \
             HAVING bool_and(coalesce(l.rev, 0) = c.rev){except})"
        ));
    }

    /// Selects of the groups of which something exists that was taken to be missing.
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
        let n = self.parts.len();
        self.part(
            "known_keys",
            keys,
            "tenant, scope, key",
            "SELECT u.grp FROM {u} JOIN evenkeel.idempotency_keys k \
             ON k.tenant = u.tenant AND k.scope = u.scope AND k.key = u.key",
        );
        self.part(
            "known_messages",
            messages,
            "thread, message",
            "SELECT u.grp FROM {u} JOIN evenkeel.accepted_messages m \
             ON m.thread = u.thread AND m.message = u.message",
        );
        self.part(
            "known_runs",
            runs,
            "id",
            "SELECT u.grp FROM {u} WHERE EXISTS (SELECT 1 FROM evenkeel.runs r WHERE r.id = u.id) \
             OR EXISTS (SELECT 1 FROM evenkeel.writers w WHERE w.id = u.id)",
        );
        let names = self.parts.iter().skip(n).filter_map(|part| part.split(' ').next());
        names.map(|name| format!("SELECT grp FROM {name}")).collect()
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
        self.part(
            "new_threads",
            new,
            "id, updated_at, rev, places, busy, newest_run, row, tenant, created_at",
            &format!(
                "INSERT INTO evenkeel.threads (id, tenant, created_at, updated_at, rev, mark, places, busy, \
                 newest_run, row) SELECT u.id, u.tenant, u.created_at, u.updated_at, u.rev, {mark}::uuid, u.places, \
                 u.busy, u.newest_run, u.row FROM {{u}} WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.id"
            ),
        );
        self.part(
            "old_threads",
            old,
            "id, updated_at, rev, places, busy, newest_run, row",
            &format!(
                "UPDATE evenkeel.threads t SET updated_at = u.updated_at, rev = u.rev, mark = {mark}::uuid, \
                 places = u.places, busy = u.busy, newest_run = u.newest_run, row = u.row \
                 FROM {{u}} WHERE t.id = u.id AND u.grp IN (SELECT grp FROM ok)"
            ),
        );
        Ok(())
    }

    fn metadata(&mut self) {
        let mut table = Table::default();
        for (thread, value) in &self.rows.changes.metadata {
            let [json, blob] = body(value);
            table.push(self.group(*thread), vec![id(thread.0), json, blob]);
        }
        self.part(
            "metadata",
            table,
            "thread, body, blob",
            "INSERT INTO evenkeel.thread_metadata (thread, body, blob) SELECT u.thread, u.body, u.blob FROM {u} \
             WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.thread \
             ON CONFLICT (thread) DO UPDATE SET body = excluded.body, blob = excluded.blob",
        );
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
        self.part(
            "new_runs",
            new,
            "id, state, hidden, row, thread, tenant, place, outcome, outcome_blob",
            "INSERT INTO evenkeel.runs (id, thread, tenant, place, state, hidden, row, outcome, outcome_blob) \
             SELECT u.id, u.thread, u.tenant, u.place, u.state, u.hidden, u.row, u.outcome, u.outcome_blob \
             FROM {u} WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.ord",
        );
        self.part(
            "specs",
            specs,
            "run, body, blob",
            "INSERT INTO evenkeel.run_specs (run, body, blob) SELECT u.run, u.body, u.blob FROM {u} \
             WHERE u.grp IN (SELECT grp FROM ok)",
        );
        self.part(
            "old_runs",
            old,
            "id, state, hidden, row",
            "UPDATE evenkeel.runs r SET state = u.state, hidden = u.hidden, row = u.row FROM {u} \
             WHERE r.id = u.id AND u.grp IN (SELECT grp FROM ok)",
        );
        self.part(
            "ended_runs",
            ended,
            "id, state, hidden, row, outcome, outcome_blob",
            "UPDATE evenkeel.runs r SET state = u.state, hidden = u.hidden, row = u.row, outcome = u.outcome, \
             outcome_blob = u.outcome_blob FROM {u} WHERE r.id = u.id AND u.grp IN (SELECT grp FROM ok)",
        );
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
        self.part(
            "new_open",
            new,
            "run, state, ready, not_before, owner, wait_on, wait_route, thread, class, deadline",
            "INSERT INTO evenkeel.open_runs (run, thread, state, ready, not_before, owner, wait_on, wait_route, \
             class, deadline) SELECT u.run, u.thread, u.state, u.ready, u.not_before, u.owner, u.wait_on, \
             u.wait_route, u.class, u.deadline FROM {u} WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.ord",
        );
        self.part(
            "old_open",
            old,
            "run, state, ready, not_before, owner, wait_on, wait_route",
            "UPDATE evenkeel.open_runs o SET state = u.state, ready = u.ready, not_before = u.not_before, \
             owner = u.owner, wait_on = u.wait_on, wait_route = u.wait_route FROM {u} \
             WHERE o.run = u.run AND u.grp IN (SELECT grp FROM ok)",
        );
        self.part(
            "no_longer_open",
            gone,
            "run",
            "DELETE FROM evenkeel.open_runs o USING {u} WHERE o.run = u.run AND u.grp IN (SELECT grp FROM ok)",
        );
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
        self.part(
            "new_events",
            events,
            "thread, seq, run, step, at, body, blob",
            "INSERT INTO evenkeel.events (thread, seq, run, step, at, body, blob) \
             SELECT u.thread, u.seq, u.run, u.step, u.at, u.body, u.blob FROM {u} \
             WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.ord",
        );
        self.part(
            "new_effects",
            effects,
            "run, effect, intended, settled",
            "INSERT INTO evenkeel.effects (run, effect, intended, settled) \
             SELECT u.run, u.effect, u.intended, u.settled FROM {u} WHERE u.grp IN (SELECT grp FROM ok) \
             ORDER BY u.run, u.effect ON CONFLICT (run, effect) DO UPDATE SET \
             intended = excluded.intended, settled = excluded.settled",
        );
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
        self.part(
            "new_keys",
            keys,
            "tenant, scope, key, thread, run, created_at",
            "INSERT INTO evenkeel.idempotency_keys (tenant, scope, key, thread, run, created_at) \
             SELECT u.tenant, u.scope, u.key, u.thread, u.run, u.created_at FROM {u} \
             WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.tenant, u.scope, u.key",
        );
        // A message of a run that was taken over by another stays with the first.
        self.part(
            "new_messages",
            messages,
            "thread, message, run",
            "INSERT INTO evenkeel.accepted_messages (thread, message, run) \
             SELECT u.thread, u.message, u.run FROM {u} WHERE u.grp IN (SELECT grp FROM ok) \
             ORDER BY u.thread, u.message ON CONFLICT DO NOTHING",
        );
        self.part(
            "new_writers",
            writers,
            "id, thread",
            "INSERT INTO evenkeel.writers (id, thread) SELECT u.id, u.thread FROM {u} \
             WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.id",
        );
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
        self.part(
            "new_blobs",
            blobs,
            "id, size, packed, bytes",
            "INSERT INTO evenkeel.blobs (id, size, packed, touches, bytes) \
             SELECT u.id, u.size, u.packed, 0, u.bytes FROM {u} ORDER BY u.id \
             ON CONFLICT (id) DO UPDATE SET touches = blobs.touches + 1",
        );
        self.part(
            "new_blob_names",
            names,
            "blob, thread",
            "INSERT INTO evenkeel.blob_names (blob, thread) SELECT u.blob, u.thread FROM {u} \
             WHERE u.grp IN (SELECT grp FROM ok) ORDER BY u.blob, u.thread ON CONFLICT DO NOTHING",
        );
    }

    /// Threads with everything that hangs on them. A blob goes if only this thread names it in the
    /// view of this statement and nobody has stored it again since: that raises `touches`, which
    /// PostgreSQL looks at once more when it has waited for the row.
    fn deletions(&mut self) {
        let mut table = Table::default();
        for thread in &self.rows.changes.deleted {
            table.push(self.group(*thread), vec![id(thread.0)]);
        }
        if table.is_empty() {
            return;
        }
        self.part("gone", table, "id", "SELECT u.id FROM {u} WHERE u.grp IN (SELECT grp FROM ok)");
        let runs = "SELECT r.id FROM evenkeel.runs r WHERE r.thread IN (SELECT id FROM gone)";
        let parts = [
            "lone AS MATERIALIZED (SELECT b.id, b.touches FROM evenkeel.blobs b WHERE b.id IN (SELECT n.blob FROM \
             evenkeel.blob_names n WHERE n.thread IN (SELECT id FROM gone)) AND NOT EXISTS (SELECT 1 FROM \
             evenkeel.blob_names o WHERE o.blob = b.id AND o.thread NOT IN (SELECT id FROM gone)))"
                .to_owned(),
            "gone_blobs AS (DELETE FROM evenkeel.blobs b USING lone l WHERE b.id = l.id AND b.touches = l.touches)"
                .to_owned(),
            "gone_names AS (DELETE FROM evenkeel.blob_names WHERE thread IN (SELECT id FROM gone))".to_owned(),
            "gone_messages AS (DELETE FROM evenkeel.accepted_messages WHERE thread IN (SELECT id FROM gone))"
                .to_owned(),
            "gone_keys AS (DELETE FROM evenkeel.idempotency_keys k USING evenkeel.threads t, gone g \
             WHERE t.id = g.id AND k.tenant = t.tenant AND k.scope = g.id)"
                .to_owned(),
            "gone_tenant_keys AS (DELETE FROM evenkeel.idempotency_keys WHERE \
             scope = '00000000-0000-0000-0000-000000000000' AND thread IN (SELECT id FROM gone))"
                .to_owned(),
            format!("gone_effects AS (DELETE FROM evenkeel.effects WHERE run IN ({runs}))"),
            format!("gone_specs AS (DELETE FROM evenkeel.run_specs WHERE run IN ({runs}))"),
            "gone_events AS (DELETE FROM evenkeel.events WHERE thread IN (SELECT id FROM gone))".to_owned(),
            "gone_open AS (DELETE FROM evenkeel.open_runs WHERE thread IN (SELECT id FROM gone))".to_owned(),
            "gone_writers AS (DELETE FROM evenkeel.writers WHERE thread IN (SELECT id FROM gone))".to_owned(),
            "gone_runs AS (DELETE FROM evenkeel.runs WHERE thread IN (SELECT id FROM gone))".to_owned(),
            "gone_metadata AS (DELETE FROM evenkeel.thread_metadata WHERE thread IN (SELECT id FROM gone))".to_owned(),
            "gone_threads AS (DELETE FROM evenkeel.threads WHERE id IN (SELECT id FROM gone))".to_owned(),
        ];
        self.parts.extend(parts);
    }

    fn fenced(&mut self, writer: Uuid, n: u64) {
        let writer = self.statement.bind(writer, Type::UUID);
        let n = self.statement.bind(int(n), Type::INT8);
        self.parts.push(format!("fenced_so_far AS ({})", fenced_sql(&writer, &n)));
    }
}

/// Stores how many writes a counter has seen refused.
pub(super) fn fenced_sql(writer: &str, n: &str) -> String {
    format!(
        "INSERT INTO evenkeel.fenced (writer, n) VALUES ({writer}::uuid, {n}::int8) \
         ON CONFLICT (writer) DO UPDATE SET n = excluded.n"
    )
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
