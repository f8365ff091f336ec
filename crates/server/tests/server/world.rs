//! The world of these tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use evenkeel_core::id::{CallId, EffectId, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::{EffectResult, EventBody, NewEvent};
use evenkeel_core::message::{Block, Message, Role, ToolCall, ToolResult, Usage};
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::feed::{Feed, Provisional};
use evenkeel_core::port::store::{
    Cancel, Claim, ClaimReady, CommitStep, CommitTurn, Heartbeat, StoreClient, ThreadRef, TurnCommitted,
    Written,
};
use evenkeel_core::run::{Attempt, Outcome, RunState};
use evenkeel_core::{Error, Wall};
use evenkeel_env::Env;
use evenkeel_env::http::Body;
use evenkeel_env::http::Client;
use evenkeel_env::slots::{Slot, Slots};
use evenkeel_harness::HarnessStats;
use evenkeel_model::{Operation, RouterSnapshot};
use evenkeel_server::app::{ComponentSlots, Dispatch, EdgeParts, Routing};
use evenkeel_server::config::Environment;
use evenkeel_server::stream::Hub;
use evenkeel_server::telemetry::{Exporter, Metrics};
use evenkeel_server::{Config, Overrides, Running};
use evenkeel_store::memory::MemoryStore;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// A served edge whose runs the test plays.
pub(crate) struct World {
    pub(crate) env: Env,
    pub(crate) store: StoreClient,
    pub(crate) hub: Arc<Hub>,
    pub(crate) dispatch: Arc<Scripted>,
    pub(crate) running: Option<Running>,
    claims: tokio::sync::Mutex<mpsc::Receiver<Claim>>,
    door: Door,
}

/// Hands claims to the test.
pub(crate) struct Scripted {
    replica: ReplicaId,
    claims: mpsc::Sender<Claim>,
    pub(crate) free: Mutex<usize>,
    slots: Slots,
    pub(crate) cancelled: Mutex<Vec<RunId>>,
}

impl Dispatch for Scripted {
    fn replica(&self) -> ReplicaId {
        self.replica
    }

    fn free_slots(&self) -> usize {
        *self.free.lock().unwrap()
    }

    fn slot(&self) -> Option<Slot> {
        (self.free_slots() > 0).then(|| self.slots.try_acquire().unwrap())
    }

    fn adopt(&self, claim: Claim, _slot: Slot) {
        self.claims.try_send(claim).unwrap();
    }

    fn nudge(&self) {}

    fn cancel(&self, run: RunId) {
        self.cancelled.lock().unwrap().push(run);
    }

    fn drain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn stats(&self) -> HarnessStats {
        HarnessStats { lease_held: true, ..HarnessStats::default() }
    }
}

struct NoRouter;

impl Routing for NoRouter {
    fn snapshot(&self) -> RouterSnapshot {
        RouterSnapshot::default()
    }

