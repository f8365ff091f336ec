//! The store of a virtual run: the engine in memory, behind links that take time and can be broken.
//!
//! The engine survives its callers, as a database does. It is reached as the PostgreSQL engine
//! reaches its server: a request travels, is carried out, and its answer travels back; where nothing
//! passes, an operation waits for at most [`PATIENCE`] and is then refused as unavailable. An
//! operation whose answer was lost has happened all the same, and one that was sent arrives even if its
//! sender is killed, stopped, or has given it up: a stopped replica's last writes are carried out while
//! it is stopped, and refused if others own its turns by then.
//!
//! The server itself can be in trouble, too: it stalls, is crowded, takes no writes, loses answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_core::{Code, Error, Generator, Origin};
use evenkeel_env::{Env, watch};
use evenkeel_store::Guards;
use evenkeel_store::memory::MemoryStore;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use super::clock::HostClock;
use super::log::{Log, fingerprint};
use super::plant::Plant;
use crate::link::{self, Direction, Pace, Rules, Step};
use crate::scenario::Trouble;

/// How long an operation waits for a server that does not answer: the PostgreSQL engine's patience.
const PATIENCE: Duration = Duration::from_secs(15);
/// A request and its answer each take up to this many milliseconds, drawn anew every time.
const WAY_MS_MAX: u64 = 3;

/// The server that keeps the data.
pub(crate) struct Twin {
    env: Env,
    clock: Arc<HostClock>,
    engine: Arc<MemoryStore>,
    /// Where writes go that a planted mistake loses.
    nowhere: Arc<MemoryStore>,
    health: watch::Sender<Health>,
    /// Operations under way: each has a connection of its own.
    n_connections: AtomicUsize,
    generator: Generator,
    log: Log,
    plant: Plant,
}

/// How the server is.
#[derive(Default)]
struct Health {
    is_down: bool,
    next_id: u64,
    troubles: BTreeMap<u64, Trouble>,
}

impl Health {
    fn answers(&self) -> bool {
        !self.is_down && !self.troubles.values().any(|trouble| matches!(trouble, Trouble::Stall))
    }
}

impl Twin {
    /// An empty server. `guards`: the checks that its engine makes.
    pub(super) fn new(env: &Env, log: &Log, guards: Guards, plant: Plant) -> Arc<Self> {
        let clock = HostClock::of_store(&env.clock);
        let engine = MemoryStore::with_guards(&Env { clock: clock.clone(), ..env.clone() }, guards);
        let nowhere = MemoryStore::with_guards(env, guards);
        let generator = env.generator.part("store");
        Arc::new(Self {
            env: env.clone(),
            clock,
            engine,
            nowhere,
            health: watch::Sender::default(),
            n_connections: AtomicUsize::new(0),
            generator,
            log: log.clone(),
            plant,
        })
    }

    /// Takes the server down or up.
    pub(crate) fn set_up(&self, up: bool) {
        self.log.line("store", format_args!("{}", if up { "up" } else { "down" }));
        self.health.send_modify(|health| health.is_down = !up);
    }

    /// Brings trouble, until it is healed by the number that is returned.
    pub(crate) fn add(&self, trouble: Trouble) -> u64 {
        self.log.line("store", format_args!("{}", trouble.name()));
        let mut id = 0;
        self.health.send_modify(|health| {
            health.next_id += 1;
            id = health.next_id;
            health.troubles.insert(id, trouble);
        });
        id
    }

    /// Takes trouble back.
    pub(crate) fn heal(&self, id: u64) {
        self.log.line("store", format_args!("healed"));
        self.health.send_modify(|health| {
            health.troubles.remove(&id);
        });
    }

    /// The clock of its host.
    pub(super) fn clock(&self) -> &HostClock {
        &self.clock
    }

    /// Opens a connection, unless the server is full.
    fn connect(self: &Arc<Self>) -> Result<Connection, Error> {
        let n = self.n_connections.load(Ordering::Relaxed);
        let is_full = self.health.borrow().troubles.values().any(|trouble| match trouble {
            Trouble::Crowd { connections } => n >= *connections,
            _ => false,
        });
        if is_full {
            return Err(unavailable("has no connection left"));
        }
        self.n_connections.fetch_add(1, Ordering::Relaxed);
        Ok(Connection(self.clone()))
    }

