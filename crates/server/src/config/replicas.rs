//! The sections of several processes over one store: `[gateway]` and `[replica]`.

use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_core::Error;
use http::Uri;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{DurationText, Environment, Role, ServerSection, StoreEngine, invalid};

/// `[gateway]`: how a gateway treats its replicas and its clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySection {
    /// The replicas, as URLs; every gateway spells them alike.
    pub peers: Vec<String>,
    /// How often a replica that is well is probed.
    pub probe_every: DurationText,
    /// Time for a connection to a replica and for the answer to a probe.
    pub probe_timeout: DurationText,
    /// How long a request waits for a replica when none is up.
    pub hold_max: DurationText,
    /// Replicas that one request is tried at.
    pub tries_max: u32,
    /// A client that takes nothing for this long is cut off; it resumes by cursor.
    pub client_stall: DurationText,
}

impl Default for GatewaySection {
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            probe_every: DurationText(Duration::from_secs(1)),
            probe_timeout: DurationText(Duration::from_secs(1)),
            hold_max: DurationText(Duration::from_secs(5)),
            tries_max: 5,
            client_stall: DurationText(Duration::from_secs(60)),
        }
    }
}

impl GatewaySection {
    /// Refuses what could pass nothing on.
    pub(super) fn check(&self, role: Role) -> Result<(), Error> {
        if role == Role::Gateway && self.peers.is_empty() {
            return Err(invalid(
                "server.role is \"gateway\" and gateway.peers names no replica.",
                "Name the replicas: --peers http://127.0.0.1:7071,http://127.0.0.1:7072.",
            ));
        }
        for peer in &self.peers {
            let uri: Option<Uri> = peer.parse().ok();
            let good = uri.is_some_and(|uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && matches!(uri.path(), "" | "/")
            });
            if !good {
                return Err(invalid(
                    format!("gateway.peers has \"{peer}\", which is not the URL of a replica."),
                    "Write http://HOST:PORT.",
                ));
            }
        }
        if self.tries_max == 0 {
            return Err(invalid(
                "gateway.tries_max is 0, so nothing could be passed on.",
                "Give at least 1.",
            ));
        }
        let durations = [
            ("probe_every", self.probe_every),
            ("probe_timeout", self.probe_timeout),
            ("client_stall", self.client_stall),
        ];
        match durations.iter().find(|(_, duration)| duration.0.is_zero()) {
            Some((key, _)) => Err(invalid(
                format!("gateway.{key} is 0."),
                "Write a duration such as \"1s\", or remove the key for the default.",
            )),
            None => Ok(()),
        }
    }
}

/// `[replica]`: how a replica tells the others that it lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReplicaSection {
    /// Where its peers reach it (`HOST:PORT`), for probes and hints. Default: `server.listen`, if that
    /// is an address and not all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The secret that replicas show each other, as `env:NAME`. Without it they send no hints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Time between heartbeats.
    pub beat_every: DurationText,
    /// How long a lease lasts after a heartbeat reached the store.
    pub lease_ttl: DurationText,
    /// When a replica whose heartbeats are not confirmed stops by itself.
    pub fence_after: DurationText,
}

impl Default for ReplicaSection {
    fn default() -> Self {
        Self {
            address: None,
            secret: None,
            beat_every: DurationText(Duration::from_secs(1)),
            lease_ttl: DurationText(Duration::from_secs(4)),
            fence_after: DurationText(Duration::from_secs(3)),
        }
    }
}

impl ReplicaSection {
    /// Refuses what would make replicas fight each other, or leave one without work.
    pub(super) fn check(&self, server: &ServerSection, environment: &Environment) -> Result<(), Error> {
        let Self { beat_every, lease_ttl, fence_after, .. } = self;
        if beat_every.0.is_zero() || beat_every.0 >= fence_after.0 || fence_after.0 >= lease_ttl.0 {
            return Err(invalid(
                format!(
                    "replica.beat_every = \"{beat_every}\", fence_after = \"{fence_after}\", lease_ttl = \
                     \"{lease_ttl}\": each must be longer than the one before."
                ),
                "Remove the keys for the defaults 1s, 3s and 4s, or keep their order.",
            ));
        }
        if self.address.as_ref().is_some_and(|address| split(address).is_none()) {
            return Err(invalid(
                "replica.address is not an address.",
                "Write HOST:PORT, as the other replicas reach this one.",
            ));
        }
        self.secret(environment)?;
        if server.role == Role::Worker && matches!(server.store, StoreEngine::Sqlite | StoreEngine::Memory) {
            return Err(invalid(
                "server.role is \"worker\", and its store belongs to this process alone: nobody would give \
                 it work.",
                "Name the shared store (--store postgres://...), or use --role all.",
            ));
        }
        Ok(())
    }

    /// The secret, if one is configured.
    ///
    /// # Errors
    /// As [`Environment::secret`].
    pub fn secret(&self, environment: &Environment) -> Result<Option<SecretString>, Error> {
        self.secret.as_ref().map(|name| environment.secret("replica.secret", name)).transpose()
    }

    /// What is announced to the peers of a process that listens on `listening`.
    #[must_use]
    pub fn announced(&self, listening: SocketAddr) -> Option<String> {
        let own = (!listening.ip().is_unspecified()).then(|| listening.to_string());
        self.address.clone().or(own)
    }
}

/// Host and port of `HOST:PORT`.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    (!host.is_empty() && !host.contains('/')).then_some((host, port.parse().ok()?))
}
