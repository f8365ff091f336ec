//! One connection, one request: from the socket to the beats of the answer.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_env::call::Call as Asking;
use evenkeel_env::{Accepted, Stream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};

use super::play::{Beat, Call, body};
use super::{Fault, Shared, WireKind, anthropic, openai};
use crate::task::{Conversation, Reply};

const BODY_BYTES_MAX: usize = 32 << 20;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Serves what was accepted on a task of its own, until it ends or an outage cuts it.
pub(crate) fn accepted(shared: &Arc<Shared>, accepted: Accepted) {
    if shared.has(&Fault::Down) {
        // Accepted and closed at once: this way a call to a dead provider is counted exactly.
        Call::begin(shared).outcome = "down";
        return;
    }
    let mut outages = shared.outage.subscribe();
    let shared = shared.clone();
    let spawner = shared.env.spawner.clone();
    spawner.spawn(
        "provider-connection",
        Box::pin(async move {
            let serving = async {
                match accepted {
                    Accepted::Connection(stream) => connection(&shared, stream).await,
                    Accepted::Call(call) => called(&shared, call).await,
                }
            };
            tokio::select! {
                biased;
                _ = outages.changed() => {}
                () = serving => {}
            }
        }),
    );
}

async fn connection(shared: &Arc<Shared>, stream: Box<dyn Stream>) {
    let service = service_fn(|request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, request).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // A date would be the machine's, and nobody reads it.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that leaves, or a fault that cuts the stream, ends it with an error.
    let _ = serving.await;
}

async fn called(shared: &Arc<Shared>, call: Asking) {
    call.answer(|request| async move { answer(shared, request.map(Full::new)).await }).await;
}

async fn answer<B>(shared: &Arc<Shared>, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let wire = match (&head.method, head.uri.path()) {
        (&Method::POST, "/v1/chat/completions") => WireKind::Openai,
        (&Method::POST, "/v1/messages") => WireKind::Anthropic,
        (&Method::GET, "/v1/models") => return models(),
        _ => {
            return whole(
                StatusCode::NOT_FOUND,
                &[],
                &json!({"error": {"message": "There is nothing here.", "type": "not_found_error", "code": "not_found"}}),
            );
        }
    };
    let mut call = Call::begin(shared);
    call.wire = Some(wire);
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
        return refuse(
            call,
            "invalid",
            &Refusal::new(413, "request_too_large", "The body is too large or broke off."),
        );
    };
    let body = body.to_bytes();
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        shared.book().violated(&["The body is not JSON.".to_owned()]);
        return refuse(call, "invalid", &Refusal::new(400, "invalid_request_error", "The body is not JSON."));
    };
    call.model = request["model"].as_str().unwrap_or_default().to_owned();
    call.input_tokens = body.len() as u64 / 4;
    judge(shared, &head.headers, &request, call).await
}

/// Rules first, then faults, then the provider's own limits, then the answer.
async fn judge(shared: &Arc<Shared>, headers: &HeaderMap, request: &Value, mut call: Call) -> Response<Body> {
    let wire = call.wire.unwrap_or(WireKind::Openai);
    let problems = broken_rules(wire, headers, request);
    if !problems.is_empty() {
        shared.book().violated(&problems);
        let text = problems.join(" ");
        return refuse(call, "invalid", &Refusal::new(400, "invalid_request_error", &text));
    }
    if !key_accepted(shared, wire, headers) {
        return refuse(call, "bad_key", &Refusal::bad_key());
    }
    let fault = shared.draw();
    if matches!(fault, Some(Fault::BlackHole)) {
        call.outcome = "black_hole";
        std::future::pending::<()>().await;
    }
    if let Some(refusal) = fault.as_ref().and_then(|fault| Refusal::of(fault, wire)) {
        let outcome = fault.as_ref().map_or("refused", Fault::name);
        return refuse(call, outcome, &refusal);
    }
    if shared.config.context_tokens.is_some_and(|max| call.input_tokens > max) {
        return refuse(call, "context_too_long", &Refusal::context_too_long());
    }
    if !call.occupy() {
        return refuse(call, "streams_full", &Refusal::rate_limited(Some(1.0)));
    }
    let conversation = match wire {
        WireKind::Openai => Conversation::from_openai(request),
        WireKind::Anthropic => Conversation::from_anthropic(request),
    };
    let reply = shared.config.brain.answer(&conversation);
    respond(shared, &conversation, request, &reply, fault.as_ref(), call)
}

