//! The other replicas: where they are, and whether one is dead.
//!
//! A lease that lapses says so after seconds. A refused connection says so at once: whoever held the
//! address has ended. Its runs are then taken over by naming it dead, without waiting for its lease.
//! Being wrong costs a model call, never a turn: what it still writes of those runs is fenced, and
//! with its next heartbeat it is a peer again. A peer that does not answer is not thereby dead (it may be paused, or the
//! network slow); that is what leases are for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::ReplicaId;
use evenkeel_core::port::model::PeerHealth;
use evenkeel_core::port::store::Peer;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::Dispatch;

/// The longest that one probe waits.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Looks every second whether the peers still listen.
pub(super) async fn probe_loop(dispatch: Arc<Dispatch>) {
    let every = Duration::from_millis(dispatch.host.config.beat_every_ms);
    loop {
        sleep(every).await;
        if dispatch.may_claim() {
            dispatch.probe_peers().await;
        }
    }
}

impl Dispatch {
    /// The other replicas, as the store last told of them.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        self.state().peers.clone()
    }

    /// Takes in what the store tells of the others.
    pub(super) fn met(&self, peers: Vec<Peer>) {
        let is_any_lapsed = peers.iter().any(|peer| peer.lapsed);
        self.host.parts.model.heard(told(self.replica(), &peers));
        let mut state = self.state();
        state.dead.retain(|dead| peers.iter().any(|peer| peer.replica == *dead));
        state.peers = peers;
        drop(state);
        if is_any_lapsed {
            self.orphaned.notify_one();
        }
    }

    async fn probe_peers(&self) {
        let probes = self.state().reachable(self.host.config.address.as_deref());
        let probes = probes.into_iter().map(|(replica, address)| async move {
            let (host, port) = split(&address)?;
            let connected = timeout(PROBE_MAX, self.host.env.net.connect(host.to_owned(), port)).await;
            matches!(connected, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
                .then_some(replica)
        });
        for dead in join_all(probes).await.into_iter().flatten() {
            tracing::warn!(replica = %dead, "a peer refuses connections: its runs are taken over");
            self.state().dead.insert(dead);
            self.orphaned.notify_one();
        }
    }
}

/// What living peers say of the model deployments. Of two that could probe, the elder goes first.
fn told(me: ReplicaId, peers: &[Peer]) -> Vec<PeerHealth> {
    let living = peers.iter().filter(|peer| !peer.lapsed);
    let told = |peer: &Peer| PeerHealth {
        replica: peer.replica,
        goes_first: peer.replica < me,
        health: peer.health.clone(),
    };
    living.map(told).collect()
}

impl super::State {
    /// Peers to probe, with their addresses. One at our own address would be answered by ourselves.
    fn reachable(&self, own: Option<&str>) -> Vec<(ReplicaId, String)> {
        let living = self.peers.iter().filter(|peer| !peer.lapsed && !self.dead.contains(&peer.replica));
        let reachable = living.filter_map(|peer| Some((peer.replica, peer.address.clone()?)));
        reachable.filter(|(_, address)| Some(address.as_str()) != own).collect()
    }
}

/// Host and port of `HOST:PORT`.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}
