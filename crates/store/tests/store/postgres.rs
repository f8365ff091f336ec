//! PostgreSQL: the suite and the equality of engines on a real server, through a pooler too, and
//! what only an engine of several replicas can get wrong.

mod conformance;
mod faults;
mod pooler;
mod replicas;
mod server;
mod start;
mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_env::Env;
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres};
use evenkeel_store::postgres::{LeaseClock, PostgresOptions, PostgresStore};
use tokio::sync::Mutex;

/// The server that tests share while any of them runs.
pub(crate) async fn shared_server() -> Arc<LocalPostgres> {
    static SHARED: Mutex<Weak<LocalPostgres>> = Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(LocalPostgres::start(&Env::real(), LocalOptions::default()).await.unwrap());
    *shared = Arc::downgrade(&server);
    server
}

/// A database of its own on the shared server.
pub(crate) struct Database {
    pub(crate) server: Arc<LocalPostgres>,
    pub(crate) name: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        static N: AtomicU64 = AtomicU64::new(1);
        let server = shared_server().await;
        let name = format!("test_{}", N.fetch_add(1, Ordering::Relaxed));
        server.create_database(&name).await.unwrap();
        Self { server, name }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    pub(crate) async fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.name, sql).await.unwrap()
    }

    /// An empty store: whatever an earlier one left is removed.
    pub(crate) async fn empty(&self, env: &Env, url: &str) -> Arc<PostgresStore> {
        self.sql(
            "DO $$ DECLARE t text; BEGIN FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'evenkeel' \
             AND tablename <> 'schema_version' LOOP EXECUTE 'DELETE FROM evenkeel.' || t; END LOOP; END $$",
        )
        .await;
        PostgresStore::open(env, url, by_hand()).await.unwrap()
    }
}

/// Options for a store whose clock is moved by hand.
pub(crate) fn by_hand() -> PostgresOptions {
    let (connections_max, lease_clock) = (4, LeaseClock::Environment);
    PostgresOptions { connections_max, lease_clock, ..PostgresOptions::default() }
}

/// A store with the database that it needs.
pub(crate) struct Held {
    store: Arc<PostgresStore>,
    _database: Arc<Database>,
}

impl Held {
    pub(crate) fn store(store: Arc<PostgresStore>, database: Arc<Database>) -> Arc<dyn Store> {
        Arc::new(Self { store, _database: database })
    }
}

impl Store for Held {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        self.store.apply(op)
    }
}
