//! The stream of one run, or of all runs of a thread, as a response body.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::feed::Provisional;
use evenkeel_core::port::store::{RunRef, StoreClient, ThreadRef};
use serde_json::{Value, json};

use super::Hub;
use super::cursor::Cursor;
use super::follow::{Follow, Seen, view_of};
use super::project::{self, Shown};
use super::sse::{self, Frame};
use super::topic::Piece;
use crate::wire::message;
use crate::wire::modes::Modes;
use crate::wire::run::{INTERRUPTED, status};
use crate::wire::state::ThreadView;

/// Silent beats after which the run's row is read, in case it was deleted.
const BEATS_BEFORE_CHECK: u32 = 3;

/// Events that are ready are sent together up to this size.
const CHUNK_BYTES: usize = 32 << 10;

/// What a stream is opened with.
pub(crate) struct StreamStart {
    /// The run's tenant.
    pub(crate) tenant: TenantId,
    /// The thread.
    pub(crate) thread: ThreadId,
    /// What of it.
    pub(crate) of: Of,
    /// What the client wants to see; of a thread's runs, what each of them was asked with.
    pub(crate) modes: Modes,
    /// After what.
    pub(crate) cursor: Cursor,
    /// Whether the client comes back: it may have pieces of the reply in the making already.
    pub(crate) rejoined: bool,
    /// Whether the run has not begun behind the cursor.
    pub(crate) queued: bool,
    /// If the run has ended, or waits for a person: the word for that, and an event at or behind it.
    pub(crate) ended: Option<(&'static str, u64)>,
    /// A pause at or before this event is over, unless `ended` says that the run waits.
    pub(crate) known_to: u64,
    /// A first `metadata` for a client that joins in the middle.
    pub(crate) joined_attempt: Option<u32>,
    /// Called if the client leaves before the end.
    pub(crate) on_leave: Option<OnLeave>,
}

/// What of a thread is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// One run, and after it whichever answers in its place.
    Run(RunId),
    /// All of its runs; such a stream has no end.
    Thread,
}

/// Something to do when a client leaves before the end.
pub(crate) struct OnLeave(pub(crate) Option<Box<dyn FnOnce() + Send + Sync>>);

impl OnLeave {
    /// The end was reached: there is nothing to do.
    pub(crate) fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for OnLeave {
    fn drop(&mut self) {
        if let Some(leave) = self.0.take() {
            leave();
        }
    }
}

/// The reply in the making, as far as this client has it.
#[derive(Default)]
struct Making {
    run: Option<RunId>,
    step: u32,
    attempt: u32,
    text: String,
    /// Whether `messages/metadata` was sent for it.
    announced: bool,
    /// The beginning or a piece was missed: nothing more is passed on until the message is committed.
    holed: bool,
}

impl Making {
    fn is_of(&self, run: RunId, step: u32, attempt: u32) -> bool {
        (self.run, self.step, self.attempt) == (Some(run), step, attempt)
    }
}

/// Asks for whether the thread is still there. A run that is removed has ended before, which its
/// stream has told; and where a run stands in a long line is not for free.
fn is_there(store: StoreClient, start: &StreamStart) -> impl Future<Output = Result<bool, Error>> + use<> {
    let thread = ThreadRef { tenant: start.tenant.clone(), thread: start.thread };
    async move { Ok(store.get_thread(thread).await?.is_some()) }
}

/// One client's stream.
struct RunStream {
    store: StoreClient,
    start: StreamStart,
    follow: Follow,
    view: Option<ThreadView>,
    making: Making,
    /// An attempt that was taken back after pieces of it were shown. A claim that makes it anew gives it
    /// the same number, and pieces of one id are added to each other: nothing more of it is passed on
    /// until the message is committed, which then comes whole.
    void: Option<(RunId, u32, u32)>,
    /// The newest step of which the reply is committed, and its run; later pieces of it are void.
    replied: Option<(RunId, u32)>,
    /// The run whose modes are known, for a thread's stream.
    asked: Option<(RunId, Modes)>,
    out: BytesMut,
    n_silent: u32,
    done: bool,
}

/// Opens the stream. Bytes are made as the connection takes them.
pub(crate) fn body(hub: &Arc<Hub>, store: StoreClient, start: StreamStart, heartbeat: Duration) -> Body {
    let after = start.cursor.complete_to();
    let queued = match start.of {
        Of::Run(run) if start.queued => Some(run),
        _ => None,
    };
    let follow = Follow::new(hub, (&start.tenant, start.thread), after, queued, heartbeat);
    let mut stream = RunStream {
        store,
        follow,
        view: None,
        making: Making::default(),
        void: None,
        replied: None,
        asked: None,
        out: BytesMut::new(),
        n_silent: 0,
        done: false,
        start,
    };
    stream.open();
    let bytes = futures_util::stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok::<_, Infallible>(bytes), stream))
    });
    Body::from_stream(bytes)
}

