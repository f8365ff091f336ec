//! MCP as others speak it: the public conformance suite against our servers and our client, and the
//! reference servers under our client.
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

/// What is known to fail, each with its reason. The lists only shrink.
const EXPECTED_FAILURES: &str = include_str!("mcp-expected-failures.yml");

/// The scenarios below a key of the file.
fn expected_failures(key: &str) -> Vec<&'static str> {
    let below = EXPECTED_FAILURES.split(&format!("\n{key}:\n")).nth(1).expect("the file has this key");
    let rows = below.lines().take_while(|line| line.starts_with("  "));
    let entries = rows.filter_map(|line| line.trim().strip_prefix("- "));
    entries
        .map(|entry| {
            let (name, reason) = entry.split_once(" # ").unwrap_or_else(|| panic!("{entry} has no reason"));
            assert!(!reason.trim().is_empty(), "{entry} has no reason");
            name.trim()
        })
        .collect()
}

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
    let suite = Suite { modules: &modules, at: dir.path() };
    let expected = expected_failures("server");
    for scenario in suite.scenarios("--server", &expected).await {
        let (passed, said) = suite.run(&["server", "--url", &url, "--scenario", &scenario]).await;
        assert_eq!(passed, !expected.contains(&scenario.as_str()), "{scenario}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_finds_nothing_new_in_our_client() {
    let Some(modules) = home() else { return };
    let Some(client) = std::env::var_os("EVENKEEL_MCP_CLIENT") else {
        panic!("EVENKEEL_MCP_CLIENT must name the example mcp_client; cargo xtask lab-full builds it");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let suite = Suite { modules: &modules, at: dir.path() };
    let expected = expected_failures("client");
    let client = client.to_string_lossy().into_owned();
    for scenario in suite.scenarios("--client", &expected).await {
        let args = ["client", "--command", &client, "--scenario", &scenario, "--timeout", "30000"];
        let (passed, said) = suite.run(&args).await;
        assert_eq!(passed, !expected.contains(&scenario.as_str()), "{scenario}: {said}");
    }
}

/// The public conformance suite.
struct Suite<'a> {
    modules: &'a Path,
    at: &'a Path,
}

impl Suite<'_> {
    /// Whether it was content, and what it said.
    async fn run(&self, args: &[&str]) -> (bool, String) {
        let suite = self.modules.join("@modelcontextprotocol/conformance/dist/index.js");
        let mut command = process::command(node(self.modules));
        command.arg(&suite).args(args).env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(self.at);
        let output = tokio::time::timeout(Duration::from_secs(60), command.kill_on_drop(true).output()).await;
        let output = output.expect("the suite ends within a minute").expect("node starts");
        (output.status.success(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
    }

    /// The names of its scenarios on one side; what is expected to fail must be among them.
    async fn scenarios(&self, side: &str, expected: &[&str]) -> Vec<String> {
        let (_, listed) = self.run(&["list", side]).await;
        let names = listed.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split(' ').next());
        let names: Vec<String> = names.map(str::to_owned).collect();
        let unknown: Vec<&&str> =
            expected.iter().filter(|name| !names.iter().any(|known| known == **name)).collect();
        assert!(unknown.is_empty() && names.len() > expected.len(), "{unknown:?} are not in: {listed}");
        names
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
