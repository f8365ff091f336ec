//! A gateway over real edges with one store: one run for one request, and answers that go on when
//! the replica that gave them ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_core::port::store::{ListRuns, Steal, StoreClient};
use evenkeel_core::run::Run;
use evenkeel_env::Env;
use evenkeel_server::app::Dispatch;
use evenkeel_server::{Config, Overrides, Running};
use evenkeel_store::memory::MemoryStore;
use http::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::gateway::{gateway, shows, text};
use crate::upstream::{Does, Upstream};
use crate::world::{Door, Player, Sse, World, chat, outline};

/// A replica over the store, at this address (port 0: any).
async fn replica(store: &StoreClient, seed: u64, address: SocketAddr) -> World {
    let overrides =
        Overrides::default().with("server.listen", address.to_string()).with("server.store", "memory");
    let toml = "server.heartbeat = \"100ms\"\nserver.drain_timeout = \"2s\"";
    let config = Config::parse("test.toml", toml, &overrides).unwrap();
    World::over(Env::seeded(seed), config, store.clone()).await
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn url(world: &World) -> String {
    format!("http://{}", world.address())
}

async fn runs(store: &StoreClient) -> Vec<Run> {
    let all = ListRuns { tenant: None, thread: None, states: Vec::new(), limit: 1_000, offset: 0 };
    store.list_runs(all).await.unwrap()
}

/// Two replicas behind a gateway.
async fn two() -> (StoreClient, World, World, Running, Door) {
    let store = StoreClient(MemoryStore::new(&Env::seeded(1)));
    let (first, second) = (replica(&store, 2, any()).await, replica(&store, 3, any()).await);
    let (running, door) = gateway(&[url(&first), url(&second)], "").await;
    shows(&door, &["up", "up"]).await;
    (store, first, second, running, door)
}

/// Which of the two was given the run, with its player.
async fn driven_by(first: World, second: World) -> (World, World, Player) {
    let player = tokio::select! {
        player = first.player() => (true, player),
        player = second.player() => (false, player),
    };
    match player {
        (true, player) => (first, second, player),
        (false, player) => (second, first, player),
    }
}

/// The run of a replica that has ended goes on at the other one.
async fn taken_over(dead: &World, heir: &World) -> Player {
    let request = Steal { me: heir.dispatch.replica(), dead: vec![dead.dispatch.replica()], limit: 1 };
    heir.play(heir.store.steal(request).await.unwrap().pop().unwrap())
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_makes_one_run() {
    let store = StoreClient(MemoryStore::new(&Env::seeded(1)));
    let world = replica(&store, 2, any()).await;
    // It hands the request on, and breaks the connection when the answer is there.
    let lossy = Upstream::start(Does::Lose(world.address().parse().unwrap())).await;
    let (_running, door) = gateway(&[lossy.url(), url(&world)], "").await;
    shows(&door, &["up", "up"]).await;
    for n in 0..6 {
        let answered = door.ask(Method::POST, "/runs", &[], &chat(&format!("turn {n}")).to_string()).await;
        assert_eq!(answered.status, 200, "{:?}", answered.body);
        let stored = runs(&store).await;
        assert_eq!(stored.len(), n + 1, "one run for one request");
        assert!(stored.iter().any(|run| answered.json()["run_id"] == json!(run.id)));
    }
    assert!(!lossy.requests().is_empty(), "some answers were lost");
}

#[tokio::test]
async fn a_stream_goes_on_when_its_replica_is_killed() {
    let (store, first, second, _running, door) = two().await;
    let body = json!({ "stream_mode": ["updates", "custom"], "assistant_id": "chat",
        "input": { "messages": [{ "role": "user", "content": "hi" }] } });
    let mut stream = Sse::new(door.open(Method::POST, "/runs/stream", &[], &body.to_string()).await);
    let (mut dead, heir, player) = driven_by(first, second).await;
    let mut seen = vec![stream.next().await.unwrap()];
    player.tool_step(1, "looking").await;
    while seen.iter().filter(|got| got.event == "updates").count() < 2 {
        seen.push(stream.next().await.unwrap());
    }
    drop(dead.running.take());
    let player = taken_over(&dead, &heir).await;
    let place =
        format!("/threads/{}/runs/{}/stream?stream_mode=updates,custom", player.thread(), player.run());
    player.finish(2, "done").await;
    let rest = timeout(Duration::from_secs(10), stream.all()).await.unwrap();
    seen.extend(rest);
    let whole = heir.stream(&place, &[("last-event-id", "-1")]).await.all().await;
    assert_eq!(outline(&seen), outline(&whole), "as if nothing had happened");
    assert_eq!(runs(&store).await.len(), 1);
    let metrics = text(&door.ask(Method::GET, "/metrics", &[], "").await.body);
    assert!(metrics.contains("evenkeel_gateway_resumed_total 1"), "{metrics}");
}

#[tokio::test]
async fn a_wait_goes_on_when_its_replica_drains() {
    let (_store, first, second, _running, door) = two().await;
    let body = chat("hi").to_string();
    let waiting = door.ask(Method::POST, "/runs/wait", &[], &body);
    let played = async {
        let (mut leaving, heir, player) = driven_by(first, second).await;
        leaving.running.take().unwrap().shutdown().await;
        drop(player);
        taken_over(&leaving, &heir).await.finish(1, "done").await;
        heir
    };
    let (answered, _heir) = tokio::join!(waiting, played);
    assert_eq!(answered.status, 200);
    let value: Value = serde_json::from_str(text(&answered.body).trim()).unwrap();
    assert_eq!(value["result"], json!("done"));
}

/// Plays every run of a replica until all is done.
async fn play(world: Arc<World>, done: Arc<AtomicBool>) {
    while !done.load(Ordering::Relaxed) {
        if let Ok(player) = timeout(Duration::from_millis(200), world.player()).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
            player.finish(1, "done").await;
        }
    }
}

#[tokio::test]
async fn a_rolling_restart_under_load_loses_not_one_request() {
    let store = StoreClient(MemoryStore::new(&Env::seeded(1)));
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let env = Env::seeded(77);
    let mut worlds = Vec::new();
    let mut addresses = Vec::new();
    for n in 0..3 {
        let world = replica(&store, 10 + n, any()).await;
        addresses.push(world.address().parse::<SocketAddr>().unwrap());
        worlds.push(world);
    }
    let peers: Vec<String> = addresses.iter().map(|address| format!("http://{address}")).collect();
    let (_running, door) = gateway(&peers, "").await;
    shows(&door, &["up", "up", "up"]).await;
    let door = Arc::new(door);

    let mut runnings = Vec::new();
    for mut world in worlds {
        runnings.push(world.running.take().unwrap());
        env.spawner.spawn("play", Box::pin(play(Arc::new(world), done.clone())));
    }
    let answered = Arc::new(AtomicUsize::new(0));
    let loads: Vec<_> =
        (0..8).map(|client| load(door.clone(), client, answered.clone(), stop.clone())).collect();
    let rolling = async {
        for (n, running) in runnings.into_iter().enumerate() {
            let wanted = answered.load(Ordering::Relaxed) + 30;
            while answered.load(Ordering::Relaxed) < wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            running.shutdown().await;
            let mut world = replica(&store, 20 + n as u64, addresses[n]).await;
            let kept = world.running.take();
            env.spawner.spawn("play", Box::pin(play(Arc::new(world), done.clone())));
            shows(&door, &["up", "up", "up"]).await;
            // The new one serves until the end of the test.
            std::mem::forget(kept);
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (counts, ()) = tokio::join!(futures_util::future::join_all(loads), rolling);
    done.store(true, Ordering::Relaxed);
    let n_sent: usize = counts.iter().sum();
    let stored = runs(&store).await;
    assert_eq!(stored.len(), n_sent, "one run for each request");
    assert!(n_sent > 90, "{n_sent}");
}

/// Sends turns one after the other, each way in turn, until told to stop. Every one must succeed.
async fn load(door: Arc<Door>, client: usize, answered: Arc<AtomicUsize>, stop: Arc<AtomicBool>) -> usize {
    let mut n_sent = 0;
    while !stop.load(Ordering::Relaxed) {
        n_sent += 1;
        let body = chat(&format!("client {client}, turn {n_sent}")).to_string();
        if n_sent % 2 == 0 {
            let waited = door.ask(Method::POST, "/runs/wait", &[], &body).await;
            assert_eq!(waited.status, 200, "{:?}", waited.body);
            let value: Value = serde_json::from_str(text(&waited.body).trim()).unwrap();
            assert_eq!(value["result"], json!("done"), "{value}");
        } else {
            let stream = Sse::new(door.open(Method::POST, "/runs/stream", &[], &body).await);
            let seen = outline(&stream.all().await);
            assert_eq!(seen.last().map(String::as_str), Some("- end"), "{seen:?}");
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    n_sent
}