impl RunStream {
    fn open(&mut self) {
        if let (Some(attempt), Of::Run(run)) = (self.start.joined_attempt, self.start.of) {
            self.send(&Frame::control("metadata", json!({ "run_id": run, "attempt": attempt })));
        }
        self.end_if_past(self.start.cursor.complete_to());
    }

    fn concerns(&self, run: RunId) -> bool {
        match self.start.of {
            Of::Run(own) => own == run,
            Of::Thread => true,
        }
    }

    /// The modes in which a run is shown.
    async fn modes_of(&mut self, run: RunId) -> Result<Modes, Error> {
        let own = self.start.modes;
        if self.start.of != Of::Thread || !own.thread.runs {
            return Ok(own);
        }
        if let Some((known, modes)) = self.asked
            && known == run
        {
            return Ok(modes);
        }
        let found = self.store.get_run(RunRef { tenant: self.start.tenant.clone(), run }).await?;
        let asked = found.map(|run| Modes::parse(run.spec.request.get("stream_mode"))).transpose()?;
        let modes = Modes { thread: own.thread, ..asked.unwrap_or_default() };
        self.asked = Some((run, modes));
        Ok(modes)
    }

    /// Ends the stream of a run that has ended before everything that is left to read.
    fn end_if_past(&mut self, seq: u64) {
        match self.start.ended {
            Some((word, end)) if seq >= end && !self.done => self.end(word),
            _ => {}
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.out.is_empty() && (self.done || self.out.len() >= CHUNK_BYTES || !self.follow.has_more())
            {
                return Some(self.out.split().freeze());
            }
            if self.done {
                return None;
            }
            match self.follow.next().await {
                Seen::Event(event) => self.event(&event).await,
                Seen::Piece(piece) => self.piece(&piece).await,
                Seen::PiecesLost => self.making.holed = true,
                Seen::Beat => self.beat().await,
                Seen::Closed => self.close(),
            }
        }
    }

    async fn event(&mut self, event: &Event) {
        self.n_silent = 0;
        if !self.concerns(event.run) {
            self.fold(event);
            return self.end_if_past(event.seq);
        }
        let modes = match self.ready_to_show(event).await {
            Ok(modes) => modes,
            Err(error) => {
                // The client resumes after what it has seen; nothing is left out.
                tracing::warn!(code = %error.code, message = %error.message, "read the state for a stream");
                self.done = true;
                return;
            }
        };
        self.fold(event);
        self.show(event, modes);
        match &event.body {
            EventBody::AssistantMessage { .. } => {
                self.replied = Some((event.run, event.step));
                self.start.rejoined = false;
            }
            EventBody::RunEnded { outcome } if self.start.of != Of::Thread => {
                match project::answered_by(outcome) {
                    Some(other) => self.start.of = Of::Run(other),
                    None => self.end(status(outcome.state)),
                }
            }
            _ if project::is_pause(event)
                && self.start.of != Of::Thread
                && event.seq > self.start.known_to =>
            {
                self.end(INTERRUPTED);
            }
            _ => self.end_if_past(event.seq),
        }
    }

    async fn ready_to_show(&mut self, event: &Event) -> Result<Modes, Error> {
        let modes = self.modes_of(event.run).await?;
        if project::needs_view(event, modes) {
            self.need_view(event.seq).await?;
        }
        Ok(modes)
    }

    fn show(&mut self, event: &Event, modes: Modes) {
        let same = match &event.body {
            EventBody::AssistantMessage { attempts, .. } => {
                self.making.is_of(event.run, event.step, message::attempt_of(attempts))
            }
            _ => false,
        };
        // Pieces of one id are added to each other, whatever connection they came by, and a run that was
        // taken over makes its reply anew: who comes back gets the reply whole.
        let is_whole = !same || self.start.rejoined;
        let shown = Shown { text: if is_whole { "" } else { &self.making.text } };
        let frames = project::frames(event, modes, self.view.as_ref(), &shown);
        for (part, frame) in frames {
            if !self.start.cursor.has_seen(event.seq, part) {
                self.send(&frame);
            }
        }
    }

