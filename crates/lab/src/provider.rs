//! The fake provider: a real HTTP server that speaks both model wires, keeps their rules strictly,
//! answers with realistic timing, and can be broken in every way a real one breaks.
//!
//! One listener serves `POST /v1/chat/completions` (OpenAI) and `POST /v1/messages` (Anthropic),
//! streaming or not. What it says comes from a [`Brain`]: a pure function of the conversation, so
//! that a call that is made again gets the same answer. What is wrong with it is set at run time
//! through [`Control`], and everything it sees is counted.
//!
//! What holds: while an outage lasts no byte of an answer leaves; each call is counted exactly
//! once; a request that breaks the rules of its wire is answered 400 and recorded, whatever the
//! faults are.

mod anthropic;
mod count;
mod fault;
mod openai;
mod play;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use evenkeel_core::Mono;
use evenkeel_env::{Env, Task, watch};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use count::{Counters, RequestSeen};
pub use fault::Fault;

use crate::task::{Conversation, Reply};

/// Which wire a request came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireKind {
    /// OpenAI Chat Completions.
    Openai,
    /// Anthropic Messages.
    Anthropic,
}

/// Decides what the model says: a pure function of the conversation.
pub trait Brain: Send + Sync {
    /// The answer to this conversation.
    fn answer(&self, conversation: &Conversation) -> Reply;
}

/// How fast the model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timing {
    /// Milliseconds to the first token.
    pub first_token_ms: f64,
    /// Tokens a second after it.
    pub tokens_per_s: f64,
    /// Share by which the time to the first token varies up and down.
    pub jitter: f64,
    /// Milliseconds between pieces of a stream at least: tokens that come closer share a piece.
    pub piece_ms: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { first_token_ms: 350.0, tokens_per_s: 100.0, jitter: 0.2, piece_ms: 100.0 }
    }
}

/// What a fake provider is.
#[derive(Clone)]
pub struct FakeConfig {
    /// Its name in reports.
    pub name: String,
    /// Where it listens; port 0 picks a free one.
    pub address: SocketAddr,
    /// How fast it is.
    pub timing: Timing,
    /// Accepted keys; empty accepts any.
    pub keys: Vec<String>,
    /// Longer requests are refused as too long; estimated at four bytes a token.
    pub context_tokens: Option<u64>,
    /// Streams at once; more are answered 429. `None` for no limit.
    pub streams_max: Option<usize>,
    /// What it says.
    pub brain: Arc<dyn Brain>,
}

impl FakeConfig {
    /// A provider of this name that answers with `brain` on a free port of the loopback.
    #[must_use]
    pub fn new(name: &str, brain: Arc<dyn Brain>) -> Self {
        Self {
            name: name.to_owned(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            timing: Timing::default(),
            keys: Vec::new(),
            context_tokens: None,
            streams_max: None,
            brain,
        }
    }
}

/// Starts a fake provider. It runs until [`Control::stop`] or the end of the process.
///
/// # Errors
/// If it cannot listen.
pub fn start(env: &Env, config: FakeConfig) -> BoxFuture<'static, anyhow::Result<Control>> {
    let env = env.part(&format!("provider/{}", config.name));
    Box::pin(async move {
        let mut listener = env
            .net
            .listen(config.address)
            .await
            .with_context(|| format!("listen on {} for the fake provider", config.address))?;
        let address = listener.local_address().context("learn the fake provider's address")?;
        let shared = Arc::new(Shared {
            started: env.mono(),
            timing: Mutex::new(config.timing.clone()),
            faults: Mutex::default(),
            book: Mutex::default(),
            outage: watch::Sender::new(0),
            address,
            config,
            env: env.clone(),
        });
        let accepting = shared.clone();
        let task = env.spawner.spawn(
            "provider-accept",
            Box::pin(async move {
                while let Ok((accepted, _)) = listener.accept_any().await {
                    serve::accepted(&accepting, accepted);
                }
            }),
        );
        Ok(Control { shared, accept: Arc::new(task) })
    })
}

/// The base URL to configure for a provider of this wire that listens on `port` of the loopback.
pub(crate) fn base_url(port: u16, wire: WireKind) -> String {
    match wire {
        WireKind::Openai => format!("http://127.0.0.1:{port}/v1"),
        WireKind::Anthropic => format!("http://127.0.0.1:{port}"),
    }
}

/// What the strict validator of a wire says against a request; empty if nothing.
fn strict_rules(wire: WireKind, request: &serde_json::Value) -> Vec<String> {
    let judged = match wire {
        WireKind::Openai => evenkeel_model::wire::validate::openai(request),
        WireKind::Anthropic => evenkeel_model::wire::validate::anthropic(request),
    };
    judged.err().unwrap_or_default()
}

