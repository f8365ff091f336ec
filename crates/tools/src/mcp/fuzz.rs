//! MCP frames: a peer may send anything, in any pieces, and neither side breaks or outgrows its bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::id::{EffectId, RunId, TenantId};
use evenkeel_core::port::runner::RunnerLimits;
use evenkeel_env::{Env, Spawn, Task, TokioSpawn};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::runtime::Runtime;

use super::http::Bounded;
use super::local;
use super::session::{Call, handshake};
use crate::blocking::Blocking;
use crate::builtin::{Context, Server};
use crate::fuzzing::{cut, cuts, fuzz, inputs};
use crate::mcp::ServerKind;

const CORPUS: &[&str] = &[
    "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/list\"}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"read_file\",\"arguments\":{\"path\":\"a.txt\"}}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"tools/call\",\"params\":{\"name\":\"write_file\",\"arguments\":{\"path\":\"../x\",\"content\":\"y\"},\"_meta\":{\"progressToken\":1}}}\n",
    "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":3}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"hello\"}],\"isError\":false}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"image\",\"data\":\"AA==\",\"mimeType\":\"image/png\"},{\"type\":\"resource\",\"resource\":{\"uri\":\"a:b\",\"text\":\"t\"}}],\"structuredContent\":{\"a\":1}}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\"session not found\"}}\n",
    "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":0,\"progress\":1}}\n",
    "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"sampling/createMessage\",\"params\":{\"messages\":[],\"maxTokens\":1}}\n",
];

const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "\n",
    "\r\n",
    "null",
    "true",
    "-1",
    "1e999",
    "18446744073709551616",
    "0.5",
    "\"jsonrpc\":\"2.0\"",
    "\"id\":1",
    "\"id\":null",
    "\"id\":\"1\"",
    "\"method\":\"ping\"",
    "\"method\":\"initialize\"",
    "\"result\":{}",
    "\"error\":{}",
    "\"params\":{}",
    "\"content\":[]",
    "\\u0000",
    "\\ud800",
    "ä",
    "\0",
    " ",
    "\u{feff}",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"",
];

/// Tasks as usual; what blocks is done where it is asked for, so that paused time drives all of it.
struct Inline;

impl Spawn for Inline {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        TokioSpawn.spawn(name, future)
    }

    fn thread(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> std::thread::JoinHandle<()> {
        TokioSpawn.thread(name, body)
    }

    fn runs_inline(&self) -> bool {
        true
    }
}

fn world() -> (Env, Runtime) {
    let env = Env { spawner: Arc::new(Inline), ..Env::seeded(1) };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    (env, runtime)
}

const HELLO: &str = "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{},\"clientInfo\":{\"name\":\"f\",\"version\":\"1\"}}}\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
const LAST: &str = "\n{\"jsonrpc\":\"2.0\",\"id\":\"last\",\"method\":\"ping\"}\n";

/// What a server answers to these chunks, line by line; `None` if it panicked.
async fn served(server: Server, chunks: &[&[u8]]) -> Option<Vec<String>> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let serving =
        TokioSpawn.spawn("server", Box::pin(async move { drop(local::serve(server, theirs).await) }));
    let (read, mut write) = tokio::io::split(ours);
    let sending = async {
        for chunk in chunks {
            if write.write_all(chunk).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // It answers what it has begun before it notices that nobody is there.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _ = write.shutdown().await;
    };
    let reading = async {
        let mut lines = Vec::new();
        let mut reader = BufReader::new(read).lines();
        while let Ok(Some(line)) = reader.next_line().await {
            lines.push(line);
        }
        lines
    };
    let ((), lines) = tokio::join!(sending, reading);
    serving.join().await.ok().map(|()| lines)
}

#[test]
fn fuzz_frames_to_a_server() {
    let (env, runtime) = world();
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a.txt"), "text\n").unwrap();
    let server = || {
        let pool = Blocking::start(&env, "fuzz", 1);
        let run = RunId::new(env.wall(), &env.generator);
        let (workspace, limits) = (tree.clone(), RunnerLimits::default());
        let readable = Arc::new(|_: &str| true);
        let tenant = TenantId::from("local");
        Server::new(
            ServerKind::Files,
            Context { tenant, run, workspace, pool, runner: None, limits, readable },
        )
    };
    fuzz("mcp-server", &(inputs(CORPUS, WORDS), cuts()), |(bytes, cuts)| {
        let play = |chunks: Vec<&[u8]>| {
            let chunks: Vec<&[u8]> =
                [HELLO.as_bytes()].into_iter().chain(chunks).chain([LAST.as_bytes()]).collect();
            runtime.block_on(served(server(), &chunks))
        };
        let lines = play(cut(&bytes, &cuts));
        prop_assert!(lines.is_some(), "the server panicked");
        let lines = lines.unwrap_or_default();
        for line in &lines {
            let frame: Value = serde_json::from_str(line)
                .map_err(|error| TestCaseError::fail(format!("{error}: {line}")))?;
            prop_assert_eq!(&frame["jsonrpc"], &json!("2.0"), "{}", line);
        }
        let n_bytes: usize = lines.iter().map(String::len).sum();
        // The list of tools is the longest answer to a short question.
        prop_assert!(n_bytes <= (64 << 10) + bytes.len() * 1_000, "{n_bytes} bytes to {}", bytes.len());
        let is_alive = lines.iter().any(|line| line.contains("\"id\":\"last\""));
        prop_assert!(is_alive, "it does not answer any more: {lines:?}");
        let beside = std::fs::read_dir(dir.path()).unwrap().count();
        prop_assert_eq!(beside, 1, "it wrote outside of its workspace");
        Ok(())
    });
}

