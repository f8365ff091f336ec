//! The PostgreSQL engine: for several replicas on several machines.
//!
//! # How it works
//! Writes are optimistic. A batch of operations is decided here, by the same code as in every engine,
//! on rows that were loaded before; then all its changes go out as one statement that checks that
//! nobody else has written in between (`threads.rev`), and writes only what passes. So a lock is
//! never held across a round trip, and what a replica wrote last it need not read again: a step is
//! one round trip, a turn on an owned thread two.
//!
//! A thread belongs to one *lane* of a replica: a connection with a queue (`lane`). Reads, looks at
//! the queues (`scan`) and leases (`leases`) go through a few more connections beside them (`pool`).
//! The number of connections is fixed; everything else waits in bounded queues.
//!
//! | module | holds |
//! |---|---|
//! | `connect`, `tls`, `fault` | where the database is, what its errors mean |
//! | `facts`, `rows` | what is known, and the row interface over it |
//! | `prefetch`, `load` | what to read, and reading it together |
//! | `gather` | how much goes out together |
//! | `write`, `settle` | the one statement of a batch; what became of it when the answer was lost |
//! | `cache` | what this replica wrote last |
//! | `local` | a server of one's own, for tests and the lab |
//!
//! # What must hold
//! - Everything that hangs on a thread is changed together with the thread's `rev`.
//! - No statement has a name, no setting, listener or lock outlives its transaction: any connection
//!   of a pooler in transaction mode can carry each of them.
//! - Correctness rests on `rev`, epoch and version alone. Leases decide only how soon somebody else
//!   takes over, and they are judged by the database's clock.

mod cache;
mod changes;
mod connect;
mod facts;
mod fault;
mod gather;
mod lane;
mod leases;
mod load;
pub mod local;
mod migrate;
mod names;
mod pool;
mod prefetch;
mod readers;
mod rows;
mod scan;
mod settle;
mod statement;
mod stats;
mod threads;
mod tls;
mod write;

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::ThreadId;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{ApiKey, Beat, Heartbeat, Op, PutBlob, Reply, Store};
use evenkeel_core::{Error, Generator, Mono};
use evenkeel_env::{Env, Task};
use futures_util::future::try_join_all;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;
use uuid::Uuid;

pub use leases::LeaseClock;
pub use stats::PostgresStats;

use crate::Guards;
use crate::decide::{self, Context, Now};
use crate::packed::{self, int};
use crate::record::Replicas;
use crate::rows::Fault;
use cache::Cache;
use connect::{Lines, Target};
use facts::{Facts, Needs};
use fault::Trouble;
use gather::Gather;
use lane::{Job, Lane, Progress};
use pool::Pool;
use rows::PgRows;
use statement::{Statement, get, uint_at};
use stats::Recorder;

/// Settings of the engine; the defaults fit a replica with some hundred concurrent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresOptions {
    /// Connections that this replica opens at most; at least 2.
    pub connections_max: usize,
    /// Operations that may wait or be under way; further callers wait for a place.
    pub queue_max: usize,
    /// Operations in one statement.
    pub batch_max: usize,
    /// How far apart the statements of a connection are, if something comes meanwhile that they carry.
    pub gather: Duration,
    /// Threads of which the last write is kept in memory.
    pub cache_threads: usize,
    /// How long an operation is tried while the database is away.
    pub patience: Duration,
    /// How long the start waits for the database.
    pub start_patience: Duration,
    /// How long a connection may take to open.
    pub connect_max: Duration,
    /// How long one answer may take.
    pub answer_max: Duration,
    /// Whose clock judges leases.
    pub lease_clock: LeaseClock,
    /// Which checks are on: all, except to compare with a plain design.
    pub guards: Guards,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            connections_max: 10,
            queue_max: 4096,
            batch_max: 128,
            gather: Duration::from_millis(20),
            cache_threads: 20_000,
            patience: Duration::from_secs(15),
            start_patience: Duration::from_secs(30),
            connect_max: Duration::from_secs(3),
            answer_max: Duration::from_secs(5),
            lease_clock: LeaseClock::Database,
            guards: Guards::ALL,
        }
    }
}

