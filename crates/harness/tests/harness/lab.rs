//! One bench for all tests: a store, a world, and harnesses over both.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::agent::{Agent, RunLimits};
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody, counting};
use evenkeel_core::message::{Block, Message, Role};
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::port::store::{
    Admit, Admitted, Cancel, Cancelled, ListRuns, MergeWindow, ReadEvents, RunRef, StoreClient, ThreadRef,
};
use evenkeel_core::run::{BusyPolicy, Class, EndReason, Repository, Run, RunSpec, RunState};
use evenkeel_core::thread::Thread;
use evenkeel_core::{Generator, Wall};
use evenkeel_env::clock::VirtualClock;
use evenkeel_env::slots::Slots;
use evenkeel_env::{Env, TcpNet, TokioSpawn};
use evenkeel_harness::{Harness, HarnessConfig, HarnessSlots, Parts};
use evenkeel_store::memory::MemoryStore;
use serde_json::Value;

use super::valid;
use super::world::{
    Points, Say, TestFeed, TestForge, TestModel, TestStore, TestTools, TestWorkspaces, World,
};

pub(crate) const TENANT: &str = "acme";

/// What outlives a harness.
pub(crate) struct Bench {
    pub(crate) env: Env,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) world: Arc<World>,
    n_started: AtomicU64,
}

/// A harness and the parts that belong to its process.
pub(crate) struct Process {
    pub(crate) harness: Arc<Harness>,
    pub(crate) model: Arc<TestModel>,
    pub(crate) store: Arc<TestStore>,
    pub(crate) feed: Arc<TestFeed>,
    pub(crate) points: Arc<Points>,
}

/// How a process is started.
pub(crate) struct Setup {
    pub(crate) config: HarnessConfig,
    pub(crate) die_at: Option<usize>,
    pub(crate) n_slots: usize,
    pub(crate) tune: fn(&mut TestModel),
    /// The planted mistake of [`TestStore::stores_intents_late`].
    pub(crate) stores_intents_late: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: HarnessConfig::default(),
            die_at: None,
            n_slots: 100,
            tune: |_| {},
            stores_intents_late: false,
        }
    }
}

/// Runs a test in virtual time.
pub(crate) fn in_time<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(7 * 24 * 3600), test).await })
        .expect("the test ends")
}

impl Bench {
    pub(crate) fn new(seed: u64) -> Self {
        let env = Env {
            clock: Arc::new(VirtualClock::starting_at(Wall(1_700_000_000_000))),
            generator: Generator::from_seed(seed),
            spawner: Arc::new(TokioSpawn),
            net: Arc::new(TcpNet),
        };
        let store = MemoryStore::new(&env);
        Self { env, store, world: Arc::default(), n_started: AtomicU64::new(0) }
    }

    pub(crate) fn start(&self, script: impl Fn(&ModelRequest) -> Say + Send + Sync + 'static) -> Process {
        self.start_with(Setup::default(), script)
    }

    pub(crate) fn start_with(
        &self,
        setup: Setup,
        script: impl Fn(&ModelRequest) -> Say + Send + Sync + 'static,
    ) -> Process {
        let points = Points::die_at(setup.die_at);
        let mut model = TestModel::new(points.clone(), script);
        (setup.tune)(&mut model);
        let model = Arc::new(model);
        let store = TestStore::new(self.store.clone(), points.clone());
        store.stores_intents_late.store(setup.stores_intents_late, Ordering::Relaxed);
        let feed = Arc::new(TestFeed::default());
        let parts = Parts {
            store: StoreClient(store.clone()),
            model: model.clone(),
            tools: Arc::new(TestTools { world: self.world.clone(), points: points.clone() }),
            workspaces: Arc::new(TestWorkspaces { world: self.world.clone(), points: points.clone() }),
            forge: Arc::new(TestForge { world: self.world.clone(), points: points.clone() }),
            feed: feed.clone(),
            agents: agents(),
            slots: HarnessSlots {
                harness: Slots::new("harness", setup.n_slots, 1_000),
                compactor: Slots::new("compactor", 10, 1_000),
            },
        };
        // Two processes never draw the same ids, also when they start in one instant.
        let n = self.n_started.fetch_add(1, Ordering::Relaxed);
        let harness = Harness::start(&self.env.part(&format!("process-{n}")), setup.config, parts);
        Process { harness, model, store, feed, points }
    }

