//! Spans on their way to a collector (OTLP over HTTP, protobuf).
//!
//! A commit never waits here: spans go into a bounded queue, and what does not fit is dropped and
//! counted. One task sends batches; while the collector is away it tries the same batch again with
//! growing pauses and gives it up after a while, so memory is bounded by the queue and one batch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::port::store::{Admitted, Op, Reply, TurnCommitted, Written};
use evenkeel_core::run::Run;
use evenkeel_core::{Error, Wall};
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use http::{Method, Request, Uri, header};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::names;
use super::spans::{self, Fact, Spans, Whose};
use crate::config::{Config, invalid};
use crate::gateway::rate_limit::Bucket;

/// Spans of one request.
const BATCH_SPANS: usize = 512;
/// How long a batch that is not full waits for more.
const LINGER: Duration = Duration::from_millis(500);
/// The pause before the first repetition of a batch; it doubles up to the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Tries of one batch.
const TRIES: u32 = 6;
/// Time for the collector to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What became of spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportStats {
    /// Taken by the collector.
    pub exported: u64,
    /// Dropped: the queue was full, the rate was passed, or the collector stayed away.
    pub dropped: u64,
    /// Requests that failed.
    pub failed_requests: u64,
}

/// The queue before the collector; does nothing without `telemetry.otlp_endpoint`. Cheap to clone.
#[derive(Clone)]
pub struct Exporter {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    spans: Mutex<Spans>,
    rate: Mutex<Bucket>,
    queue: mpsc::Sender<Item>,
    counters: Arc<Counters>,
    env: Env,
}

#[derive(Default)]
struct Counters {
    exported: AtomicU64,
    dropped: AtomicU64,
    failed_requests: AtomicU64,
}

enum Item {
    Span(Box<Span>),
    Flush(oneshot::Sender<()>),
}

/// What an operation will have told if it succeeds.
pub struct Tapped {
    whose: Option<Whose>,
    facts: Vec<Fact>,
}

impl Exporter {
    /// Starts the exporting task if a collector is configured.
    ///
    /// # Errors
    /// `config-invalid` if the endpoint is not an `http` or `https` URL.
    pub fn start(env: &Env, config: &Config) -> Result<Self, Error> {
        let Some(endpoint) = &config.telemetry.otlp_endpoint else {
            return Ok(Self { inner: None });
        };
        let target: Uri =
            format!("{}/v1/traces", endpoint.trim_end_matches('/')).parse().map_err(|_| no_url(endpoint))?;
        if !matches!(target.scheme_str(), Some("http" | "https")) {
            return Err(no_url(endpoint));
        }
        let limits = &config.limits.tracing;
        let (queue, items) = mpsc::channel(limits.slots);
        let counters = Arc::new(Counters::default());
        let sender =
            Sender { client: Client::new(env, Duration::from_secs(2)), target, counters: counters.clone() };
        env.spawner.spawn("otlp", Box::pin(sender.run(items)));
        let rate = Mutex::new(Bucket::per_minute(limits.calls_per_min));
        let env = env.clone();
        Ok(Self { inner: Some(Arc::new(Inner { spans: Mutex::default(), rate, queue, counters, env })) })
    }

    /// An exporter without a collector.
    #[must_use]
    pub fn off() -> Self {
        Self { inner: None }
    }

    /// What became of spans so far.
    #[must_use]
    pub fn stats(&self) -> ExportStats {
        let Some(inner) = &self.inner else {
            return ExportStats::default();
        };
        ExportStats {
            exported: inner.counters.exported.load(Ordering::Relaxed),
            dropped: inner.counters.dropped.load(Ordering::Relaxed),
            failed_requests: inner.counters.failed_requests.load(Ordering::Relaxed),
        }
    }

    /// Looks at an operation before it is carried out. `None` if nothing of it is traced.
    #[must_use]
    pub fn tap(&self, op: &Op) -> Option<Tapped> {
        self.inner.as_ref()?;
        let (fence, events) = match op {
            Op::CommitStep(request) => (&request.fence, &request.events),
            Op::CommitTurn(request) => (&request.fence, &request.events),
            Op::Park(request) => (&request.fence, &request.events),
            Op::Admit(_) | Op::ClaimReady(_) | Op::Steal(_) | Op::Wake(_) => {
                return Some(Tapped { whose: None, facts: Vec::new() });
            }
            _ => return None,
        };
        let mut facts = spans::facts(events);
        if let Op::CommitTurn(request) = op {
            facts.push(Fact::Ended(request.outcome.clone()));
        }
        let whose = Whose { tenant: fence.tenant.clone(), thread: fence.thread, run: fence.run };
        Some(Tapped { whose: Some(whose), facts })
    }

