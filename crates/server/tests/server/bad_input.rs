//! Whatever is sent, the answer is a clear refusal and the server lives.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{World, chat};

const NO_ID: &str = "00000000-0000-4000-8000-000000000000";

#[tokio::test]
async fn bodies_that_are_refused() {
    let world =
        World::with("[limits]\nbody_bytes_max = 10000\nmessage_chars_max = 100\nmessages_max = 3", &[]).await;
    let thread = world.thread().await;
    let with = |key: &str, value: serde_json::Value| {
        let mut body = chat("hi");
        body[key] = value;
        body.to_string()
    };
    let input = |value: serde_json::Value| json!({ "assistant_id": "chat", "input": value }).to_string();
    let deliver = |repository: serde_json::Value, deliver: serde_json::Value| {
        let input = json!({ "messages": "x", "repository": repository, "deliver": deliver });
        json!({ "assistant_id": "coder", "input": input }).to_string()
    };
    let url = || json!({ "url": "https://forge.test/acme/shop" });
    let user = |content: serde_json::Value| json!({ "role": "user", "content": content });
    let table: Vec<(String, &str)> = vec![
        ("{".into(), "400 invalid-json"),
        ("\u{0}".into(), "400 invalid-json"),
        ("[".repeat(5000), "400 invalid-json"),
        ("[]".into(), "422 bad-request"),
        ("".into(), "422 bad-request"),
        ("{}".into(), "422 bad-request"),
        ("x".repeat(10_001), "413 body-too-large"),
        (with("assistant_id", json!("nobody")), "422 bad-request"),
        (with("assistant_id", json!(NO_ID)), "404 assistant-not-found"),
        (with("assistant_id", json!(7)), "422 bad-request"),
        (with("multitask_strategy", json!("shout")), "422 bad-request"),
        (with("if_not_exists", json!("maybe")), "422 bad-request"),
        (with("on_disconnect", json!("maybe")), "422 bad-request"),
        (with("stream_mode", json!("loud")), "422 bad-request"),
        (with("stream_mode", json!([1])), "422 bad-request"),
        (with("stream_mode", json!({})), "422 bad-request"),
        (with("config", json!({ "recursion_limit": 0 })), "422 bad-request"),
        (with("config", json!({ "recursion_limit": "many" })), "422 bad-request"),
        (with("command", json!({ "resume": 1 })), "422 bad-request"),
        (with("command", json!({ "goto": "end" })), "501 unsupported"),
        (with("command", json!("resume")), "422 bad-request"),
        (with("webhook", json!("http://x")), "501 unsupported"),
        (with("after_seconds", json!(-1)), "422 bad-request"),
        (with("after_seconds", json!("soon")), "422 bad-request"),
        (with("on_completion", json!("maybe")), "422 bad-request"),
        (with("checkpoint_id", json!("x")), "422 bad-request"),
        (with("checkpoint_id", json!(NO_ID)), "404 not-found"),
        (with("interrupt_before", json!("*")), "501 unsupported"),
        (input(json!(null)), "422 bad-request"),
        (input(json!({ "messages": [] })), "422 bad-request"),
        (input(json!({ "messages": [{}] })), "422 bad-request"),
        (input(json!({ "messages": [{ "role": "system", "content": "x" }] })), "422 bad-request"),
        (input(json!({ "messages": [user(json!(""))] })), "422 bad-request"),
        (input(json!({ "messages": [user(json!(3))] })), "422 bad-request"),
        (input(json!({ "messages": [user(json!([{ "type": "image" }]))] })), "422 bad-request"),
        (input(json!({ "messages": [user(json!("x".repeat(101)))] })), "422 message-too-large"),
        (input(json!({ "messages": vec![user(json!("x")); 4] })), "422 bad-request"),
        (input(json!({ "messages": [{ "role": "user", "content": "x", "id": "" }] })), "422 bad-request"),
        (
            json!({ "assistant_id": "coder", "input": { "messages": "x", "repository": "here" } }).to_string(),
            "422 bad-request",
        ),
        (
            json!({ "assistant_id": "coder", "input": { "messages": "x", "repository": { "directory": "a/b" } } })
                .to_string(),
            "422 bad-request",
        ),
        (deliver(json!({ "directory": "/srv/tool" }), json!({})), "422 bad-request"),
        (deliver(url(), json!({ "branch": "--force" })), "422 bad-request"),
        (deliver(url(), json!({ "base": "a..b" })), "422 bad-request"),
        (deliver(url(), json!({ "force": true })), "422 bad-request"),
        (deliver(url(), json!({ "pull_request": "yes" })), "422 bad-request"),
        // Nothing is known of its host: better said before the work than after it.
        (deliver(url(), json!({ "pull_request": true })), "422 bad-request"),
    ];
    for (body, expected) in table {
        for path in [format!("/threads/{thread}/runs"), "/runs/stream".to_owned()] {
            let answered = world.ask(Method::POST, &path, &[], &body).await;
            assert_eq!(answered.refusal(), expected, "{path} {body:.200}");
            let shown = answered.json();
            for field in ["detail", "message", "remedy"] {
                assert!(shown[field].as_str().is_some_and(|text| !text.is_empty()), "{shown}");
            }
        }
    }
    assert!(world.get("/v1/runs").await.json().as_array().unwrap().is_empty(), "nothing was stored");
}

