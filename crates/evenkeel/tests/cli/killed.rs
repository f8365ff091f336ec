//! A server that is killed while a client streams from it.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_env::{Env, process};
use evenkeel_lab::provider::{self, FakeConfig, WireKind};
use evenkeel_lab::task::{self, Shape, Solver};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::{evenkeel, serve, text};

/// `kill -9`, as the machine does it.
async fn kill(child: &mut tokio::process::Child) {
    child.start_kill().expect("it runs");
    child.wait().await.expect("its status is known");
}

/// Needs a Python with `langgraph-sdk`, named by `EVENKEEL_SDK_PYTHON`; `cargo xtask ci` has one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmodified_stream_goes_on_when_its_server_is_killed() {
    let Ok(python) = std::env::var("EVENKEEL_SDK_PYTHON") else {
        eprintln!("EVENKEEL_SDK_PYTHON is not set: a killed server was not tried.");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().canonicalize().expect("it is there");
    let script = *task::available().0.first().expect("a task that this machine can run");
    for (name, text) in &script.files {
        let path = at.join("repository").join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        std::fs::write(path, text).expect("the file is written");
    }
    let fake =
        provider::start(&Env::real(), FakeConfig::new("fake", Arc::new(Solver))).await.expect("a provider");
    let config = format!(
        "[workspaces]\nsources = [{:?}]\n[providers.fake]\nkind = \"openai\"\nbase_url = {:?}\n\
         [deployments.fake]\nprovider = \"fake\"\nmodel = \"m\"\n[routes.default]\ntiers = [[\"fake\"]]\n",
        at.join("repository"),
        fake.base_url(WireKind::Openai),
    );
    std::fs::write(at.join("evenkeel.toml"), config).expect("the file is written");

    let (mut server, address) = serve(&at, &[]).await;
    let listen = address.trim_start_matches("http://").to_owned();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/sdk/killed.py");
    let mut client = process::command(python);
    let repository = at.join("repository").display().to_string();
    client.args([program, &address, &repository, &Solver::ask(script, Shape::Short, 1)]);
    let mut client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("Python starts");
    let mut said = BufReader::new(client.stdout.take().expect("stdout is piped")).lines();
    let first =
        tokio::time::timeout(Duration::from_secs(60), said.next_line()).await.expect("a step in time");
    assert_eq!(first.expect("a line").as_deref(), Some("seen"));

    kill(&mut server).await;
    let mut again = evenkeel(&at, &["serve", "--listen", &listen]);
    let mut server = again.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let ended = tokio::time::timeout(Duration::from_secs(120), client.wait_with_output()).await;
    let ended = ended.expect("the client ends").expect("its status is known");
    let last = said.next_line().await.expect("its output").unwrap_or_default();
    assert!(ended.status.success(), "{last}\n{}", text(&ended.stderr));
    assert!(last.starts_with("ok"), "{last}");
    println!("{last}");
    kill(&mut server).await;
}
