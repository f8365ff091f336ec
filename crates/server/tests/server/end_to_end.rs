//! The whole product over a fake provider: every part is the real one, the store is a file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_env::Env;
use evenkeel_env::http::Client;
use evenkeel_sandbox::{HelperProgram, Isolation};
use evenkeel_server::{Config, Overrides, Running};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fake::Fake;
use crate::world::{Door, Got, Sse, outline};

/// A product, its provider and its files.
pub(crate) struct Product {
    env: Env,
    pub(crate) fake: Arc<Fake>,
    base_url: String,
    dir: TempDir,
    running: Option<Running>,
}

impl Product {
    pub(crate) async fn new() -> Self {
        let env = Env::real();
        let (fake, base_url) = Fake::start(&env).await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("repository")).unwrap();
        std::fs::write(dir.path().join("repository/README.md"), "A tool.\n").unwrap();
        let mut product = Self { env, fake, base_url, dir, running: None };
        product.start().await;
        product
    }

    pub(crate) fn repository(&self) -> String {
        self.dir.path().join("repository").canonicalize().unwrap().display().to_string()
    }

    async fn start(&mut self) {
        let config = config(&self.base_url, self.dir.path());
        self.running = Some(evenkeel_server::start(self.env.clone(), config).await.unwrap());
    }

    /// An orderly stop and a new start on the same files.
    async fn restart(&mut self) {
        self.running.take().unwrap().shutdown().await;
        self.start().await;
    }

    pub(crate) fn address(&self) -> String {
        self.running.as_ref().unwrap().address().to_string()
    }

    fn door(&self) -> Door {
        Door { address: self.address(), client: Client::new(&self.env, Duration::from_secs(2)) }
    }

    fn task(&self) -> Value {
        json!({
            "assistant_id": "coder",
            "input": {
                "messages": [{ "role": "user", "content": "Write the notes." }],
                "repository": { "directory": self.repository() },
            },
            "stream_mode": ["updates", "custom"],
        })
    }
}

