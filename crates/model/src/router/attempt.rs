//! One attempt over HTTP: request, headers, stream, answer; every wait under the watchdog.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::Mono;
use evenkeel_core::message::Usage;
use evenkeel_core::port::feed::Provisional;
use evenkeel_core::port::model::{ModelRequest, Progress};
use evenkeel_core::run::Attempt;
use evenkeel_env::sse::{self, Item, Parser};
use http_body_util::BodyExt;
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::sync::oneshot;

use super::event::{AttemptKey, Event, Start};
use super::plan::LanePlan;
use super::shell::Shared;
use crate::classify::{self, Class, Failure, Hints};
use crate::provider::{self, Decoded, Decoder, Prompt};
use crate::stream::answer::{Answer, Assembler, Finish, Incomplete, Place};
use crate::stream::watch::{Passed, Watch};

/// The attempts of one call that run beside each other. The first to have content claims the race;
/// nothing of any other is shown, even when both have content in the same moment.
#[derive(Debug, Default)]
pub(super) struct Race(AtomicU64);

impl Race {
    const OPEN: u64 = 0;

    /// Whether the race is this attempt's, now or already.
    fn claim(&self, attempt: AttemptKey) -> bool {
        let claimed = self.0.compare_exchange(Self::OPEN, attempt.0, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || claimed == Err(attempt.0)
    }

    /// The attempt is over; the next one of the call begins a new race.
    pub(super) fn leave(&self, attempt: AttemptKey) {
        let _ = self.0.compare_exchange(attempt.0, Self::OPEN, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// An attempt's part in its race.
pub(super) struct Entry<'a> {
    pub(super) race: &'a Race,
    /// Another attempt has won: whatever arrives here, or that nothing can arrive any more, says so.
    pub(super) stopped: oneshot::Receiver<()>,
}

/// How an attempt ended.
pub(super) struct Made {
    pub(super) attempt: AttemptKey,
    pub(super) record: Attempt,
    pub(super) result: Result<Answer, Failure>,
    /// Tokens of the attempt, wasted or not.
    pub(super) usage: Usage,
}

/// After the terminal event the usage report may still be on its way.
const AFTER_FINISH: Duration = Duration::from_secs(2);
/// After the last event the connection is kept for reuse if the body ends soon.
const AFTER_LAST: Duration = Duration::from_millis(100);
/// Progress is told to the machine at most this often.
const CONTENT_EVERY: Duration = Duration::from_millis(250);
/// The largest event of a stream that is accepted.
const EVENT_BYTES_MAX: usize = 1024 * 1024;
const ERROR_BYTES_MAX: usize = 64 * 1024;
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Makes one attempt. Dropping the future closes its connection.
pub(super) async fn make(
    shared: &Arc<Shared>,
    request: &ModelRequest,
    start: Start,
    progress: &dyn Progress,
    entry: Entry<'_>,
) -> Made {
    let lane = &shared.plan.lanes[start.lane];
    let started_at = shared.env.wall();
    let now = shared.env.mono();
    let mut attempt = Running {
        shared,
        lane,
        race: entry.race,
        watch: Watch::new(start.limits, now),
        start,
        progress,
        assembler: Assembler::default(),
        decoder: Decoder::new(lane.target.kind),
        started: now,
        first_content: None,
        told_at: None,
        shown: false,
    };
    let streamed = tokio::select! {
        biased;
        _ = entry.stopped => Err(overtaken()),
        streamed = attempt.exchange(request) => streamed,
    };
    attempt.conclude(request, started_at, streamed)
}

/// Providers like to echo a key that they refuse; what they say is stored and shown to people.
fn without_key(failure: Failure, lane: &LanePlan) -> Failure {
    let key = lane.target.key.as_ref().map(ExposeSecret::expose_secret).filter(|key| !key.is_empty());
    match key {
        Some(key) => Failure { cause: failure.cause.replace(key, "[key]"), ..failure },
        None => failure,
    }
}

struct Running<'a> {
    shared: &'a Arc<Shared>,
    lane: &'a LanePlan,
    start: Start,
    race: &'a Race,
    progress: &'a dyn Progress,
    watch: Watch,
    assembler: Assembler,
    decoder: Decoder,
    started: Mono,
    first_content: Option<Mono>,
    told_at: Option<Mono>,
    /// Something was shown to whoever watches.
    shown: bool,
}

impl Running<'_> {
    async fn exchange(&mut self, request: &ModelRequest) -> Result<(), Failure> {
        let prompt = Prompt {
            system: &request.system,
            messages: &request.messages,
            tools: &request.tools,
            output_tokens_max: request.output_tokens_max,
        };
        let request = provider::request(prompt, &self.lane.target, self.start.bound);
        let sent = self.shared.client.send(request);
        let response = match self.watched(sent).await {
            Ok(response) => response.map_err(|error| Failure::of_client(&error))?,
            Err(passed) => return Err(Failure::of_watch(passed)),
        };
        self.watch.headers(self.now());
        let hints = Hints::read(response.headers(), self.shared.env.wall());
        self.shared.handle(Event::Headers(self.start.attempt, hints));
        let status = response.status();
        if !status.is_success() {
            let (head, body) = response.into_parts();
            let body = self.error_body(body).await;
            let (extra, now) = (&self.lane.context_too_long, self.shared.env.wall());
            return Err(classify::response(status.as_u16(), &head.headers, &body, extra, now));
        }
        let content_type = response.headers().get(http::header::CONTENT_TYPE);
        let content_type =
            content_type.and_then(|value| value.to_str().ok()).unwrap_or_default().to_lowercase();
        match content_type.as_str() {
            kind if kind.is_empty() || kind.starts_with("text/event-stream") => {
                self.stream(response.into_body()).await
            }
            kind if kind.contains("json") => self.whole(response.into_body()).await,
            kind => Err(classify::not_an_answer(kind)),
        }
    }

    /// Waits for something until the watchdog barks.
    async fn watched<F: Future>(&self, future: F) -> Result<F::Output, Passed> {
        let (deadline, passed) = self.watch.deadline();
        tokio::time::timeout(self.now().until(deadline), future).await.map_err(|_| passed)
    }

    async fn error_body<B: BodyExt<Data = Bytes> + Unpin>(&self, body: B) -> Vec<u8> {
        let read = read_up_to(body, ERROR_BYTES_MAX);
        tokio::time::timeout(Duration::from_secs(2), read).await.unwrap_or_default()
    }

    async fn stream<B>(&mut self, mut body: B) -> Result<(), Failure>
    where
        B: BodyExt<Data = Bytes> + Unpin,
        B::Error: Display,
    {
        let mut parser = Parser::new(EVENT_BYTES_MAX);
        let mut finished_at = None;
        loop {
            let frame = match finished_at {
                None => self.watched(body.frame()).await.map_err(Failure::of_watch)?,
                // The answer is complete; nothing that happens now can break it.
                Some(at) => match self.after_finish(at, body.frame()).await {
                    Some(frame) => frame,
                    None => return Ok(()),
                },
            };
            let bytes = match frame {
                None => return Ok(()),
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(_)) if self.assembler.is_finished() => return Ok(()),
                Some(Err(error)) => {
                    return Err(Failure::new(Class::StreamBroken, format!("the stream was cut: {error}")));
                }
            };
            let items = parser.push(&bytes);
            for item in items.map_err(|error| Failure::new(Class::StreamBroken, error.to_string()))? {
                if self.item(item)? {
                    drain(body).await;
                    return Ok(());
                }
            }
            if finished_at.is_none() && self.assembler.is_finished() {
                finished_at = Some(self.now());
            }
        }
    }

