//! Foreign tool servers that do not answer, die, and come back.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::Code;
use evenkeel_core::agent::{Agent, RunLimits};
use evenkeel_core::journal::EffectClass;
use evenkeel_core::port::tools::Tools;
use evenkeel_env::http::Client;
use evenkeel_env::{Env, Task};
use serde_json::json;

use super::support::{Bench, show};
use crate::mcp::{ServerKind, serve_http};
use crate::{McpHints, Toolbox, ToolsConfig};

/// An MCP server in shell: `echo` answers with what it got, `stall` never answers, `die` ends the
/// process, `big` answers with ten megabytes. Each start adds a line to the file `$STARTS`.
const SERVER: &str = r#"
echo start >> "$STARTS"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while IFS= read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*) printf '%s\n' "$line" >> "$STARTS"; answer '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}' ;;
    *'"method":"tools/list"'*) answer '{"tools":[
      {"name":"echo","description":"d","inputSchema":{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]},"annotations":{"readOnlyHint":true}},
      {"name":"stall","inputSchema":{"type":"object"}},
      {"name":"die","inputSchema":{"type":"object"},"annotations":{"idempotentHint":true}},
      {"name":"big","inputSchema":{"type":"object"}},
      {"name":"hidden","inputSchema":{"type":"object"}}]}' | tr -d '\n'; echo ;;
    *'"name":"echo"'*) effect=$(printf %s "$line" | sed -n 's/.*"evenkeel\/effect":"\([0-9a-f]*\)".*/\1/p')
      answer '{"content":[{"type":"text","text":"effect '"$effect"'"}]}' ;;
    *'"name":"die"'*) exit 1 ;;
    *'"name":"big"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"' "$id"
      head -c 10000000 /dev/zero | tr '\0' a; printf '"}]}}\n' ;;
    *'notifications/cancelled'*) echo cancelled >> "$STARTS" ;;
  esac
done
"#;

async fn bench(hints: McpHints) -> (Bench, PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let starts = directory.path().join("starts");
    let server = json!({
        "command": "/bin/sh",
        "args": ["-c", SERVER],
        "env": {"STARTS": starts},
        "tools": ["echo", "stall", "die", "big"],
        "hints": hints,
        "effects": {"big": "pure"},
    });
    (Bench::with(config_of("test", server)).await, starts, directory)
}

fn config_of(name: &str, server: serde_json::Value) -> ToolsConfig {
    let mut config = ToolsConfig::default();
    config.mcp.servers.insert(name.to_owned(), serde_json::from_value(server).unwrap());
    config
}

fn n_starts(starts: &PathBuf) -> usize {
    std::fs::read_to_string(starts).unwrap_or_default().matches("start").count()
}

#[tokio::test]
async fn tools_of_a_server_are_offered_and_called() {
    let (bench, starts, _directory) = bench(McpHints::Trusted).await;
    let agent = Agent {
        name: "a".to_owned(),
        description: String::new(),
        system_prompt: String::new(),
        route: "default".to_owned(),
        tools: vec!["finish".to_owned(), "mcp:*".to_owned()],
        workspace: true,
        limits: RunLimits::default(),
    };
    let offered = bench.toolbox.offered(&agent).await.unwrap();
    let names: Vec<&str> = offered.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["finish", "test__big", "test__die", "test__echo", "test__stall"]);
    let echoed = bench.call("test__echo", json!({"x": "hello"})).await;
    assert_eq!(
        (echoed.0.class, echoed.0.policies.as_slice()),
        (EffectClass::Pure, ["default/configured-servers".to_owned()].as_slice())
    );
    assert_eq!(show(&echoed), format!("effect {}", echoed.0.request.effect));
    assert!(show(&bench.call("test__echo", json!({})).await).contains("x is missing"));
    assert!(show(&bench.call("test__hidden", json!({})).await).contains("There is no tool"));
    assert_eq!(n_starts(&starts), 1);
    // The newest revision that has a handshake, in the handshake: not the newest of all.
    let hello = std::fs::read_to_string(&starts).unwrap();
    assert!(
        hello.contains(r#""protocolVersion":"2025-11-25""#) && hello.contains(r#""name":"evenkeel""#),
        "{hello}"
    );
}

