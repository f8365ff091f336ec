//! A provider that answers as a script says, byte by byte: over loopback, with full control over
//! where a stream is cut, held or ended.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_env::{Env, Stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What the provider does with one request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Pieces of the body, each after a pause in milliseconds.
    pub(crate) pieces: Vec<(u64, String)>,
    pub(crate) end: End,
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    /// As HTTP wants it: the last chunk, cleanly, whatever was in it.
    Clean,
    /// The connection breaks in the middle of the body.
    Cut,
    /// Nothing more comes, and the connection stays.
    Hold,
}

/// A request as the provider saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Value,
}

#[derive(Clone)]
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    /// Connections that the client closed before their reply was over.
    pub(crate) n_abandoned: Arc<Mutex<usize>>,
}

impl Scripted {
    /// Listens and answers request `n` (from 0) with `script(n, body)`.
    pub(crate) async fn start(
        env: &Env,
        script: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let mut listener = env.net.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let provider = Self {
            address: listener.local_address().unwrap(),
            seen: Arc::default(),
            n_abandoned: Arc::default(),
        };
        let (this, spawner, script) = (provider.clone(), env.spawner.clone(), Arc::new(script));
        let accept = async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (this, script) = (this.clone(), script.clone());
                spawner.spawn("scripted", Box::pin(async move { this.serve(stream, &*script).await }));
            }
        };
        env.spawner.spawn("scripted-accept", Box::pin(accept));
        provider
    }

    async fn serve(&self, mut stream: Box<dyn Stream>, script: &(dyn Fn(usize, &Value) -> Reply + Sync)) {
        let mut buffer = Vec::new();
        while let Some(seen) = read_request(&mut stream, &mut buffer).await {
            let n = {
                let mut all = self.seen.lock().unwrap();
                all.push(seen.clone());
                all.len() - 1
            };
            let reply = script(n, &seen.body);
            if !write_reply(&mut stream, &reply, &self.n_abandoned).await {
                return;
            }
        }
    }

    pub(crate) fn n_seen(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn body(&self, n: usize) -> Value {
        self.seen.lock().unwrap()[n].body.clone()
    }
}

async fn read_request(stream: &mut Box<dyn Stream>, buffer: &mut Vec<u8>) -> Option<Seen> {
    loop {
        let text = String::from_utf8_lossy(buffer).into_owned();
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
            if rest.len() >= length.unwrap_or(0) {
                let body = serde_json::from_str(rest).unwrap_or(Value::Null);
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                buffer.clear();
                return Some(Seen { path, head: head.to_owned(), body });
            }
        }
        let mut chunk = [0; 16 * 1024];
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => buffer.extend_from_slice(&chunk[..n]),
        }
    }
}

/// False when the connection is of no further use.
async fn write_reply(stream: &mut Box<dyn Stream>, reply: &Reply, n_abandoned: &Mutex<usize>) -> bool {
    let mut head = format!(
        "HTTP/1.1 {} X\r\ncontent-type: {}\r\ntransfer-encoding: chunked\r\n",
        reply.status, reply.content_type
    );
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    if stream.write_all(head.as_bytes()).await.is_err() {
        return false;
    }
    for (pause, piece) in &reply.pieces {
        if is_left(stream, Duration::from_millis(*pause)).await {
            *n_abandoned.lock().unwrap() += 1;
            return false;
        }
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            return false;
        }
    }
    match reply.end {
        End::Clean => stream.write_all(b"0\r\n\r\n").await.is_ok(),
        End::Cut => false,
        End::Hold => {
            if is_left(stream, Duration::from_secs(600)).await {
                *n_abandoned.lock().unwrap() += 1;
            }
            false
        }
    }
}

/// Waits; true when the client closed the connection meanwhile.
async fn is_left(stream: &mut Box<dyn Stream>, wait: Duration) -> bool {
    let mut byte = [0];
    matches!(tokio::time::timeout(wait, stream.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
}

/// An answer as a stream of these pieces.
pub(crate) fn sse(pieces: Vec<String>) -> Reply {
    let pieces = pieces.into_iter().map(|piece| (0, piece)).collect();
    Reply { status: 200, content_type: "text/event-stream", headers: Vec::new(), pieces, end: End::Clean }
}

/// An error response.
pub(crate) fn error(status: u16, body: &Value) -> Reply {
    Reply {
        status,
        content_type: "application/json",
        headers: Vec::new(),
        pieces: vec![(0, body.to_string())],
        end: End::Clean,
    }
}

/// Events of the OpenAI wire.
pub(crate) mod openai {
    use super::*;

    pub(crate) fn event(data: &Value) -> String {
        format!("data: {data}\n\n")
    }

    pub(crate) fn delta(delta: &Value) -> String {
        event(
            &json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]}),
        )
    }

    pub(crate) fn text(text: &str) -> String {
        delta(&json!({"content": text}))
    }

    pub(crate) fn finish(reason: &str) -> String {
        event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
    }

    pub(crate) fn usage(input: u64, output: u64) -> String {
        event(&json!({"choices": [], "usage": {"prompt_tokens": input, "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": 3}}}))
    }

    pub(crate) fn done() -> String {
        "data: [DONE]\n\n".to_owned()
    }

    /// A whole answer.
    pub(crate) fn answer(words: &str) -> Reply {
        sse(vec![text(words), finish("stop"), usage(10, 5), done()])
    }
}

/// Events of the Anthropic wire.
pub(crate) mod anthropic {
    use super::*;

    pub(crate) fn event(kind: &str, mut data: Value) -> String {
        data["type"] = kind.into();
        format!("event: {kind}\ndata: {data}\n\n")
    }

    pub(crate) fn start() -> String {
        event(
            "message_start",
            json!({"message": {"id": "m", "role": "assistant", "content": [], "usage":
            {"input_tokens": 7, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 1, "output_tokens": 1}}}),
        )
    }

    pub(crate) fn block(index: u64, block: &Value) -> String {
        event("content_block_start", json!({"index": index, "content_block": block}))
    }

    pub(crate) fn delta(index: u64, delta: &Value) -> String {
        event("content_block_delta", json!({"index": index, "delta": delta}))
    }

    pub(crate) fn stop(index: u64) -> String {
        event("content_block_stop", json!({"index": index}))
    }

    pub(crate) fn text(index: u64, words: &str) -> String {
        block(index, &json!({"type": "text", "text": ""}))
            + &delta(index, &json!({"type": "text_delta", "text": words}))
    }

    pub(crate) fn finish(reason: &str) -> String {
        event("message_delta", json!({"delta": {"stop_reason": reason}, "usage": {"output_tokens": 15}}))
    }

    pub(crate) fn end() -> String {
        event("message_stop", json!({}))
    }

    /// A whole answer.
    pub(crate) fn answer(words: &str) -> Reply {
        sse(vec![start(), text(0, words), stop(0), finish("end_turn"), end()])
    }
}