    async fn after_finish<F: Future>(&self, finished_at: Mono, frame: F) -> Option<F::Output> {
        let left = self.now().until(finished_at.after(AFTER_FINISH));
        tokio::time::timeout(left, frame).await.ok()
    }

    /// Takes one item of the stream; true when it was the last.
    fn item(&mut self, item: Item) -> Result<bool, Failure> {
        // A comment shows that the connection lives; it is no progress.
        let Item::Event(sse::Event { name, data, .. }) = item else {
            self.watch.ping(self.now());
            return Ok(false);
        };
        let name = (!name.is_empty()).then_some(name.as_str());
        let decoded = self.decoder.event(name, &data, &mut self.assembler);
        self.take(decoded)
    }

    fn take(&mut self, decoded: Decoded) -> Result<bool, Failure> {
        if let Some(error) = decoded.error {
            return Err(classify::in_stream(&error, &self.lane.context_too_long));
        }
        if let Some(broken) = decoded.broken {
            return Err(Failure::new(Class::StreamBroken, broken));
        }
        if decoded.progressed.content_bytes == 0 {
            self.watch.ping(self.now());
        } else {
            self.content(decoded.progressed.content_bytes)?;
        }
        for piece in decoded.progressed.pieces {
            self.shown = true;
            self.progress.piece(self.start.number, piece);
        }
        Ok(decoded.is_last)
    }

