//! A server over a provider whose model plays a fixed list of steps.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_env::Env;
use evenkeel_env::http::Client;
use evenkeel_lab::provider::{self, Brain, Control, FakeConfig, Timing, WireKind};
use evenkeel_lab::task::{Conversation, Item, Reply, SolverCall};
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::{output, text};

/// The calls of each step; after the last one the model says that it is done.
pub(crate) struct Play(pub(crate) Vec<Vec<(&'static str, Value)>>);

impl Brain for Play {
    fn answer(&self, conversation: &Conversation) -> Reply {
        let said = |item: &&Item| matches!(item, Item::Assistant(_));
        let step = conversation.items.iter().filter(said).count();
        let calls = self.0.get(step).into_iter().flatten();
        let calls = calls.map(|(name, args)| SolverCall { name: (*name).to_owned(), args: args.clone() });
        Reply { text: format!("Step {step}."), calls: calls.collect() }
    }
}

/// A provider that plays this.
pub(crate) async fn provider(play: Play, keys: &[&str]) -> Control {
    let timing = Timing { first_token_ms: 20.0, ..Timing::default() };
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    let fake = FakeConfig { timing, keys, ..FakeConfig::new("fake", Arc::new(play)) };
    provider::start(&Env::real(), fake).await.expect("a provider")
}

/// The configuration of a server over it.
pub(crate) fn config(fake: &Control, key: &str) -> String {
    format!(
        "[providers.fake]\nkind = \"openai\"\nbase_url = {:?}\nkeys = [{key:?}]\n[deployments.fake]\n\
         provider = \"fake\"\nmodel = \"m\"\n[routes.default]\ntiers = [[\"fake\"]]\n",
        fake.base_url(WireKind::Openai),
    )
}

/// Asks a server; gives its JSON.
pub(crate) async fn ask(address: &str, method: Method, path: &str, body: Option<Value>) -> Value {
    let request = http::Request::builder().method(method).uri(format!("{address}{path}"));
    let request = request.header("content-type", "application/json");
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request = request.body(bytes::Bytes::from(body)).expect("a request");
    let response = Client::new(&Env::real(), Duration::from_secs(5)).send(request).await.expect("an answer");
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    serde_json::from_slice(&bytes).unwrap_or(Value::Null)
}

/// Accepts a task on a thread of its own; gives the thread and the run.
pub(crate) async fn begin(address: &str, say: &str) -> (String, String) {
    let thread = ask(address, Method::POST, "/threads", Some(json!({}))).await;
    let thread = thread["thread_id"].as_str().expect("a thread").to_owned();
    let body =
        json!({ "assistant_id": "coder", "input": { "messages": [{ "role": "user", "content": say }] } });
    let run = ask(address, Method::POST, &format!("/threads/{thread}/runs"), Some(body)).await;
    (thread, run["run_id"].as_str().expect("a run").to_owned())
}

/// Waits until the run is in this state.
pub(crate) async fn reaches(address: &str, run: &str, state: &str) -> Value {
    for _ in 0..600 {
        let found = ask(address, Method::GET, &format!("/v1/runs/{run}"), None).await;
        if found["state"] == state {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("run {run} did not get to {state} within a minute");
}

/// What a command that must succeed prints.
pub(crate) async fn printed(at: &Path, args: &[&str]) -> String {
    let output = output(at, args).await;
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{}", text(&output.stderr));
    text(&output.stdout)
}

/// A server whose log is kept.
pub(crate) async fn serve_logged(at: &Path, envs: &[(&str, &str)]) -> (tokio::process::Child, String) {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let log = std::fs::OpenOptions::new().create(true).append(true).open(at.join("server.log"));
    let mut command = crate::evenkeel(at, &["serve", "--listen", "127.0.0.1:0", "--ready-json"]);
    command.envs(envs.iter().copied()).stdout(Stdio::piped()).stderr(log.expect("a log"));
    let mut child = command.spawn().expect("the binary starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let line = BufReader::new(stdout).lines().next_line().await.expect("a line").expect("it is ready");
    let ready: Value = serde_json::from_str(&line).expect("the line is JSON");
    (child, ready["listening"].as_str().expect("an address").to_owned())
}
