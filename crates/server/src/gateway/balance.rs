//! The replicas behind a gateway: how each of them is, which one gets a request, one try at one.
//!
//! Each replica is probed about every second (`/readyz`), more often while something is wrong with
//! it, and the outcome of every request is taken in as well; [`standing`] says what follows from
//! both. [`choice`] picks among those that are up. The gateway keeps nothing else: it may be killed
//! and started again, and there may be several of them.

pub(crate) mod choice;
pub(crate) mod standing;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::Error;
use evenkeel_env::http::{Body, Client, ClientError, ClientOptions};
use evenkeel_env::{Env, Task, watch};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use choice::{Candidate, choose};
use standing::{Health, Seen, Standing};

use crate::config::GatewaySection;
use crate::telemetry::GatewayReading;

/// On a refusal of a replica that drains: the request was not taken and may go elsewhere.
pub(crate) const DRAINING: &str = "x-evenkeel-draining";
/// Unused connections to a replica are closed after this, before the replica closes them.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Bytes of a response that one connection to a replica may hold before its client takes them.
const BUFFER_MAX: usize = 64 << 10;
/// Bytes of a probe's answer.
const PROBE_BYTES_MAX: usize = 64 << 10;
/// Between two looks for a replica when all that are up were tried.
const AGAIN: Duration = Duration::from_millis(100);

/// The replicas.
pub(crate) struct Balancer {
    env: Env,
    config: GatewaySection,
    /// How long a replica may take to answer with headers.
    answer_timeout: Duration,
    replicas: Vec<Replica>,
    client: Client,
    /// Opens a connection for each probe: that one can be opened is half of what is asked.
    prober: Client,
    /// How often any standing has changed.
    changes: watch::Sender<u64>,
    turn: AtomicUsize,
    pub(crate) counters: Counters,
}

/// What the gateway counts beside its replicas.
#[derive(Default)]
pub(crate) struct Counters {
    /// Requests that wait for a replica now.
    pub(crate) n_held: AtomicUsize,
    /// Requests that had to wait for a replica.
    pub(crate) held: AtomicU64,
    /// Requests for which no replica was found in time.
    pub(crate) no_replica: AtomicU64,
    /// Bodies that another replica went on with.
    pub(crate) resumed: AtomicU64,
}

/// One replica.
struct Replica {
    /// Its address as configured, without a slash at the end.
    name: String,
    health: Mutex<Health>,
    in_flight: AtomicUsize,
    n_requests: AtomicU64,
    n_failed: AtomicU64,
    probe_now: Notify,
    /// What it said of itself in its last probe.
    said: Mutex<Value>,
}

/// A replica as operators see it.
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) standing: Standing,
    pub(crate) for_ms: u64,
    pub(crate) in_flight: usize,
    pub(crate) n_requests: u64,
    /// Tries that it did not answer.
    pub(crate) n_failed: u64,
    pub(crate) said: Value,
}

/// How one try at one replica went.
pub(crate) enum Tried {
    /// It answered.
    Answered(Response<Body>, OnReplica),
    /// The request was not taken: it may be sent elsewhere whatever it is.
    NotTaken,
    /// Whether it was carried out is not known.
    Lost,
}

/// A request's place at a replica; dropping it ends it.
pub(crate) struct OnReplica {
    balancer: Arc<Balancer>,
    /// Its place in the configuration.
    pub(crate) idx: usize,
    changes: watch::Receiver<u64>,
}

impl Balancer {
    /// The replicas of the configuration; nothing is known of them yet.
    pub(crate) fn new(env: &Env, config: GatewaySection, answer_timeout: Duration) -> Arc<Self> {
        let env = env.part("balance");
        let now = env.mono();
        let replicas = config.peers.iter().map(|name| Replica {
            name: name.trim_end_matches('/').to_owned(),
            health: Mutex::new(Health::new(now)),
            in_flight: AtomicUsize::new(0),
            n_requests: AtomicU64::new(0),
            n_failed: AtomicU64::new(0),
            probe_now: Notify::new(),
            said: Mutex::new(Value::Null),
        });
        let replicas = replicas.collect();
        let options = ClientOptions {
            connect_timeout: config.probe_timeout.0,
            idle_max: Some(IDLE_MAX),
            buffer_max: Some(BUFFER_MAX),
        };
        let client = Client::with(&env, options);
        let prober = Client::with(&env, ClientOptions { idle_max: None, ..options });
        Arc::new(Self {
            replicas,
            client,
            prober,
            answer_timeout,
            config,
            env,
            changes: watch::Sender::new(0),
            turn: AtomicUsize::new(0),
            counters: Counters::default(),
        })
    }