#[tokio::test]
async fn hints_are_believed_as_far_as_configured() {
    let mut table = Vec::new();
    for hints in [McpHints::Untrusted, McpHints::Trusted, McpHints::Ignored] {
        let (bench, _starts, _directory) = bench(hints).await;
        let mut classes = Vec::new();
        for tool in ["test__echo", "test__die", "test__stall", "test__big"] {
            classes.push(bench.prepare(tool, json!({"x": ""})).await.class);
        }
        table.push(classes);
    }
    use EffectClass::{Idempotent, Pure, Unsafe};
    // What the operator says of a tool counts more than the server's hints.
    assert_eq!(
        table,
        [
            [Unsafe, Idempotent, Unsafe, Pure],
            [Pure, Idempotent, Unsafe, Pure],
            [Unsafe, Unsafe, Unsafe, Pure]
        ]
    );
}

/// P01: a call that is never answered ends at its limit, and hurts no other.
#[tokio::test]
async fn a_server_that_never_answers_hurts_one_call() {
    let (bench, starts, _directory) = bench(McpHints::Untrusted).await;
    let prepared = bench.prepare_for("test__stall", json!({}), Duration::from_millis(300)).await;
    let output = bench.toolbox.execute(prepared).await;
    assert!(
        output.is_error && output.text.starts_with("test__stall did not answer within 0.3 s"),
        "{}",
        output.text
    );
    assert!(show(&bench.call("test__echo", json!({"x": ""})).await).starts_with("effect "));
    // The server is told, and goes on.
    let seen = std::fs::read_to_string(&starts).unwrap();
    assert_eq!((n_starts(&starts), seen.contains("cancelled")), (1, true));
}

/// P02: a server that went away between calls is started again for the next one.
#[tokio::test]
async fn a_server_that_died_is_started_again() {
    let (bench, starts, _directory) = bench(McpHints::Trusted).await;
    assert!(show(&bench.call("test__echo", json!({"x": ""})).await).starts_with("effect "));
    // It dies at each call; the idempotent call is made once more, and then given up.
    let died = show(&bench.call("test__die", json!({})).await);
    assert!(died.starts_with("error: The tool server test went away"), "{died}");
    assert_eq!(n_starts(&starts), 2);
    assert!(show(&bench.call("test__echo", json!({"x": ""})).await).starts_with("effect "));
    assert_eq!(n_starts(&starts), 3);
}

/// What a server started goes with it: when it ends, and when nobody needs it any more. It also holds
/// the server's pipes, and a call must not wait for it.
#[tokio::test]
async fn what_a_server_starts_does_not_outlive_it() {
    let directory = tempfile::tempdir().unwrap();
    let children = directory.path().join("children");
    // A child that ignores the end of its input, and polite signals.
    let script = format!("(trap '' TERM HUP INT; sleep 7474.7) & echo $! >> \"$CHILDREN\"\n{SERVER}");
    let server = json!({
        "command": "/bin/sh",
        "args": ["-c", script],
        "env": {"STARTS": directory.path().join("starts"), "CHILDREN": children},
        "hints": "trusted",
    });
    let bench = Bench::with(config_of("test", server)).await;
    assert!(show(&bench.call("test__echo", json!({"x": ""})).await).starts_with("effect "));
    let first = children_in(&children);
    assert_eq!(first.iter().map(|pid| is_alive(pid)).collect::<Vec<_>>(), [true]);
    // It dies at the call, and again at the repetition.
    show(&bench.call("test__die", json!({})).await);
    assert!(show(&bench.call("test__echo", json!({"x": ""})).await).starts_with("effect "));
    until_gone(&first).await;
    let all = children_in(&children);
    assert!(all.len() >= 3 && is_alive(all.last().unwrap()), "{all:?}");
    drop(bench);
    until_gone(&all).await;
}

fn children_in(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

/// Whether a process is there and runs; one that only waits to be reaped does not.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

async fn until_gone(pids: &[String]) {
    let gone = async {
        while pids.iter().any(|pid| is_alive(pid)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), gone).await.is_ok(), "{pids:?} are still there");
}

/// A call whose answer was lost is not made again if that could do harm.
#[tokio::test]
async fn an_unsafe_call_is_never_repeated() {
    let (bench, starts, _directory) = bench(McpHints::Ignored).await;
    let died = show(&bench.call("test__die", json!({})).await);
    assert!(died.starts_with("error: The tool server test went away"), "{died}");
    assert_eq!(n_starts(&starts), 1);
}

#[tokio::test]
async fn a_huge_answer_is_cut() {
    let (bench, _starts, _directory) = bench(McpHints::Untrusted).await;
    let output = bench.call("test__big", json!({})).await.1.unwrap();
    assert!(output.text.ends_with("[cut: the answer had 10000000 bytes]"));
    assert!(output.text.len() < (8 << 20) + 100);
}