    pub(crate) fn client(&self) -> StoreClient {
        StoreClient(self.store.clone())
    }

    pub(crate) fn new_thread(&self) -> ThreadId {
        ThreadId::new(self.env.wall(), &self.env.generator)
    }

    /// Accepts a turn of this policy; nobody is told.
    pub(crate) async fn send(
        &self,
        thread: ThreadId,
        assistant: &str,
        text: &str,
        policy: BusyPolicy,
    ) -> RunId {
        self.admit(thread, RunSpec { busy_policy: policy, ..self.spec(assistant, text) }).await
    }

    /// Accepts a turn; nobody is told.
    pub(crate) async fn admit(&self, thread: ThreadId, spec: RunSpec) -> RunId {
        let request = self.request(thread, spec);
        let run = request.run;
        match self.client().admit(request).await.unwrap() {
            Admitted::Accepted { .. } => run,
            other => panic!("not accepted: {other:?}"),
        }
    }

    /// A request for a turn.
    pub(crate) fn request(&self, thread: ThreadId, spec: RunSpec) -> Admit {
        Admit {
            tenant: TenantId::from(TENANT),
            thread,
            create_thread: true,
            run: RunId::new(self.env.wall(), &self.env.generator),
            spec,
            key: None,
            body_hash: String::new(),
            claim_for: None,
            n_waiting_max: 100,
            delay_ms: 0,
            merge: MergeWindow::default(),
        }
    }

    pub(crate) fn spec(&self, assistant: &str, text: &str) -> RunSpec {
        let id = RunId::new(self.env.wall(), &self.env.generator);
        RunSpec {
            assistant: assistant.to_owned(),
            messages: vec![Message::text(format!("user-{id}").as_str(), Role::User, text)],
            repository: Some(Repository::Empty),
            deliver: None,
            limits: RunLimits::default(),
            class: Class::Batch,
            busy_policy: BusyPolicy::Enqueue,
            deadline: self.env.wall().after(Duration::from_secs(3600)),
            from_seq: None,
            request: Value::Null,
        }
    }

    pub(crate) async fn run(&self, run: RunId) -> Run {
        let request = RunRef { tenant: TenantId::from(TENANT), run };
        self.client().get_run(request).await.unwrap().unwrap()
    }

    pub(crate) async fn thread(&self, thread: ThreadId) -> Thread {
        let request = ThreadRef { tenant: TenantId::from(TENANT), thread };
        self.client().get_thread(request).await.unwrap().unwrap()
    }

