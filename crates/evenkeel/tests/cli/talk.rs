//! `evenkeel chat` and `evenkeel threads` against a server with a model that echoes.

use std::process::Stdio;
use std::sync::Arc;

use evenkeel_env::Env;
use evenkeel_lab::provider::{self, Control, FakeConfig, Timing, WireKind};
use evenkeel_lab::task::Solver;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;

use crate::{evenkeel, output, serve, text};

/// A server over a fake provider.
struct Stage {
    dir: tempfile::TempDir,
    address: String,
    _server: Child,
    _fake: Control,
}

impl Stage {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let timing = Timing { first_token_ms: 50.0, ..Timing::default() };
        let fake = FakeConfig { timing, ..FakeConfig::new("fake", Arc::new(Solver)) };
        let fake = provider::start(&Env::real(), fake).await.expect("a provider");
        let config = format!(
            "[providers.fake]\nkind = \"openai\"\nbase_url = {:?}\n[deployments.fake]\nprovider = \"fake\"\n\
             model = \"m\"\n[routes.default]\ntiers = [[\"fake\"]]\n",
            fake.base_url(WireKind::Openai),
        );
        std::fs::write(dir.path().join("evenkeel.toml"), config).expect("the file is written");
        let (server, address) = serve(dir.path(), &[]).await;
        Self { dir, address, _server: server, _fake: fake }
    }

    /// Pipes this into `evenkeel chat`; gives the exit code, stdout and stderr.
    async fn chat(&self, input: &str, args: &[&str]) -> (Option<i32>, String, String) {
        let mut command = evenkeel(self.dir.path(), &["chat", "--server", &self.address]);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        stdin.write_all(input.as_bytes()).await.expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().await.expect("it ends");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    async fn threads(&self, args: &[&str]) -> String {
        let args = [&["threads", "--server", &self.address], args].concat();
        let output = output(self.dir.path(), &args).await;
        assert_eq!(output.status.code(), Some(0), "{args:?}\n{}", text(&output.stderr));
        text(&output.stdout)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_a_pipe_are_answered_one_after_the_other() {
    let stage = Stage::new().await;
    let (code, stdout, stderr) = stage.chat("What is a lease?\n\nAnd a term?\n", &[]).await;
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout.trim().lines().count(), 2, "one line for each answer: {stdout}\n{stderr}");

    let listed: Value = serde_json::from_str(&stage.threads(&["list", "--json"]).await).expect("JSON");
    let thread = listed[0]["thread_id"].as_str().expect("one thread").to_owned();
    assert_eq!(listed[0]["values"]["messages"].as_array().map(Vec::len), Some(4));
    let (code, stdout, stderr) = stage.chat("One more.", &["--thread", &thread]).await;
    assert_eq!((code, stdout.trim().lines().count()), (Some(0), 1), "{stdout}\n{stderr}");
    let shown = stage.threads(&["show", &thread]).await;
    assert!(shown.contains("And a term?") && shown.contains("One more."), "{shown}");
    assert!(stage.threads(&["list", "--status", "idle"]).await.contains(&thread));
    assert_eq!(stage.threads(&["list", "--status", "busy"]).await, "no threads\n");

    let (_, events, _) = stage.chat("In JSON.", &["--json"]).await;
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(events.iter().any(|event| event["event"] == "messages"), "{events:?}");

    assert_eq!(stage.threads(&["delete", &thread]).await, format!("deleted {thread}\n"));
    let gone = output(stage.dir.path(), &["threads", "show", &thread, "--server", &stage.address]).await;
    assert_eq!(gone.status.code(), Some(2));
    assert!(text(&gone.stderr).contains("error[thread-not-found]:"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_not_answered_is_a_failure_of_the_pipe() {
    let stage = Stage::new().await;
    let (code, stdout, stderr) = stage.chat("Hello?\n", &["--assistant", "nobody"]).await;
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("error[bad-request]:"), "{stderr}");
    let (code, _, stderr) = stage.chat("Hello?\n", &["--policy", "shout"]).await;
    assert_eq!(code, Some(2), "{stderr}");
    // What is typed as a command is not sent.
    let (code, stdout, stderr) = stage.chat("/shout x\n/help\n/cancel\n/quit\nnever sent\n", &[]).await;
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(stderr.contains("/shout is not known") && stderr.contains("/interrupt TEXT"), "{stderr}");
}