    fn operate(&self, deployment: &str, _operation: Operation) -> Result<(), Error> {
        Err(Error::client(evenkeel_core::Code::NotFound, format!("no deployment {deployment}"), "None here."))
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answered {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status and code of a refusal, for tables.
    pub(crate) fn refusal(&self) -> String {
        let code = self.json()["code"].as_str().unwrap_or("-").to_owned();
        format!("{} {code}", self.status.as_u16())
    }
}

/// A client of a served address.
pub(crate) struct Door {
    pub(crate) address: String,
    pub(crate) client: Client,
}

impl Door {
    /// Sends a request and gives the response as soon as its headers are there.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::from(body.to_owned())).unwrap();
        tokio::time::timeout(Duration::from_secs(10), self.client.send(request)).await.unwrap().unwrap()
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answered {
        let (parts, body) = self.open(method, path, headers, body).await.into_parts();
        let body =
            tokio::time::timeout(Duration::from_secs(20), body.collect()).await.unwrap().unwrap().to_bytes();
        Answered { status: parts.status, headers: parts.headers, body }
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with("server.heartbeat = \"200ms\"", &[]).await
    }

    pub(crate) async fn with(toml: &str, environment: &[(&str, &str)]) -> Self {
        let environment = Environment::from_pairs(environment.iter().copied());
        let overrides = Overrides { environment, set: Vec::new() }
            .with("server.listen", "127.0.0.1:0")
            .with("server.store", "memory");
        let config = Config::parse("test.toml", toml, &overrides).unwrap();
        let env = Env::seeded(7);
        let store = StoreClient(MemoryStore::new(&env));
        Self::over(env, config, store).await
    }

    /// An edge over a store that has a past: another process, or this one after a restart.
    pub(crate) async fn over(env: Env, config: Config, store: StoreClient) -> Self {
        let replica = ReplicaId::new(env.wall(), &env.generator);
        let beat =
            Heartbeat { replica, address: None, lease_ttl_ms: 600_000, draining: false, health: vec![] };
        store.heartbeat(beat).await.unwrap();
        let (send, claims) = mpsc::channel(64);
        let (free, cancelled) = (Mutex::new(1000), Mutex::default());
        let slots = Slots::new("harness", 1000, 1000);
        let dispatch = Arc::new(Scripted { replica, claims: send, free, slots, cancelled });
        let hub = Hub::new(store.clone());
        let parts = EdgeParts {
            store: store.clone(),
            slow: None,
            hub: hub.clone(),
            dispatch: dispatch.clone(),
            routing: Arc::new(NoRouter),
            slots: ComponentSlots::new(&config.limits),
            metrics: Metrics::new(),
            exporter: Exporter::off(),
        };
        let running = evenkeel_server::app::serve(env.clone(), config, parts).await.unwrap();
        let address = running.address().to_string();
        let door = Door { address, client: Client::new(&env, Duration::from_secs(2)) };
        Self {
            env,
            store,
            hub,
            dispatch,
            running: Some(running),
            claims: tokio::sync::Mutex::new(claims),
            door,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.door.address
    }

    /// Sends a request and gives the response as soon as its headers are there.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> http::Response<Body> {
        self.door.open(method, path, headers, body).await
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answered {
        self.door.ask(method, path, headers, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.ask(Method::GET, path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answered {
        self.ask(Method::POST, path, &[], &body.to_string()).await
    }

    pub(crate) async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Sse {
        Sse::new(self.open(Method::GET, path, headers, "").await)
    }

    /// A fresh thread.
    pub(crate) async fn thread(&self) -> String {
        self.post("/threads", &json!({})).await.json()["thread_id"].as_str().unwrap().to_owned()
    }

    /// A fresh run on a thread.
    pub(crate) async fn run(&self, thread: &str, text: &str) -> String {
        let answered = self.post(&format!("/threads/{thread}/runs"), &chat(text)).await;
        assert_eq!(answered.status, 200, "{:?}", answered.body);
        answered.json()["run_id"].as_str().unwrap().to_owned()
    }

    /// The next claim that was handed to this process.
    pub(crate) async fn player(&self) -> Player {
        let mut claims = self.claims.lock().await;
        let claim = tokio::time::timeout(Duration::from_secs(5), claims.recv()).await.unwrap().unwrap();
        self.play(claim)
    }

    pub(crate) fn play(&self, claim: Claim) -> Player {
        Player { store: self.store.clone(), hub: self.hub.clone(), claim, announce: true }
    }

    /// Claims what is queued, as the harness would after a nudge.
    pub(crate) async fn claim_ready(&self) -> Option<Player> {
        let request = ClaimReady { me: self.dispatch.replica, limit: 1 };
        self.store.claim_ready(request).await.unwrap().pop().map(|claim| self.play(claim))
    }
}

/// A chat request's body.
pub(crate) fn chat(text: &str) -> Value {
    json!({ "assistant_id": "chat", "input": { "messages": [{ "role": "user", "content": text }] } })
}

/// Writes a run's journal as a harness would.
pub(crate) struct Player {
    store: StoreClient,
    hub: Arc<Hub>,
    pub(crate) claim: Claim,
    /// Whether commits are announced; without, only polling finds them.
    pub(crate) announce: bool,
}

impl Player {
    pub(crate) fn run(&self) -> RunId {
        self.claim.run.id
    }

    pub(crate) fn thread(&self) -> ThreadId {
        self.claim.run.thread
    }

    pub(crate) fn piece(&self, step: u32, attempt: u32, piece: Provisional) {
        self.hub.provisional(self.thread(), self.run(), step, attempt, piece);
    }

    pub(crate) async fn commit(&self, step: u32, bodies: Vec<EventBody>) -> u64 {
        let events = bodies.into_iter().map(|body| NewEvent { step, body }).collect();
        let request = CommitStep { fence: self.claim.fence.clone(), seq_base: self.seq_last().await, events };
        match self.store.commit_step(request).await.unwrap() {
            Written::Done { seq_last, .. } => {
                if self.announce {
                    self.hub.committed(self.thread(), seq_last);
                }
                seq_last
            }
            other => panic!("{other:?}"),
        }
    }

    async fn seq_last(&self) -> u64 {
        let of = ThreadRef { tenant: self.claim.fence.tenant.clone(), thread: self.thread() };
        self.store.get_thread(of).await.unwrap().unwrap().seq_last
    }

    /// One step with a tool call.
    pub(crate) async fn tool_step(&self, step: u32, text: &str) {
        let id = CallId::of(self.run(), step, 0);
        let call =
            ToolCall { id: id.clone(), name: "bash".into(), args: json!({ "command": "ls" }), wire_id: None };
        let message = Message {
            id: format!("m{step}").into(),
            role: Role::Assistant,
            blocks: vec![Block::Text { text: text.into() }, Block::ToolCall(call)],
        };
        let finish = "tool_calls".into();
        self.commit(step, vec![EventBody::AssistantMessage { message, attempts: vec![attempt(1)], finish }])
            .await;
        let result =
            ToolResult { call_id: id.clone(), name: "bash".into(), text: "file".into(), is_error: false };
        let blocks = vec![Block::ToolResult(result)];
        let message = Message { id: format!("t{step}").into(), role: Role::Tool, blocks };
        self.commit(step, vec![EventBody::ToolMessage { message }, EventBody::Checkpoint { snapshot: None }])
            .await;
    }

    /// The last step and the end.
    pub(crate) async fn finish(self, step: u32, text: &str) -> Option<Claim> {
        let message = Message::text(format!("m{step}"), Role::Assistant, text);
        let reply =
            EventBody::AssistantMessage { message, attempts: vec![attempt(1)], finish: "stop".into() };
        let outcome = Outcome {
            state: RunState::Completed,
            reason: None,
            error: None,
            text: text.into(),
            diff: None,
            delivered: None,
        };
        let events = [reply, EventBody::Checkpoint { snapshot: None }];
        self.end(events.into_iter().map(|body| NewEvent { step, body }).collect(), outcome).await
    }

    pub(crate) async fn fail(self, error: Error) -> Option<Claim> {
        let outcome = Outcome {
            state: RunState::Failed,
            reason: None,
            error: Some(error),
            text: String::new(),
            diff: None,
            delivered: None,
        };
        self.end(Vec::new(), outcome).await
    }

    pub(crate) async fn cancelled(self) -> Option<Claim> {
        let outcome = Outcome {
            state: RunState::Cancelled,
            reason: None,
            error: None,
            text: String::new(),
            diff: None,
            delivered: None,
        };
        self.end(Vec::new(), outcome).await
    }

    async fn end(self, events: Vec<NewEvent>, outcome: Outcome) -> Option<Claim> {
        let (fence, version) = (self.claim.fence.clone(), self.claim.version);
        let request = CommitTurn { fence, version, events, outcome, take_next: true };
        match self.store.commit_turn(request).await.unwrap() {
            TurnCommitted::Done { seq_last, next, .. } => {
                if self.announce {
                    self.hub.committed(self.claim.run.thread, seq_last);
                }
                next.map(|claim| *claim)
            }
            other => panic!("{other:?}"),
        }
    }

    /// A settled effect, for traces.
    pub(crate) fn settled(&self, step: u32) -> EventBody {
        EventBody::EffectSettled(EffectResult {
            effect: EffectId::of(self.run(), step, 0),
            call_id: CallId::of(self.run(), step, 0),
            text: "file".into(),
            is_error: false,
            blob: None,
            ms: 3,
            settled: "ran".into(),
            facts: Value::Null,
        })
    }
}

/// An attempt that was answered.
pub(crate) fn attempt(number: u32) -> Attempt {
    Attempt {
        attempt: number,
        deployment: "main".into(),
        provider: "acme".into(),
        model: "large".into(),
        started_at: Wall(1_000),
        first_content_ms: Some(5),
        ms: 20,
        outcome: "ok".into(),
        cause: None,
        usage: Usage { input_tokens: 10, output_tokens: 2, ..Usage::default() },
        cost_micro_usd: None,
    }
}

/// A stream of server-sent events, read as it arrives.
pub(crate) struct Sse {
    pub(crate) headers: HeaderMap,
    body: Body,
    buffer: BytesMut,
}

/// One received event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Got {
    pub(crate) event: String,
    pub(crate) data: Value,
    pub(crate) id: Option<String>,
    pub(crate) raw: String,
}

impl Sse {
    pub(crate) fn new(response: http::Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        Self { headers: parts.headers, body, buffer: BytesMut::new() }
    }

    /// The next event, comments left out; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Got> {
        loop {
            let raw = self.next_raw().await?;
            if !raw.starts_with(':') {
                return Some(parse(&raw));
            }
        }
    }

    /// The next block up to its empty line, comments included.
    pub(crate) async fn next_raw(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let block = self.buffer.split_to(end + 4);
                return Some(String::from_utf8(block.to_vec()).unwrap());
            }
            let frame = tokio::time::timeout(Duration::from_secs(20), self.body.frame())
                .await
                .expect("a stream is never silent");
            match frame {
                Some(frame) => self.buffer.extend_from_slice(&frame.unwrap().into_data().unwrap()),
                None => {
                    assert!(self.buffer.is_empty(), "cut inside an event: {:?}", self.buffer);
                    return None;
                }
            }
        }
    }

    /// Everything to the end.
    pub(crate) async fn all(mut self) -> Vec<Got> {
        let mut all = Vec::new();
        while let Some(got) = self.next().await {
            all.push(got);
        }
        all
    }
}

fn parse(raw: &str) -> Got {
    let fields: BTreeMap<&str, &str> = raw.split("\r\n").filter_map(|line| line.split_once(": ")).collect();
    Got {
        event: fields["event"].to_owned(),
        data: serde_json::from_str(fields["data"]).unwrap(),
        id: fields.get("id").map(|id| (*id).to_owned()),
        raw: raw.to_owned(),
    }
}

/// Names and ids, for comparing streams.
pub(crate) fn outline(events: &[Got]) -> Vec<String> {
    events.iter().map(|got| format!("{} {}", got.id.as_deref().unwrap_or("-"), got.event)).collect()
}

/// A tenant's cancel that nobody but the store carries out.
pub(crate) async fn cancel_in_store(store: &StoreClient, run: RunId) {
    let tenant = TenantId::from("default");
    store.cancel(Cancel { tenant, run, force: false, undo: false }).await.unwrap();
}
