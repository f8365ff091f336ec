//! MCP as others speak it: the public conformance suite against our servers, and the reference servers
//! under our client.
//!
//! Needs a folder with the npm packages, named by `EVENKEEL_MCP_HOME`; `cargo xtask lab-full` makes one.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use evenkeel_env::process;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::play::{Play, ask, begin, config, provider, reaches, serve_logged};
use crate::{evenkeel, text};

/// The scenarios that our file server passes. The others ask for tools, resources and prompts of a
/// fixture of the suite's own, which a file server has no use for. The list only grows.
const PASSED: [&str; 6] = [
    "server-initialize",
    "ping",
    "tools-list",
    "server-sse-polling",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

fn home() -> Option<PathBuf> {
    let Some(home) = std::env::var_os("EVENKEEL_MCP_HOME") else {
        eprintln!("EVENKEEL_MCP_HOME is not set: MCP conformance and the reference servers were not tried.");
        return None;
    };
    Some(PathBuf::from(home).join("node_modules"))
}

/// The node that the packages brought, which the suite needs to be 22 or newer.
fn node(modules: &Path) -> PathBuf {
    modules.join(".bin/node")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_finds_nothing_new_in_our_server() {
    let Some(modules) = home() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = evenkeel(dir.path(), &["mcp", "files", "--http", "127.0.0.1:0"]);
    let mut server = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().expect("the binary starts");
    let said = server.stderr.take().expect("stderr is piped");
    // Held to the end: a server whose stderr is closed has nowhere to say what is wrong.
    let mut said = BufReader::new(said).lines();
    let line = said.next_line().await.expect("a line").expect("it is ready");
    let url = line.split_whitespace().last().expect("an address").to_owned();
    let suite = modules.join("@modelcontextprotocol/conformance/dist/index.js");
    let run = async |args: &[&str]| {
        let mut command = process::command(node(&modules));
        command.arg(&suite).args(args).env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(dir.path());
        let output = tokio::time::timeout(Duration::from_secs(60), command.kill_on_drop(true).output()).await;
        output.expect("the suite ends within a minute").expect("node starts")
    };
    let listed = text(&run(&["list", "--server"]).await.stdout);
    let of_servers = listed.split("Client scenarios").next().unwrap_or_default();
    let scenarios: Vec<&str> =
        of_servers.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split(' ').next()).collect();
    assert!(PASSED.iter().all(|name| scenarios.contains(name)), "{listed}");
    for scenario in scenarios {
        let output = run(&["server", "--url", &url, "--scenario", scenario]).await;
        let said = format!("{scenario}: {}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.success(), PASSED.contains(&scenario), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_servers_work_under_our_client() {
    let Some(modules) = home() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let at = &dir.path().canonicalize().expect("it is there");
    let shared = at.join("shared");
    std::fs::create_dir(&shared).expect("the folder is made");
    let file = shared.join("note.txt").display().to_string();
    let play = Play(vec![
        vec![("fs__write_file", json!({ "path": file, "content": "by MCP\n" }))],
        vec![("fs__read_text_file", json!({ "path": file })), ("all__echo", json!({ "message": "hear me" }))],
        vec![("fs__read_text_file", json!({ "path": "/etc/passwd" }))],
        vec![("finish", json!({ "summary": "done" }))],
    ]);
    let fake = provider(play, &["k"]).await;
    let server = |name: &str, args: &str| {
        let program = modules.join("@modelcontextprotocol").join(name).join("dist/index.js");
        format!("command = {:?}\nargs = [{:?}{args}]\n", node(&modules), program)
    };
    let toml = format!(
        "{}[mcp.servers.fs]\n{}[mcp.servers.all]\n{}",
        config(&fake, "env:MODEL_KEY"),
        server("server-filesystem", &format!(", {:?}", shared)),
        server("server-everything", ", \"stdio\""),
    );
    std::fs::write(at.join("evenkeel.toml"), toml).expect("the file is written");
    let (mut server, address) = serve_logged(at, &[("MODEL_KEY", "k")]).await;
    let (_, run) = begin(&address, "Use the servers.").await;
    reaches(&address, &run, "completed").await;
    let journal = ask(&address, Method::GET, &format!("/v1/runs/{run}/events"), None).await;
    let events = journal["events"].as_array().expect("events");
    let settled: Vec<(bool, &str)> = events
        .iter()
        .map(|event| &event["body"])
        .filter(|body| body["type"] == "effect_settled")
        .map(|body| (body["is_error"] == true, body["text"].as_str().unwrap_or_default()))
        .collect();
    assert!(settled.iter().any(|(failed, text)| !failed && text.contains("by MCP")), "{settled:?}");
    assert!(settled.iter().any(|(failed, text)| !failed && text.contains("hear me")), "{settled:?}");
    assert!(settled.iter().any(|(failed, text)| *failed && text.contains("denied")), "{settled:?}");
    assert_eq!(std::fs::read_to_string(shared.join("note.txt")).expect("it was written"), "by MCP\n");
    server.start_kill().expect("it runs");
    server.wait().await.expect("its status is known");
}