fn respond(
    shared: &Arc<Shared>,
    conversation: &Conversation,
    request: &Value,
    reply: &Reply,
    fault: Option<&Fault>,
    call: Call,
) -> Response<Body> {
    let voice = Voice {
        model: call.model.clone(),
        id: conversation.echo(),
        input_tokens: call.input_tokens,
        ids: if matches!(fault, Some(Fault::WrongToolIds { .. })) { Ids::Wrong } else { Ids::Right },
        broken_arguments: matches!(fault, Some(Fault::BrokenArguments { .. })),
        usage_wanted: request["stream_options"]["include_usage"] == true,
    };
    let streaming = request["stream"] == true;
    let timing = shared.timing();
    let tokens_per_piece = (timing.tokens_per_s * timing.piece_ms / 1_000.0).max(1.0);
    let chars_per_piece = (tokens_per_piece * CHARS_PER_TOKEN) as usize;
    let spoken = match (call.wire, streaming) {
        (Some(WireKind::Anthropic), true) => anthropic::stream(&voice, reply, chars_per_piece),
        (Some(WireKind::Anthropic), false) => Spoken::whole(&anthropic::answer(&voice, reply)),
        (_, true) => openai::stream(&voice, reply, chars_per_piece),
        (_, false) => Spoken::whole(&openai::answer(&voice, reply)),
    };
    let jitter = 1.0 + timing.jitter * (2.0 * shared.env.generator.unit() - 1.0);
    let first = Duration::from_secs_f64((timing.first_token_ms * jitter / 1_000.0).max(0.0));
    let pace = Pace { first, per_token: Duration::from_secs_f64(1.0 / timing.tokens_per_s.max(0.001)) };
    let outcome = fault.map_or("ok", Fault::name);
    let beats = beats(spoken, fault, &pace, call.wire, streaming);
    let body = StreamBody::new(body(shared, beats, call, outcome)).boxed_unsync();
    let kind = if streaming { "text/event-stream; charset=utf-8" } else { "application/json" };
    let response = Response::builder()
        .header("content-type", kind)
        .header("cache-control", "no-cache")
        .header("x-request-id", format!("req_{}", voice.id));
    response.body(body).expect("the headers are valid")
}

/// Four characters make a token, here and in every estimate of the lab.
pub(crate) const CHARS_PER_TOKEN: f64 = 4.0;

/// How an answer is worded on its wire.
pub(crate) struct Voice {
    pub(crate) model: String,
    pub(crate) id: String,
    pub(crate) input_tokens: u64,
    pub(crate) ids: Ids,
    pub(crate) broken_arguments: bool,
    pub(crate) usage_wanted: bool,
}

/// Whether tool calls carry proper ids.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    Right,
    Wrong,
}

impl Voice {
    /// The id of call `call_idx`. It follows from the conversation, so that the same call made
    /// again has the same id.
    pub(crate) fn call_id(&self, prefix: &str, call_idx: usize) -> String {
        match self.ids {
            Ids::Right => format!("{prefix}{}{call_idx}", self.id),
            Ids::Wrong => String::new(),
        }
    }

    /// The arguments as text, cut in the middle if they are to be broken.
    pub(crate) fn arguments(&self, args: &Value) -> String {
        let text = args.to_string();
        let n_kept = if self.broken_arguments { text.chars().count() / 2 } else { usize::MAX };
        text.chars().take(n_kept).collect()
    }
}

/// An answer in pieces of bytes, before time and faults.
pub(crate) struct Spoken {
    /// What comes before the first content.
    pub(crate) head: String,
    /// Content, each piece with its tokens.
    pub(crate) pieces: Vec<(String, u64)>,
    /// What ends it; without it the answer is not complete.
    pub(crate) tail: String,
}

impl Spoken {
    /// A body that is not a stream: its last quarter stands for the terminator.
    fn whole(answer: &Value) -> Self {
        let text = answer.to_string();
        let tokens =
            answer.pointer("/usage/completion_tokens").or_else(|| answer.pointer("/usage/output_tokens"));
        let n_tokens = tokens.and_then(Value::as_u64).unwrap_or_default();
        let n_head = text.chars().count() * 3 / 4;
        let piece = text.chars().take(n_head).collect();
        Self {
            head: String::new(),
            pieces: vec![(piece, n_tokens)],
            tail: text.chars().skip(n_head).collect(),
        }
    }
}

