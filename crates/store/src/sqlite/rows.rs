//! Rows in SQLite: one statement for each method, prepared once per connection.

use evenkeel_core::Wall;
use evenkeel_core::id::{BlobId, EffectId, IdempotencyKey, MessageId, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::store::{ApiKey, Effect, Held, ListRuns, ListThreads};
use evenkeel_core::run::{BusyPolicy, Outcome, RunSpec, RunState, WaitReason};
use evenkeel_core::thread::Thread;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use serde_json::Value;

use super::body::{self, int, uint};
use super::columns::{self, optional_id, uuid_at};
use super::fault::faulty;
use super::threads;
use crate::record::{EffectRow, RunRow, ThreadRow};
use crate::rows::{self, EffectSide, Entry, Fault, Rowed, Rows};

/// Rows through one connection, inside whatever transaction is open on it.
pub(super) struct SqliteRows<'c> {
    conn: &'c Connection,
}

/// The columns that [`columns::thread`] reads.
macro_rules! select_thread {
    ($rest:literal) => {
        concat!(
            "SELECT n, id, tenant, created_at, updated_at, version, epoch, seq_last, context_from, active, ",
            "n_waiting, newest_run, busy_policy, context_at, asks FROM threads ",
            $rest
        )
    };
}

macro_rules! select_run {
    ($rest:literal) => {
        concat!(
            "SELECT r.n, r.id, r.thread, t.id, r.tenant, r.state, r.ready, r.wait_on, r.wait_reason, ",
            "r.wait_since, r.wait_until, r.wait_route, r.step, r.attempt, r.owner, r.version, r.key, ",
            "r.body_hash, r.class, r.busy_policy, r.deadline, r.created_at, r.updated_at, r.tokens_in, ",
            "r.tokens_cached, r.tokens_out, r.estimated, r.not_before, r.stop, r.base_seq, r.base_context, ",
            "r.wait_approvals ",
            "FROM runs r JOIN threads t ON t.n = r.thread ",
            $rest
        )
    };
}

impl<'c> SqliteRows<'c> {
    pub(super) fn new(conn: &'c Connection) -> Self {
        Self { conn }
    }

    fn run_sql(&self, sql: &str, params: impl Params) -> Rowed<usize> {
        self.conn.prepare_cached(sql).map_err(faulty)?.execute(params).map_err(faulty)
    }

    /// Runs a statement that must change exactly one row.
    fn change_one(&self, sql: &str, params: impl Params) -> Rowed<()> {
        match self.run_sql(sql, params)? {
            1 => Ok(()),
            n => Err(Fault::Corrupt(format!("a statement changed {n} rows where there must be one"))),
        }
    }

    /// Inserts a row and returns its key.
    fn insert(&self, sql: &str, params: impl Params) -> Rowed<u64> {
        self.change_one(sql, params)?;
        Ok(uint(self.conn.last_insert_rowid()))
    }

