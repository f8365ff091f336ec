//! What every request handler may use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_core::agent::Agent;
use evenkeel_core::port::store::StoreClient;
use evenkeel_core::{Code, Error, Origin, Wall};
use evenkeel_env::Env;
use evenkeel_store::slow::SlowStore;

use super::{ComponentSlots, Dispatch, EdgeParts, Routing};
use crate::config::Config;
use crate::gateway::auth::Auth;
use crate::gateway::rate_limit::RateLimit;
use crate::stream::Hub;
use crate::telemetry::{Exporter, Metrics};

/// One process's edge.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) config: Config,
    pub(crate) store: StoreClient,
    pub(crate) slow: Option<Arc<SlowStore>>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) dispatch: Arc<dyn Dispatch>,
    pub(crate) routing: Arc<dyn Routing>,
    pub(crate) slots: ComponentSlots,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) exporter: Exporter,
    pub(crate) agents: BTreeMap<String, Agent>,
    pub(crate) auth: Auth,
    pub(crate) rate_limit: RateLimit,
    pub(crate) started_at: Wall,
    draining: AtomicBool,
}

impl Shared {
    pub(super) fn new(env: Env, config: Config, parts: EdgeParts) -> Result<Arc<Self>, Error> {
        let env = env.part("edge");
        let EdgeParts { store, slow, hub, dispatch, routing, slots, metrics, exporter } = parts;
        Ok(Arc::new(Self {
            agents: config.agents()?,
            auth: Auth::new(&config, store.clone())?,
            rate_limit: RateLimit::new(config.limits.gateway.calls_per_min),
            started_at: env.wall(),
            draining: AtomicBool::new(false),
            env,
            config,
            store,
            slow,
            hub,
            dispatch,
            routing,
            slots,
            metrics,
            exporter,
        }))
    }

    /// Whether nothing new is admitted.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Refuses what would begin something new while the server drains.
    pub(crate) fn admits(&self) -> Result<(), Error> {
        if !self.is_draining() {
            return Ok(());
        }
        Err(Error::new(
            Code::Draining,
            Origin::Ours,
            "This server is draining and admits nothing new.",
            "Send it again; another replica or the restarted server takes it.",
        )
        .retry_after(std::time::Duration::from_secs(1)))
    }
}