    /// Starts to probe every replica.
    pub(crate) fn start(self: &Arc<Self>) -> Vec<Task> {
        let probes = (0..self.replicas.len()).map(|idx| {
            let probes = self.clone().probe_for_ever(idx);
            self.env.spawner.spawn("probe a replica", Box::pin(probes))
        });
        probes.collect()
    }

    /// Its configuration.
    pub(crate) fn config(&self) -> &GatewaySection {
        &self.config
    }

    /// Whether any replica is up.
    pub(crate) fn is_any_up(&self) -> bool {
        self.replicas.iter().any(|replica| replica.standing() == Standing::Up)
    }

    /// How long no replica has been up, as far as is known.
    pub(crate) fn outage(&self) -> Duration {
        let now = self.env.mono();
        let down_for = self.replicas.iter().map(|replica| now.since(replica.health().since()));
        down_for.min().unwrap_or_default()
    }

    /// Everything for the metrics.
    pub(crate) fn reading(&self) -> GatewayReading {
        GatewayReading {
            replicas: self.shown(),
            n_held: self.counters.n_held.load(Ordering::Relaxed),
            held: self.counters.held.load(Ordering::Relaxed),
            no_replica: self.counters.no_replica.load(Ordering::Relaxed),
            resumed: self.counters.resumed.load(Ordering::Relaxed),
        }
    }

    /// Every replica as it is now.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let now = self.env.mono();
        let shown = self.replicas.iter().map(|replica| {
            let (standing, since) = {
                let health = replica.health();
                (health.standing(), health.since())
            };
            Shown {
                name: replica.name.clone(),
                standing,
                for_ms: u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX),
                in_flight: replica.in_flight.load(Ordering::Relaxed),
                n_requests: replica.n_requests.load(Ordering::Relaxed),
                n_failed: replica.n_failed.load(Ordering::Relaxed),
                said: replica.said.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            }
        });
        shown.collect()
    }

    /// A place at a replica that is up, rather not one of `tried`; waits for one until `deadline`.
    pub(crate) async fn place(
        self: &Arc<Self>,
        thread: Option<&str>,
        tried: &mut Vec<usize>,
        deadline: Instant,
    ) -> Option<OnReplica> {
        if let Some(place) = self.pick(thread, tried) {
            return Some(place);
        }
        let _held = Held::begin(&self.counters);
        let mut changes = self.changes.subscribe();
        while Instant::now() < deadline {
            // Whatever was tried may be tried again when something has changed, or after a while.
            let changed = async { changes.changed().await.is_ok() };
            let _ = timeout(AGAIN.min(deadline - Instant::now()), changed).await;
            tried.clear();
            if let Some(place) = self.pick(thread, tried) {
                return Some(place);
            }
        }
        self.counters.no_replica.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn pick(self: &Arc<Self>, thread: Option<&str>, tried: &[usize]) -> Option<OnReplica> {
        let up = self.replicas.iter().enumerate().filter(|(_, replica)| replica.standing() == Standing::Up);
        let candidates: Vec<Candidate<'_>> = up
            .filter(|(idx, _)| !tried.contains(idx))
            .map(|(idx, replica)| Candidate {
                idx,
                name: &replica.name,
                in_flight: replica.in_flight.load(Ordering::Relaxed),
            })
            .collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let idx = choose(&candidates, thread, turn)?;
        let replica = self.replicas.get(idx)?;
        replica.in_flight.fetch_add(1, Ordering::Relaxed);
        replica.n_requests.fetch_add(1, Ordering::Relaxed);
        Some(OnReplica { balancer: self.clone(), idx, changes: self.changes.subscribe() })
    }

    /// Takes in what was seen of a replica.
    fn see(&self, idx: usize, seen: Seen) {
        let Some(replica) = self.replicas.get(idx) else { return };
        let (changed, standing) = {
            let mut health = replica.health();
            let changed = health.see(seen, self.env.mono());
            (changed, health.standing())
        };
        if changed {
            tracing::info!(replica = replica.name, standing = standing.as_str(), "replica");
            self.changes.send_modify(|n| *n += 1);
        }
    }

    async fn probe_for_ever(self: Arc<Self>, idx: usize) {
        let Some(replica) = self.replicas.get(idx) else { return };
        loop {
            let seen = self.probe(replica).await;
            self.see(idx, seen);
            let due = sleep(replica.health().probe_after(self.config.probe_every.0));
            tokio::select! {
                biased;
                () = due => {}
                () = replica.probe_asked() => {}
            }
        }
    }

    async fn probe(&self, replica: &Replica) -> Seen {
        let uri = format!("{}/readyz", replica.name);
        let Ok(request) = Request::get(uri).body(Bytes::new()) else { return Seen::NotReady };
        let answer = async {
            let response = self.prober.send(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), PROBE_BYTES_MAX).collect().await;
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Ok::<_, ClientError>((status, serde_json::from_slice::<Value>(&body).unwrap_or_default()))
        };
        match timeout(self.config.probe_timeout.0, answer).await {
            Ok(Ok((status, said))) => {
                let draining = said["checks"]["draining"] == true;
                *replica.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
                match status {
                    StatusCode::OK => Seen::Ready,
                    _ if draining => Seen::Draining,
                    _ => Seen::NotReady,
                }
            }
            Ok(Err(ClientError::Connect { refused: true, .. })) => Seen::Refused,
            Ok(Err(ClientError::Connect { .. })) | Err(_) => Seen::Silent,
            Ok(Err(ClientError::Broken { .. })) => Seen::Broken,
        }
    }
}