    fn first<T>(
        &self,
        sql: &str,
        params: impl Params,
        map: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Rowed<Option<T>> {
        let mut select = self.conn.prepare_cached(sql).map_err(faulty)?;
        select.query_row(params, map).optional().map_err(faulty)
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut map: impl FnMut(&Row<'_>) -> Rowed<T>,
    ) -> Rowed<Vec<T>> {
        let mut select = self.conn.prepare_cached(sql).map_err(faulty)?;
        let mut rows = select.query(params).map_err(faulty)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(faulty)? {
            found.push(map(row)?);
        }
        Ok(found)
    }

    fn keys(&self, sql: &str, params: impl Params) -> Rowed<Vec<u64>> {
        self.all(sql, params, |row| row.get(0).map(uint).map_err(faulty))
    }

    fn exists(&self, sql: &str, params: impl Params) -> Rowed<bool> {
        self.conn.prepare_cached(sql).map_err(faulty)?.exists(params).map_err(faulty)
    }

    /// The body in the only column of the only row; `None` without a row.
    fn body<T: serde::de::DeserializeOwned>(&self, sql: &str, n: u64) -> Rowed<Option<T>> {
        let found = self.all(sql, params![int(n)], |row| body::read(self.conn, row, 0))?;
        Ok(found.into_iter().next())
    }
}

fn missing(what: &str, n: u64) -> Fault {
    Fault::Corrupt(format!("{what} {n} is missing"))
}

impl Rows for SqliteRows<'_> {
    fn thread(&mut self, tenant: &TenantId, id: ThreadId) -> Rowed<Option<ThreadRow>> {
        let sql = select_thread!("WHERE id = ?1 AND tenant = ?2");
        self.first(sql, params![id.0.as_bytes(), tenant.as_str()], columns::thread)
    }

    fn thread_of(&mut self, n: u64) -> Rowed<ThreadRow> {
        let found = self.first(select_thread!("WHERE n = ?1"), params![int(n)], columns::thread)?;
        found.ok_or_else(|| missing("thread", n))
    }

    fn thread_id_taken(&mut self, id: ThreadId) -> Rowed<bool> {
        self.exists("SELECT 1 FROM threads WHERE id = ?1", params![id.0.as_bytes()])
    }

    fn insert_thread(&mut self, row: &ThreadRow, metadata: &Value) -> Rowed<u64> {
        let metadata = body::write(self.conn, metadata)?;
        let n = self.insert(
            "INSERT INTO threads (id, tenant, metadata, created_at, updated_at, version, epoch, seq_last,
             context_from, active, n_waiting, newest_run, busy_policy, context_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
            params![
                row.id.0.as_bytes(),
                row.tenant.as_str(),
                metadata,
                int(row.created_at.0),
                int(row.updated_at.0),
                int(row.version),
                int(row.epoch),
                int(row.seq_last),
                int(row.context_from),
                optional_id(row.active.map(|run| run.0)),
                row.n_waiting,
                optional_id(row.newest_run.map(|run| run.0)),
                row.busy_policy.map(columns::policy_word),
                int(row.context_at),
            ],
        )?;
        body::name_moved(self.conn, n, &metadata)?;
        Ok(n)
    }

    fn save_thread(&mut self, row: &ThreadRow) -> Rowed<()> {
        self.change_one(
            "UPDATE threads SET updated_at = ?2, version = ?3, epoch = ?4, seq_last = ?5, context_from = ?6,
             active = ?7, n_waiting = ?8, newest_run = ?9, busy_policy = ?10, context_at = ?11,
             asks = ?12 WHERE n = ?1",
            params![
                int(row.n),
                int(row.updated_at.0),
                int(row.version),
                int(row.epoch),
                int(row.seq_last),
                int(row.context_from),
                optional_id(row.active.map(|run| run.0)),
                row.n_waiting,
                optional_id(row.newest_run.map(|run| run.0)),
                row.busy_policy.map(columns::policy_word),
                int(row.context_at),
                row.asks,
            ],
        )
    }

    fn metadata(&mut self, thread_n: u64) -> Rowed<Value> {
        let found = self.body("SELECT metadata FROM threads WHERE n = ?1", thread_n)?;
        found.ok_or_else(|| missing("thread", thread_n))
    }

    fn save_metadata(&mut self, thread_n: u64, metadata: &Value) -> Rowed<()> {
        let metadata = body::write(self.conn, metadata)?;
        body::name_moved(self.conn, thread_n, &metadata)?;
        self.change_one("UPDATE threads SET metadata = ?2 WHERE n = ?1", params![int(thread_n), metadata])
    }

    fn list_threads(&mut self, list: &ListThreads) -> Rowed<Vec<Thread>> {
        threads::list(self.conn, list)
    }

    fn count_threads(&mut self, list: &ListThreads) -> Rowed<u64> {
        threads::count(self.conn, list)
    }

    fn delete_thread(&mut self, thread: &ThreadRow) -> Rowed<()> {
        threads::delete(self.conn, thread)
    }

    fn run(&mut self, tenant: &TenantId, id: RunId) -> Rowed<Option<RunRow>> {
        let sql = select_run!("WHERE r.id = ?1 AND r.tenant = ?2 AND r.hidden = 0");
        self.first(sql, params![id.0.as_bytes(), tenant.as_str()], columns::run)
    }

    fn run_of(&mut self, n: u64) -> Rowed<RunRow> {
        let found = self.first(select_run!("WHERE r.n = ?1"), params![int(n)], columns::run)?;
        found.ok_or_else(|| missing("run", n))
    }

    fn run_id_taken(&mut self, id: RunId) -> Rowed<bool> {
        self.exists("SELECT 1 FROM runs WHERE id = ?1", params![id.0.as_bytes()])
    }

    fn insert_run(&mut self, row: &RunRow, spec: &RunSpec) -> Rowed<u64> {
        let n = self.insert(
            "INSERT INTO runs (id, thread, tenant, state, ready, step, attempt, key, body_hash, class,
             busy_policy, deadline, created_at, updated_at, not_before, tokens_in, tokens_cached, tokens_out,
             estimated)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, 0, 0, 0, 0)",
            params![
                row.id.0.as_bytes(),
                int(row.thread_n),
                row.tenant.as_str(),
                row.state.as_str(),
                row.ready,
                row.step,
                row.attempt,
                row.key.as_ref().map(IdempotencyKey::as_str),
                row.body_hash,
                columns::class_rank(row.class),
                columns::policy_word(row.busy_policy),
                int(row.deadline.0),
                int(row.created_at.0),
                int(row.updated_at.0),
                row.not_before.map(|at| int(at.0)),
            ],
        )?;
        let spec = body::write(self.conn, spec)?;
        body::name_moved(self.conn, row.thread_n, &spec)?;
        self.change_one("INSERT INTO run_specs (run, spec) VALUES (?1, ?2)", params![int(n), spec])?;
        Ok(n)
    }

    fn save_run(&mut self, row: &RunRow) -> Rowed<()> {
        let wait = row.wait.as_ref();
        self.change_one(
            "UPDATE runs SET state = ?2, ready = ?3, wait_on = ?4, wait_reason = ?5, wait_since = ?6,
             wait_until = ?7, wait_route = ?8, step = ?9, attempt = ?10, owner = ?11, version = ?12,
             updated_at = ?13, tokens_in = ?14, tokens_cached = ?15, tokens_out = ?16, estimated = ?17,
             not_before = ?18, stop = ?19, base_seq = ?20, base_context = ?21, wait_approvals = ?22 WHERE n = ?1",
            params![
                int(row.n),
                row.state.as_str(),
                row.ready,
                wait.map(|wait| columns::wait_word(wait.on)),
                wait.map(|wait| wait.reason.as_str()),
                wait.map(|wait| int(wait.since.0)),
                wait.and_then(|wait| wait.until_hint).map(|at| int(at.0)),
                wait.and_then(|wait| wait.route.as_deref()),
                row.step,
                row.attempt,
                optional_id(row.owner.map(|owner| owner.0)),
                row.version.map(int),
                int(row.updated_at.0),
                int(row.usage.input_tokens),
                int(row.usage.cached_input_tokens),
                int(row.usage.output_tokens),
                row.usage.estimated,
                row.not_before.map(|at| int(at.0)),
                columns::stop_json(row.stop),
                row.base.map(|base| int(base.seq)),
                row.base.map(|base| int(base.context_from)),
                wait.and_then(columns::approvals_json),
            ],
        )
    }

    fn save_progress(&mut self, row: &RunRow) -> Rowed<()> {
        self.change_one(
            "UPDATE runs SET step = ?2, updated_at = ?3, tokens_in = ?4, tokens_cached = ?5, tokens_out = ?6,
             estimated = ?7 WHERE n = ?1",
            params![
                int(row.n),
                row.step,
                int(row.updated_at.0),
                int(row.usage.input_tokens),
                int(row.usage.cached_input_tokens),
                int(row.usage.output_tokens),
                row.usage.estimated,
            ],
        )
    }

    fn spec(&mut self, run_n: u64) -> Rowed<RunSpec> {
        let found = self.body("SELECT spec FROM run_specs WHERE run = ?1", run_n)?;
        found.ok_or_else(|| missing("spec of run", run_n))
    }

    fn outcome(&mut self, run_n: u64) -> Rowed<Option<Outcome>> {
        self.body("SELECT outcome FROM run_outcomes WHERE run = ?1", run_n)
    }

    fn save_outcome(&mut self, run_n: u64, outcome: &Outcome) -> Rowed<()> {
        let outcome = body::write(self.conn, outcome)?;
        if matches!(outcome, body::Body::Moved(_)) {
            let sql = "SELECT thread FROM runs WHERE n = ?1";
            let thread_n = self.first(sql, params![int(run_n)], |row| row.get(0).map(uint))?;
            body::name_moved(self.conn, thread_n.ok_or_else(|| missing("run", run_n))?, &outcome)?;
        }
        self.change_one(
            "INSERT INTO run_outcomes (run, outcome) VALUES (?1, ?2)",
            params![int(run_n), outcome],
        )
    }

    fn hide_run(&mut self, run_n: u64) -> Rowed<()> {
        self.change_one("UPDATE runs SET hidden = 1 WHERE n = ?1", params![int(run_n)])
    }

    fn insert_writer(&mut self, thread: &ThreadRow, writer: RunId) -> Rowed<u64> {
        self.insert(
            "INSERT INTO runs (id, thread, tenant, state, ready, step, attempt, body_hash, class, busy_policy,
             deadline, created_at, updated_at, tokens_in, tokens_cached, tokens_out, estimated, hidden)
             VALUES (?1, ?2, ?3, 'completed', 0, 0, 0, '', 0, 'enqueue', 0, ?4, ?4, 0, 0, 0, 0, 1)",
            params![
                writer.0.as_bytes(),
                int(thread.n),
                thread.tenant.as_str(),
                int(thread.updated_at.0)
            ],
        )
    }

    fn queued(&mut self, thread_n: u64, limit: u32) -> Rowed<Vec<RunRow>> {
        let sql = select_run!("WHERE r.thread = ?1 AND r.state = 'queued' ORDER BY r.n LIMIT ?2");
        self.all(sql, params![int(thread_n), limit], |row| columns::run(row).map_err(faulty))
    }

    fn has_queued(&mut self, thread_n: u64, policy: BusyPolicy) -> Rowed<bool> {
        self.exists(
            "SELECT 1 FROM runs WHERE thread = ?1 AND state = 'queued' AND busy_policy = ?2",
            params![int(thread_n), columns::policy_word(policy)],
        )
    }

    fn n_queued_before(&mut self, thread_n: u64, run_n: u64) -> Rowed<u32> {
        let sql = "SELECT count(*) FROM runs WHERE thread = ?1 AND state = 'queued' AND n < ?2";
        let count = self.first(sql, params![int(thread_n), int(run_n)], |row| row.get(0))?;
        Ok(count.unwrap_or(0))
    }

    fn ready(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>> {
        self.keys(
            "SELECT n FROM runs WHERE ready = 1 AND (not_before IS NULL OR not_before <= ?1)
             ORDER BY n LIMIT ?2",
            params![int(now.0), limit],
        )
    }

    fn parked(&mut self, now: Wall, on: WaitReason, route: Option<&str>, limit: u32) -> Rowed<Vec<u64>> {
        let on = columns::wait_word(on);
        match route {
            Some(route) => self.keys(
                "SELECT n FROM runs WHERE state = 'waiting' AND wait_on = ?1 AND wait_route = ?2
                 AND coalesce(not_before, ?4) <= ?4 ORDER BY class, deadline, n LIMIT ?3",
                params![on, route, limit, int(now.0)],
            ),
            None => self.keys(
                "SELECT n FROM runs WHERE state = 'waiting' AND wait_on = ?1
                 AND coalesce(not_before, ?3) <= ?3 ORDER BY class, deadline, n LIMIT ?2",
                params![on, limit, int(now.0)],
            ),
        }
    }

    fn owners(&mut self) -> Rowed<Vec<ReplicaId>> {
        let sql = "SELECT DISTINCT owner FROM runs WHERE owner IS NOT NULL ORDER BY owner";
        self.all(sql, [], |row| uuid_at(row, 0).map(ReplicaId).map_err(faulty))
    }

    fn owned(&mut self, owner: ReplicaId, state: RunState, limit: u32) -> Rowed<Vec<u64>> {
        self.keys(
            "SELECT n FROM runs WHERE owner = ?1 AND state = ?2 ORDER BY n LIMIT ?3",
            params![owner.0.as_bytes(), state.as_str(), limit],
        )
    }

    fn held(&mut self, owner: ReplicaId) -> Rowed<Vec<Held>> {
        let sql = "SELECT r.tenant, r.id, t.id FROM runs r JOIN threads t ON t.n = r.thread \
                   WHERE r.owner = ?1 ORDER BY r.n";
        self.all(sql, params![owner.0.as_bytes()], |row| {
            Ok(Held {
                tenant: TenantId(row.get(0).map_err(faulty)?),
                run: RunId(uuid_at(row, 1).map_err(faulty)?),
                thread: ThreadId(uuid_at(row, 2).map_err(faulty)?),
            })
        })
    }

    fn overdue(&mut self, now: Wall, limit: u32) -> Rowed<Vec<u64>> {
        self.keys(
            "SELECT n FROM runs WHERE state IN ('queued', 'waiting') AND deadline <= ?1
             ORDER BY deadline, n LIMIT ?2",
            params![int(now.0), limit],
        )
    }

    fn list_runs(&mut self, list: &ListRuns) -> Rowed<Vec<RunRow>> {
        let mut sql = select_run!("WHERE r.hidden = 0").to_owned();
        if list.tenant.is_some() {
            sql.push_str(" AND r.tenant = ?1");
        }
        if list.thread.is_some() {
            sql.push_str(" AND t.id = ?2");
        }
        if !list.states.is_empty() {
            let words: Vec<String> =
                list.states.iter().map(|state| format!("'{}'", state.as_str())).collect();
            sql.push_str(&format!(" AND r.state IN ({})", words.join(", ")));
        }
        sql.push_str(" AND ?1 IS ?1 AND ?2 IS ?2 ORDER BY r.n DESC LIMIT ?3 OFFSET ?4");
        let params = params![
            list.tenant.as_ref().map(TenantId::as_str),
            optional_id(list.thread.map(|thread| thread.0)),
            list.limit,
            list.offset
        ];
        self.all(&sql, params, |row| columns::run(row).map_err(faulty))
    }

    fn n_by_state(&mut self) -> Rowed<Vec<(RunState, u64)>> {
        self.all("SELECT state, count(*) FROM runs WHERE hidden = 0 GROUP BY state", [], |row| {
            Ok((columns::state_at(row, 0).map_err(faulty)?, uint(row.get(1).map_err(faulty)?)))
        })
    }

    fn n_parked_by_route(&mut self) -> Rowed<Vec<(String, u64)>> {
        let sql = "SELECT coalesce(wait_route, '') AS route, count(*) FROM runs
                   WHERE state = 'waiting' AND wait_on = 'model' GROUP BY route ORDER BY route";
        self.all(sql, [], |row| Ok((row.get(0).map_err(faulty)?, uint(row.get(1).map_err(faulty)?))))
    }

    fn append(&mut self, entry: &Entry<'_>) -> Rowed<()> {
        let body = body::write(self.conn, entry.body)?;
        body::name_moved(self.conn, entry.thread_n, &body)?;
        if let Some(hash) = rows::named_blob(entry.body).and_then(body::hash_of) {
            body::name_blob(self.conn, entry.thread_n, &hash)?;
        }
        self.change_one(
            "INSERT INTO events (thread, seq, run, step, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![int(entry.thread_n), int(entry.seq), int(entry.run_n), entry.step, int(entry.at.0), body],
        )
    }

    fn events(&mut self, thread_n: u64, after_seq: u64, limit: u32) -> Rowed<Vec<Event>> {
        let sql = "SELECT t.id, e.seq, r.id, e.step, e.at, e.body FROM events e
                   JOIN threads t ON t.n = e.thread JOIN runs r ON r.n = e.run
                   WHERE e.thread = ?1 AND e.seq > ?2 ORDER BY e.seq LIMIT ?3";
        self.all(sql, params![int(thread_n), int(after_seq), limit], |row| {
            Ok(Event {
                thread: ThreadId(uuid_at(row, 0).map_err(faulty)?),
                seq: uint(row.get(1).map_err(faulty)?),
                run: RunId(uuid_at(row, 2).map_err(faulty)?),
                step: row.get(3).map_err(faulty)?,
                at: Wall(uint(row.get(4).map_err(faulty)?)),
                body: body::read(self.conn, row, 5)?,
            })
        })
    }

    fn effect(&mut self, run_n: u64, effect: &EffectId) -> Rowed<EffectRow> {
        let sql =
            "SELECT intended IS NOT NULL, settled IS NOT NULL FROM effects WHERE run = ?1 AND effect = ?2";
        let found = self.first(sql, params![int(run_n), effect.as_str()], |row| {
            Ok(EffectRow { intended: row.get(0)?, settled: row.get(1)? })
        })?;
        Ok(found.unwrap_or_default())
    }

    fn mark_effect(&mut self, entry: &Entry<'_>, effect: &EffectId, side: EffectSide) -> Rowed<()> {
        let sql = match side {
            EffectSide::Intended => "INSERT INTO effects (run, effect, intended) VALUES (?1, ?2, ?3)",
            EffectSide::Settled => {
                "INSERT INTO effects (run, effect, settled) VALUES (?1, ?2, ?3)
                 ON CONFLICT (run, effect) DO UPDATE SET settled = excluded.settled"
            }
        };
        self.change_one(sql, params![int(entry.run_n), effect.as_str(), int(entry.seq)])
    }

    fn effects(&mut self, run: &RunRow) -> Rowed<Vec<Effect>> {
        let sql = "SELECT i.step, i.body, s.body FROM effects f
                   JOIN events i ON i.thread = ?1 AND i.seq = f.intended
                   LEFT JOIN events s ON s.thread = ?1 AND s.seq = f.settled
                   WHERE f.run = ?2 ORDER BY f.intended";
        self.all(sql, params![int(run.thread_n), int(run.n)], |row| {
            let EventBody::EffectIntended(intent) = body::read(self.conn, row, 1)? else {
                return Err(Fault::Corrupt("an effect does not point to its intent".to_owned()));
            };
            let settled = !matches!(row.get_ref(2).map_err(faulty)?, rusqlite::types::ValueRef::Null);
            let result = match settled.then(|| body::read(self.conn, row, 2)).transpose()? {
                Some(EventBody::EffectSettled(result)) => Some(result),
                Some(_) => return Err(Fault::Corrupt("an effect does not point to its result".to_owned())),
                None => None,
            };
            Ok(Effect { step: row.get(0).map_err(faulty)?, intent, result })
        })
    }

    fn key_run(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
    ) -> Rowed<Option<u64>> {
        let sql = "SELECT run FROM idempotency_keys WHERE tenant = ?1 AND scope = ?2 AND key = ?3";
        let params = params![tenant.as_str(), columns::scope(scope), key.as_str()];
        self.first(sql, params, |row| row.get(0).map(uint))
    }

    fn insert_key(
        &mut self,
        tenant: &TenantId,
        scope: Option<ThreadId>,
        key: &IdempotencyKey,
        run: &RunRow,
    ) -> Rowed<()> {
        self.change_one(
            "INSERT INTO idempotency_keys (tenant, scope, key, run, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![tenant.as_str(), columns::scope(scope), key.as_str(), int(run.n), int(run.created_at.0)],
        )
    }

    fn message_run(&mut self, thread_n: u64, message: &MessageId) -> Rowed<Option<u64>> {
        let sql = "SELECT run FROM accepted_messages WHERE thread = ?1 AND message = ?2";
        self.first(sql, params![int(thread_n), message.as_str()], |row| row.get(0).map(uint))
    }

    fn insert_message(&mut self, thread_n: u64, message: &MessageId, run_n: u64) -> Rowed<()> {
        // A request may name one message twice; the first stands.
        self.run_sql(
            "INSERT OR IGNORE INTO accepted_messages (thread, message, run) VALUES (?1, ?2, ?3)",
            params![int(thread_n), message.as_str(), int(run_n)],
        )?;
        Ok(())
    }

    fn put_blob(&mut self, bytes: &[u8]) -> Rowed<BlobId> {
        let hash = body::put_blob(self.conn, bytes)?;
        Ok(BlobId(blake3::Hash::from_bytes(hash).to_hex().to_string()))
    }

    fn blob(&mut self, blob: &BlobId) -> Rowed<Option<Vec<u8>>> {
        body::hash_of(blob).map_or(Ok(None), |hash| body::blob(self.conn, &hash))
    }

    fn put_api_key(&mut self, key: &ApiKey) -> Rowed<()> {
        self.change_one(
            "INSERT OR REPLACE INTO api_keys (hash, tenant, name, calls_per_min, expires_at, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                key.hash,
                key.tenant.as_str(),
                key.name,
                key.calls_per_min,
                key.expires_at.map(|at| int(at.0)),
                int(key.created_at.0)
            ],
        )
    }

    fn api_key(&mut self, hash: &str) -> Rowed<Option<ApiKey>> {
        let sql =
            "SELECT hash, tenant, name, calls_per_min, expires_at, created_at FROM api_keys WHERE hash = ?1";
        self.first(sql, params![hash], columns::api_key)
    }

    fn api_keys(&mut self) -> Rowed<Vec<ApiKey>> {
        let sql =
            "SELECT hash, tenant, name, calls_per_min, expires_at, created_at FROM api_keys ORDER BY hash";
        self.all(sql, [], |row| columns::api_key(row).map_err(faulty))
    }

    fn remove_api_key(&mut self, hash: &str) -> Rowed<bool> {
        Ok(self.run_sql("DELETE FROM api_keys WHERE hash = ?1", params![hash])? == 1)
    }
}