const READY: &str = "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"f\",\"version\":\"1\"}}}\n";
const CAP: usize = 200;

/// A server that says these chunks to whatever it is asked, a proper handshake before them or not, and goes.
async fn hostile(greets: bool, chunks: &[&[u8]]) -> Result<(), TestCaseError> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (read, mut write) = tokio::io::split(theirs);
    let saying = async move {
        let mut asked = BufReader::new(read).lines();
        let _ = asked.next_line().await;
        if greets {
            let _ = write.write_all(READY.as_bytes()).await;
            // What it is told next: that we are ready, and the call.
            let _ = (asked.next_line().await, asked.next_line().await);
        }
        for chunk in chunks {
            let _ = write.write_all(chunk).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        let _ = write.shutdown().await;
        let mut rest = Vec::new();
        let _ = asked.into_inner().read_to_end(&mut rest).await;
    };
    let calling = async {
        let session = handshake("fuzz", ours).await?;
        let effect =
            EffectId::of(RunId::new(evenkeel_core::Wall(1), &evenkeel_core::Generator::from_seed(1)), 1, 0);
        let call = Call {
            tool: "t",
            args: Map::new(),
            effect: &effect,
            timeout: Duration::from_secs(5),
            output_bytes_max: CAP,
        };
        Ok::<_, evenkeel_core::Error>(session.call(call).await)
    };
    let both = async { tokio::join!(saying, calling).1 };
    let answered = tokio::time::timeout(Duration::from_secs(120), both).await;
    prop_assert!(answered.is_ok(), "the client waits for ever");
    if let Ok(Ok(Ok(output))) = answered {
        prop_assert!(output.text.len() <= CAP + 64, "{} bytes", output.text.len());
    }
    Ok(())
}

#[test]
fn fuzz_frames_to_our_client() {
    let (_, runtime) = world();
    fuzz("mcp-client", &(any::<bool>(), inputs(CORPUS, WORDS), cuts()), |(greets, bytes, cuts)| {
        runtime.block_on(hostile(greets, &cut(&bytes, &cuts)))
    });
}

const EVENTS: &[&str] = &[
    "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n",
    ": ping\r\n\r\nid: 1\r\nretry: 10\r\ndata: x\r\n\r\n",
    "data: 0123456789012345678901234567890123456789012345678901234567890123456789\n\n",
];

#[test]
fn fuzz_bounds_of_event_streams() {
    const LIMIT: usize = 64;
    let (_, runtime) = world();
    let measure = |chunks: Vec<&[u8]>| {
        let chunks: Vec<Result<Bytes, std::io::Error>> =
            chunks.into_iter().map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        runtime.block_on(async {
            let mut bounded = Bounded::new(stream::iter(chunks), LIMIT);
            let mut passed = Vec::new();
            loop {
                match bounded.next().await {
                    Some(Ok(chunk)) => passed.extend_from_slice(&chunk),
                    Some(Err(_)) => return None,
                    None => return Some(passed),
                }
            }
        })
    };
    fuzz("mcp-events", &(inputs(EVENTS, WORDS), cuts()), |(bytes, cuts)| {
        let whole = measure(vec![&bytes]);
        prop_assert_eq!(&measure(cut(&bytes, &cuts)), &whole);
        let text: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b'\r').collect();
        let longest = text
            .split(|byte| *byte == b'\n')
            .fold((0_usize, 0_usize), |(longest, event), line| {
                let event = if line.is_empty() { 0 } else { event + line.len() + 1 };
                (longest.max(event), event)
            })
            .0;
        if let Some(passed) = &whole {
            prop_assert_eq!(passed, &bytes);
            prop_assert!(longest <= LIMIT + 2, "an event of {longest} bytes passed");
        }
        Ok(())
    });
}
