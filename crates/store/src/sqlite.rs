//! The SQLite engine: the default, with nothing to install.
//!
//! One file, `evenkeel.db`, under the data directory, in WAL mode with `synchronous=FULL`. One
//! process at a time has it open (`lock`). One thread writes, many operations in one commit
//! (`writer`); a few threads read beside it (`reader`). Callers reach them through bounded queues
//! (`queue`). `rows` holds the statements, `body` how values lie in columns, `migrate` the schema,
//! `wal` the write-ahead log.
//!
//! Replicas and their leases are kept in the process and not in the file: with one process at a time
//! a lease of an earlier process means nothing, and a heartbeat never costs a commit. After a
//! restart every earlier replica therefore counts as lapsed, and what it held can be stolen at once
//! ([`SqliteStore::earlier_replicas`] names them).
//!
//! Dropping the last handle answers what is queued, closes the file and gives the lock back before
//! it returns.

mod body;
mod columns;
mod fault;
mod lock;
mod migrate;
mod queue;
mod reader;
mod rows;
mod stats;
mod threads;
mod wal;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_core::id::ReplicaId;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::{Env, watch};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use tokio::time::Instant;

pub use stats::{OperationStats, StoreStats};

use crate::Guards;
use crate::decide::Now;
use crate::rows::{Fault, Rowed, Rows as _};
use fault::faulty;
use queue::{Answer, Job, Queue};
use reader::Reader;
use rows::SqliteRows;
use stats::Recorder;
use wal::WalWatch;
use writer::Writer;

/// The store's file in the data directory.
pub const FILE: &str = "evenkeel.db";

/// Settings of the engine; the defaults fit a server with some hundred concurrent runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Operations that may wait for the writer, and as many for the readers; further callers wait.
    pub queue_max: usize,
    /// Operations in one commit.
    pub batch_max: usize,
    /// Longest wait for more operations before a commit; only after a batch of several.
    pub linger_max: Duration,
    /// Threads that read.
    pub readers: usize,
    /// A read that takes longer is stopped and answered `store-unavailable`.
    pub read_age_max: Duration,
    /// The write-ahead log is moved into the main file when it has grown to this.
    pub checkpoint_bytes: u64,
    /// At this size the log is emptied even if that has to wait for readers.
    pub wal_bytes_max: u64,
    /// The main file may not grow beyond this; then operations are answered `store-full`.
    pub file_bytes_max: Option<u64>,
    /// A file of up to this size is examined for damage at start.
    pub examine_bytes_max: u64,
    /// The checks of a write: all of them, but for the comparison of the lab.
    pub guards: Guards,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            batch_max: 256,
            linger_max: Duration::from_millis(2),
            readers: 2,
            read_age_max: Duration::from_secs(5),
            checkpoint_bytes: 8 << 20,
            wal_bytes_max: 64 << 20,
            file_bytes_max: None,
            examine_bytes_max: 64 << 20,
            guards: Guards::ALL,
        }
    }
}

/// The SQLite engine.
pub struct SqliteStore {
    env: Env,
    shared: Arc<Shared>,
    earlier: Vec<ReplicaId>,
    threads: Mutex<Threads>,
}

/// The threads of one store, with the lock that is given back after them.
struct Threads {
    handles: Vec<JoinHandle<()>>,
    lock: Option<lock::Lock>,
}

/// The statement that makes a batch durable; tests put a failing one in its place.
type Commit = fn(&Connection) -> rusqlite::Result<()>;

/// What the threads and the handle share.
struct Shared {
    writes: Queue,
    reads: Queue,
    recorder: Recorder,
    n_fenced: AtomicU64,
    poisoned: watch::Sender<Option<Error>>,
}

impl SqliteStore {
    /// Opens the store in a data directory, making both if they do not exist, and brings the schema
    /// to this version.
    ///
    /// # Errors
    /// `store-in-use` if another process has it open (the message names it), `store-newer` if a
    /// later version wrote it, `store-corrupt` if it is damaged or not ours, `store-full` or
    /// `store-unavailable` if the directory cannot be used.
    pub fn open(env: &Env, data_dir: &Path, options: SqliteOptions) -> Result<Arc<Self>, Error> {
        Self::open_with(env, data_dir, options, writer::commit)
    }