fn config(base_url: &str, dir: &Path) -> Config {
    let toml = format!(
        r#"
        [providers.fake]
        kind = "openai"
        base_url = "{base_url}"
        keys = ["test:key"]
        [deployments.main]
        provider = "fake"
        model = "m"
        [routes.default]
        tiers = [["main"]]
        [server]
        listen = "127.0.0.1:0"
        heartbeat = "500ms"
        "#
    );
    let mut config = Config::parse("test.toml", &toml, &Overrides::default()).unwrap();
    config.server.data_dir = dir.join("data");
    config.workspaces.sources = vec![dir.canonicalize().unwrap()];
    config.workspaces.url_schemes = vec!["http".to_owned()];
    // The play uses no command, and a test binary cannot be the helper.
    config.sandbox.isolation = Isolation::None;
    config.sandbox.warm = 0;
    config.sandbox.helper = HelperProgram::Path("/nonexistent".into());
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coding_run_ends_with_its_diff() {
    let product = Product::new().await;
    let door = product.door();
    let answered = door.ask(Method::POST, "/runs/wait", &[], &product.task().to_string()).await;
    let values = answered.json();
    assert_eq!(values["result"], "The notes are written.", "{values}");
    assert!(values["diff"].as_str().unwrap().contains("+written"), "{values}");
    assert!(!Path::new(&product.repository()).join("NOTES.md").exists(), "the original is untouched");
    assert_eq!(product.fake.calls.load(Ordering::Relaxed), 4);
    let metrics = String::from_utf8(door.ask(Method::GET, "/metrics", &[], "").await.body.to_vec()).unwrap();
    assert!(metrics.contains("evenkeel_runs{state=\"completed\"} 1"), "{metrics}");
    assert!(
        metrics.contains("evenkeel_model_attempts_total{deployment=\"main\",outcome=\"ok\"} 4"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_outlives_an_outage_of_its_only_provider() {
    let product = Product::new().await;
    let door = product.door();
    product.fake.down.store(true, Ordering::Relaxed);
    let response = door.open(Method::POST, "/runs/stream", &[], &product.task().to_string()).await;
    let mut stream = Sse::new(response);
    let waiting = loop {
        let got = stream.next().await.expect("the run waits, it does not end");
        if got.data["type"] == "waiting" {
            break got;
        }
    };
    assert_eq!(waiting.data["on"], "model");
    product.fake.down.store(false, Ordering::Relaxed);
    let rest = stream.all().await;
    assert_eq!(rest.last().unwrap().data, json!({ "status": "success" }), "{:?}", outline(&rest));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_comes_back_to_a_restarted_server_and_gets_exactly_the_rest() {
    let mut product = Product::new().await;
    product.fake.think_ms.store(300, Ordering::Relaxed);
    let door = product.door();
    let response = door.open(Method::POST, "/runs/stream", &[], &product.task().to_string()).await;
    let place = response.headers()["location"].to_str().unwrap().to_owned();
    let mut stream = Sse::new(response);
    let mut seen: Vec<Got> = Vec::new();
    while !seen.iter().any(|got| got.event == "updates") {
        seen.push(stream.next().await.unwrap());
    }
    let (rest, ()) = tokio::join!(stream.all(), product.restart());
    seen.extend(rest);
    assert!(seen.iter().all(|got| got.event != "end"), "the stream was cut");
    let cursor = seen.iter().rev().find_map(|got| got.id.clone()).unwrap();
    let door = product.door();
    seen.extend(
        Sse::new(door.open(Method::GET, &place, &[("last-event-id", &cursor)], "").await).all().await,
    );
    let whole = Sse::new(door.open(Method::GET, &place, &[("last-event-id", "-1")], "").await).all().await;
    let stored = |events: &[Got]| {
        let stored: Vec<Got> = events.iter().filter(|got| got.id.is_some()).cloned().collect();
        outline(&stored)
    };
    assert_eq!(stored(&seen), stored(&whole));
    assert_eq!(whole.last().unwrap().data, json!({ "status": "success" }));
    let intents = whole.iter().filter(|got| got.data["type"] == "effect_intended").count();
    assert!(intents >= 3, "{:?}", outline(&whole));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_provider_a_run_ends_with_what_to_configure() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config("http://127.0.0.1:9/v1", dir.path());
    config.router = evenkeel_model::RouterConfig::default();
    let env = Env::real();
    let running = evenkeel_server::start(env.clone(), config).await.unwrap();
    let door =
        Door { address: running.address().to_string(), client: Client::new(&env, Duration::from_secs(2)) };
    let body = crate::world::chat("hi").to_string();
    let answered = door.ask(Method::POST, "/runs/wait", &[], &body).await;
    assert_eq!(answered.json()["__error__"]["error"], "route-unknown", "{:?}", answered.body);
}

/// A clone whose server does not answer holds nobody up: what is sent to its thread meanwhile is taken
/// at once, and is carried out when the start has ended, here by its failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_taken_while_the_clone_before_it_hangs() {
    let product = Product::new().await;
    let door = product.door();
    let mut forge = product.env.net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}/slow.git", forge.local_address().unwrap());
    let made = door.ask(Method::POST, "/threads", &[], "{}").await.json();
    let runs = format!("/threads/{}/runs", made["thread_id"].as_str().unwrap());
    let send = async |repository: Value| {
        let mut task = product.task();
        task["input"]["repository"] = repository;
        let answered = door.ask(Method::POST, &runs, &[], &task.to_string()).await;
        assert_eq!(answered.status, 200, "{:?}", answered.body);
        answered.json()["run_id"].as_str().unwrap().to_owned()
    };
    let state = async |run: &str| {
        let run = door.ask(Method::GET, &format!("/v1/runs/{run}"), &[], "").await.json();
        (run["state"].as_str().unwrap().to_owned(), run["outcome"]["error"]["code"].clone())
    };
    let first = send(json!({ "url": url })).await;
    // git has asked, and gets no answer until the test lets go.
    let asks = forge.accept().await.unwrap();
    let second = send(json!({ "directory": product.repository() })).await;
    assert_eq!(state(&first).await, ("running".to_owned(), Value::Null));
    assert_eq!(state(&second).await, ("queued".to_owned(), Value::Null));
    drop((asks, forge));
    let joined = door.ask(Method::GET, &format!("{runs}/{second}/join"), &[], "").await.json();
    assert_eq!(joined["result"], "The notes are written.", "{joined}");
    assert_eq!(state(&first).await, ("failed".to_owned(), json!("repository-unreadable")));
}