pub(crate) fn n_tokens(text: &str) -> u64 {
    (text.chars().count() as f64 / CHARS_PER_TOKEN).ceil() as u64
}

struct Pace {
    first: Duration,
    per_token: Duration,
}

fn beats(
    spoken: Spoken,
    fault: Option<&Fault>,
    pace: &Pace,
    wire: Option<WireKind>,
    streaming: bool,
) -> Vec<Beat> {
    let mut n_pieces = spoken.pieces.len();
    let mut end = vec![Beat::Bytes(spoken.tail.clone().into(), 0)];
    let mut head = spoken.head.clone();
    match fault {
        Some(Fault::Cut { after_pieces, .. }) => {
            n_pieces = n_pieces.min(*after_pieces);
            // The pause lets what was sent before leave the socket: the cut is in the stream.
            end = vec![Beat::Wait(Duration::from_millis(20)), Beat::Abort];
        }
        Some(Fault::CleanEnd { after_pieces, .. }) => {
            n_pieces = n_pieces.min(*after_pieces);
            end = Vec::new();
        }
        Some(Fault::ErrorEvent { after_pieces, .. }) if streaming => {
            n_pieces = n_pieces.min(*after_pieces);
            end = vec![Beat::Bytes(error_event(wire).into(), 0)];
        }
        Some(Fault::MalformedJson { after_pieces, .. }) => {
            n_pieces = n_pieces.min(*after_pieces);
            end = vec![Beat::Bytes("data: {\"choices\": [{\"del\n\n".into(), 0)];
        }
        Some(Fault::Stall { after_pieces, .. }) => {
            n_pieces = n_pieces.min(*after_pieces);
            if *after_pieces == 0 {
                head.clear();
            }
            end = vec![Beat::Hang];
        }
        Some(Fault::KeepAlive { every_ms, .. }) => {
            n_pieces = 0;
            head.clear();
            end = vec![Beat::Forever(keep_alive(wire, streaming).into(), Duration::from_millis(*every_ms))];
        }
        Some(Fault::SlowDrip { every_ms, .. }) => return drip(&spoken, pace, *every_ms),
        _ => {}
    }
    let mut beats = Vec::with_capacity(2 * n_pieces + 3);
    if head.is_empty() && n_pieces == 0 {
        beats.extend(end);
        return beats;
    }
    beats.push(Beat::Wait(pace.first));
    beats.push(Beat::Bytes(head.into(), 0));
    for (piece, n_tokens) in spoken.pieces.into_iter().take(n_pieces) {
        beats.push(Beat::Wait(pace.per_token.mul_f64(n_tokens as f64)));
        beats.push(Beat::Bytes(piece.into(), n_tokens));
    }
    beats.extend(end);
    beats
}

fn drip(spoken: &Spoken, pace: &Pace, every_ms: u64) -> Vec<Beat> {
    let pieces: String = spoken.pieces.iter().map(|(piece, _)| piece.as_str()).collect();
    let rest = [pieces, spoken.tail.clone()].concat();
    let mut beats = vec![Beat::Wait(pace.first), Beat::Bytes(spoken.head.clone().into(), 0)];
    for byte in rest.into_bytes() {
        beats.push(Beat::Wait(Duration::from_millis(every_ms)));
        beats.push(Beat::Bytes(Bytes::from(vec![byte]), 0));
    }
    beats
}

fn error_event(wire: Option<WireKind>) -> String {
    match wire {
        Some(WireKind::Anthropic) => anthropic::event(
            "error",
            &json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        ),
        _ => openai::data(
            &json!({"error": {"message": "The server had an error while processing your request.", "type": "server_error", "param": null, "code": "server_error"}}),
        ),
    }
}

fn keep_alive(wire: Option<WireKind>, streaming: bool) -> String {
    match wire {
        _ if !streaming => " ".to_owned(),
        Some(WireKind::Anthropic) => anthropic::event("ping", &json!({"type": "ping"})),
        _ => ": keep-alive\n\n".to_owned(),
    }
}