/// Connections that write. Few, so that one statement carries much: a good part of its cost is its own.
const LANES_MAX: usize = 2;

/// Connections that only answer reads by key.
const READERS_MAX: usize = 2;

/// The PostgreSQL engine.
pub struct PostgresStore {
    env: Env,
    options: PostgresOptions,
    lines: Arc<Lines>,
    pool: Pool,
    /// A connection for heartbeats alone, if there are enough: a replica that is busy must not lose
    /// its lease because its heartbeat waits behind reads, for then everything it runs begins anew
    /// elsewhere and all are busier still.
    beats: Option<Pool>,
    lanes: Vec<mpsc::UnboundedSender<Job>>,
    /// Empty when there are too few connections for readers of their own.
    readers: Vec<mpsc::Sender<readers::Read>>,
    writers: Vec<Uuid>,
    places: Arc<Semaphore>,
    recorder: Arc<Recorder>,
    generator: Generator,
    tasks: Vec<Task>,
}

impl PostgresStore {
    /// Looks whether a URL can be used, without connecting.
    ///
    /// # Errors
    /// `config-invalid`, or `store-tls` if a file that it names cannot be used. The URL is in neither.
    pub fn check_url(url: &str) -> Result<(), Error> {
        Target::parse(url).map(drop)
    }

    /// Opens the store at a URL and brings the schema to this version.
    ///
    /// Waits for a database that is away, as long as the options say; what somebody has to mend
    /// first is told at once.
    ///
    /// # Errors
    /// `config-invalid` for the URL; `store-login`, `store-database-missing`, `store-too-old`,
    /// `store-newer`, `store-read-only`, `store-tls`; `store-unavailable` if the database did not
    /// answer in time. The password is in none of them.
    pub async fn open(env: &Env, url: &str, options: PostgresOptions) -> Result<Arc<Self>, Error> {
        let target = Target::parse(url)?;
        let env = env.part("store");
        let lines = Lines::new(env.clone(), target, options.connect_max, options.answer_max);
        let n_lanes = (options.connections_max / 2).clamp(1, LANES_MAX);
        let n_left = options.connections_max.saturating_sub(n_lanes).max(1);
        let n_readers = (n_left / 2).min(READERS_MAX);
        let has_beats = n_left - n_readers > 1;
        let n_pool = n_left - n_readers - usize::from(has_beats);
        let recorder = Arc::new(Recorder::default());
        let mut store = Self {
            generator: env.generator.clone(),
            pool: Pool::new(lines.clone(), n_pool),
            beats: has_beats.then(|| Pool::new(lines.clone(), 1)),
            lanes: Vec::new(),
            readers: Vec::new(),
            writers: Vec::new(),
            places: Arc::new(Semaphore::new(options.queue_max.clamp(1, Semaphore::MAX_PERMITS))),
            recorder,
            tasks: Vec::new(),
            env,
            options,
            lines,
        };
        store.prepare().await?;
        for idx in 0..n_lanes {
            store.start_lane(idx, n_lanes);
        }
        for _ in 0..n_readers {
            store.start_reader();
        }
        Ok(Arc::new(store))
    }

    /// Waits for the database and makes the schema.
    async fn prepare(&self) -> Result<(), Error> {
        let until = Instant::now() + self.options.start_patience;
        let mut n_tries = 0;
        loop {
            let mut lent = self.pool.lend().await.ok_or_else(closed)?;
            let trouble = match migrate::run(lent.line(), self.lines.target.whom()).await {
                Ok(()) => return Ok(()),
                Err(Trouble::Refused(error)) => return Err(*error),
                Err(Trouble::Broken(Fault::Misused(what))) => {
                    return Err(unprepared(self.lines.target.whom(), &what));
                }
                Err(trouble) => trouble,
            };
            if Instant::now() >= until {
                return Err(trouble.into_error(false));
            }
            tracing::warn!(?trouble, database = self.lines.target.whom(), "waiting for the database");
            n_tries += 1;
            sleep(self.pause(n_tries)).await;
        }
    }

