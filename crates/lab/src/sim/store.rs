//! The store of a virtual run: the engine in memory, behind links that take time and can be broken.
//!
//! The engine survives its callers, as a database does. It is reached as the PostgreSQL engine
//! reaches its server: a request travels, is carried out, and its answer travels back; where nothing
//! passes, an operation waits for at most [`PATIENCE`] and is then refused as unavailable. An
//! operation whose answer was lost has happened all the same.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_core::{Code, Error, Generator, Origin};
use evenkeel_env::{Env, watch};
use evenkeel_store::Guards;
use evenkeel_store::memory::MemoryStore;
use tokio::time::{Instant, sleep, timeout_at};

use super::log::{Log, fingerprint};
use super::plant::Plant;
use crate::link::{self, Direction, Pace, Rules, Step};

/// How long an operation waits for a server that does not answer: the PostgreSQL engine's patience.
const PATIENCE: Duration = Duration::from_secs(15);
/// A request and its answer each take up to this many milliseconds, drawn anew every time.
const WAY_MS_MAX: u64 = 3;

/// The server that keeps the data.
pub(crate) struct Twin {
    env: Env,
    engine: Arc<MemoryStore>,
    is_up: watch::Sender<bool>,
    generator: Generator,
    log: Log,
    plant: Plant,
}

impl Twin {
    /// An empty server. `guards`: the checks that its engine makes.
    pub(super) fn new(env: &Env, log: &Log, guards: Guards, plant: Plant) -> Arc<Self> {
        let engine = MemoryStore::with_guards(env, guards);
        let generator = env.generator.part("store");
        Arc::new(Self {
            env: env.clone(),
            engine,
            is_up: watch::Sender::new(true),
            generator,
            log: log.clone(),
            plant,
        })
    }

    /// Takes the server down or up.
    pub(crate) fn set_up(&self, up: bool) {
        self.log.line("store", format_args!("{}", if up { "up" } else { "down" }));
        self.is_up.send_replace(up);
    }

    /// A replica's way to the server.
    pub(crate) fn link(self: &Arc<Self>, name: &str) -> Arc<StoreLink> {
        Arc::new(StoreLink { twin: self.clone(), name: name.to_owned(), rules: watch::Sender::default() })
    }

    fn way(&self) -> Duration {
        Duration::from_millis(self.generator.below(WAY_MS_MAX + 1))
    }
}

/// One replica's way to the server.
pub(crate) struct StoreLink {
    twin: Arc<Twin>,
    name: String,
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
        let twin = &self.twin;
        let until = Instant::now() + PATIENCE;
        let name = op.name();
        self.pass(Direction::Requests, until).await?;
        let print = fingerprint(format!("{op:?}").as_bytes());
        let op = twin.plant.bend(op);
        let reply = match twin.plant.lie(&op, &twin.generator) {
            Some(reply) => Ok(reply),
            None => twin.engine.apply(op).await,
        };
        let told = fingerprint(format!("{reply:?}").as_bytes());
        twin.log.line(&self.name, format_args!("{name} {print} -> {told}"));
        self.pass(Direction::Answers, until).await?;
        reply
    }

    /// Waits until something passes in this direction, and for as long as it takes to pass.
    async fn pass(&self, direction: Direction, until: Instant) -> Result<(), Error> {
        let (mut rules, mut is_up) = (self.rules.subscribe(), self.twin.is_up.subscribe());
        let mut pace = Pace::default();
        loop {
            let step = rules.borrow_and_update().step(direction, 0, self.twin.env.mono(), &mut pace);
            let up = *is_up.borrow_and_update();
            match step {
                Step::PassAfter(after) if up => {
                    sleep(after + self.twin.way()).await;
                    return Ok(());
                }
                _ => {}
            }
            let changed = async {
                tokio::select! {
                    biased;
                    changed = rules.changed() => changed,
                    changed = is_up.changed() => changed,
                }
            };
            match timeout_at(until, changed).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(unavailable()),
            }
        }
    }
}

fn unavailable() -> Error {
    Error::new(
        Code::StoreUnavailable,
        Origin::Store,
        "The simulated store did not answer in time.",
        "Try again when the fault is over.",
    )
    .retry_after(Duration::from_secs(1))
}

impl Store for StoreLink {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(self.carry_out(op))
    }
}