    /// Refuses an operation that trouble keeps from being carried out.
    fn accept(&self, writes: bool) -> Result<(), Error> {
        for trouble in self.health.borrow().troubles.values() {
            match trouble {
                Trouble::ReadOnly if writes => return Err(read_only()),
                Trouble::Errors { p } if self.generator.unit() < *p => {
                    return Err(unavailable("broke the connection before it did anything"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Loses the answer to a write that was carried out.
    fn keep_answer(&self, writes: bool) -> Result<(), Error> {
        for trouble in self.health.borrow().troubles.values() {
            match trouble {
                Trouble::LoseAnswers { p } if writes && self.generator.unit() < *p => {
                    return Err(unavailable("broke the connection before it answered"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A replica's way to the server.
    pub(crate) fn link(self: &Arc<Self>, name: &str) -> Arc<StoreLink> {
        Arc::new(StoreLink { twin: self.clone(), name: name.into(), rules: watch::Sender::default() })
    }

    fn way(&self) -> Duration {
        Duration::from_millis(self.generator.below(WAY_MS_MAX + 1))
    }
}

/// A connection to the server while an operation is under way.
struct Connection(Arc<Twin>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.n_connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One replica's way to the server.
pub(crate) struct StoreLink {
    twin: Arc<Twin>,
    name: Arc<str>,
    rules: watch::Sender<Rules>,
}

impl StoreLink {
    /// Breaks it, until it is healed by the number that is returned.
    pub(crate) fn set(&self, fault: link::Fault) -> u64 {
        let mut id = 0;
        self.rules.send_modify(|rules| id = rules.add(fault));
        self.twin.log.line(&self.name, format_args!("link to the store: {}", fault.name()));
        id
    }

    /// Takes a fault back.
    pub(crate) fn heal(&self, id: u64) {
        self.rules.send_modify(|rules| rules.remove(id));
        self.twin.log.line(&self.name, format_args!("link to the store: healed"));
    }

    async fn carry_out(&self, op: Op) -> Result<Reply, Error> {
        let connection = self.twin.connect()?;
        let journey = Journey {
            twin: self.twin.clone(),
            name: self.name.clone(),
            rules: self.rules.subscribe(),
            until: Instant::now() + PATIENCE,
        };
        let (arrived, reply) = oneshot::channel();
        let all = async move {
            // Whoever asked may have given it up.
            let _ = arrived.send(journey.all(op).await);
            drop(connection);
        };
        self.twin.env.spawner.spawn("store-operation", Box::pin(all));
        reply.await.unwrap_or_else(|_| Err(unavailable("stopped")))
    }
}

/// One operation on its way.
struct Journey {
    twin: Arc<Twin>,
    name: Arc<str>,
    rules: watch::Receiver<Rules>,
    until: Instant,
}

impl Journey {
    async fn all(&self, op: Op) -> Result<Reply, Error> {
        let twin = &self.twin;
        let (name, writes) = (op.name(), !op.is_read());
        self.pass(Direction::Requests).await?;
        twin.accept(writes)?;
        let print = fingerprint(format!("{op:?}").as_bytes());
        let op = twin.plant.bend(op);
        let reply = match twin.plant.lie(&op, &twin.generator) {
            Some(reply) => Ok(reply),
            None if twin.plant.forgets(&op, &twin.generator) => twin.nowhere.apply(op).await,
            None => twin.engine.apply(op).await,
        };
        let told = fingerprint(format!("{reply:?}").as_bytes());
        twin.log.line(&self.name, format_args!("{name} {print} -> {told}"));
        twin.keep_answer(writes)?;
        self.pass(Direction::Answers).await?;
        reply
    }

    /// Waits until something passes in this direction, and for as long as it takes to pass.
    async fn pass(&self, direction: Direction) -> Result<(), Error> {
        let (mut rules, mut health) = (self.rules.clone(), self.twin.health.subscribe());
        let mut pace = Pace::default();
        loop {
            let step = rules.borrow_and_update().step(direction, 0, self.twin.env.mono(), &mut pace);
            let answers = health.borrow_and_update().answers();
            match step {
                Step::PassAfter(after) if answers => {
                    sleep(after + self.twin.way()).await;
                    return Ok(());
                }
                _ => {}
            }
            let changed = async {
                tokio::select! {
                    biased;
                    changed = rules.changed() => changed,
                    changed = health.changed() => changed,
                }
            };
            match timeout_at(self.until, changed).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(unavailable("did not answer in time")),
            }
        }
    }
}

fn unavailable(what: &str) -> Error {
    Error::new(
        Code::StoreUnavailable,
        Origin::Store,
        format!("The simulated store {what}."),
        "Try again when the fault is over.",
    )
    .retry_after(Duration::from_secs(1))
}

fn read_only() -> Error {
    Error::new(
        Code::StoreReadOnly,
        Origin::Store,
        "The simulated store takes no writes.",
        "Try again when the fault is over.",
    )
    .retryable()
}

impl Store for StoreLink {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(self.carry_out(op))
    }
}
