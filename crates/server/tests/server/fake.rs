//! A provider on the OpenAI wire that plays one coding task: it looks, writes, and finishes.
//!
//! What it says next follows from how many results the request holds, so a repeated call gets the
//! same answer, as from a model at temperature zero. A user message that holds `slow` takes two
//! seconds, one that holds `fail` is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::Env;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

/// The provider's levers.
#[derive(Default)]
pub(crate) struct Fake {
    /// Every call is answered 503.
    pub(crate) down: AtomicBool,
    /// Milliseconds before an answer.
    pub(crate) think_ms: AtomicU64,
    /// Calls so far.
    pub(crate) calls: AtomicUsize,
}

impl Fake {
    /// Starts it; the second value is its base URL.
    pub(crate) async fn start(env: &Env) -> (Arc<Self>, String) {
        let fake = Arc::new(Self::default());
        let mut listener = env.net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_address().unwrap());
        let (served, inner) = (fake.clone(), env.clone());
        let accept = async move {
            while let Ok((io, _)) = listener.accept().await {
                let fake = served.clone();
                let service = service_fn(move |request| answer(fake.clone(), request));
                let connection = http1::Builder::new().serve_connection(TokioIo::new(io), service);
                inner.spawner.spawn("fake provider", Box::pin(async move { drop(connection.await) }));
            }
        };
        env.spawner.spawn("fake provider", Box::pin(accept));
        (fake, base_url)
    }
}

async fn answer(fake: Arc<Fake>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    fake.calls.fetch_add(1, Ordering::Relaxed);
    let request: Value = serde_json::from_slice(&body).unwrap();
    let asked = asked(&request);
    let slow_ms = if asked.contains("slow") { 2_000 } else { 0 };
    tokio::time::sleep(Duration::from_millis(slow_ms + fake.think_ms.load(Ordering::Relaxed))).await;
    let mut response = Response::new(Full::default());
    if fake.down.load(Ordering::Relaxed) {
        *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        return Ok(response);
    }
    if asked.contains("fail") {
        *response.status_mut() = http::StatusCode::BAD_REQUEST;
        *response.body_mut() =
            Full::new(Bytes::from(r#"{"error":{"message":"boom","type":"invalid_request_error"}}"#));
        return Ok(response);
    }
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/event-stream"));
    *response.body_mut() = Full::new(Bytes::from(stream(&request)));
    Ok(response)
}

/// The text of the newest user message.
fn asked(request: &Value) -> String {
    let messages = request["messages"].as_array().unwrap();
    let newest = messages.iter().rev().find(|message| message["role"] == "user");
    newest.map(|message| message["content"].to_string()).unwrap_or_default()
}

/// The next line of the play as a stream of chunks.
fn stream(request: &Value) -> String {
    let messages = request["messages"].as_array().unwrap();
    let asked = messages.iter().rposition(|message| message["role"] == "user").unwrap_or(0);
    let n_results = messages.iter().skip(asked).filter(|message| message["role"] == "tool").count();
    let call = |name: &str, args: Value| {
        let function = json!({ "name": name, "arguments": args.to_string() });
        json!({ "tool_calls": [{ "index": 0, "id": format!("fc_{n_results}"), "type": "function", "function": function }] })
    };
    let (delta, finish) = match (request.get("tools").is_some(), n_results) {
        (false, _) => (json!({ "content": "you." }), "stop"),
        (true, 0) => (call("list_dir", json!({})), "tool_calls"),
        (true, 1) => {
            (call("write_file", json!({ "path": "NOTES.md", "content": "written\n" })), "tool_calls")
        }
        (true, 2) => (call("read_file", json!({ "path": "NOTES.md" })), "tool_calls"),
        (true, _) => (call("finish", json!({ "summary": "The notes are written." })), "tool_calls"),
    };
    let chunk = |delta: Value, finish: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        let chunk = json!({
            "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice],
        });
        format!("data: {chunk}\n\n")
    };
    let usage = json!({
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
        "usage": { "prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110 },
    });
    [
        chunk(json!({ "role": "assistant", "content": "Hello " }), None),
        chunk(delta, None),
        chunk(json!({}), Some(finish)),
        format!("data: {usage}\n\ndata: [DONE]\n\n"),
    ]
    .concat()
}
