//! Attaching to a run: its stream and its end, for new runs, known ones and ended ones alike.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::port::store::Cancel;
use evenkeel_core::run::Run;
use http::{HeaderMap, HeaderValue, header};

use super::{Answer, find_run, find_thread, run_id, thread_id};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::Path;
use crate::stream::cursor::Cursor;
use crate::stream::run_stream::{self, OnLeave, StreamStart};
use crate::stream::wait::{self, Ending, WaitStart};
use crate::wire::modes::Modes;
use crate::wire::refusal::malformed;

/// A run and where its thread's log ends, read so that an end is never missed: if the run has not
/// ended, its end lies behind `seq_last`; if it has, its end lies at or before it.
struct Seen {
    run: Run,
    seq_last: u64,
}

async fn look(shared: &Shared, tenant: &TenantId, thread: ThreadId, run: RunId) -> Result<Seen, Error> {
    let before = find_thread(shared, tenant, thread).await?;
    let run = find_run(shared, tenant, thread, run).await?;
    if !run.state.is_terminal() {
        return Ok(Seen { run, seq_last: before.seq_last });
    }
    let after = find_thread(shared, tenant, thread).await?;
    Ok(Seen { run, seq_last: after.seq_last })
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
    let seen = look(&shared, &caller.tenant, thread, run).await?;
    let modes = match asked.modes {
        Some(modes) => modes,
        None => Modes::parse(seen.run.spec.request.get("stream_mode"))?,
    };
    let leave = asked.cancel_on_disconnect.then(|| cancel_on_leave(&shared, &seen.run));
    let resume = match headers.get("last-event-id") {
        Some(value) => Some(value.to_str().unwrap_or("?")),
        None => asked.after.as_deref(),
    };
    let cursor = resume.map(|text| Cursor::parse(text)?.within(seen.seq_last)).transpose()?;
    Ok(open(&shared, &seen, cursor, modes, leave))
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
    let seen = look(&shared, &caller.tenant, thread, run).await?;
    let leave = asked.cancel_on_disconnect.then(|| cancel_on_leave(&shared, &seen.run));
    Ok(waiting(&shared, &seen, Ending::Values, leave))
}

/// The stream of a run that was just created, or of the one that its key stands for.
pub(super) async fn stream_of_new(
    shared: &Arc<Shared>,
    run: &Run,
    seq_before: u64,
    modes: Modes,
    leave: Option<OnLeave>,
) -> Result<Response, Error> {
    let seen = look(shared, &run.tenant, run.thread, run.id).await?;
    Ok(open(shared, &seen, Some(Cursor::after(seq_before)), modes, leave))
}

/// The end of a run that was just created, or of the one that its key stands for.
pub(super) async fn wait_of(
    shared: &Arc<Shared>,
    run: &Run,
    leave: Option<OnLeave>,
) -> Result<Response, Error> {
    let seen = look(shared, &run.tenant, run.thread, run.id).await?;
    Ok(waiting(shared, &seen, Ending::Values, leave))
}

/// The moment at which a cancelled run has stopped.
pub(super) async fn stopped(shared: &Arc<Shared>, run: &Run) -> Result<Response, Error> {
    let seen = look(shared, &run.tenant, run.thread, run.id).await?;
    Ok(waiting(shared, &seen, Ending::Nothing, None))
}

/// Without a cursor only what is new is shown: of an ended run, its end.
fn open(
    shared: &Arc<Shared>,
    seen: &Seen,
    cursor: Option<Cursor>,
    modes: Modes,
    on_leave: Option<OnLeave>,
) -> Response {
    let Seen { run, seq_last } = seen;
    let ended = run.state.is_terminal();
    let from = cursor.unwrap_or_else(|| Cursor::after(*seq_last));
    let start = StreamStart {
        tenant: run.tenant.clone(),
        thread: run.thread,
        run: run.id,
        modes,
        cursor: from,
        ended: ended.then_some((run.state, *seq_last)),
        joined_attempt: (cursor.is_none() && !ended && run.attempt > 0).then_some(run.attempt),
        on_leave,
    };
    let heartbeat = shared.config.server.heartbeat.0;
    let body = run_stream::body(&shared.hub, shared.store.clone(), start, heartbeat);
    // A client that is cut off before it saw any id comes back to this place with these modes.
    let modes = modes.words().join(",");
    let mut response = located(run, &format!("stream?after={from}&stream_mode={modes}"), body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn waiting(shared: &Arc<Shared>, seen: &Seen, ending: Ending, on_leave: Option<OnLeave>) -> Response {
    let Seen { run, seq_last } = seen;
    let start = WaitStart {
        tenant: run.tenant.clone(),
        thread: run.thread,
        run: run.id,
        ended: run.outcome.clone().map(|outcome| (outcome, *seq_last)),
        after: *seq_last,
        ending,
        on_leave,
    };
    let heartbeat = shared.config.server.heartbeat.0;
    let body = wait::body(&shared.hub, shared.store.clone(), start, heartbeat);
    let mut response = located(run, "join", body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response that says where to attach again.
fn located(run: &Run, place: &str, body: Body) -> Response {
    let mut response = Response::new(body);
    let path = format!("/threads/{}/runs/{}", run.thread, run.id);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let (Ok(location), Ok(content)) =
        (HeaderValue::try_from(format!("{path}/{place}")), HeaderValue::try_from(path))
    {
        headers.insert(header::LOCATION, location);
        headers.insert(header::CONTENT_LOCATION, content);
    }
    response
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
    modes: Option<Modes>,
    cancel_on_disconnect: bool,
    /// Where to begin without a `Last-Event-ID`; our own, see `Location`.
    after: Option<String>,
}

impl Asked {
    /// `stream_mode` may stand several times, or hold several words; other names are ignored.
    fn parse(query: &str) -> Result<Self, Error> {
        let mut words = Vec::new();
        let mut asked = Self::default();
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = value.replace("%2C", ",").replace("%2c", ",");
            match name {
                "stream_mode" | "stream_mode%5B%5D" | "stream_mode[]" => {
                    words.extend(value.split(',').filter(|word| !word.is_empty()).map(str::to_owned));
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
        if !words.is_empty() {
            asked.modes = Some(Modes::from_words(words.iter().map(String::as_str))?);
        }
        Ok(asked)
    }
}