#[tokio::test]
async fn a_server_that_does_not_start_offers_nothing() {
    let bench = Bench::with(config_of("gone", json!({"command": "/does/not/exist"}))).await;
    let mut coder = crate::agents::builtin().remove(0);
    coder.tools = vec!["finish".to_owned(), "mcp:*".to_owned()];
    // Asking again does not wait until it is tried again.
    let begun = tokio::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(bench.toolbox.offered(&coder).await.unwrap().len(), 1);
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(show(&bench.call("gone__tool", json!({})).await).contains("There is no tool"));
}

/// A built-in server reached as a foreign one, over HTTP.
struct Served {
    address: SocketAddr,
    task: Task,
}

impl Served {
    async fn start(directory: &Path, address: SocketAddr) -> Self {
        let env = Env::seeded(2);
        let (tell, told) = tokio::sync::oneshot::channel();
        let ready = Box::new(move |address| {
            let _ = tell.send(address);
        });
        let serving = serve_http(&env, ServerKind::Files, directory.to_owned(), None, address, ready);
        let body = async move {
            if let Err(error) = serving.await {
                panic!("{error}");
            }
        };
        let task = env.spawner.spawn("served", Box::pin(body));
        Self { address: told.await.unwrap(), task }
    }
}

#[tokio::test]
async fn a_server_is_reached_by_http() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.txt"), "over http\n").unwrap();
    let served = Served::start(directory.path(), "127.0.0.1:0".parse().unwrap()).await;
    let url = format!("http://{}/mcp", served.address);
    let config = config_of("web", json!({"url": url, "hints": "trusted", "output_bytes_max": 60}));
    let bench = Bench::with(config).await;
    let read = bench.call("web__read_file", json!({"path": "a.txt"})).await;
    assert_eq!(read.0.class, EffectClass::Pure);
    assert!(show(&read).contains("over http"), "{}", show(&read));
    let listed = bench.call("web__list_dir", json!({})).await;
    assert_eq!(show(&listed), "a.txt (10 bytes)\n");
    std::fs::write(directory.path().join("long.txt"), "x".repeat(500)).unwrap();
    let long = show(&bench.call("web__read_file", json!({"path": "long.txt"})).await);
    assert!(long.contains("[cut: the answer had "), "{long}");
    // P02: the server restarts between two calls, and does not know the session any more.
    let address = served.address;
    served.task.abort();
    let _ = served.task.join().await;
    let _served = Served::start(directory.path(), address).await;
    let again = show(&bench.call("web__list_dir", json!({})).await);
    assert!(again.contains("a.txt"), "{again}");
}

/// What a web page could send to a server of this machine.
#[tokio::test]
async fn a_page_of_the_web_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path(), "127.0.0.1:0".parse().unwrap()).await;
    let client = Client::new(&Env::seeded(3), Duration::from_secs(5));
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}});
    let mut table = Vec::new();
    for (host, origin) in [
        (served.address.to_string(), None),
        (served.address.to_string(), Some("http://localhost:3000")),
        (served.address.to_string(), Some("https://evil.example")),
        ("evil.example".to_owned(), None),
    ] {
        let mut request = http::Request::post(format!("http://{}/mcp", served.address))
            .header("host", host)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let request = request.body(bytes::Bytes::from(hello.to_string())).unwrap();
        table.push(client.send(request).await.unwrap().status().as_u16());
    }
    assert_eq!(table, [200, 200, 403, 403]);
}

#[tokio::test]
async fn a_server_that_cannot_be_is_refused_at_the_start() {
    for (name, server) in [
        ("a__b", json!({"command": "x"})),
        ("both", json!({"command": "x", "url": "http://127.0.0.1:1/"})),
        ("neither", json!({})),
        ("open", json!({"url": "http://127.0.0.1:1/", "token": "secret"})),
    ] {
        let bench = Bench::new().await;
        let (env, runner) = (Env::seeded(1), bench.runner());
        let started = Toolbox::start(&env, config_of(name, server), runner, bench.slots.clone()).await;
        assert_eq!(started.err().map(|error| error.code), Some(Code::ConfigInvalid), "{name}");
    }
    let env = Env::seeded(1);
    let address = "0.0.0.0:0".parse().unwrap();
    let served = serve_http(&env, ServerKind::Files, "/".into(), None, address, Box::new(|_| {})).await;
    assert_eq!(served.unwrap_err().code, Code::AddressRefused);
}