    fn open_with(
        env: &Env,
        data_dir: &Path,
        options: SqliteOptions,
        commit: Commit,
    ) -> Result<Arc<Self>, Error> {
        std::fs::create_dir_all(data_dir).map_err(|error| unusable(data_dir, &error))?;
        let lock = lock::take(data_dir, env.wall())?;
        let file = data_dir.join(FILE);
        let mut conn = open_file(&file, &options)?;
        let page_bytes = page_bytes(&conn)?;
        let wal = WalWatch::install(&mut conn, page_bytes)?;
        let earlier = SqliteRows::new(&conn).owners()?;
        let shared = Arc::new(Shared::new(&options, load_n_fenced(&conn)?));
        let mut readers = Vec::new();
        for _ in 0..options.readers.max(1) {
            let conn = connect(&file).map_err(|fault| at_start(&file, fault))?;
            readers.push(Reader::new(conn, shared.clone(), options.read_age_max)?);
        }
        let writer = Writer::new(conn, wal, shared.clone(), options, commit);
        let handles = start(env, writer, readers, &shared);
        let threads = Mutex::new(Threads { handles, lock: Some(lock) });
        Ok(Arc::new(Self { env: env.clone(), shared, earlier, threads }))
    }

    /// Replicas of earlier processes that still held runs when the store was opened. They are dead:
    /// a `steal` takes their runs without waiting for a lease.
    #[must_use]
    pub fn earlier_replicas(&self) -> &[ReplicaId] {
        &self.earlier
    }

    /// Figures for gauges.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        StoreStats {
            write_queue: self.shared.writes.len(),
            read_queue: self.shared.reads.len(),
            n_fenced: self.shared.n_fenced(),
            ..self.shared.recorder.read()
        }
    }

    /// Whether a commit has failed, so that no operation is answered any more.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.shared.poisoned.borrow().is_some()
    }

    /// Waits until the store is poisoned; the process should then end and be started again.
    pub fn poisoned(&self) -> BoxFuture<'static, Error> {
        let mut watch = self.shared.poisoned.subscribe();
        Box::pin(async move {
            let seen = watch.wait_for(Option::is_some).await.map(|error| error.clone());
            match seen {
                Ok(error) => error.unwrap_or_else(closed),
                // The store was closed in order: it will never be poisoned.
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn end(&self) {
        self.shared.writes.close();
        self.shared.reads.close();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for handle in threads.handles.drain(..) {
            if handle.join().is_err() {
                tracing::error!("a thread of the store had panicked");
            }
        }
        threads.lock = None;
    }
}

impl Store for SqliteStore {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            if let Some(error) = &*self.shared.poisoned.borrow() {
                return Err(error.clone());
            }
            // The clock is read where the caller is: a paused clock exists only on its thread.
            let now = Now { wall: self.env.wall(), mono: self.env.mono() };
            let queue = if op.is_read() { &self.shared.reads } else { &self.shared.writes };
            let answer = queue.push(op, now).await.map_err(|_| self.shared.ended())?;
            answer.await.unwrap_or_else(|_| Err(self.shared.ended()))
        })
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn new(options: &SqliteOptions, n_fenced: u64) -> Self {
        Self {
            writes: Queue::new(options.queue_max),
            reads: Queue::new(options.queue_max),
            recorder: Recorder::default(),
            n_fenced: AtomicU64::new(n_fenced),
            poisoned: watch::Sender::new(None),
        }
    }

    fn n_fenced(&self) -> u64 {
        self.n_fenced.load(Ordering::Relaxed)
    }

    fn count_fenced(&self) {
        self.n_fenced.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives the reply; a caller that has gone away does not want it.
    fn answer(&self, job: Job, answer: Answer) {
        let took = Instant::now().saturating_duration_since(job.arrived);
        self.recorder.operation(job.op.name(), took, answer.is_err());
        drop(job.reply.send(answer));
    }

    /// Runs an operation so that a panic in it ends that operation and not the store.
    fn shielded<T>(&self, body: impl FnOnce() -> Rowed<T>) -> Rowed<T> {
        // What a panic leaves behind is a transaction, and that is rolled back.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
            .unwrap_or_else(|_| Err(Fault::Misused("it panicked".to_owned())))
    }

    /// Stops the store for good and says with which error everything is answered from now on.
    fn poison(&self, fault: &Fault) -> Error {
        let what = format!("a commit failed ({fault}) and whether it happened is not known");
        let error = Error { remedy: RESTART.into(), ..Error::from(Fault::Unavailable(what)) };
        self.poisoned.send_replace(Some(error.clone()));
        self.writes.close();
        self.reads.close();
        while let Some(job) = self.writes.take_one() {
            self.answer(job, Err(error.clone()));
        }
        error
    }

    /// The error for an operation that no thread will answer.
    fn ended(&self) -> Error {
        self.poisoned.borrow().clone().unwrap_or_else(closed)
    }
}

const RESTART: &str = "Look at the disk, then start the server again; it goes on from what was stored.";

fn closed() -> Error {
    Fault::Unavailable("it is closed".to_owned()).into()
}

/// Ends the store when a thread of it panics outside an operation: nothing would be answered.
struct PoisonOnPanic(Arc<Shared>);

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison(&Fault::Unavailable("a thread of the store panicked".to_owned()));
        }
    }
}

