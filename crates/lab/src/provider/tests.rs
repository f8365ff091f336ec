use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::*;
use crate::task::SolverCall;

/// Says two words and calls two tools.
struct TwoCalls;

impl Brain for TwoCalls {
    fn answer(&self, conversation: &Conversation) -> Reply {
        let call = |path: &str| SolverCall { name: "read_file".to_owned(), args: json!({"path": path}) };
        let text = format!("I was shown {} entries; let me read two files.", conversation.items.len());
        Reply { text, calls: vec![call("a.txt"), call("b.txt")] }
    }
}

async fn provider() -> (Env, Control) {
    let env = Env::seeded(7);
    let mut config = FakeConfig::new("primary", Arc::new(TwoCalls));
    config.timing = Timing { first_token_ms: 5.0, tokens_per_s: 2_000.0, jitter: 0.0, piece_ms: 2.0 };
    config.keys = vec!["sk-test".to_owned()];
    let control = start(&env, config).await.unwrap();
    (env, control)
}

fn request(control: &Control, wire: WireKind, stream: bool) -> Request<Bytes> {
    let tool_schema =
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let (path, body) = match wire {
        WireKind::Openai => (
            "chat/completions",
            json!({"model": "m", "stream": stream, "stream_options": {"include_usage": true},
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
                "tools": [{"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": tool_schema}}]}),
        ),
        WireKind::Anthropic => (
            "messages",
            json!({"model": "m", "stream": stream, "max_tokens": 100, "system": "Be brief.",
                "messages": [{"role": "user", "content": "Hello"}],
                "tools": [{"name": "read_file", "description": "Reads.", "input_schema": tool_schema}]}),
        ),
    };
    let mut body = body;
    if wire == WireKind::Openai && !stream {
        body.as_object_mut().unwrap().remove("stream_options");
    }
    Request::post(format!("http://{}/v1/{path}", control.address()))
        .header("content-type", "application/json")
        .header("authorization", "Bearer sk-test")
        .header("x-api-key", "sk-test")
        .header("anthropic-version", "2023-06-01")
        .body(Bytes::from(body.to_string()))
        .unwrap()
}

/// Status and body; the body ends with `<broken>` if the connection broke.
async fn call(env: &Env, request: Request<Bytes>) -> Result<(u16, String), String> {
    let client = Client::new(env, Duration::from_secs(2));
    let response = client.send(request).await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut text = String::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap())),
            Err(_) => text.push_str("<broken>"),
        }
    }
    Ok((status, text))
}

/// The text and the calls of a stream, and whether its terminator came.
fn read_stream(wire: WireKind, body: &str) -> (String, Vec<(String, String)>, bool) {
    let (mut text, mut calls, mut complete) = (String::new(), Vec::<(String, String)>::new(), false);
    for data in body.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
        let delta = match wire {
            WireKind::Openai => &event["choices"][0]["delta"],
            WireKind::Anthropic => &event["delta"],
        };
        text.push_str(delta["content"].as_str().or(delta["text"].as_str()).unwrap_or_default());
        let started = [&delta["tool_calls"][0], &event["content_block"]];
        if let Some(id) = started.iter().find_map(|value| value["id"].as_str()) {
            calls.push((id.to_owned(), String::new()));
        }
        let piece =
            delta["tool_calls"][0]["function"]["arguments"].as_str().or(delta["partial_json"].as_str());
        if let (Some(piece), Some((_, args))) = (piece, calls.last_mut()) {
            args.push_str(piece);
        }
        complete |= event["choices"][0]["finish_reason"].is_string() || event["type"] == "message_stop";
    }
    (text, calls, complete)
}

const WIRES: [WireKind; 2] = [WireKind::Openai, WireKind::Anthropic];

#[tokio::test]
async fn answers_whole_and_streamed_alike_on_both_wires() {
    let (env, control) = provider().await;
    for wire in WIRES {
        let (status, body) = call(&env, request(&control, wire, true)).await.unwrap();
        let (text, calls, complete) = read_stream(wire, &body);
        assert_eq!((status, complete), (200, true), "{wire:?}");
        assert_eq!(text, "I was shown 1 entries; let me read two files.", "{wire:?}");
        let args: Vec<Value> = calls.iter().map(|(_, args)| serde_json::from_str(args).unwrap()).collect();
        assert_eq!(args, [json!({"path": "a.txt"}), json!({"path": "b.txt"})], "{wire:?}");
        assert_ne!(calls[0].0, calls[1].0, "{wire:?}");

        let (status, body) = call(&env, request(&control, wire, false)).await.unwrap();
        let whole: Value = serde_json::from_str(&body).unwrap();
        let (said, id) = match wire {
            WireKind::Openai => (
                &whole["choices"][0]["message"]["content"],
                &whole["choices"][0]["message"]["tool_calls"][0]["id"],
            ),
            WireKind::Anthropic => (&whole["content"][0]["text"], &whole["content"][1]["id"]),
        };
        assert_eq!(
            (status, said.as_str(), id.as_str()),
            (200, Some(text.as_str()), Some(calls[0].0.as_str())),
            "{wire:?}"
        );
    }
    let counters = control.counters();
    assert_eq!(
        (counters.calls, counters.by_outcome["ok"], counters.validation_failures, counters.streams),
        (4, 4, 0, 0)
    );
}