    fn start_lane(&mut self, idx: usize, n_lanes: usize) {
        // Marks must differ between two processes that were given one seed.
        let mut bytes = [0u8; 16];
        evenkeel_env::clock::os_random(&mut bytes);
        let writer = Uuid::from_bytes(bytes);
        let lane = Lane {
            line: connect::Line::new(self.lines.clone()),
            cache: Cache::new(self.options.cache_threads / n_lanes),
            recorder: self.recorder.clone(),
            generator: self.generator.part(&format!("lane-{idx}")),
            batch_max: self.options.batch_max.max(1),
            gather: Gather::new(self.options.gather),
            guards: self.options.guards,
            writer,
            n_batches: 0,
            n_fenced: 0,
            n_fenced_stored: 0,
        };
        let (sender, queue) = mpsc::unbounded_channel();
        self.lanes.push(sender);
        self.writers.push(writer);
        self.tasks.push(self.env.spawner.spawn("store-lane", Box::pin(lane.run(queue))));
    }

    fn start_reader(&mut self) {
        let (sender, queue) = mpsc::channel(self.options.queue_max.max(1));
        self.readers.push(sender);
        let reader = readers::run(self.lines.clone(), Gather::new(self.options.gather / 2), queue);
        self.tasks.push(self.env.spawner.spawn("store-reader", Box::pin(reader)));
    }

    /// Figures for gauges.
    #[must_use]
    pub fn stats(&self) -> PostgresStats {
        self.recorder.read(self.lines.n_open(), self.options.connections_max.max(2))
    }

    fn pause(&self, n_tries: u32) -> Duration {
        let full = Duration::from_millis(25).saturating_mul(2_u32.saturating_pow(n_tries.min(6)));
        full.min(Duration::from_secs(1)).mul_f64(0.5 + 0.5 * self.generator.unit())
    }

    fn now(&self) -> Now {
        Now { wall: self.env.wall(), mono: self.env.mono() }
    }

    async fn carry_out(&self, op: Op) -> Result<Reply, Error> {
        let until = Instant::now() + self.options.patience;
        match op {
            op if readers::takes(&op) => match self.read_together(&op).await {
                Some(reply) => Ok(reply),
                None => self.read(&op, until).await,
            },
            op if op.is_read() => self.read(&op, until).await,
            Op::ClaimReady(_) | Op::Wake(_) | Op::Steal(_) | Op::Expire(_) => self.scan(op, until).await,
            Op::Heartbeat(beat) => self.heartbeat(&beat, until).await.map(Reply::Heartbeat),
            Op::Leave(replica) => {
                self.ask(until, &|| vec![leases::leave(replica)]).await?;
                Ok(Reply::Leave(()))
            }
            Op::PutBlob(blob) => self.put_blob(&blob, until).await,
            Op::PutKey(key) => self.put_key(&key, until).await,
            Op::RemoveKey(hash) => self.remove_key(&hash, until).await,
            Op::Cancel(of) => {
                let thread = self.thread_of_run(of.run.0, until).await?;
                self.write(Op::Cancel(of), thread, Vec::new(), None, until).await
            }
            Op::Answer(of) => {
                let thread = self.thread_of_run(of.run.0, until).await?;
                self.write(Op::Answer(of), thread, Vec::new(), None, until).await
            }
            Op::DeleteRun(of) => {
                let thread = self.thread_of_run(of.run.0, until).await?;
                self.write(Op::DeleteRun(of), thread, Vec::new(), None, until).await
            }
            op => {
                let thread = prefetch::thread_of(&op);
                self.write(op, thread, Vec::new(), None, until).await
            }
        }
    }