    /// Waits until the run is in a state that `wanted` accepts.
    pub(crate) async fn reaches(&self, run: RunId, wanted: impl Fn(&Run) -> bool) -> Run {
        loop {
            let now = self.run(run).await;
            if wanted(&now) {
                return now;
            }
            assert!(!now.state.is_terminal(), "ended otherwise: {now:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn ended(&self, run: RunId) -> Run {
        self.reaches(run, |run| run.state.is_terminal()).await
    }

    pub(crate) async fn events(&self, thread: ThreadId) -> Vec<Event> {
        let request = ReadEvents { tenant: TenantId::from(TENANT), thread, after_seq: 0, limit: 100_000 };
        self.client().read_events(request).await.unwrap()
    }

    /// The conversation as it counts, as text, one line a message; what was settled after an interruption reads
    /// as if it had not been interrupted.
    pub(crate) async fn transcript(&self, thread: ThreadId) -> String {
        let events = self.events(thread).await;
        let lines = counting(&events).into_iter().filter_map(|event| match &event.body {
            EventBody::UserMessage { message }
            | EventBody::AssistantMessage { message, .. }
            | EventBody::ToolMessage { message } => Some(line(message)),
            _ => None,
        });
        lines.collect::<Vec<_>>().join("\n").replace(APPLIED, "edited")
    }

    pub(crate) async fn cancel(&self, run: RunId) -> Cancelled {
        let request = Cancel { tenant: TenantId::from(TENANT), run, force: false, undo: false };
        self.client().cancel(request).await.unwrap()
    }

    pub(crate) async fn reason(&self, run: RunId) -> Option<EndReason> {
        self.run(run).await.outcome.and_then(|outcome| outcome.reason)
    }

    pub(crate) async fn runs(&self) -> Vec<Run> {
        let request = ListRuns { tenant: None, thread: None, states: Vec::new(), limit: 10_000, offset: 0 };
        self.client().list_runs(request).await.unwrap()
    }

    /// What must hold of a thread whatever happened: dense, paired, each effect settled once, each
    /// attempt with a number of its own in its step, and nothing after the end of a run.
    pub(crate) async fn assert_sound(&self, thread: ThreadId) {
        let events = self.events(thread).await;
        for (idx, event) in events.iter().enumerate() {
            assert_eq!(event.seq, idx as u64 + 1, "dense");
        }
        let mut intents = BTreeMap::<_, u32>::new();
        let mut results = BTreeMap::<_, u32>::new();
        let mut ended = Vec::new();
        let mut numbers = BTreeSet::new();
        for event in &events {
            assert!(!ended.contains(&event.run), "event after the end: {event:?}");
            match &event.body {
                EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } => {
                    for attempt in attempts {
                        let number = (event.run, event.step, attempt.attempt);
                        assert!(numbers.insert(number), "two attempts with one number: {event:?}");
                    }
                }
                EventBody::EffectIntended(intent) => *intents.entry(intent.effect.clone()).or_default() += 1,
                EventBody::EffectSettled(result) => *results.entry(result.effect.clone()).or_default() += 1,
                EventBody::RunEnded { .. } => ended.push(event.run),
                _ => {}
            }
        }
        assert!(intents.values().all(|n| *n == 1) && intents == results, "{intents:?} {results:?}");
        valid::assert_paired(&events);
    }
}

const APPLIED: &str = "Done. The change was in place when the run resumed after an interruption.";

fn line(message: &Message) -> String {
    let blocks = message.blocks.iter().map(|block| match block {
        Block::Text { text } => text.clone(),
        Block::ToolCall(call) => format!("{}({})", call.name, call.args),
        Block::ToolResult(result) => {
            format!("{}{} => {}", if result.is_error { "!" } else { "" }, result.name, result.text)
        }
        Block::Opaque { raw, .. } => raw.clone(),
    });
    format!("{:?}: {}", message.role, blocks.collect::<Vec<_>>().join(" | "))
}

fn agents() -> BTreeMap<String, Agent> {
    let agent = |name: &str, tools: &[&str], workspace| Agent {
        name: name.to_owned(),
        description: String::new(),
        system_prompt: "You are a test.".to_owned(),
        route: "main".to_owned(),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        workspace,
        limits: RunLimits::default(),
    };
    let tools = ["read", "edit", "bash", "send", "put", "flood", "finish"];
    BTreeMap::from([
        ("coder".to_owned(), agent("coder", &tools, true)),
        ("chat".to_owned(), agent("chat", &[], false)),
        ("lost".to_owned(), Agent { route: "nowhere".to_owned(), ..agent("lost", &[], false) }),
    ])
}

/// The outcome in one line: state, code, text.
pub(crate) fn end_of(run: &Run) -> String {
    let outcome = run.outcome.as_ref().expect("it has ended");
    let code = outcome.error.as_ref().map_or("", |error| error.code.as_str());
    format!("{} {code} {}", outcome.state.as_str(), outcome.text).trim().to_owned()
}

/// Whether the run has ended.
pub(crate) fn is_over(run: &Run) -> bool {
    run.state.is_terminal()
}

/// Whether the run is parked.
pub(crate) fn is_waiting(run: &Run) -> bool {
    run.state == RunState::Waiting
}
