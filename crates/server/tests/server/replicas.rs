//! Several processes over one store: a client may attach to a run on any of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{
    CommitStep, CommitTurn, Op, Reply, RunRef, Steal, Store, StoreClient, TurnCommitted, Written,
};
use evenkeel_core::run::{Outcome, RunState};
use evenkeel_env::Env;
use evenkeel_server::app::Dispatch as _;
use evenkeel_server::{Config, Overrides};
use evenkeel_store::memory::MemoryStore;
use http::Method;
use serde_json::json;

use crate::world::{Sse, World, chat, outline};

/// A store that counts its operations.
pub(crate) struct Counted {
    inner: Arc<dyn Store>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Store for Counted {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        *self.counts.lock().unwrap().entry(op.name()).or_default() += 1;
        self.inner.apply(op)
    }
}

impl Counted {
    fn of(&self, operation: &str) -> u64 {
        self.counts.lock().unwrap().get(operation).copied().unwrap_or(0)
    }
}

/// Two processes over one store; operations of the second are counted.
pub(crate) async fn two() -> (World, World, Arc<Counted>) {
    let overrides = Overrides::default().with("server.listen", "127.0.0.1:0").with("server.store", "memory");
    let config = Config::parse("test.toml", "server.heartbeat = \"200ms\"", &overrides).unwrap();
    let (env, other) = (Env::seeded(7), Env::seeded(8));
    let store = MemoryStore::new(&env);
    let counted = Arc::new(Counted { inner: store.clone(), counts: Mutex::default() });
    let first = World::over(env, config.clone(), StoreClient(store)).await;
    let second = World::over(other, config, StoreClient(counted.clone())).await;
    (first, second, counted)
}

#[tokio::test]
async fn a_run_that_another_process_drives_is_streamed_joined_and_waited_for() {
    let (driver, other, _) = two().await;
    let thread = driver.thread().await;
    let body = chat("hi").to_string();
    let key = [("idempotency-key", "k1")];
    let path = format!("/threads/{thread}/runs");
    let created = driver.ask(Method::POST, &path, &key, &body).await;
    let run = created.json()["run_id"].as_str().unwrap().to_owned();
    let player = driver.player().await;
    let place = format!("/threads/{thread}/runs/{run}");

    let mut stream =
        other.stream(&format!("{place}/stream?stream_mode=updates"), &[("last-event-id", "-1")]).await;
    let join = format!("{place}/join");
    let wait = format!("{path}/wait");
    let joined = other.get(&join);
    let waited = other.ask(Method::POST, &wait, &key, &body);
    let played = async {
        assert_eq!(stream.next().await.unwrap().event, "metadata");
        player.tool_step(1, "looking").await;
        player.finish(2, "done").await;
        stream.all().await
    };
    let (joined, waited, streamed) = tokio::join!(joined, waited, played);
    assert_eq!(outline(&streamed).last().unwrap(), "- end");
    for answered in [joined, waited] {
        assert_eq!(answered.status, 200, "{:?}", answered.body);
        let body = String::from_utf8_lossy(&answered.body).into_owned();
        let values: serde_json::Value = serde_json::from_str(body.trim()).unwrap();
        assert_eq!(values["result"], json!("done"), "{body}");
    }
}

#[tokio::test]
async fn clients_that_wait_for_foreign_runs_share_their_questions_to_the_store() {
    const N: usize = 60;
    let (driver, other, counted) = two().await;
    let mut waiting = Vec::new();
    for n in 0..N {
        let thread = driver.thread().await;
        let run = driver.run(&thread, &format!("turn {n}")).await;
        let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates");
        waiting.push((other.stream(&path, &[("last-event-id", "-1")]).await, driver.player().await));
    }
    // All are attached and have shown what is there.
    for (stream, _) in &mut waiting {
        assert_eq!(stream.next().await.unwrap().event, "metadata");
    }
    let (asked, read) = (counted.of("read_tails"), counted.of("read_events"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = counted.of("read_tails") - asked;
    assert!((1..=20).contains(&asked), "{asked} questions in 2 s for {N} quiet threads");
    assert!(counted.of("read_events") - read <= N as u64, "a quiet thread's log is not read again");
    let mut streams = Vec::new();
    for (stream, player) in waiting {
        player.finish(1, "done").await;
        streams.push(stream);
    }
    for stream in streams {
        assert_eq!(outline(&stream.all().await).last().unwrap(), "- end");
    }
}

#[tokio::test]
async fn a_process_that_stops_does_not_cancel_the_runs_of_its_clients() {
    let mut world = World::new().await;
    let thread = world.thread().await;
    let mut body = chat("hi");
    body["on_disconnect"] = json!("cancel");
    let path = format!("/threads/{thread}/runs");
    let mut stream =
        Sse::new(world.open(Method::POST, &format!("{path}/stream"), &[], &body.to_string()).await);
    let player = world.player().await;
    assert_eq!(stream.next().await.unwrap().event, "metadata");
    let (tenant, run) = (player.claim.run.tenant.clone(), player.run());
    world.running.take().unwrap().shutdown().await;
    let rest = outline(&stream.all().await);
    assert!(rest.iter().all(|line| !line.ends_with("end")), "the client resumes elsewhere: {rest:?}");
    let run = world.store.get_run(RunRef { tenant, run }).await.unwrap().unwrap();
    assert_eq!(run.state, RunState::Running);
}

/// A process that was taken over goes on as if nothing had happened: what it writes is refused, and
/// every process over the store tells the same number of it.
#[tokio::test]
async fn what_a_zombie_writes_is_refused_and_every_process_counts_it_once() {
    let (zombie, heir, _) = two().await;
    let thread = zombie.thread().await;
    zombie.run(&thread, "hi").await;
    let old = zombie.player().await;
    old.tool_step(1, "before").await;
    let steal = Steal { me: heir.dispatch.replica(), dead: vec![zombie.dispatch.replica()], limit: 1 };
    let claim = heir.store.steal(steal).await.unwrap().pop().expect("it is taken over");
    let (fence, version) = (old.claim.fence.clone(), old.claim.version);
    let events = Vec::new();
    let step = CommitStep { fence: fence.clone(), seq_base: claim.seq_last, events };
    assert_eq!(zombie.store.commit_step(step).await.unwrap(), Written::Fenced);
    let text = "by the zombie".to_owned();
    let outcome =
        Outcome { state: RunState::Completed, reason: None, error: None, text, diff: None, delivered: None };
    let turn = CommitTurn { fence, version, events: Vec::new(), outcome, take_next: true };
    assert_eq!(zombie.store.commit_turn(turn).await.unwrap(), TurnCommitted::Fenced);
    heir.play(claim).finish(2, "by the heir").await;
    for process in [&zombie, &heir] {
        let metrics = String::from_utf8(process.get("/metrics").await.body.to_vec()).unwrap();
        assert!(metrics.contains("\nevenkeel_store_fenced_total 2\n"), "{metrics}");
        assert_eq!(process.get("/v1/stats").await.json()["n_fenced"], 2);
        let state = process.get(&format!("/threads/{thread}/state")).await.json();
        assert_eq!(state["values"]["result"], "by the heir");
    }
}
