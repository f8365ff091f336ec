//! One client of a chat: asks for a turn, waits for its reply, and comes back with the same key when
//! its connection breaks, as a careful client does.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use evenkeel_env::Env;
use evenkeel_env::http::{Body, Client as Http};
use evenkeel_env::sse::{Item, Parser};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::plan::Planned;
use crate::check::{CLIENT_LEFT, Entry, Recorder};
use crate::scenario::{Chat, Door};
use crate::task::chat;

/// A server that accepts work says so within this time.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// A server gives a sign of life every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(11);
const AGAIN_AFTER: Duration = Duration::from_millis(250);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(5);
/// Time for which a client that left stays away.
const AWAY: Duration = Duration::from_millis(400);
/// Bytes of one line of a stream.
const LINE_MAX: usize = 8 << 20;

/// Where clients ask, and how.
pub(super) struct Doors {
    http: Http,
    bases: Vec<String>,
    chat: Chat,
}

impl Doors {
    pub(super) fn new(env: &Env, bases: Vec<String>, chat: &Chat) -> Self {
        Self { http: Http::new(env, Duration::from_secs(2)), bases, chat: chat.clone() }
    }
}

/// A client with its one turn.
pub(super) struct Client {
    pub(super) turn: usize,
    pub(super) planned: Planned,
    pub(super) thread: String,
    pub(super) key: String,
    pub(super) doors: Arc<Doors>,
    pub(super) recorder: Recorder,
}

/// Why there is no answer yet.
enum Trouble {
    /// The server refused the turn for good.
    Refused(u16, String),
    /// It was accepted, and a later message has undone it: there is no such run any more.
    Undone,
    /// What became of it is not known; ask again after this time.
    Unknown(String, Duration),
}

fn unknown(why: impl Into<String>) -> Trouble {
    Trouble::Unknown(why.into(), AGAIN_AFTER)
}

/// The end of a turn as the server told it.
struct End {
    status: String,
    reply: Option<String>,
    streamed: Option<String>,
}

/// What one asking has learned so far; it outlives each of its connections.
#[derive(Default)]
struct Known {
    run: Option<String>,
    /// The base that is asked next.
    base: usize,
    /// Where a stream goes on.
    last_event: Option<String>,
    pieces: Pieces,
}

/// The reply in pieces: the pieces of one message id belong together, another id begins anew.
#[derive(Default)]
struct Pieces {
    id: String,
    text: String,
}

impl Client {
    pub(super) async fn all(self) {
        if self.planned.doubled {
            tokio::join!(self.ask(1), self.ask(2));
        } else {
            self.ask(1).await;
        }
    }

    /// Asks until there is an end. `first` is the number of its first attempt.
    async fn ask(&self, first: u32) {
        let mut known = Known { base: self.first_base(first), ..Known::default() };
        let mut leaves = self.planned.leaves_after_ms.map(Duration::from_millis);
        for attempt in (first..).step_by(2) {
            let t = |now| if attempt == 1 { self.planned.at_ms } else { now };
            if known.run.is_none() {
                self.invoke(attempt, t);
            }
            let answer = match leaves.take() {
                None => self.once(&mut known).await,
                Some(after) => match timeout(after, self.once(&mut known)).await {
                    Ok(answer) => answer,
                    Err(_) => Err(Trouble::Unknown(CLIENT_LEFT.to_owned(), AWAY)),
                },
            };
            match answer {
                Ok(end) => return self.told(&known, end),
                Err(Trouble::Refused(code, text)) => {
                    let task = self.turn;
                    return self.recorder.add(|t| Entry::Fail { task, code, text, t });
                }
                Err(Trouble::Undone) => {
                    let end = End { status: "interrupted".to_owned(), reply: None, streamed: None };
                    return self.told(&known, end);
                }
                Err(Trouble::Unknown(why, again)) => {
                    self.recorder.add(|t| Entry::Info { task: self.turn, why, t });
                    known.base += 1;
                    sleep(again).await;
                }
            }
        }
    }

    /// The turns of a thread begin at the same server; the copy of a doubled request at the next one.
    fn first_base(&self, first: u32) -> usize {
        self.planned.thread + first as usize - 1
    }

