//! What every request handler may use.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_core::agent::Agent;
use evenkeel_core::id::{ReplicaId, RunId};
use evenkeel_core::port::store::StoreClient;
use evenkeel_core::{Code, Error, Origin, Wall};
use evenkeel_env::{Env, watch};
use evenkeel_store::slow::SlowStore;

use super::hints::Hints;
use super::{ComponentSlots, Dispatch, EdgeParts, Routing};
use crate::config::{Config, Role};
use crate::gateway::auth::Auth;
use crate::gateway::balance::Balancer;
use crate::gateway::rate_limit::RateLimit;
use crate::stream::Hub;
use crate::telemetry::{Exporter, Metrics};
use crate::wire::input::InputLimits;

/// What a gateway waits for a replica's answer beyond the replica's own limit.
const ANSWER_MARGIN: std::time::Duration = std::time::Duration::from_secs(5);

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
    /// The replicas, in a gateway.
    pub(crate) balancer: Option<Arc<Balancer>>,
    /// Where peers reach this process.
    pub(crate) address: Option<String>,
    /// Hints to other replicas.
    pub(crate) hints: Arc<Hints>,
    pub(crate) started_at: Wall,
    draining: AtomicBool,
    drain_asked: watch::Sender<bool>,
}

impl Shared {
    pub(super) fn new(
        env: Env,
        config: Config,
        parts: EdgeParts,
        listening: SocketAddr,
    ) -> Result<Arc<Self>, Error> {
        let env = env.part("edge");
        let EdgeParts { store, slow, hub, dispatch, routing, slots, metrics, exporter } = parts;
        // A replica that is about to refuse an answer itself is given the time to say so.
        let answer_timeout = config.limits.api.timeout.0 + ANSWER_MARGIN;
        let balancer = (config.server.role == Role::Gateway)
            .then(|| Balancer::new(&env, config.gateway.clone(), answer_timeout));
        Ok(Arc::new(Self {
            address: config.replica.announced(listening),
            hints: Hints::new(&env, config.replica.secret(&config.environment)?),
            balancer,
            drain_asked: watch::Sender::new(false),
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

    /// What a request may hold at most.
    pub(crate) fn input_limits(&self) -> InputLimits {
        let limits = &self.config.limits;
        InputLimits { messages_max: limits.messages_max, chars_max: limits.message_chars_max }
    }

    /// Whether nothing new is admitted.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Something that a replica has to look at was stored: tells `owner`, or everybody who serves.
    pub(crate) fn hint(&self, owner: Option<ReplicaId>) {
        let me = self.dispatch.replica();
        if owner == Some(me) {
            return;
        }
        let peers = self.dispatch.peers().into_iter().filter(|peer| match owner {
            Some(owner) => peer.replica == owner,
            None => !peer.lapsed && !peer.draining,
        });
        peers.filter_map(|peer| peer.address).for_each(|address| self.hints.send(&address));
    }

    /// Makes an accepted turn faster: whoever runs what it stops should look, and where this process
    /// has no slot for it, another one may.
    pub(crate) fn tell_of(&self, claimed: bool, stopping: &[RunId]) {
        if !stopping.is_empty() {
            self.dispatch.look();
        }
        if !stopping.is_empty() || (!claimed && self.dispatch.free_slots() == 0) {
            self.hint(None);
        }
    }

    /// Asks for the orderly end of this process.
    pub(crate) fn ask_to_drain(&self) {
        self.drain_asked.send_replace(true);
    }

    /// Ready when somebody has asked for the orderly end.
    pub(super) async fn drain_asked(&self) {
        // The sender is in `self`, so the wait ends with the asking only.
        let _ = self.drain_asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Refuses what would begin something new while the server drains.
    pub(crate) fn admits(&self) -> Result<(), Error> {
        Self::unless_draining(self.is_draining())
    }

    /// Refuses to attach to a run when the streams of this process have ended.
    pub(crate) fn attaches(&self) -> Result<(), Error> {
        Self::unless_draining(self.hub.is_closed())
    }

    fn unless_draining(draining: bool) -> Result<(), Error> {
        if !draining {
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
