//! The world around a harness in the tests: files with snapshots, tools that change them, a model
//! that follows a script, and points at which the process can be made to die.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::agent::Agent;
use evenkeel_core::id::{RunId, SnapshotId, ThreadId};
use evenkeel_core::journal::{EffectClass, EventBody, Guard, NewEvent, Verdict};
use evenkeel_core::message::{Block, Message, Role, ToolCall, ToolSpec, Usage};
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::feed::{Feed, Provisional};
use evenkeel_core::port::forge::{Delivery, Forge};
use evenkeel_core::port::model::{
    Model, ModelOutcome, ModelReply, ModelRequest, Permit, PermitToken, Progress, Purpose, RouteFacts,
};
use evenkeel_core::port::store::{CommitStep, Op, Reply, Store, Written};
use evenkeel_core::port::tools::{GuardState, Prepared, ToolOutput, ToolRequest, Tools};
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_core::run::{Attempt, Delivered, Repository};
use evenkeel_core::{Code, Error, Origin, Wall};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;

pub(crate) type Files = BTreeMap<String, String>;

/// Points that a process passes; at one of them it dies: nothing after it happens.
#[derive(Default)]
pub(crate) struct Points {
    passed: AtomicUsize,
    die_at: Option<usize>,
    pub(crate) died: Notify,
}

impl Points {
    pub(crate) fn die_at(point: Option<usize>) -> Arc<Self> {
        Arc::new(Self { die_at: point, ..Self::default() })
    }

    pub(crate) fn passed(&self) -> usize {
        self.passed.load(Ordering::Relaxed)
    }

    pub(crate) async fn pass(&self) {
        if Some(self.passed.fetch_add(1, Ordering::Relaxed)) == self.die_at {
            self.died.notify_one();
            pending::<()>().await;
        }
    }
}

/// What survives a process: files, snapshots, and what the outside has seen.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) files: Mutex<Files>,
    snapshots: Mutex<BTreeMap<String, Files>>,
    /// Messages that the unsafe tool sent.
    pub(crate) sent: Mutex<Vec<String>>,
    /// Keys that the idempotent tool stored, by effect id.
    pub(crate) put: Mutex<BTreeMap<String, String>>,
    /// Calls that were executed, by tool.
    pub(crate) executed: Mutex<Vec<String>>,
    /// What the forge does.
    pub(crate) forge: Mutex<Vec<Takes>>,
    /// What it was asked to deliver.
    pub(crate) deliveries: Mutex<Vec<Delivery>>,
    /// How long it takes to make a workspace.
    pub(crate) boot: Mutex<Duration>,
}

impl World {
    fn snapshot(&self) -> SnapshotId {
        let files = self.files.lock().unwrap().clone();
        let id = format!("snap-{}", blake3::hash(format!("{files:?}").as_bytes()).to_hex());
        self.snapshots.lock().unwrap().insert(id.clone(), files);
        SnapshotId(id)
    }

    pub(crate) fn n_executed(&self, tool: &str) -> usize {
        self.executed.lock().unwrap().iter().filter(|name| *name == tool).count()
    }
}

/// A forge that answers by its script: what comes first, and from the last on always the same.
pub(crate) struct TestForge {
    pub(crate) world: Arc<World>,
    pub(crate) points: Arc<Points>,
}

/// What a forge does with one delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Takes {
    It,
    Later,
    Never,
    Hangs,
}

impl Forge for TestForge {
    fn deliver(&self, delivery: Delivery) -> BoxFuture<'_, Result<Delivered, Error>> {
        Box::pin(async move {
            let takes = {
                let mut script = self.world.forge.lock().unwrap();
                if script.len() > 1 { script.remove(0) } else { script.first().copied().unwrap_or(Takes::It) }
            };
            self.points.pass().await;
            let first = self.world.deliveries.lock().unwrap().first().cloned();
            assert!(first.is_none_or(|first| first == delivery), "another delivery of the same run");
            self.world.deliveries.lock().unwrap().push(delivery.clone());
            self.points.pass().await;
            let error =
                || Error::new(Code::DeliveryFailed, Origin::Tool, "The forge says no.", "Look at the forge.");
            match takes {
                Takes::Hangs => std::future::pending().await,
                Takes::Later => Err(error().retryable()),
                Takes::Never => Err(error()),
                Takes::It => Ok(Delivered {
                    branch: "work".to_owned(),
                    commit: format!("of {}", delivery.run),
                    pull_request: None,
                }),
            }
        })
    }
}