#[tokio::test]
async fn paths_and_headers_that_are_refused() {
    let world = World::new().await;
    let thread = world.thread().await;
    let run = world.run(&thread, "hi").await;
    world.player().await.finish(1, "ho").await;
    let stream = format!("/threads/{thread}/runs/{run}/stream");
    type Headers = Vec<(&'static str, &'static str)>;
    let table: Vec<(Method, String, Headers, &str)> = vec![
        (Method::GET, "/nothing".into(), vec![], "404 not-found"),
        (Method::GET, "/threads/x".into(), vec![], "422 bad-request"),
        (Method::GET, format!("/threads/{NO_ID}"), vec![], "404 thread-not-found"),
        (Method::GET, format!("/threads/{thread}/runs/x"), vec![], "422 bad-request"),
        (Method::GET, format!("/threads/{thread}/runs/{NO_ID}"), vec![], "404 run-not-found"),
        (Method::GET, format!("/threads/{NO_ID}/runs/{run}"), vec![], "404 run-not-found"),
        (Method::GET, format!("/threads/{thread}/runs?status=odd"), vec![], "422 bad-request"),
        (Method::GET, format!("/threads/{thread}/runs?limit=-1"), vec![], "422 bad-request"),
        (Method::GET, "/v1/runs?offset=x".into(), vec![], "422 bad-request"),
        (Method::GET, "/threads/%ff/state".into(), vec![], "422 bad-request"),
        (Method::POST, format!("/threads/{thread}/runs/{NO_ID}/cancel"), vec![], "404 run-not-found"),
        (
            Method::POST,
            format!("/threads/{thread}/runs/{run}/cancel?action=explode"),
            vec![],
            "422 bad-request",
        ),
        (Method::GET, stream.clone(), vec![("last-event-id", "x")], "400 cursor-invalid"),
        (Method::GET, stream.clone(), vec![("last-event-id", "1-x")], "400 cursor-invalid"),
        (Method::GET, stream.clone(), vec![("last-event-id", "+1")], "400 cursor-invalid"),
        (Method::GET, stream.clone(), vec![("last-event-id", "999999")], "400 cursor-invalid"),
        (Method::GET, stream.clone(), vec![("last-event-id", "1700000000000-0")], "400 cursor-invalid"),
        (Method::GET, format!("{stream}?stream_mode=loud"), vec![], "422 bad-request"),
        (Method::GET, format!("{stream}?cancel_on_disconnect=maybe"), vec![], "422 bad-request"),
        (Method::GET, "/assistants/nobody".into(), vec![], "422 bad-request"),
        (Method::GET, format!("/assistants/{NO_ID}"), vec![], "404 assistant-not-found"),
        (Method::GET, "/v1/runs?state=odd".into(), vec![], "422 bad-request"),
        (Method::POST, "/v1/router/x/explode".into(), vec![], "404 not-found"),
        (Method::POST, format!("/threads/{thread}/runs/{run}/cancel?wait=maybe"), vec![], "422 bad-request"),
        (Method::POST, "/runs/cancel".into(), vec![], "422 bad-request"),
        (Method::PATCH, "/threads/x".into(), vec![], "422 bad-request"),
        (Method::DELETE, "/threads/x".into(), vec![], "422 bad-request"),
        (Method::DELETE, format!("/threads/{thread}/runs/x"), vec![], "422 bad-request"),
        (Method::GET, format!("/threads/{thread}/state/x"), vec![], "422 bad-request"),
        (Method::GET, format!("/threads/{thread}/state/{NO_ID}"), vec![], "404 not-found"),
        (Method::POST, format!("/threads/{thread}/state/checkpoint"), vec![], "422 bad-request"),
        (Method::GET, "/threads/x/stream".into(), vec![], "422 bad-request"),
        (Method::GET, format!("/threads/{NO_ID}/stream"), vec![], "404 thread-not-found"),
        (Method::GET, format!("/threads/{thread}/stream?stream_mode=values"), vec![], "422 bad-request"),
        (
            Method::GET,
            format!("/threads/{thread}/stream"),
            vec![("last-event-id", "999999")],
            "400 cursor-invalid",
        ),
        (Method::POST, "/runs/batch".into(), vec![], "501 unsupported"),
        (Method::PUT, "/store/items".into(), vec![], "501 unsupported"),
        (Method::DELETE, "/threads".into(), vec![], "501 unsupported"),
    ];
    for (method, path, headers, expected) in table {
        let answered = world.ask(method.clone(), &path, &headers, "").await;
        assert_eq!(answered.refusal(), expected, "{method} {path} {headers:?}");
    }
    let long = "k".repeat(256);
    let body = chat("hi").to_string();
    let path = format!("/threads/{thread}/runs");
    let refused = world.ask(Method::POST, &path, &[("idempotency-key", &long)], &body).await;
    assert_eq!(refused.refusal(), "422 bad-request");
}

