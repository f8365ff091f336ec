//! Real clients against the real product: the Python and the npm client, `RemoteGraph`, and the
//! reference server of the dialect beside it, and what the OpenAPI document promises.
//!
//! Each needs programs that `cargo xtask ci` installs into environments of their own and names by
//! variables. A test whose variable is not set says that it has shown nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use evenkeel_env::process;

use crate::end_to_end::Product;

/// A client that is tried.
struct Client {
    /// The variable that names its program.
    variable: &'static str,
    /// Its script under `tests`.
    script: &'static str,
    /// Milliseconds that the model takes.
    think_ms: u64,
}

/// Runs the script with the product's address and a repository; it says `ok` at the end.
async fn check(client: Client) {
    let Ok(program) = std::env::var(client.variable) else {
        eprintln!("{} is not set: {} was not tried.", client.variable, client.script);
        return;
    };
    let product = Product::new().await;
    product.fake.think_ms.store(client.think_ms, Ordering::Relaxed);
    let script = format!("{}/tests/{}", env!("CARGO_MANIFEST_DIR"), client.script);
    let url = format!("http://{}", product.address());
    // The variable of the npm client names its folder; node is on the path.
    let program = if client.script.ends_with(".mjs") { "node".to_owned() } else { program };
    let mut command = process::command(program);
    command
        .args([script.as_str(), &url, &product.repository()])
        .env("PYTHONWARNINGS", "error::ResourceWarning");
    for name in ["PATH", "HOME", "EVENKEEL_EXAMPLES", client.variable] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    let output = tokio::time::timeout(Duration::from_secs(170), command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.lines().any(|line| line.starts_with("ok")), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unmodified_sdk_runs_a_coding_task() {
    check(Client { variable: "EVENKEEL_SDK_PYTHON", script: "sdk/coding_run.py", think_ms: 200 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unmodified_npm_client_chats() {
    check(Client { variable: "EVENKEEL_SDK_NODE", script: "sdk/npm.mjs", think_ms: 50 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmodified_remote_graph_is_invoked_streamed_and_changed() {
    check(Client { variable: "EVENKEEL_SDK_PYTHON", script: "sdk/remote_graph.py", think_ms: 50 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dialect_is_answered_as_by_its_reference() {
    check(Client { variable: "EVENKEEL_REFERENCE_PYTHON", script: "probe/probe.py", think_ms: 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_document_promises_is_answered() {
    check(Client { variable: "EVENKEEL_SCHEMATHESIS", script: "sdk/described.py", think_ms: 0 }).await;
}