    /// Hands an operation to the lane of its thread and waits for the reply.
    async fn write(
        &self,
        op: Op,
        thread: Option<ThreadId>,
        candidates: Vec<(evenkeel_core::id::RunId, ThreadId)>,
        leases: Option<(Replicas, Mono)>,
        until: Instant,
    ) -> Result<Reply, Error> {
        let place = timeout_at(until, self.places.clone().acquire_owned()).await;
        let place = place.map_err(|_| full())?.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let now = self.now();
        let (replicas, mono) = leases.unwrap_or((Replicas::default(), now.mono));
        let now = Now { mono, ..now };
        let progress = Progress::default();
        let job = Job { op, now, candidates, replicas, until, reply, progress, _place: place };
        self.lane(thread).send(job).map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    fn lane(&self, thread: Option<ThreadId>) -> &mpsc::UnboundedSender<Job> {
        let (_, low) = thread.map_or((0, 0), |thread| thread.0.as_u64_pair());
        let idx = usize::try_from(low % self.lanes.len() as u64).unwrap_or(0);
        &self.lanes[idx]
    }

    /// Sends statements that may be repeated, until they are answered or the time is up.
    async fn ask(
        &self,
        until: Instant,
        statements: &(dyn Fn() -> Vec<Statement> + Sync),
    ) -> Result<Vec<Vec<tokio_postgres::Row>>, Error> {
        self.ask_on(&self.pool, until, statements).await
    }

    async fn ask_on(
        &self,
        pool: &Pool,
        until: Instant,
        statements: &(dyn Fn() -> Vec<Statement> + Sync),
    ) -> Result<Vec<Vec<tokio_postgres::Row>>, Error> {
        for n_tries in 1.. {
            let lent = timeout_at(until, pool.lend()).await.map_err(|_| full())?;
            let mut lent = lent.ok_or_else(closed)?;
            let trouble = match lent.line().send(&statements()).await {
                Ok(rows) => return Ok(rows),
                Err(Trouble::Broken(fault)) => return Err(fault.into()),
                Err(trouble) => trouble,
            };
            drop(lent);
            if Instant::now() >= until {
                return Err(trouble.into_error(false));
            }
            sleep(self.pause(n_tries)).await;
        }
        Err(closed())
    }

    async fn thread_of_run(&self, run: Uuid, until: Instant) -> Result<Option<ThreadId>, Error> {
        let ask =
            || vec![Statement::new("SELECT thread FROM evenkeel.runs WHERE id = $1").with(run, Type::UUID)];
        let rows = self.ask(until, &ask).await?;
        let found = rows.first().and_then(|rows| rows.first()).map(|row| get(row, 0)).transpose();
        Ok(found.map_err(Error::from)?.map(ThreadId))
    }

    /// Answers a read together with others, if a reader has room and its connection is well.
    async fn read_together(&self, op: &Op) -> Option<Reply> {
        let reader = self.readers.iter().max_by_key(|reader| reader.capacity())?;
        let (reply, answer) = oneshot::channel();
        reader.try_send(readers::Read { op: op.clone(), reply }).ok()?;
        answer.await.ok().flatten()
    }

    async fn read(&self, op: &Op, until: Instant) -> Result<Reply, Error> {
        for n_tries in 1.. {
            let lent = timeout_at(until, self.pool.lend()).await.map_err(|_| full())?;
            let mut lent = lent.ok_or_else(closed)?;
            let trouble = match read_once(&mut lent, op).await {
                Ok(reply) => {
                    drop(lent);
                    return self.with_fenced(reply, until).await;
                }
                // Rows that changed while they were read together look damaged; once more.
                Err(Trouble::Broken(Fault::Corrupt(_))) if n_tries == 1 => continue,
                Err(Trouble::Broken(fault)) => return Err(fault.into()),
                Err(trouble) => trouble,
            };
            drop(lent);
            if Instant::now() >= until {
                return Err(trouble.into_error(false));
            }
            sleep(self.pause(n_tries)).await;
        }
        Err(closed())
    }

    /// Fills in the number of fenced writes: others' as stored, ours as counted.
    async fn with_fenced(&self, mut reply: Reply, until: Instant) -> Result<Reply, Error> {
        if let Reply::Counts(counts) = &mut reply {
            let ask = || {
                let sql = "SELECT coalesce(sum(n), 0)::int8 FROM evenkeel.fenced WHERE writer <> ALL($1)";
                vec![Statement::new(sql).with(self.writers.clone(), Type::UUID_ARRAY)]
            };
            let rows = self.ask(until, &ask).await?;
            let others = rows.first().and_then(|rows| rows.first()).map_or(Ok(0), |row| uint_at(row, 0))?;
            counts.n_fenced = others + self.recorder.n_fenced.get();
        }
        Ok(reply)
    }

    /// Looks at a queue, then claims or ends each run that it holds on the lane of its thread.
    async fn scan(&self, op: Op, until: Instant) -> Result<Reply, Error> {
        let now = self.now();
        let is_steal = matches!(op, Op::Steal(_));
        let ask = || {
            let leases = is_steal.then(leases::load);
            scan::look(&op, now).into_iter().chain(leases).collect()
        };
        let rows = self.ask(until, &ask).await?;
        let (replicas, mono) = match rows.get(1) {
            Some(rows) => self.leases(rows)?,
            None => (Replicas::default(), now.mono),
        };
        let queue = rows.first().map(Vec::as_slice).unwrap_or_default();
        let found = scan::found(&op, queue, &replicas, mono)?;
        let each = found.into_iter().map(|found| {
            let leases = Some((replicas.clone(), mono));
            let candidates = vec![(found.run, found.thread)];
            self.write(scan::for_one(&op), Some(found.thread), candidates, leases, until)
        });
        Ok(scan::together(&op, try_join_all(each).await?))
    }

    /// The leases, and the time by which they are judged.
    fn leases(&self, rows: &[tokio_postgres::Row]) -> Result<(Replicas, Mono), Error> {
        let (replicas, database) = leases::loaded(rows)?;
        Ok(match self.options.lease_clock {
            LeaseClock::Database => (replicas, database),
            LeaseClock::Environment => (replicas, self.env.mono()),
        })
    }

    async fn heartbeat(&self, beat: &Heartbeat, until: Instant) -> Result<Beat, Error> {
        let ask = || vec![leases::load(), leases::cancelling(beat.replica)];
        let rows = self.ask_on(self.beats(), until, &ask).await?;
        let (mut replicas, now) = self.leases(rows.first().map(Vec::as_slice).unwrap_or_default())?;
        let cancels = leases::cancelled(rows.get(1).map(Vec::as_slice).unwrap_or_default())?;
        let reply = self.decide_beat(beat, &mut replicas, now, &cancels, until).await?;
        let put = || leases::store(beat, &replicas, now).map(Vec::from).unwrap_or_default();
        self.ask_on(self.beats(), until, &put).await?;
        Ok(reply)
    }

    fn beats(&self) -> &Pool {
        self.beats.as_ref().unwrap_or(&self.pool)
    }

    /// Decides a heartbeat on the runs that the queue of stops names.
    async fn decide_beat(
        &self,
        beat: &Heartbeat,
        replicas: &mut Replicas,
        mono: Mono,
        cancels: &[(evenkeel_core::id::RunId, ThreadId)],
        until: Instant,
    ) -> Result<Beat, Error> {
        let mut facts = Facts::default();
        if !cancels.is_empty() {
            let lent = timeout_at(until, self.beats().lend()).await.map_err(|_| full())?;
            let mut lent = lent.ok_or_else(closed)?;
            let mut needs = Needs::default();
            cancels.iter().for_each(|(run, _)| needs.add(facts::Need::Run(None, *run)));
            let loaded = load::load(lent.line(), &mut facts, needs).await;
            loaded.map_err(|trouble| trouble.into_error(false))?;
        }
        let mut rows = PgRows::new(&facts);
        rows.candidates = cancels.iter().map(|(run, _)| *run).collect();
        let now = Now { mono, ..self.now() };
        let mut ctx = Context { rows: &mut rows, replicas, now, guards: Guards::ALL };
        match decide::apply(&mut ctx, &Op::Heartbeat(beat.clone()))? {
            Reply::Heartbeat(reply) => Ok(reply),
            _ => Err(Error::internal("A heartbeat was answered as another operation.")),
        }
    }

    async fn put_blob(&self, blob: &PutBlob, until: Instant) -> Result<Reply, Error> {
        let hash = packed::hash(&blob.bytes);
        let packed = packed::pack(&blob.bytes);
        let ask = || {
            let sql = "INSERT INTO evenkeel.blobs (id, size, packed, touches, bytes) VALUES ($1, $2, $3, 0, $4) \
                       ON CONFLICT (id) DO UPDATE SET touches = blobs.touches + 1";
            let bytes = packed.clone().unwrap_or_else(|| blob.bytes.clone());
            vec![
                Statement::new(sql)
                    .with(hash.to_vec(), Type::BYTEA)
                    .with(int(blob.bytes.len() as u64), Type::INT8)
                    .with(packed.is_some(), Type::BOOL)
                    .with(bytes, Type::BYTEA),
            ]
        };
        self.ask(until, &ask).await?;
        Ok(Reply::PutBlob(packed::id_of(hash)))
    }

    async fn put_key(&self, key: &ApiKey, until: Instant) -> Result<Reply, Error> {
        let json = packed::json(key)?;
        let ask = || {
            let sql = "INSERT INTO evenkeel.api_keys (hash, row) VALUES ($1, $2) \
                       ON CONFLICT (hash) DO UPDATE SET row = excluded.row";
            vec![Statement::new(sql).with(key.hash.clone(), Type::TEXT).with(json.clone(), Type::TEXT)]
        };
        self.ask(until, &ask).await?;
        Ok(Reply::PutKey(()))
    }

    async fn remove_key(&self, hash: &str, until: Instant) -> Result<Reply, Error> {
        let ask = || {
            let sql = "DELETE FROM evenkeel.api_keys WHERE hash = $1 RETURNING hash";
            vec![Statement::new(sql).with(hash.to_owned(), Type::TEXT)]
        };
        let rows = self.ask(until, &ask).await?;
        Ok(Reply::RemoveKey(rows.first().is_some_and(|rows| !rows.is_empty())))
    }
}

impl Store for PostgresStore {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(self.carry_out(op))
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // Nobody waits for an answer any more: each caller holds the store. What was sent commits or
        // not by itself.
        self.tasks.iter().for_each(Task::abort);
    }
}

/// Answers a read on one connection.
async fn read_once(lent: &mut pool::Lent<'_>, op: &Op) -> Result<Reply, Trouble> {
    let mut facts = Facts::default();
    let mut needs = Needs::default();
    prefetch::of_read(op, &mut needs);
    loop {
        if !needs.is_empty() {
            load::load(lent.line(), &mut facts, std::mem::take(&mut needs)).await?;
        }
        let mut rows = PgRows::new(&facts);
        match decide::read(&mut rows, op) {
            Err(Fault::NotLoaded) if !rows.needs.is_empty() => needs = rows.needs,
            decided => return decided.map_err(Trouble::Broken),
        }
    }
}

fn closed() -> Error {
    Fault::Unavailable("it is closed".to_owned()).into()
}

fn full() -> Error {
    Fault::Unavailable("too much waits for the database; nothing was stored".to_owned()).into()
}

fn unprepared(whom: &str, what: &str) -> Error {
    fault::refused(
        evenkeel_core::Code::StoreLogin,
        format!("The tables cannot be made in {whom}: {what}."),
        "Grant CREATE on the database to the user of the URL, or let the owner start Evenkeel once.",
    )
}