    fn invoke(&self, attempt: u32, at: impl Fn(u64) -> u64) {
        self.recorder.add(|now| Entry::Invoke {
            task: self.turn,
            script: chat::CHAT.to_owned(),
            thread: self.thread.clone(),
            key: self.key.clone(),
            attempt,
            t: at(now),
        });
    }

    fn told(&self, known: &Known, end: End) {
        let (task, run) = (self.turn, known.run.clone().unwrap_or_default());
        if let Some(text) = end.streamed {
            self.recorder.add(|_| Entry::Streamed { task, text });
        }
        self.recorder.add(|t| Entry::Ok { task, run, status: end.status, reply: end.reply, t });
    }

    /// One connection: creates the turn, or attaches to it if it is known to exist.
    async fn once(&self, known: &mut Known) -> Result<End, Trouble> {
        let request = match &known.run {
            None => self.creation(known),
            Some(run) => self.attachment(known, run),
        };
        let response = self.send(request).await?;
        if known.run.is_none() {
            let run = run_of(response.headers()).ok_or_else(|| unknown("The answer names no run."))?;
            let task = self.turn;
            known.run = Some(run.clone());
            self.recorder.add(|t| Entry::Accepted { task, run, t });
        }
        match self.doors.chat.door {
            Door::Wait => self.whole(known, response.into_body()).await,
            Door::Stream => self.streamed(known, response.into_body()).await,
        }
    }

    fn base(&self, known: &Known) -> &str {
        let bases = &self.doors.bases;
        &bases[known.base % bases.len()]
    }

    fn creation(&self, known: &Known) -> Request<Bytes> {
        let Chat { door, busy_policy, reply_tokens, .. } = &self.doors.chat;
        let (word, mode) = match door {
            Door::Wait => ("wait", "values"),
            Door::Stream => ("stream", "messages-tuple"),
        };
        let body = json!({
            "assistant_id": "chat",
            "input": {"messages": [{"role": "user", "content": chat::ask(self.turn, *reply_tokens)}]},
            "if_not_exists": "create",
            "multitask_strategy": busy_policy,
            "stream_mode": mode,
        });
        let request = Request::post(format!("{}/threads/{}/runs/{word}", self.base(known), self.thread))
            .header("content-type", "application/json")
            .header("idempotency-key", &self.key);
        request.body(Bytes::from(body.to_string())).expect("paths and keys of the lab are valid")
    }

    fn attachment(&self, known: &Known, run: &str) -> Request<Bytes> {
        let place = format!("{}/threads/{}/runs/{run}", self.base(known), self.thread);
        let request = match self.doors.chat.door {
            Door::Wait => Request::get(format!("{place}/join")),
            Door::Stream => {
                let from = known.last_event.as_deref().unwrap_or("0");
                Request::get(format!("{place}/stream?stream_mode=messages-tuple"))
                    .header("last-event-id", from)
            }
        };
        request.body(Bytes::new()).expect("paths of the lab are valid")
    }