    /// The operation has happened: its spans go into the queue.
    pub fn committed(&self, tapped: Tapped, reply: &Reply, now: Wall) {
        let Some(inner) = &self.inner else {
            return;
        };
        let mut spans = inner.spans.lock().unwrap_or_else(PoisonError::into_inner);
        runs_in(reply).into_iter().for_each(|run| spans.saw(run));
        let done = matches!(
            reply,
            Reply::CommitStep(Written::Done { .. })
                | Reply::Park(Written::Done { .. })
                | Reply::CommitTurn(TurnCommitted::Done { .. })
        );
        let made = match tapped.whose {
            Some(whose) if done => spans.of(&whose, tapped.facts, now),
            _ => Vec::new(),
        };
        drop(spans);
        made.into_iter().for_each(|span| inner.offer(span));
    }

    /// Waits until everything queued so far was sent or given up, at most two seconds.
    pub async fn flush(&self) {
        let Some(inner) = &self.inner else {
            return;
        };
        let (done, flushed) = oneshot::channel();
        if inner.queue.try_send(Item::Flush(done)).is_ok() {
            // What cannot be sent in this time is lost with the process.
            let _ = tokio::time::timeout(Duration::from_secs(2), flushed).await;
        }
    }
}

impl Inner {
    fn offer(&self, span: Span) {
        let within_rate =
            self.rate.lock().unwrap_or_else(PoisonError::into_inner).take(self.env.mono()).is_ok();
        if !within_rate || self.queue.try_send(Item::Span(Box::new(span))).is_err() {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn runs_in(reply: &Reply) -> Vec<&Run> {
    match reply {
        Reply::Admit(Admitted::Accepted { run, .. }) => vec![run.as_ref()],
        Reply::ClaimReady(claims) | Reply::Steal(claims) | Reply::Wake(claims) => {
            claims.iter().map(|claim| &claim.run).collect()
        }
        Reply::CommitTurn(TurnCommitted::Done { next: Some(claim), .. }) => vec![&claim.run],
        _ => Vec::new(),
    }
}

/// Sends batches until the queue's last sender is gone.
struct Sender {
    client: Client,
    target: Uri,
    counters: Arc<Counters>,
}

impl Sender {
    async fn run(self, mut items: mpsc::Receiver<Item>) {
        loop {
            let (batch, flushed, open) = collect(&mut items).await;
            if !batch.is_empty() {
                self.deliver(batch).await;
            }
            if let Some(flushed) = flushed {
                // Whoever asked may have gone away meanwhile.
                let _ = flushed.send(());
            }
            if !open {
                return;
            }
        }
    }

    async fn deliver(&self, batch: Vec<Span>) {
        let n_spans = batch.len() as u64;
        let body = Bytes::from(request(batch).encode_to_vec());
        let mut pause = BACKOFF_FIRST;
        for attempt in 1..=TRIES {
            match self.send(body.clone()).await {
                Ok(()) => {
                    self.counters.exported.fetch_add(n_spans, Ordering::Relaxed);
                    return;
                }
                Err(cause) => {
                    self.counters.failed_requests.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(attempt, cause, "send spans to the collector");
                }
            }
            if attempt < TRIES {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BACKOFF_MAX);
            }
        }
        self.counters.dropped.fetch_add(n_spans, Ordering::Relaxed);
        tracing::warn!(n_spans, target = %self.target, "the collector stays away; spans were dropped");
    }

    async fn send(&self, body: Bytes) -> Result<(), String> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.target.clone())
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .body(body)
            .map_err(|error| error.to_string())?;
        let response = tokio::time::timeout(TIMEOUT, self.client.send(request)).await;
        match response {
            Ok(Ok(response)) if response.status().is_success() => Ok(()),
            Ok(Ok(response)) => Err(format!("status {}", response.status())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }
}

/// The next batch: full, or as long as a lingering moment brought more, or asked for by a flush.
async fn collect(items: &mut mpsc::Receiver<Item>) -> (Vec<Span>, Option<oneshot::Sender<()>>, bool) {
    let mut batch = Vec::new();
    let mut until = None;
    while batch.len() < BATCH_SPANS {
        let next = match until {
            None => items.recv().await,
            Some(until) => match tokio::time::timeout_at(until, items.recv()).await {
                Ok(next) => next,
                Err(_) => return (batch, None, true),
            },
        };
        match next {
            Some(Item::Span(span)) => batch.push(*span),
            Some(Item::Flush(done)) => return (batch, Some(done), true),
            None => return (batch, None, false),
        }
        until.get_or_insert_with(|| tokio::time::Instant::now() + LINGER);
    }
    (batch, None, true)
}

fn request(spans: Vec<Span>) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![
            spans::text("service.name", "evenkeel"),
            spans::text("service.version", env!("CARGO_PKG_VERSION")),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "evenkeel".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = ScopeSpans { scope: Some(scope), spans, schema_url: names::SCHEMA_URL.to_owned() };
    let resource_spans = ResourceSpans {
        resource: Some(resource),
        scope_spans: vec![scope_spans],
        schema_url: names::SCHEMA_URL.to_owned(),
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn no_url(endpoint: &str) -> Error {
    invalid(
        format!("telemetry.otlp_endpoint = \"{endpoint}\" is not an http or https URL."),
        "Write the collector's base URL, such as \"http://127.0.0.1:4318\".",
    )
}