    async fn need_view(&mut self, seq: u64) -> Result<(), Error> {
        if self.view.is_none() {
            let before = seq.saturating_sub(1);
            self.view = Some(view_of(&self.store, &self.start.tenant, self.start.thread, before).await?);
        }
        Ok(())
    }

    fn fold(&mut self, event: &Event) {
        if let Some(view) = &mut self.view {
            view.fold(event);
        }
    }

    async fn piece(&mut self, piece: &Piece) {
        if !self.concerns(piece.run) || self.is_void(piece) {
            return;
        }
        // A piece is not stored: one that cannot be shown is left out.
        let Ok(modes) = self.modes_of(piece.run).await else { return };
        self.n_silent = 0;
        if !self.making.is_of(piece.run, piece.step, piece.attempt) {
            let (run, step, attempt) = (Some(piece.run), piece.step, piece.attempt);
            self.making = Making { run, step, attempt, ..Making::default() };
        }
        let id = message::reply_id(piece.run, piece.step, piece.attempt);
        let chunk = match &piece.piece {
            Provisional::Reset { reason } => return self.reset(piece, reason, modes),
            _ if self.making.holed => return,
            Provisional::Text { offset, .. } if *offset != self.making.text.len() => {
                self.making.holed = true;
                return;
            }
            Provisional::Text { text, .. } => {
                self.making.text.push_str(text);
                message::chunk(&id, text, false)
            }
            Provisional::ToolCall { call_idx, name, args_piece } => {
                message::call_chunk(&id, *call_idx, name.as_deref(), args_piece)
            }
        };
        self.show_piece(piece, &id, &chunk, modes);
    }

    fn is_void(&self, piece: &Piece) -> bool {
        self.replied.is_some_and(|(run, step)| run == piece.run && piece.step <= step)
            || self.void == Some((piece.run, piece.step, piece.attempt))
    }

    /// A piece in every form that the client wants. None of them is stored, so none has an id.
    fn show_piece(&mut self, piece: &Piece, id: &str, chunk: &Value, modes: Modes) {
        let run = piece.run.to_string();
        let place = project::place(&run, piece.step, "agent", Some(piece.attempt));
        if modes.messages && !self.making.announced {
            self.making.announced = true;
            self.send(&Frame::control("messages/metadata", json!({ id: { "metadata": place } })));
        }
        if modes.messages && !self.making.text.is_empty() {
            let so_far = message::chunk(id, &self.making.text, false);
            self.send(&Frame::control("messages/partial", json!([so_far])));
        }
        if modes.events {
            let data = json!({ "chunk": chunk });
            let callback = project::inside::callback_of(
                &run,
                piece.step,
                "agent",
                "on_chat_model_stream",
                "agent",
                data,
            );
            self.send(&Frame::control("events", callback));
        }
        if modes.tuple && !self.start.rejoined {
            self.send(&Frame::control("messages", json!([chunk, place])));
        }
    }

    fn reset(&mut self, piece: &Piece, reason: &str, modes: Modes) {
        let shown = !std::mem::take(&mut self.making).text.is_empty();
        if shown {
            self.void = Some((piece.run, piece.step, piece.attempt));
        }
        if modes.custom {
            let data = json!({
                "type": "attempt_reset",
                "run_id": piece.run,
                "step": piece.step,
                "attempt": piece.attempt,
                "message_id": message::reply_id(piece.run, piece.step, piece.attempt),
                "reason": reason,
            });
            self.send(&Frame::control("custom", data));
        }
    }

    /// A sign of life; after long silence also a look whether the run is still there.
    async fn beat(&mut self) {
        self.out.extend_from_slice(sse::HEARTBEAT);
        self.n_silent += 1;
        if self.n_silent < BEATS_BEFORE_CHECK {
            return;
        }
        self.n_silent = 0;
        match is_there(self.store.clone(), &self.start).await {
            // If it has ended, its last event is in the log and comes with the next read.
            Ok(true) => {}
            Ok(false) => self.done = true,
            Err(error) => tracing::warn!(code = %error.code, "look at the run of a silent stream"),
        }
    }

    fn end(&mut self, word: &'static str) {
        self.send(&Frame::control("end", json!({ "status": word })));
        self.close();
    }

    /// Ends the stream from this side: the client did not leave.
    fn close(&mut self) {
        self.done = true;
        if let Some(leave) = &mut self.start.on_leave {
            leave.disarm();
        }
    }

    fn send(&mut self, frame: &Frame) {
        frame.write(&mut self.out);
    }
}
