//! Attaching to a run: its stream and its end, for new runs, known ones and ended ones alike.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::store::{Cancel, ReadEvents};
use evenkeel_core::run::{Run, RunState};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{Answer, find_run, find_thread, known_run, run_id, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::Path;
use crate::stream::cursor::Cursor;
use crate::stream::run_stream::{self, Of, OnLeave, StreamStart};
use crate::stream::wait::{self, Ended, Ending, WaitStart};
use crate::wire;
use crate::wire::modes::{Modes, ThreadModes};
use crate::wire::refusal::malformed;

/// A run and where its thread's log ends, read so that an end is never missed: if the run has not
/// ended, its end lies behind `seq_last`; if it has, its end lies at or before it.
struct Seen {
    /// The run that was asked for.
    run: Run,
    /// The run that answers it: itself, or the one that it was joined with.
    answer: Run,
    seq_last: u64,
}

async fn look(shared: &Shared, tenant: &TenantId, thread: ThreadId, run: RunId) -> Result<Seen, Error> {
    let mut seq_last = find_thread(shared, tenant, thread).await?.seq_last;
    let run = known_run(shared, tenant, thread, run).await?;
    let mut answer = run.clone();
    while let Some(other) = answered_by(&answer) {
        answer = known_run(shared, tenant, thread, other).await?;
    }
    if run.state.is_terminal() {
        seq_last = find_thread(shared, tenant, thread).await?.seq_last;
    }
    // What is asked stands before the log's end as it is read now; a run that went on meanwhile is
    // looked at again.
    if !answer.asks().is_empty() {
        seq_last = find_thread(shared, tenant, thread).await?.seq_last;
        answer = known_run(shared, tenant, thread, answer.id).await?;
    }
    // An answer that ended after the log's end was read counts as one that has not.
    if run.id != answer.id && answer.state.is_terminal() {
        answer = known_run(shared, tenant, thread, answer.id).await?;
        seq_last = find_thread(shared, tenant, thread).await?.seq_last;
    }
    Ok(Seen { run, answer, seq_last })
}

fn answered_by(run: &Run) -> Option<RunId> {
    run.outcome.as_ref()?.reason?.answered_by()
}

pub(super) async fn stream(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((thread, run)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    shared.attaches()?;
    let (thread, run) = (thread_id(&thread)?, run_id(&run)?);
    let asked = Asked::parse(query.as_deref().unwrap_or_default())?;
    find_run(&shared, &caller.tenant, thread, run).await?;
    let seen = look(&shared, &caller.tenant, thread, run).await?;
    let modes = match asked.modes()? {
        Some(modes) => modes,
        None => Modes::parse(seen.run.spec.request.get("stream_mode"))?,
    };
    let leave = asked.cancel_on_disconnect.then(|| cancel_on_leave(&shared, &seen.run));
    let cursor = asked.cursor(&headers, seen.seq_last)?;
    Ok(open(&shared, &seen, (cursor, asked.rejoins(&headers, cursor)), modes, leave).await?)
}

/// All runs of a thread, those to come included; without a cursor from now on.
pub(super) async fn thread_stream(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(thread): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let asked = Asked::parse(query.as_deref().unwrap_or_default())?;
    let thread = find_thread(&shared, &caller.tenant, thread_id(&thread)?).await?;
    let modes = ThreadModes::from_words(asked.words.iter().map(String::as_str))?;
    let asked_for = asked.cursor(&headers, thread.seq_last)?;
    let cursor = asked_for.unwrap_or_else(|| Cursor::after(thread.seq_last));
    let start = StreamStart {
        tenant: caller.tenant,
        thread: thread.id,
        of: Of::Thread,
        modes: Modes { thread: modes, ..Modes::default() },
        cursor,
        rejoined: asked.rejoins(&headers, asked_for),
        queued: false,
        ended: None,
        known_to: thread.seq_last,
        joined_attempt: None,
        on_leave: None,
    };
    let heartbeat = shared.config.server.heartbeat.0;
    let body = run_stream::body(&shared.hub, shared.store.clone(), start, heartbeat);
    let query = if asked.words.is_empty() {
        String::new()
    } else {
        format!("&stream_mode={}", asked.words.join(","))
    };
    let place = format!("/threads/{}/stream?after={cursor}{query}", thread.id);
    let mut response = Response::new(body);
    put(&mut response, header::LOCATION, &place);
    Ok(as_events(response))
}

pub(super) async fn join(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((thread, run)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer {
    shared.attaches()?;
    let (thread, run) = (thread_id(&thread)?, run_id(&run)?);
    let asked = Asked::parse(query.as_deref().unwrap_or_default())?;
    find_run(&shared, &caller.tenant, thread, run).await?;
    let seen = look(&shared, &caller.tenant, thread, run).await?;
    let leave = asked.cancel_on_disconnect.then(|| cancel_on_leave(&shared, &seen.run));
    Ok(waiting(&shared, &seen, Ending::Values, leave))
}

/// A run that a request stands for, and where its thread's log ended before it.
pub(super) struct Begun<'a> {
    /// The run.
    pub(super) run: &'a Run,
    /// The thread's newest event when the request came; 0 for the whole log.
    pub(super) seq_before: u64,
    /// Whether the run is an earlier request's.
    pub(super) replayed: bool,
}

impl Begun<'_> {
    /// What is known of a new run needs no look into the store: its end lies behind what its thread
    /// held when the request came.
    async fn seen(&self, shared: &Shared) -> Result<Seen, Error> {
        let run = self.run;
        if self.replayed {
            return look(shared, &run.tenant, run.thread, run.id).await;
        }
        Ok(Seen { run: run.clone(), answer: run.clone(), seq_last: self.seq_before })
    }
}

/// The stream of a run that was just created, or of the one that its key stands for.
pub(super) async fn stream_of_new(
    shared: &Arc<Shared>,
    begun: &Begun<'_>,
    modes: Modes,
    leave: Option<OnLeave>,
) -> Result<Response, Error> {
    let seen = begun.seen(shared).await?;
    open(shared, &seen, (Some(Cursor::after(begun.seq_before)), false), modes, leave).await
}

/// The end of a run that was just created, or of the one that its key stands for.
pub(super) async fn wait_of(
    shared: &Arc<Shared>,
    begun: &Begun<'_>,
    leave: Option<OnLeave>,
) -> Result<Response, Error> {
    let seen = begun.seen(shared).await?;
    Ok(waiting(shared, &seen, Ending::Values, leave))
}

/// The moment at which a cancelled run has stopped.
pub(super) async fn stopped(shared: &Arc<Shared>, run: &Run) -> Result<Response, Error> {
    let seen = look(shared, &run.tenant, run.thread, run.id).await?;
    Ok(waiting(shared, &seen, Ending::Nothing, None))
}

/// Without a cursor only what is new is shown: of an ended run, its end.
async fn open(
    shared: &Arc<Shared>,
    seen: &Seen,
    (cursor, rejoined): (Option<Cursor>, bool),
    modes: Modes,
    on_leave: Option<OnLeave>,
) -> Result<Response, Error> {
    let Seen { run, answer, seq_last } = seen;
    let ended = answer.state.is_terminal() || !answer.asks().is_empty();
    let from = cursor.unwrap_or_else(|| Cursor::after(*seq_last));
    let start = StreamStart {
        tenant: run.tenant.clone(),
        thread: run.thread,
        of: Of::Run(standing_at(shared, seen, from).await?),
        modes,
        cursor: from,
        rejoined,
        queued: answer.id == run.id && run.state == RunState::Queued,
        ended: ended.then_some((wire::run::status_of(answer), *seq_last)),
        known_to: *seq_last,
        joined_attempt: (cursor.is_none() && !ended && answer.attempt > 0).then_some(answer.attempt),
        on_leave,
    };
    let heartbeat = shared.config.server.heartbeat.0;
    let body = run_stream::body(&shared.hub, shared.store.clone(), start, heartbeat);
    // A client that is cut off before it saw any id comes back to this place with these modes.
    let modes = modes.words().join(",");
    let mut response = located(seen, &format!("stream?after={from}&stream_mode={modes}"), body);
    response = as_events(response);
    Ok(response)
}

/// Which run is shown behind a cursor: a run that another one answers is shown up to its own end,
/// then the other.
async fn standing_at(shared: &Shared, seen: &Seen, cursor: Cursor) -> Result<RunId, Error> {
    let mut standing = seen.run.clone();
    while let Some(other) = answered_by(&standing) {
        if ends_behind(shared, &standing, cursor).await? {
            break;
        }
        standing = known_run(shared, &standing.tenant, standing.thread, other).await?;
    }
    Ok(standing.id)
}

async fn ends_behind(shared: &Shared, run: &Run, cursor: Cursor) -> Result<bool, Error> {
    let mut after_seq = cursor.complete_to();
    loop {
        let (tenant, thread) = (run.tenant.clone(), run.thread);
        let page = shared.store.read_events(ReadEvents { tenant, thread, after_seq, limit: 512 }).await?;
        let is_end = |event: &Event| event.run == run.id && matches!(event.body, EventBody::RunEnded { .. });
        if page.iter().any(is_end) {
            return Ok(true);
        }
        match page.last() {
            Some(last) => after_seq = last.seq,
            None => return Ok(false),
        }
    }
}

fn waiting(shared: &Arc<Shared>, seen: &Seen, ending: Ending, on_leave: Option<OnLeave>) -> Response {
    let Seen { run, answer, seq_last } = seen;
    let of = if ending == Ending::Values { answer } else { run };
    let start = WaitStart {
        tenant: run.tenant.clone(),
        thread: run.thread,
        run: of.id,
        queued: answer.id == run.id && run.state == RunState::Queued,
        ended: stands(of, ending).map(|ended| (ended, *seq_last)),
        after: *seq_last,
        ending,
        on_leave,
    };
    let heartbeat = shared.config.server.heartbeat.0;
    let body = wait::body(&shared.hub, shared.store.clone(), start, heartbeat);
    let mut response = located(seen, "join", body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Whether nothing more is to be waited for. Whoever waits for a stop waits for the end itself.
fn stands(run: &Run, ending: Ending) -> Option<Ended> {
    let outcome = run.outcome.clone().map(|outcome| Ended::Outcome(Box::new(outcome)));
    outcome.or_else(|| (ending == Ending::Values && !run.asks().is_empty()).then_some(Ended::Paused))
}

fn as_events(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A response that says where to attach again, and where the run stands.
fn located(seen: &Seen, place: &str, body: Body) -> Response {
    let mut response = Response::new(body);
    let path = format!("/threads/{}/runs/{}", seen.run.thread, seen.run.id);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    put(&mut response, header::LOCATION, &format!("{path}/{place}"));
    put(&mut response, header::CONTENT_LOCATION, &path);
    if seen.answer.id != seen.run.id {
        put(&mut response, HeaderName::from_static("evenkeel-answered-by"), &seen.answer.id.to_string());
    }
    standing(&mut response, &seen.answer);
    response
}

/// Where a run stands in the line, and why it does not run yet.
pub(super) fn standing(response: &mut Response, run: &Run) {
    if let Some(reason) = wire::run::waits_because(run) {
        put(response, HeaderName::from_static("evenkeel-position"), &run.position.to_string());
        put(response, HeaderName::from_static("evenkeel-reason"), &reason);
    }
}

/// Sets a header; a value that no header can hold is left out.
pub(super) fn put(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Cancels the run when its client goes away before the end, because the client asked for that.
pub(super) fn cancel_on_leave(shared: &Arc<Shared>, run: &Run) -> OnLeave {
    let (shared, tenant, run, thread) = (shared.clone(), run.tenant.clone(), run.id, run.thread);
    OnLeave(Some(Box::new(move || {
        let spawner = shared.env.spawner.clone();
        let cancel = async move {
            match shared.store.cancel(Cancel { tenant, run, force: false, undo: false }).await {
                Ok(_) => shared.dispatch.cancel(run),
                Err(error) => {
                    tracing::warn!(code = %error.code, %run, "cancel the run of a client that left")
                }
            }
            shared.hub.touch(thread);
            shared.dispatch.nudge();
        };
        spawner.spawn("cancel on leave", Box::pin(cancel));
    })))
}

/// What the query of an attaching request may ask.
#[derive(Debug, Default)]
struct Asked {
    /// Stream modes, not yet judged.
    words: Vec<String>,
    cancel_on_disconnect: bool,
    /// Where to begin without a `Last-Event-ID`; our own, see `Location`.
    after: Option<String>,
}

impl Asked {
    /// `stream_mode` may stand several times, or hold several words; other names are ignored.
    fn parse(query: &str) -> Result<Self, Error> {
        let mut asked = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = value.replace("%2C", ",").replace("%2c", ",");
            match name {
                "stream_mode" | "stream_mode%5B%5D" | "stream_mode[]" => {
                    asked.words.extend(value.split(',').filter(|word| !word.is_empty()).map(str::to_owned));
                }
                "after" => asked.after = Some(value),
                "cancel_on_disconnect" => {
                    asked.cancel_on_disconnect = match value.to_ascii_lowercase().as_str() {
                        "true" | "1" => true,
                        "false" | "0" => false,
                        _ => {
                            return Err(malformed(
                                "`cancel_on_disconnect` is not a boolean.",
                                "Send true or false.",
                            ));
                        }
                    };
                }
                _ => {}
            }
        }
        Ok(asked)
    }

    /// The modes of a run's stream, if any were named.
    fn modes(&self) -> Result<Option<Modes>, Error> {
        let words = self.words.iter().map(String::as_str);
        if self.words.is_empty() { Ok(None) } else { Modes::from_words(words).map(Some) }
    }

    /// Whether the client was here before. One that names the beginning was not, or has forgotten it.
    fn rejoins(&self, headers: &HeaderMap, cursor: Option<Cursor>) -> bool {
        match headers.get("last-event-id") {
            Some(_) => cursor.is_some_and(|cursor| cursor.seq > 0),
            None => self.after.is_some(),
        }
    }

    /// Where to begin: after what the client names in its header, else in the query.
    fn cursor(&self, headers: &HeaderMap, seq_last: u64) -> Result<Option<Cursor>, Error> {
        let resume = match headers.get("last-event-id") {
            Some(value) => Some(value.to_str().unwrap_or("?")),
            None => self.after.as_deref(),
        };
        resume.map(|text| Cursor::parse(text)?.within(seq_last)).transpose()
    }
}
