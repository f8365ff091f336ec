//! A gateway: the edge without runs, in front of replicas.
//!
//! It stores nothing. Where callers need keys it looks them up in the shared store, if one is
//! configured; else it knows the keys of the configuration. Its replicas check every key again, so
//! that nothing depends on who reaches whom.

use std::sync::Arc;

use evenkeel_core::id::{ReplicaId, RunId};
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Claim, Store, StoreClient};
use evenkeel_core::{Code, Error};
use evenkeel_env::slots::Slot;
use evenkeel_env::{Env, Listener};
use evenkeel_harness::HarnessStats;
use evenkeel_model::{Operation, RouterSnapshot};
use evenkeel_store::memory::MemoryStore;

use super::engine::EngineKeeper;
use super::{ComponentSlots, Dispatch, EdgeParts, Routing, Running, serve_on, store};
use crate::config::{Config, StoreEngine};
use crate::stream::Hub;
use crate::telemetry::{Exporter, Metrics};

/// Starts a gateway.
pub(super) async fn start(env: Env, config: Config, listener: Box<dyn Listener>) -> Result<Running, Error> {
    let metrics = Metrics::new();
    let (store, keeper) = match &config.server.store {
        StoreEngine::Sqlite | StoreEngine::Memory => (MemoryStore::new(&env) as Arc<dyn Store>, None),
        StoreEngine::Postgres(_) => {
            let opened = store::open(&env, &config).await?;
            metrics.show_postgres(opened.postgres);
            let (keeper, engine) = EngineKeeper::new(&env, opened.store, opened.failure);
            (engine, Some(keeper))
        }
    };
    let store = StoreClient(store);
    let parts = EdgeParts {
        hub: Hub::new(store.clone()),
        store,
        slow: None,
        dispatch: Arc::new(NoRuns(ReplicaId::new(env.wall(), &env.generator))),
        routing: Arc::new(NoModels),
        slots: ComponentSlots::new(&config.limits),
        metrics,
        exporter: Exporter::off(),
    };
    tracing::info!(replicas = config.gateway.peers.len(), "gateway ready");
    let running = serve_on(env, config, parts, listener)?;
    Ok(match keeper {
        Some(keeper) => running.keeping(keeper),
        None => running,
    })
}

/// No run is driven in a gateway.
struct NoRuns(ReplicaId);

impl Dispatch for NoRuns {
    fn replica(&self) -> ReplicaId {
        self.0
    }

    fn free_slots(&self) -> usize {
        0
    }

    fn slot(&self) -> Option<Slot> {
        None
    }

    fn adopt(&self, _claim: Claim, _slot: Slot) {}

    fn nudge(&self) {}

    fn cancel(&self, _run: RunId) {}

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn stats(&self) -> HarnessStats {
        HarnessStats::default()
    }
}

/// No model is called from a gateway.
struct NoModels;

impl Routing for NoModels {
    fn snapshot(&self) -> RouterSnapshot {
        RouterSnapshot::default()
    }

    fn operate(&self, deployment: &str, _operation: Operation) -> Result<(), Error> {
        Err(Error::client(
            Code::NotFound,
            format!("A gateway has no deployment {deployment}."),
            "Ask a replica; each has a router of its own.",
        ))
    }
}