pub(crate) struct TestWorkspaces {
    pub(crate) world: Arc<World>,
    pub(crate) points: Arc<Points>,
}

impl Workspaces for TestWorkspaces {
    fn open(
        &self,
        _thread: ThreadId,
        _run: RunId,
        repository: Repository,
    ) -> BoxFuture<'_, Result<(PathBuf, SnapshotId), Error>> {
        Box::pin(async move {
            self.points.pass().await;
            let boot = *self.world.boot.lock().unwrap();
            sleep(boot).await;
            if repository == Repository::Url("missing".to_owned()) {
                return Err(Error::client(
                    Code::RepositoryUnreadable,
                    "No such repository.",
                    "Give another.",
                ));
            }
            self.world.snapshots.lock().unwrap().entry("first".into()).or_default();
            Ok((PathBuf::from("/workspace"), SnapshotId::from("first")))
        })
    }

    fn snapshot(&self, _thread: ThreadId) -> BoxFuture<'_, Result<SnapshotId, Error>> {
        Box::pin(async move {
            self.points.pass().await;
            Ok(self.world.snapshot())
        })
    }

    fn restore(&self, _thread: ThreadId, snapshot: SnapshotId) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.points.pass().await;
            let files = self.world.snapshots.lock().unwrap().get(snapshot.as_str()).cloned();
            *self.world.files.lock().unwrap() = files.expect("the snapshot exists");
            Ok(())
        })
    }

    fn diff(&self, _thread: ThreadId, _from: SnapshotId) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async move {
            self.points.pass().await;
            let files = self.world.files.lock().unwrap();
            Ok(if files.is_empty() { String::new() } else { format!("{files:?}") })
        })
    }

    fn remove(&self, _thread: ThreadId) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}

/// The tools of the tests. What each does is in `run`.
pub(crate) struct TestTools {
    pub(crate) world: Arc<World>,
    pub(crate) points: Arc<Points>,
}

fn text<'a>(args: &'a Value, key: &str) -> &'a str {
    args.get(key).and_then(Value::as_str).unwrap_or("")
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

impl TestTools {
    /// A call with `ask` needs a person; what the file `policy` holds is part of what is asked.
    fn asks(&self, args: &Value) -> Verdict {
        let files = self.world.files.lock().unwrap();
        let more = files.get("policy").map_or("", String::as_str);
        match text(args, "ask") {
            "" => Verdict::Allow,
            reason => Verdict::Ask { reason: format!("{reason}{more}") },
        }
    }

    fn edited(&self, args: &Value) -> Option<(String, String)> {
        let old = self.world.files.lock().unwrap().get(text(args, "path")).cloned().unwrap_or_default();
        let (from, to) = (text(args, "from"), text(args, "to"));
        if from.is_empty() {
            return Some((old.clone(), format!("{old}{to}")));
        }
        old.contains(from).then(|| (old.clone(), old.replacen(from, to, 1)))
    }

    async fn run(&self, request: &ToolRequest) -> ToolOutput {
        let args = &request.call.args;
        let output = |text: &str| ToolOutput { text: text.to_owned(), ..ToolOutput::default() };
        match request.call.name.as_str() {
            "read" => {
                sleep(Duration::from_millis(10)).await;
                let files = self.world.files.lock().unwrap();
                output(files.get(text(args, "path")).map_or("no such file", String::as_str))
            }
            "edit" => {
                let Some((_, new)) = self.edited(args) else { return output("no match") };
                self.world.files.lock().unwrap().insert(text(args, "path").to_owned(), new);
                output("edited")
            }
            "bash" => {
                // Two changes with a pause between: a crash leaves the first without the second.
                for part in ["begin", "end"] {
                    let line = format!("{part} {}\n", text(args, "line"));
                    let path = text(args, "path").to_owned();
                    self.world.files.lock().unwrap().entry(path).or_default().push_str(&line);
                    self.points.pass().await;
                    sleep(Duration::from_millis(20)).await;
                }
                output("exit 0")
            }
            "send" => {
                self.world.sent.lock().unwrap().push(text(args, "what").to_owned());
                output("sent")
            }
            "put" => {
                let what = text(args, "what").to_owned();
                self.world.put.lock().unwrap().insert(request.effect.to_string(), what);
                output("stored")
            }
            "flood" => output(&"ä€x".repeat(20_000)),
            "hang" => pending().await,
            "panic" => panic!("the tool panicked"),
            "finish" => ToolOutput {
                text: "finished".to_owned(),
                finish: Some(text(args, "summary").to_owned()),
                ..ToolOutput::default()
            },
            other => panic!("no such tool {other}"),
        }
    }
}