fn start(env: &Env, mut writer: Writer, readers: Vec<Reader>, shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let guard = PoisonOnPanic(shared.clone());
    let body = Box::new(move || {
        let _guard = guard;
        writer.run();
    });
    let mut handles = vec![env.spawner.thread("store-writer", body)];
    for reader in readers {
        let guard = PoisonOnPanic(shared.clone());
        let body = Box::new(move || {
            let _guard = guard;
            reader.run();
        });
        handles.push(env.spawner.thread("store-reader", body));
    }
    // The writer closes last, so that its checkpoint finds no reader: it is joined last too.
    handles.reverse();
    handles
}

/// Opens the file for the writer: settings, schema, a look for damage.
fn open_file(file: &Path, options: &SqliteOptions) -> Result<Connection, Error> {
    let mut conn = connect(file).map_err(|fault| at_start(file, fault))?;
    examine(&conn, file, options.examine_bytes_max).map_err(|fault| at_start(file, fault))?;
    migrate::run(&mut conn, file)?;
    if let Some(bytes) = options.file_bytes_max {
        let pages = bytes / page_bytes(&conn)?;
        conn.pragma_update(None, "max_page_count", body::int(pages))
            .map_err(|error| at_start(file, faulty(error)))?;
    }
    Ok(conn)
}

/// Statements kept prepared on each connection; more than `rows` has.
const STATEMENTS: usize = 128;

/// How long a connection waits for another one's lock: only a foreign tool can hold one for long.
const BUSY_MAX: Duration = Duration::from_secs(5);

fn connect(file: &Path) -> Rowed<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let conn = Connection::open_with_flags(file, flags).map_err(faulty)?;
    conn.busy_timeout(BUSY_MAX).map_err(faulty)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without this the planner looks at bound values, and for that prepares a statement anew each
    // time it is bound: two fifths of the writer's time.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(faulty)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(faulty)?;
    if mode != "wal" {
        return Err(Fault::Unavailable(format!("its file system allows journal mode {mode}, not WAL")));
    }
    let settings = [
        ("synchronous", "FULL"),
        ("wal_autocheckpoint", "0"),
        ("cache_size", "-32768"),
        ("temp_store", "MEMORY"),
    ];
    for (name, value) in settings {
        conn.pragma_update(None, name, value).map_err(faulty)?;
    }
    Ok(conn)
}

/// Looks for damage in a file that is small enough to be read at start.
fn examine(conn: &Connection, file: &Path, bytes_max: u64) -> Rowed<()> {
    let bytes = std::fs::metadata(file).map_or(0, |meta| meta.len());
    if bytes > bytes_max {
        return Ok(());
    }
    let found: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(faulty)?;
    if found == "ok" { Ok(()) } else { Err(Fault::Corrupt(found)) }
}

fn page_bytes(conn: &Connection) -> Result<u64, Error> {
    let bytes: i64 = conn
        .pragma_query_value(None, "page_size", |row| row.get(0))
        .map_err(|error| Error::from(faulty(error)))?;
    Ok(body::uint(bytes).max(512))
}

/// A fault while the file is opened, with the file's name.
fn at_start(file: &Path, fault: Fault) -> Error {
    let file = file.display();
    match fault {
        Fault::Corrupt(what) => Fault::Corrupt(format!("{file}: {what}")).into(),
        Fault::Unavailable(what) => Fault::Unavailable(format!("{file}: {what}")).into(),
        other => other.into(),
    }
}

/// The data directory, or a file in it, cannot be used.
fn unusable(path: &Path, error: &std::io::Error) -> Error {
    let path: PathBuf = path.to_owned();
    Error::new(
        Code::StoreUnavailable,
        Origin::Store,
        format!("{} cannot be used: {error}.", path.display()),
        "Name a directory that this user may write with --data-dir.",
    )
}

const N_FENCED: &str = "n_fenced";

fn load_n_fenced(conn: &Connection) -> Result<u64, Error> {
    let stored: Option<i64> = conn
        .query_row("SELECT value FROM meta WHERE name = ?1", params![N_FENCED], |row| row.get(0))
        .optional()
        .map_err(|error| Error::from(faulty(error)))?;
    Ok(body::uint(stored.unwrap_or(0)))
}

fn store_n_fenced(conn: &Connection, n_fenced: u64) -> Rowed<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)")
        .map_err(faulty)?
        .execute(params![N_FENCED, body::int(n_fenced)])
        .map(drop)
        .map_err(faulty)
}

#[cfg(test)]
mod tests;