    /// Sends a request and judges the status of its answer.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Trouble> {
        let creates = request.method() == Method::POST;
        let response = match timeout(HEADERS_WITHIN, self.doors.http.send(request)).await {
            Ok(response) => response.map_err(|error| unknown(error.to_string()))?,
            Err(_) => return Err(unknown("There was no answer in time.")),
        };
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(response);
        }
        let after = retry_after(response.headers());
        let text = collect(response.into_body()).await.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        if creates && status < 500 && status != 429 {
            return Err(Trouble::Refused(status, text));
        }
        if !creates && status == 404 && self.doors.chat.busy_policy == "rollback" {
            return Err(Trouble::Undone);
        }
        Err(Trouble::Unknown(format!("{status}: {text}"), after))
    }

    /// The answer of `wait` and `join`: the thread's values at the end of the run.
    async fn whole(&self, known: &Known, body: Body) -> Result<End, Trouble> {
        let bytes = collect(body).await?;
        let answer: Value =
            serde_json::from_slice(&bytes).map_err(|error| unknown(format!("not JSON: {error}")))?;
        if answer.get("__error__").is_some() {
            return self.how_it_ended(known).await;
        }
        let messages = answer["messages"].as_array().into_iter().flatten().rev();
        let own = messages.filter(|message| message["type"] == "ai").find_map(|message| {
            message["content"].as_str().filter(|text| chat::answered_by(text) == Some(self.turn))
        });
        let Some(own) = own else { return self.how_it_ended(known).await };
        // Nor do the thread's values: a turn that was ended in its last moment keeps the text it had.
        if self.doors.chat.lets_messages_end_turns() {
            let end = self.how_it_ended(known).await?;
            if end.status != "success" {
                return Ok(end);
            }
        }
        Ok(End { status: "success".to_owned(), reply: Some(own.to_owned()), streamed: None })
    }

    /// A run whose answer is no reply: it failed, or another message ended it, or its own message was
    /// answered elsewhere. The door has a word for how it ended.
    async fn how_it_ended(&self, known: &Known) -> Result<End, Trouble> {
        let run = known.run.as_deref().unwrap_or_default();
        let request = Request::get(format!("{}/threads/{}/runs/{run}", self.base(known), self.thread));
        let request = request.body(Bytes::new()).expect("paths of the lab are valid");
        let bytes = collect(self.send(request).await?.into_body()).await?;
        let run: Value =
            serde_json::from_slice(&bytes).map_err(|error| unknown(format!("not JSON: {error}")))?;
        let status = run["status"].as_str().unwrap_or_default().to_owned();
        if ["pending", "running"].contains(&status.as_str()) {
            return Err(unknown("An answer without a reply, and the run goes on."));
        }
        Ok(End { status, reply: None, streamed: None })
    }

    /// The events of a stream until its end.
    async fn streamed(&self, known: &mut Known, mut body: Body) -> Result<End, Trouble> {
        let mut parser = Parser::new(LINE_MAX);
        // Pieces are provisional: what came of a reply before its connection broke is void.
        known.pieces = Pieces::default();
        loop {
            let frame = match timeout(SILENCE_MAX, body.frame()).await {
                Err(_) => return Err(unknown("The stream fell silent.")),
                Ok(None) => return Err(unknown("The stream ended without its end.")),
                Ok(Some(frame)) => frame.map_err(|error| unknown(format!("the stream broke: {error}")))?,
            };
            let Some(bytes) = frame.data_ref() else { continue };
            let items = parser.push(bytes).map_err(|error| unknown(error.to_string()))?;
            for item in items {
                let Item::Event(event) = item else { continue };
                let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                if event.id.is_some() {
                    known.last_event = event.id;
                }
                match event.name.as_str() {
                    "messages" => known.pieces.take(&data[0]),
                    "error" => return self.how_it_ended(known).await,
                    "end" => {
                        let text = std::mem::take(&mut known.pieces.text);
                        let is_own = chat::answered_by(&text) == Some(self.turn);
                        // The end of a stream does not say whether another message ended the turn in
                        // its last moment, when all of its reply had been shown.
                        if !is_own || self.doors.chat.lets_messages_end_turns() {
                            let end = self.how_it_ended(known).await?;
                            if !is_own || end.status != "success" {
                                return Ok(end);
                            }
                        }
                        let (reply, streamed) = (Some(text.clone()), Some(text));
                        return Ok(End { status: "success".to_owned(), reply, streamed });
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Pieces {
    /// A piece of a reply, or the whole one.
    fn take(&mut self, message: &Value) {
        let (kind, id) = (message["type"].as_str(), message["id"].as_str().unwrap_or_default());
        let text = message["content"].as_str().unwrap_or_default();
        match kind {
            Some("AIMessageChunk") if id == self.id => self.text.push_str(text),
            Some("AIMessageChunk" | "ai") => {
                id.clone_into(&mut self.id);
                text.clone_into(&mut self.text);
            }
            _ => {}
        }
    }
}

/// The run that an answer names.
fn run_of(headers: &HeaderMap) -> Option<String> {
    let place = headers.get("content-location")?.to_str().ok()?;
    place.rsplit_once("/runs/").map(|(_, run)| run.to_owned())
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.map_or(AGAIN_AFTER, |s| Duration::from_secs(s).clamp(AGAIN_AFTER, AGAIN_AFTER_MAX))
}

/// A whole body, unless it falls silent or breaks off.
async fn collect(mut body: Body) -> Result<Bytes, Trouble> {
    let mut bytes = BytesMut::new();
    loop {
        match timeout(SILENCE_MAX, body.frame()).await {
            Err(_) => return Err(unknown("The answer fell silent.")),
            Ok(None) => return Ok(bytes.freeze()),
            Ok(Some(Err(error))) => return Err(unknown(format!("the answer broke off: {error}"))),
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
}