/// What is wrong with a request by the rules of its wire; empty if nothing is.
fn broken_rules(wire: WireKind, headers: &HeaderMap, request: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    if wire == WireKind::Anthropic && !headers.contains_key("anthropic-version") {
        problems.push("The header anthropic-version is missing.".to_owned());
    }
    problems.extend(super::strict_rules(wire, request));
    problems
}

fn key_accepted(shared: &Shared, wire: WireKind, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = match wire {
        WireKind::Openai => text("authorization").trim_start_matches("Bearer ").to_owned(),
        WireKind::Anthropic => text("x-api-key").to_owned(),
    };
    shared.config.keys.is_empty() || shared.config.keys.contains(&key)
}

/// An answer that is an error.
struct Refusal {
    status: u16,
    kind: String,
    code: Option<String>,
    message: String,
    retry_after_s: Option<f64>,
}

impl Refusal {
    fn new(status: u16, kind: &str, message: &str) -> Self {
        Self { status, kind: kind.to_owned(), code: None, message: message.to_owned(), retry_after_s: None }
    }

    fn code(mut self, code: &str) -> Self {
        self.code = Some(code.to_owned());
        self
    }

    fn bad_key() -> Self {
        Self::new(401, "authentication_error", "The API key is not valid.").code("invalid_api_key")
    }

    fn rate_limited(retry_after_s: Option<f64>) -> Self {
        let refusal = Self::new(429, "rate_limit_error", "Rate limit reached for requests.");
        Self { retry_after_s, ..refusal.code("rate_limit_exceeded") }
    }

    fn context_too_long() -> Self {
        let text = "This model's maximum context length is exceeded: prompt is too long.";
        Self::new(400, "invalid_request_error", text).code("context_length_exceeded")
    }

    /// The refusal that this fault gives, if it is of that kind.
    fn of(fault: &Fault, wire: WireKind) -> Option<Self> {
        let anthropic = wire == WireKind::Anthropic;
        Some(match fault {
            Fault::Down503 if anthropic => Self::new(529, "overloaded_error", "Overloaded"),
            Fault::Down503 => {
                Self::new(503, "server_error", "The server is overloaded.").code("server_is_overloaded")
            }
            Fault::Errors { status, .. } => Self::new(
                *status,
                if anthropic { "api_error" } else { "server_error" },
                "Internal server error.",
            ),
            Fault::RateLimit { retry_after_s, .. } => Self::rate_limited(*retry_after_s),
            Fault::Acceleration { .. } => {
                let refusal =
                    Self::new(429, "rate_limit_error", "Your usage rises too fast. Please slow down.");
                refusal.code("slow_down")
            }
            Fault::OutOfCredit if anthropic => {
                Self::new(402, "billing_error", "Your credit balance is too low.")
            }
            Fault::OutOfCredit => {
                let text = "You exceeded your current quota, please check your plan and billing details.";
                Self::new(429, "insufficient_quota", text).code("insufficient_quota")
            }
            Fault::BadKey => Self::bad_key(),
            Fault::ContextTooLong { .. } => Self::context_too_long(),
            _ => return None,
        })
    }

    fn body(&self, wire: WireKind) -> Value {
        match wire {
            WireKind::Openai => json!({"error": {
                "message": self.message, "type": self.kind, "param": null, "code": self.code,
            }}),
            WireKind::Anthropic => json!({
                "type": "error", "error": {"type": self.kind, "message": self.message},
            }),
        }
    }
}

fn refuse(mut call: Call, outcome: &'static str, refusal: &Refusal) -> Response<Body> {
    call.outcome = outcome;
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let retry_after = refusal.retry_after_s.map(|s| ("retry-after", s.ceil().to_string()));
    whole(status, retry_after.as_slice(), &refusal.body(call.wire.unwrap_or(WireKind::Openai)))
}

fn models() -> Response<Body> {
    whole(StatusCode::OK, &[], &json!({"object": "list", "data": [{"id": "fake", "object": "model"}]}))
}

fn whole(status: StatusCode, headers: &[(&str, String)], body: &Value) -> Response<Body> {
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    response.body(body.map_frame(|frame: Frame<Bytes>| frame).boxed_unsync()).expect("the headers are valid")
}