pub(crate) struct Shared {
    env: Env,
    config: FakeConfig,
    address: SocketAddr,
    started: Mono,
    timing: Mutex<Timing>,
    faults: Mutex<Faults>,
    book: Mutex<count::Book>,
    /// Counts the times that all live connections had to be cut.
    outage: watch::Sender<u64>,
}

#[derive(Default)]
struct Faults {
    next_id: u64,
    active: BTreeMap<u64, Active>,
}

#[derive(Clone)]
struct Active {
    fault: Fault,
    since: Mono,
    /// Calls that the acceleration limit let through in its current second.
    passed: (u64, u64),
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, count::Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timing(&self) -> Timing {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn at_ms(&self) -> u64 {
        u64::try_from(self.env.mono().since(self.started).as_millis()).unwrap_or(u64::MAX)
    }

    fn in_outage(&self) -> bool {
        self.faults().active.values().any(|active| active.fault.is_outage())
    }

    fn has(&self, wanted: &Fault) -> bool {
        self.faults().active.values().any(|active| active.fault == *wanted)
    }

    /// How many times as long everything takes now.
    fn slowness(&self) -> f64 {
        let faults = self.faults();
        let factors = faults.active.values().map(|active| match active.fault {
            Fault::Slow { factor } => factor,
            _ => 1.0,
        });
        factors.fold(1.0, f64::max)
    }

    /// The fault that the next call meets, slowness aside.
    fn draw(&self) -> Option<Fault> {
        let second = self.at_ms() / 1_000;
        let mut faults = self.faults();
        let mut active: Vec<&mut Active> = faults.active.values_mut().collect();
        active.sort_by_key(|active| active.fault.rank());
        active.into_iter().find_map(|active| self.hits(active, second).then(|| active.fault.clone()))
    }

    fn hits(&self, active: &mut Active, second: u64) -> bool {
        match active.fault {
            Fault::Slow { .. } => false,
            Fault::Acceleration { start_per_s, growth_per_s } => {
                let age_s = self.env.mono().since(active.since).as_secs_f64();
                if active.passed.0 != second {
                    active.passed = (second, 0);
                }
                active.passed.1 += 1;
                #[expect(clippy::cast_precision_loss, reason = "calls in one second")]
                let n_passed = active.passed.1 as f64;
                n_passed > start_per_s + growth_per_s * age_s
            }
            _ => self.env.generator.unit() < active.fault.share(),
        }
    }
}

/// Names a fault that was set, so that it can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(u64);

/// The handle of a running fake provider. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    accept: Arc<Task>,
}

impl Control {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.config.name
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The base URL to configure for a provider of this wire.
    #[must_use]
    pub fn base_url(&self, wire: WireKind) -> String {
        base_url(self.shared.address.port(), wire)
    }

    /// Breaks something, until it is healed.
    pub fn set(&self, fault: Fault) -> FaultId {
        let cut = matches!(fault, Fault::Down);
        let since = self.shared.env.mono();
        let id = {
            let mut faults = self.shared.faults();
            faults.next_id += 1;
            let id = faults.next_id;
            faults.active.insert(id, Active { fault, since, passed: (0, 0) });
            id
        };
        if cut {
            self.shared.outage.send_modify(|n| *n += 1);
        }
        FaultId(id)
    }

    /// Takes one fault back.
    pub fn heal(&self, id: FaultId) {
        self.shared.faults().active.remove(&id.0);
    }

    /// Takes all faults back.
    pub fn heal_all(&self) {
        self.shared.faults().active.clear();
    }

    /// The faults that are active now.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.shared.faults().active.values().map(|active| active.fault.clone()).collect()
    }

    /// Changes how fast the model is, for calls that start from now on.
    pub fn set_timing(&self, timing: Timing) {
        *self.shared.timing.lock().unwrap_or_else(PoisonError::into_inner) = timing;
    }

    /// Everything counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut book = self.shared.book();
        book.count_streams(self.shared.at_ms());
        book.counters.clone()
    }

    /// The newest requests, oldest first.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestSeen> {
        self.shared.book().requests.iter().cloned().collect()
    }

    /// Milliseconds since it started: the scale of all its instants.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.shared.at_ms()
    }

    /// Closes the listener and cuts every connection.
    pub fn stop(&self) {
        self.accept.abort();
        self.shared.outage.send_modify(|n| *n += 1);
    }
}