#[tokio::test]
async fn request_ids_are_kept_if_they_are_plain_words() {
    let world = World::new().await;
    let own = world.ask(Method::GET, "/ok", &[("x-request-id", "mine-1")], "").await;
    assert_eq!(own.header("x-request-id"), "mine-1");
    let made = world.ask(Method::GET, "/ok", &[("x-request-id", "not one word")], "").await;
    assert_eq!(made.header("x-request-id").len(), 36);
    assert!(made.header("date").ends_with(" GMT"));
}

/// Sends raw bytes and reads what comes back until the server closes or `limit` passes.
async fn raw(world: &World, parts: &[&str], limit: Duration) -> String {
    let (host, port) = world.address().split_once(':').unwrap();
    let mut io = world.env.net.connect(host.to_owned(), port.parse().unwrap()).await.unwrap();
    for part in parts {
        // The server may have closed already; its answer is what counts.
        let _ = io.write_all(part.as_bytes()).await;
    }
    let mut out = Vec::new();
    let _ = tokio::time::timeout(limit, io.read_to_end(&mut out)).await;
    String::from_utf8_lossy(&out).into_owned()
}

#[tokio::test]
async fn header_bombs_and_slow_headers_are_cut_off() {
    let world = World::with("limits.gateway.header_timeout = \"300ms\"", &[]).await;
    let many: String = (0..500).map(|n| format!("x-{n}: y\r\n")).collect();
    let answer =
        raw(&world, &["GET /ok HTTP/1.1\r\nhost: x\r\n", &many, "\r\n"], Duration::from_secs(5)).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let begun = tokio::time::Instant::now();
    let answer = raw(&world, &["GET /ok HTTP/1.1\r\nhost: x\r\n"], Duration::from_secs(5)).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "slow headers were not cut off: {answer}");
    // A body that announces too much is refused before it is sent.
    let answer = raw(
        &world,
        &["POST /threads HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 100000000\r\n\r\n"],
        Duration::from_secs(5),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert_eq!(world.get("/ok").await.status, 200);
}
