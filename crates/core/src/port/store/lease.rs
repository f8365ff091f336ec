//! Heartbeats: a replica renews its lease and hears of the others.

use serde::{Deserialize, Serialize};

use crate::id::{ReplicaId, RunId};
use crate::port::model::Health;

/// Renews a replica's lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Which.
    pub replica: ReplicaId,
    /// Where its peers reach it, for probes.
    pub address: Option<String>,
    /// How long the lease lasts from now, in milliseconds.
    pub lease_ttl_ms: u64,
    /// It admits nothing new.
    pub draining: bool,
    /// How it finds the model deployments, for its peers.
    pub health: Vec<Health>,
}

/// A replica as its peers see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Which.
    pub replica: ReplicaId,
    /// Where.
    pub address: Option<String>,
    /// Whether its lease has lapsed.
    pub lapsed: bool,
    /// Whether it drains.
    pub draining: bool,
    /// How it finds the model deployments.
    pub health: Vec<Health>,
}

/// What a replica learns with its heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// False when the lease had lapsed and its runs may have been stolen.
    pub held: bool,
    /// Runs of this replica with a stored stop.
    pub cancels: Vec<RunId>,
    /// The other replicas.
    pub peers: Vec<Peer>,
}