    fn content(&mut self, n_bytes: usize) -> Result<(), Failure> {
        if !self.race.claim(self.start.attempt) {
            return Err(overtaken());
        }
        let now = self.now();
        #[expect(clippy::cast_precision_loss, reason = "the size of one event")]
        let is_first = self.watch.content(now, n_bytes as f64 / 4.0);
        if is_first {
            self.first_content = Some(now);
        }
        if is_first || self.told_at.is_none_or(|at| now.since(at) >= CONTENT_EVERY) {
            self.told_at = Some(now);
            self.shared.handle(Event::Content(self.start.attempt));
        }
        Ok(())
    }

    /// The server answered a request for a stream with one document.
    async fn whole<B>(&mut self, body: B) -> Result<(), Failure>
    where
        B: BodyExt<Data = Bytes> + Unpin,
    {
        let bytes = self.watched(read_up_to(body, ANSWER_BYTES_MAX)).await.map_err(Failure::of_watch)?;
        let body: Value = serde_json::from_slice(&bytes).map_err(|error| {
            Failure::new(Class::StreamBroken, format!("the answer is no valid JSON: {error}"))
        })?;
        let decoded = self.decoder.whole(&body, &mut self.assembler);
        self.take(decoded).map(|_| ())
    }

    fn conclude(
        mut self,
        request: &ModelRequest,
        started_at: evenkeel_core::Wall,
        streamed: Result<(), Failure>,
    ) -> Made {
        self.decoder.end(&mut self.assembler);
        let estimated_input = super::shell::input_bytes(request) / 4;
        let usage = match &streamed {
            // Whoever was overtaken was heard all the same; others that said nothing cost nothing.
            Err(failure) if failure.class == Class::Overtaken => self.assembler.usage(estimated_input),
            Err(_) if self.first_content.is_none() => Usage::default(),
            _ => self.assembler.usage(estimated_input),
        };
        let place = Place { run: request.run, step: request.step, from: self.lane.target.from.clone() };
        let assembler = std::mem::take(&mut self.assembler);
        let streamed = streamed.map_err(|failure| without_key(failure, self.lane));
        let result = streamed.and_then(|()| {
            let answer = assembler.into_answer(&place, estimated_input).map_err(unusable)?;
            match answer.finish {
                Finish::WindowExceeded => Err(Failure::new(
                    Class::ContextTooLong,
                    "the context window was exceeded while answering",
                )),
                _ => Ok(answer),
            }
        });
        if let Err(failure) = &result
            && self.shown
        {
            let reason = failure.class.as_str().to_owned();
            self.progress.piece(self.start.number, Provisional::Reset { reason });
        }
        let ms = |since: std::time::Duration| u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let record = Attempt {
            attempt: self.start.number,
            deployment: self.lane.name.clone(),
            provider: self.lane.provider.clone(),
            model: self.lane.target.model.clone(),
            started_at,
            first_content_ms: self.first_content.map(|at| ms(at.since(self.started))),
            ms: ms(self.now().since(self.started)),
            outcome: result.as_ref().err().map_or("ok", |failure| failure.class.as_str()).to_owned(),
            cause: result.as_ref().err().map(|failure| failure.cause.clone()),
            usage,
            cost_micro_usd: self.lane.price.map(|price| price.micro_usd(usage)),
        };
        Made { attempt: self.start.attempt, record, result, usage }
    }

    fn now(&self) -> Mono {
        self.shared.env.mono()
    }
}

fn overtaken() -> Failure {
    Failure::new(Class::Overtaken, "another attempt of the same call had content first")
}

fn unusable(incomplete: Incomplete) -> Failure {
    let malformed = matches!(incomplete, Incomplete::Malformed(_));
    Failure { malformed, ..Failure::new(Class::StreamBroken, incomplete.to_string()) }
}

async fn read_up_to<B: BodyExt<Data = Bytes> + Unpin>(mut body: B, max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() >= max {
            bytes.truncate(max);
            break;
        }
    }
    bytes
}

/// Reads to the end of the body, so that its connection can be used again.
async fn drain<B: BodyExt<Data = Bytes> + Unpin>(mut body: B) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // A body that does not end soon costs its connection, nothing else.
    let _ = tokio::time::timeout(AFTER_LAST, rest).await;
}
