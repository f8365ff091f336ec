//! The store: the engine of the configuration, and its limits in front: slots, latency metrics, and
//! the journal's tap for traces.

use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::control::Protect;
use evenkeel_core::id::TenantId;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use evenkeel_store::Guards;
use evenkeel_store::memory::MemoryStore;
use evenkeel_store::postgres::{PostgresOptions, PostgresStore};
use evenkeel_store::sqlite::{SqliteOptions, SqliteStore};
use tokio::time::Instant;

use crate::config::{Config, StoreEngine};
use crate::telemetry::{Exporter, Metrics};

/// An engine that was opened.
pub struct Opened {
    /// The engine.
    pub store: Arc<dyn Store>,
    /// Resolves if it can no longer be trusted.
    pub failure: BoxFuture<'static, Error>,
    /// The same engine where it is PostgreSQL, for its figures; this does not keep it open.
    pub postgres: Option<Weak<PostgresStore>>,
}

impl Opened {
    /// An engine that is trusted for as long as it lives.
    #[must_use]
    pub fn of(store: Arc<dyn Store>) -> Self {
        Self { store, failure: Box::pin(std::future::pending()), postgres: None }
    }
}

/// Opens the engine that the configuration names.
///
/// # Errors
/// What the engine says; see [`SqliteStore::open`] and [`PostgresStore::open`].
#[must_use]
pub fn open<'a>(env: &'a Env, config: &'a Config) -> BoxFuture<'a, Result<Opened, Error>> {
    Box::pin(async move {
        let guards = if config.protect == Protect::None { Guards::PLAIN } else { Guards::ALL };
        match &config.server.store {
            StoreEngine::Memory => Ok(Opened::of(MemoryStore::new(env))),
            StoreEngine::Sqlite => {
                let options = SqliteOptions { guards, ..SqliteOptions::default() };
                let store = SqliteStore::open(env, &config.server.data_dir, options)?;
                Ok(Opened { failure: store.poisoned(), ..Opened::of(store) })
            }
            StoreEngine::Postgres(url) => {
                let url = url.resolve(&config.environment)?;
                let connections_max = config.server.store_connections;
                let options = PostgresOptions { guards, connections_max, ..PostgresOptions::default() };
                let store = PostgresStore::open(env, &url, options).await?;
                Ok(Opened { postgres: Some(Arc::downgrade(&store)), ..Opened::of(store) })
            }
        }
    })
}

/// The longest an operation stands in line before it is refused; its caller tries again.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// An engine behind the store component's slots.
pub(super) struct LimitedStore {
    inner: Arc<dyn Store>,
    slots: Slots,
    metrics: Arc<Metrics>,
    exporter: Exporter,
    env: Env,
}

impl LimitedStore {
    /// Wraps an engine.
    #[must_use]
    pub(super) fn new(
        inner: Arc<dyn Store>,
        slots: Slots,
        metrics: Arc<Metrics>,
        exporter: Exporter,
        env: &Env,
    ) -> Arc<Self> {
        Arc::new(Self { inner, slots, metrics, exporter, env: env.clone() })
    }

    async fn carry_out(&self, op: Op) -> Result<Reply, Error> {
        let name = op.name();
        // A lease that is renewed late would be lost, so it never stands in line.
        let _slot = match &op {
            Op::Heartbeat(_) | Op::Leave(_) => None,
            op => Some(self.slots.acquire(&tenant(op), WAIT_MAX).await?),
        };
        let tapped = self.exporter.tap(&op);
        let begun = Instant::now();
        let reply = self.inner.apply(op).await;
        self.metrics.store_operation(name, reply.is_ok(), begun.elapsed());
        if let (Some(tapped), Ok(reply)) = (tapped, &reply) {
            self.exporter.committed(tapped, reply, self.env.wall());
        }
        reply
    }
}

impl Store for LimitedStore {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(self.carry_out(op))
    }
}

/// Whose line an operation stands in. The replica's own upkeep has a line of its own.
fn tenant(op: &Op) -> TenantId {
    let tenant = match op {
        Op::CreateThread(request) => &request.tenant,
        Op::Admit(request) => &request.tenant,
        Op::CommitStep(request) => &request.fence.tenant,
        Op::CommitTurn(request) => &request.fence.tenant,
        Op::Park(request) => &request.fence.tenant,
        Op::Release(request) => &request.fence.tenant,
        Op::Cancel(request) => &request.tenant,
        Op::GetThread(request) => &request.tenant,
        Op::GetRun(request) | Op::ReadEffects(request) => &request.tenant,
        Op::ReadEvents(request) => &request.tenant,
        _ => return TenantId::from(""),
    };
    tenant.clone()
}