/// Each fault as a client sees it: status, whether the connection broke, whether the answer was
/// complete, and what it is counted as.
#[tokio::test]
async fn each_fault_shows_as_it_should() {
    let p = 1.0;
    let table = [
        (Fault::Down503, 503, false, "down503"),
        (Fault::Errors { p, status: 502 }, 502, false, "errors"),
        (Fault::RateLimit { retry_after_s: Some(5.0), p }, 429, false, "rate_limit"),
        (Fault::Acceleration { start_per_s: 0.0, growth_per_s: 0.0 }, 429, false, "acceleration"),
        (Fault::OutOfCredit, 429, false, "out_of_credit"),
        (Fault::BadKey, 401, false, "bad_key"),
        (Fault::ContextTooLong { p }, 400, false, "context_too_long"),
        (Fault::Cut { after_pieces: 2, p }, 200, true, "cut"),
        (Fault::CleanEnd { after_pieces: 2, p }, 200, false, "clean_end"),
        (Fault::ErrorEvent { after_pieces: 2, p }, 200, false, "error_event"),
        (Fault::MalformedJson { after_pieces: 2, p }, 200, false, "malformed_json"),
    ];
    let (env, control) = provider().await;
    for (fault, status, broken, outcome) in table {
        for wire in WIRES {
            let id = control.set(fault.clone());
            let (got_status, body) = call(&env, request(&control, wire, true)).await.unwrap();
            control.heal(id);
            let (_, _, complete) = read_stream(wire, &body);
            let wanted = match (&fault, wire) {
                (Fault::Down503, WireKind::Anthropic) => 529,
                (Fault::OutOfCredit, WireKind::Anthropic) => 402,
                _ => status,
            };
            assert_eq!(
                (got_status, body.ends_with("<broken>"), complete),
                (wanted, broken, false),
                "{fault:?} {wire:?} {body}"
            );
            assert_eq!(control.requests().last().unwrap().outcome, outcome);
        }
    }
    assert_eq!(control.counters().calls_while_down, 2);
}

#[tokio::test]
async fn down_cuts_what_runs_and_counts_each_attempt() {
    let (env, control) = provider().await;
    control.set_timing(Timing { first_token_ms: 1.0, tokens_per_s: 10.0, ..Timing::default() });
    let client = Client::new(&env, Duration::from_secs(2));
    let response = client.send(request(&control, WireKind::Openai, true)).await.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    let id = control.set(Fault::Down);
    let mut broke = false;
    while let Some(frame) = body.frame().await {
        broke |= frame.is_err();
    }
    assert!(broke, "a running stream is cut");
    for _ in 0..3 {
        call(&env, request(&control, WireKind::Openai, true)).await.unwrap_err();
    }
    control.heal(id);
    control.set_timing(Timing { first_token_ms: 1.0, tokens_per_s: 2_000.0, ..Timing::default() });
    call(&env, request(&control, WireKind::Openai, true)).await.unwrap();
    let counters = control.counters();
    assert_eq!(
        (counters.calls_while_down, counters.by_outcome["down"], counters.by_outcome["ok"]),
        (3, 4, 1)
    );
}

#[tokio::test]
async fn silent_faults_stay_silent() {
    let (env, control) = provider().await;
    let p = 1.0;
    let silent = [
        Fault::BlackHole,
        Fault::Stall { after_pieces: 0, p },
        Fault::KeepAlive { every_ms: 5, p },
        Fault::SlowDrip { every_ms: 200, p },
    ];
    for fault in silent {
        for wire in WIRES {
            let id = control.set(fault.clone());
            let waited = call(&env, request(&control, wire, true));
            let waited = tokio::time::timeout(Duration::from_millis(120), waited).await;
            assert!(waited.is_err(), "{fault:?} {wire:?} never ends");
            control.heal(id);
        }
    }
    // The provider notices each client that left; wait for that state.
    while control.counters().streams > 0 || control.counters().by_outcome.values().sum::<u64>() < 8 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(control.counters().by_outcome.get("ok"), None);
}

#[tokio::test]
async fn broken_arguments_and_wrong_ids_are_really_wrong() {
    let (env, control) = provider().await;
    for wire in WIRES {
        let id = control.set(Fault::BrokenArguments { p: 1.0 });
        let (_, body) = call(&env, request(&control, wire, true)).await.unwrap();
        control.heal(id);
        let (_, calls, complete) = read_stream(wire, &body);
        assert!(complete && serde_json::from_str::<Value>(&calls[0].1).is_err(), "{wire:?}");
        let id = control.set(Fault::WrongToolIds { p: 1.0 });
        let (_, body) = call(&env, request(&control, wire, true)).await.unwrap();
        control.heal(id);
        let (_, calls, _) = read_stream(wire, &body);
        assert_eq!(calls[0].0, calls[1].0, "{wire:?}");
    }
}

#[tokio::test]
async fn a_bad_key_is_refused() {
    let (env, control) = provider().await;
    let mut asked = request(&control, WireKind::Openai, true);
    asked.headers_mut().insert("authorization", "Bearer other".parse().unwrap());
    let (status, _) = call(&env, asked).await.unwrap();
    assert_eq!(status, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_call_while_down_fails_at_once() {
    let (env, control) = provider().await;
    control.set(Fault::Down);
    for _ in 0..100 {
        let calls = (0..20).map(|_| call(&env, request(&control, WireKind::Openai, false)));
        let all = tokio::time::timeout(Duration::from_secs(5), futures_util::future::join_all(calls)).await;
        assert!(all.expect("no call hangs").iter().all(Result::is_err));
    }
    assert_eq!(control.counters().calls_while_down, 2_000);
}