impl Tools for TestTools {
    fn offered(&self, agent: &Agent) -> BoxFuture<'_, Result<Vec<ToolSpec>, Error>> {
        let specs = agent.tools.iter().map(|name| ToolSpec {
            name: name.clone(),
            description: name.clone(),
            input_schema: json!({"type": "object"}),
        });
        let specs = specs.collect();
        Box::pin(async { Ok(specs) })
    }

    fn prepare(&self, request: ToolRequest) -> BoxFuture<'_, Prepared> {
        Box::pin(async move {
            self.points.pass().await;
            let name = request.call.name.clone();
            let class = match name.as_str() {
                "read" | "flood" | "finish" => EffectClass::Pure,
                "edit" => EffectClass::Guarded,
                "bash" => EffectClass::Workspace,
                "put" => EffectClass::Idempotent,
                _ => EffectClass::Unsafe,
            };
            let verdict = match name.as_str() {
                "forbidden" => Verdict::Deny { reason: "it is forbidden".to_owned() },
                _ => self.asks(&request.call.args),
            };
            let edited = (name == "edit").then(|| self.edited(&request.call.args));
            let refusal = match (&edited, name.as_str()) {
                (Some(None), _) => Some("the text to replace is not in the file".to_owned()),
                (_, "unknown") => Some("there is no such tool".to_owned()),
                _ => None,
            };
            let guards = edited.flatten().map(|(old, new)| Guard {
                path: text(&request.call.args, "path").to_owned(),
                before: Some(hash(&old)),
                after: Some(hash(&new)),
            });
            Prepared {
                parallel: name == "read" || name == "flood",
                request,
                verdict,
                policies: vec!["test".to_owned()],
                class,
                guards: guards.into_iter().collect(),
                refusal,
            }
        })
    }

    fn execute(&self, prepared: Prepared) -> BoxFuture<'_, ToolOutput> {
        Box::pin(async move {
            self.points.pass().await;
            self.world.executed.lock().unwrap().push(prepared.request.call.name.clone());
            let output = self.run(&prepared.request).await;
            self.points.pass().await;
            output
        })
    }

    fn guards_now(&self, _workspace: PathBuf, guards: Vec<Guard>) -> BoxFuture<'_, GuardState> {
        Box::pin(async move {
            self.points.pass().await;
            let files = self.world.files.lock().unwrap();
            let now = |guard: &Guard| Some(hash(files.get(&guard.path).map_or("", String::as_str)));
            if guards.iter().all(|guard| now(guard) == guard.after) {
                GuardState::After
            } else if guards.iter().all(|guard| now(guard) == guard.before) {
                GuardState::Before
            } else {
                GuardState::Other
            }
        })
    }

    fn release(&self, _run: RunId) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// What the model says to a request.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    Text(&'static str),
    Calls(Vec<(&'static str, Value)>),
    /// Text and calls whose reply was cut by the token limit.
    Cut(Vec<(&'static str, Value)>),
    CutText(&'static str),
    Empty,
    Park,
    TooLong,
    Fatal(Code),
    /// Streams some text and then never ends.
    Stream(&'static str),
    Hang,
    Panic,
}

type Script = dyn Fn(&ModelRequest) -> Say + Send + Sync;

/// A model that says what its script says, and keeps every request.
pub(crate) struct TestModel {
    pub(crate) script: Box<Script>,
    pub(crate) points: Arc<Points>,
    pub(crate) requests: Mutex<Vec<ModelRequest>>,
    pub(crate) facts: RouteFacts,
    pub(crate) latency: Duration,
    pub(crate) parked: Mutex<BTreeMap<String, usize>>,
    pub(crate) permits: Mutex<Vec<Permit>>,
    pub(crate) permitted: Notify,
    pub(crate) n_dropped: Arc<AtomicU64>,
    pub(crate) usage: Usage,
}

impl TestModel {
    pub(crate) fn new(
        points: Arc<Points>,
        script: impl Fn(&ModelRequest) -> Say + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Box::new(script),
            points,
            requests: Mutex::default(),
            facts: RouteFacts {
                context_tokens: 100_000,
                bytes_per_token: 4.0,
                park_max: Duration::from_secs(600),
            },
            latency: Duration::from_millis(100),
            parked: Mutex::default(),
            permits: Mutex::default(),
            permitted: Notify::new(),
            n_dropped: Arc::default(),
            usage: Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() },
        }
    }

    /// Hands out a permit for the route.
    pub(crate) fn permit(&self) {
        let token = TestPermit { n_dropped: self.n_dropped.clone() };
        self.permits.lock().unwrap().push(Permit(Arc::new(token)));
        self.permitted.notify_one();
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<ModelRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn n_calls(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn reply(
        &self,
        request: &ModelRequest,
        finish: &str,
        text: &str,
        calls: &[(&str, Value)],
    ) -> ModelOutcome {
        let mut blocks = vec![Block::Text { text: text.to_owned() }];
        blocks.extend(calls.iter().enumerate().map(|(idx, (name, args))| {
            Block::ToolCall(ToolCall {
                id: format!("wire_{}_{idx}", request.step).into(),
                name: (*name).to_owned(),
                args: args.clone(),
                wire_id: None,
            })
        }));
        let id = format!("m-{}-{}", request.run, request.step);
        ModelOutcome::Done(Box::new(ModelReply {
            message: Message { id: id.into(), role: Role::Assistant, blocks },
            finish: finish.to_owned(),
            usage: self.usage,
            attempts: vec![self.attempt(request.prior_attempts + 1, "ok")],
        }))
    }

    fn attempt(&self, attempt: u32, outcome: &str) -> Attempt {
        Attempt {
            attempt,
            deployment: "test".to_owned(),
            provider: "test".to_owned(),
            model: "test".to_owned(),
            started_at: Wall(0),
            first_content_ms: None,
            ms: 100,
            outcome: outcome.to_owned(),
            cause: None,
            usage: self.usage,
            cost_micro_usd: None,
        }
    }
}

struct TestPermit {
    n_dropped: Arc<AtomicU64>,
}

impl PermitToken for TestPermit {
    fn route(&self) -> &str {
        "main"
    }

    fn deployment(&self) -> &str {
        "test"
    }
}

impl Drop for TestPermit {
    fn drop(&mut self) {
        self.n_dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Model for TestModel {
    fn call(&self, request: ModelRequest, progress: Arc<dyn Progress>) -> BoxFuture<'_, ModelOutcome> {
        Box::pin(async move {
            super::valid::assert_valid(&request);
            // A kept request must not keep the permit.
            self.requests.lock().unwrap().push(ModelRequest { permit: None, ..request.clone() });
            self.points.pass().await;
            sleep(self.latency).await;
            self.points.pass().await;
            let attempts = vec![self.attempt(request.prior_attempts + 1, "overloaded")];
            match (self.script)(&request) {
                Say::Text(text) => self.reply(&request, "stop", text, &[]),
                Say::Calls(calls) => self.reply(&request, "tool_calls", "I call.", &calls),
                Say::Cut(calls) => self.reply(&request, "length", "I call", &calls),
                Say::CutText(text) => self.reply(&request, "length", text, &[]),
                Say::Empty => self.reply(&request, "stop", "  ", &[]),
                Say::Park => ModelOutcome::Park { until_hint: None, reason: "all open".to_owned(), attempts },
                Say::TooLong => ModelOutcome::ContextTooLong { attempts },
                Say::Fatal(code) => ModelOutcome::Fatal {
                    error: Error::new(code, Origin::Provider, "It refuses.", "Nothing."),
                    attempts,
                },
                Say::Stream(text) => {
                    progress.piece(1, Provisional::Text { offset: 0, text: text.to_owned() });
                    pending().await
                }
                Say::Hang => pending().await,
                Say::Panic => panic!("the model panicked"),
            }
        })
    }

    fn route(&self, route: &str) -> Option<RouteFacts> {
        (route == "main").then_some(self.facts)
    }

    fn parked(&self, route: &str, n_parked: usize) {
        self.parked.lock().unwrap().insert(route.to_owned(), n_parked);
    }

    fn next_permit(&self) -> BoxFuture<'_, Permit> {
        Box::pin(async move {
            loop {
                if let Some(permit) = self.permits.lock().unwrap().pop() {
                    return permit;
                }
                self.permitted.notified().await;
            }
        })
    }
}

/// Whether a request of the script is for a summary.
pub(crate) fn is_compaction(request: &ModelRequest) -> bool {
    request.purpose == Purpose::Compaction
}

/// A store that passes points around the operations of a run, and fails when told to.
pub(crate) struct TestStore {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) points: Arc<Points>,
    /// Operations that fail from now on, before or after they happened.
    pub(crate) fail: Mutex<Option<Fail>>,
    /// Operations of this name, or `all`, wait while this is set.
    pub(crate) stall: Mutex<Option<&'static str>>,
    /// Operations in the order in which they were asked for.
    pub(crate) asked: Mutex<Vec<&'static str>>,
    /// A planted mistake: intents are acknowledged at once, and stored with what comes after them.
    pub(crate) stores_intents_late: AtomicBool,
    /// The step whose intents were acknowledged and not stored.
    late: Mutex<Option<CommitStep>>,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fail {
    pub(crate) operation: &'static str,
    pub(crate) times: u32,
    /// It happened, and only the answer is lost.
    pub(crate) happened: bool,
    /// No answer comes at all, instead of an error.
    pub(crate) hangs: bool,
}

impl TestStore {
    pub(crate) fn new(inner: Arc<dyn Store>, points: Arc<Points>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            points,
            fail: Mutex::default(),
            stall: Mutex::default(),
            asked: Mutex::default(),
            stores_intents_late: AtomicBool::new(false),
            late: Mutex::default(),
        })
    }

    /// The engine, with the planted mistake in front of it if there is one.
    async fn carry_out(&self, op: Op) -> Result<Reply, Error> {
        let is_fenced =
            matches!(op, Op::CommitStep(_) | Op::CommitTurn(_) | Op::TakeSteered(_) | Op::Park(_));
        if !is_fenced || !self.stores_intents_late.load(Ordering::Relaxed) {
            return self.inner.apply(op).await;
        }
        let late = self.late.lock().unwrap().take();
        if let Some(late) = late {
            drop(self.inner.apply(Op::CommitStep(late)).await);
        }
        let is_intent = |event: &NewEvent| matches!(event.body, EventBody::EffectIntended(_));
        match op {
            Op::CommitStep(step) if step.events.iter().any(is_intent) => {
                let seq_last = step.seq_base + step.events.len() as u64;
                *self.late.lock().unwrap() = Some(step);
                Ok(Reply::CommitStep(Written::Done { seq_last, cancelling: false, steered: false }))
            }
            op => self.inner.apply(op).await,
        }
    }

    /// The operations of runs since the last look, without those of the loops.
    pub(crate) fn of_runs(&self) -> Vec<&'static str> {
        let loops = ["heartbeat", "claim_ready", "steal", "expire", "count_parked", "list_held", "wake"];
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.into_iter().filter(|name| !loops.contains(name)).collect()
    }

    fn is_stalled(&self, operation: &str) -> bool {
        self.stall.lock().unwrap().is_some_and(|stalled| stalled == operation || stalled == "all")
    }

    fn fails(&self, operation: &str) -> Option<Fail> {
        let mut fail = self.fail.lock().unwrap();
        let found = fail.filter(|fail| fail.operation == operation && fail.times > 0)?;
        *fail = Some(Fail { times: found.times - 1, ..found });
        Some(found)
    }
}

impl Store for TestStore {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let name = op.name();
            self.asked.lock().unwrap().push(name);
            while self.is_stalled(name) {
                sleep(Duration::from_millis(10)).await;
            }
            let is_of_run = matches!(
                op,
                Op::CommitStep(_)
                    | Op::CommitTurn(_)
                    | Op::TakeSteered(_)
                    | Op::Park(_)
                    | Op::PutBlob(_)
                    | Op::ReadEvents(_)
            );
            if is_of_run {
                self.points.pass().await;
            }
            let fail = self.fails(name);
            if let Some(fail) = fail {
                if fail.happened {
                    drop(self.inner.apply(op).await);
                }
                return if fail.hangs { pending().await } else { Err(unavailable()) };
            }
            let reply = self.carry_out(op).await;
            if is_of_run {
                self.points.pass().await;
            }
            reply
        })
    }
}

fn unavailable() -> Error {
    Error::new(Code::StoreUnavailable, Origin::Store, "The store is away.", "Wait.").retryable()
}

#[derive(Default)]
pub(crate) struct TestFeed {
    pub(crate) committed: Mutex<BTreeMap<ThreadId, u64>>,
    pub(crate) pieces: Mutex<Vec<Provisional>>,
}

impl Feed for TestFeed {
    fn committed(&self, thread: ThreadId, seq_last: u64) {
        let mut committed = self.committed.lock().unwrap();
        let newest = committed.entry(thread).or_default();
        *newest = seq_last.max(*newest);
    }

    fn provisional(&self, _thread: ThreadId, _run: RunId, _step: u32, _attempt: u32, piece: Provisional) {
        self.pieces.lock().unwrap().push(piece);
    }
}