impl Replica {
    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standing(&self) -> Standing {
        self.health().standing()
    }

    /// Ready when a request has seen something that a probe should look into.
    async fn probe_asked(&self) {
        self.probe_now.notified().await;
        // A burst of failed requests asks once.
        sleep(Duration::from_millis(20)).await;
    }
}

impl OnReplica {
    /// The replica's address.
    pub(crate) fn name(&self) -> &str {
        self.balancer.replicas.get(self.idx).map_or("", |replica| &replica.name)
    }

    /// Sends the request and waits for the answer's headers. With `gives_up` also no longer than the
    /// replica is well while another one is up.
    pub(crate) async fn send(mut self, request: Request<Bytes>, gives_up: bool) -> Tried {
        let balancer = self.balancer.clone();
        let answer = timeout(balancer.answer_timeout, balancer.client.send(request));
        let answered = tokio::select! {
            biased;
            answered = answer => answered,
            () = self.unwell(), if gives_up => return self.failed(None, Tried::Lost),
        };
        match answered {
            Ok(Ok(response)) if is_draining(&response) => self.failed(Some(Seen::Draining), Tried::NotTaken),
            Ok(Ok(response)) => {
                balancer.see(self.idx, Seen::Served);
                Tried::Answered(response, self)
            }
            Ok(Err(ClientError::Connect { refused, .. })) => {
                let seen = if refused { Seen::Refused } else { Seen::Silent };
                self.failed(Some(seen), Tried::NotTaken)
            }
            // A connection that was closed while nobody used it says nothing of the replica.
            Ok(Err(ClientError::Broken { sent: false, .. })) => self.failed(None, Tried::NotTaken),
            Ok(Err(ClientError::Broken { .. })) => self.failed(Some(Seen::Broken), Tried::Lost),
            Err(_) => self.failed(Some(Seen::Silent), Tried::Lost),
        }
    }

    /// Ready when the replica is down and another one is up.
    pub(crate) async fn unwell(&mut self) {
        while !self.is_unwell() {
            if self.changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn is_unwell(&self) -> bool {
        let replicas = &self.balancer.replicas;
        let is_down =
            replicas.get(self.idx).is_some_and(|replica| matches!(replica.standing(), Standing::Down(_)));
        is_down && self.balancer.is_any_up()
    }

    fn failed(self, seen: Option<Seen>, tried: Tried) -> Tried {
        if let Some(seen) = seen {
            self.balancer.see(self.idx, seen);
        }
        if let Some(replica) = self.balancer.replicas.get(self.idx) {
            replica.n_failed.fetch_add(1, Ordering::Relaxed);
            replica.probe_now.notify_one();
        }
        tried
    }
}

impl Drop for OnReplica {
    fn drop(&mut self) {
        if let Some(replica) = self.balancer.replicas.get(self.idx) {
            replica.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Counts a request that waits for a replica.
struct Held<'a>(&'a Counters);

impl<'a> Held<'a> {
    fn begin(counters: &'a Counters) -> Self {
        counters.held.fetch_add(1, Ordering::Relaxed);
        counters.n_held.fetch_add(1, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.n_held.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_draining(response: &Response<Body>) -> bool {
    response.status() == StatusCode::SERVICE_UNAVAILABLE && response.headers().contains_key(DRAINING)
}

/// The refusal when no replica was found in time.
pub(crate) fn no_replica(balancer: &Balancer) -> Error {
    use evenkeel_core::{Code, Origin};
    // The best guess of how long an outage lasts is as long again as it has lasted.
    let wait = balancer.outage().clamp(Duration::from_secs(1), Duration::from_secs(30));
    Error::new(
        Code::NoReplica,
        Origin::Ours,
        "No replica can take the request now.",
        "Send it again after the time in Retry-After; `evenkeel replicas` shows why.",
    )
    .retry_after(wait)
}

#[cfg(test)]
mod tests;
