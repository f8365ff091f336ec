//! The stream of one run as a response body.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::feed::Provisional;
use evenkeel_core::port::store::{RunRef, StoreClient};
use evenkeel_core::run::RunState;
use serde_json::json;

use super::Hub;
use super::cursor::Cursor;
use super::follow::{Follow, Seen, view_of};
use super::project::{self, Shown};
use super::sse::{self, Frame};
use super::topic::Piece;
use crate::wire::message;
use crate::wire::modes::Modes;
use crate::wire::run::status;
use crate::wire::state::ThreadView;

/// Silent beats after which the run's row is read, in case it was deleted.
const BEATS_BEFORE_CHECK: u32 = 3;

/// Events that are ready are sent together up to this size.
const CHUNK_BYTES: usize = 32 << 10;

/// What a stream is opened with.
pub(crate) struct StreamStart {
    /// The run's tenant.
    pub(crate) tenant: TenantId,
    /// The run's thread.
    pub(crate) thread: ThreadId,
    /// The run.
    pub(crate) run: RunId,
    /// What the client wants to see.
    pub(crate) modes: Modes,
    /// After what.
    pub(crate) cursor: Cursor,
    /// If the run has ended: how, and an event at or behind its end.
    pub(crate) ended: Option<(RunState, u64)>,
    /// A first `metadata` for a client that joins in the middle.
    pub(crate) joined_attempt: Option<u32>,
    /// Called if the client leaves before the end.
    pub(crate) on_leave: Option<OnLeave>,
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
    step: u32,
    attempt: u32,
    text: String,
    /// A piece was lost: nothing more is passed on until the message is committed.
    holed: bool,
}

/// One client's stream.
struct RunStream {
    store: StoreClient,
    start: StreamStart,
    follow: Follow,
    view: Option<ThreadView>,
    making: Making,
    /// The newest step of which the reply is committed; later pieces of it are void.
    replied_step: u32,
    out: BytesMut,
    n_silent: u32,
    done: bool,
}

/// Opens the stream. Bytes are made as the connection takes them.
pub(crate) fn body(hub: &Arc<Hub>, store: StoreClient, start: StreamStart, heartbeat: Duration) -> Body {
    let after = start.cursor.complete_to();
    let follow = Follow::new(hub, &start.tenant, start.thread, after, heartbeat);
    let mut stream = RunStream {
        store,
        follow,
        view: None,
        making: Making::default(),
        replied_step: 0,
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
        if let Some(attempt) = self.start.joined_attempt {
            let metadata = json!({ "run_id": self.start.run, "attempt": attempt });
            self.send(&Frame::control("metadata", metadata));
        }
        self.end_if_past(self.start.cursor.complete_to());
    }

    /// Ends the stream of a run that has ended before everything that is left to read.
    fn end_if_past(&mut self, seq: u64) {
        match self.start.ended {
            Some((state, end)) if seq >= end && !self.done => self.end(state),
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
                Seen::Piece(piece) => self.piece(&piece),
                Seen::PiecesLost => self.making.holed = true,
                Seen::Beat => self.beat().await,
                Seen::Closed => self.close(),
            }
        }
    }

    async fn event(&mut self, event: &Event) {
        self.n_silent = 0;
        if event.run != self.start.run {
            self.fold(event);
            return self.end_if_past(event.seq);
        }
        if project::needs_view(event, self.start.modes)
            && let Err(error) = self.need_view(event.seq).await
        {
            // The client resumes after what it has seen; nothing is left out.
            tracing::warn!(code = %error.code, message = %error.message, "read the state for a stream");
            self.done = true;
            return;
        }
        self.fold(event);
        self.show(event);
        match &event.body {
            EventBody::AssistantMessage { .. } => self.replied_step = event.step,
            EventBody::RunEnded { outcome } => self.end(outcome.state),
            _ => self.end_if_past(event.seq),
        }
    }

    fn show(&mut self, event: &Event) {
        let same = match &event.body {
            EventBody::AssistantMessage { attempts, .. } => {
                event.step == self.making.step && message::attempt_of(attempts) == self.making.attempt
            }
            _ => false,
        };
        let shown = Shown { text: if same { &self.making.text } else { "" } };
        let frames = project::frames(event, self.start.modes, self.view.as_ref(), &shown);
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

    fn piece(&mut self, piece: &Piece) {
        if piece.run != self.start.run || piece.step <= self.replied_step {
            return;
        }
        self.n_silent = 0;
        if (piece.step, piece.attempt) != (self.making.step, self.making.attempt) {
            self.making = Making { step: piece.step, attempt: piece.attempt, ..Making::default() };
        }
        let id = message::reply_id(piece.run, piece.step, piece.attempt);
        let chunk = match &piece.piece {
            Provisional::Reset { reason } => return self.reset(piece, reason),
            _ if self.making.holed => return,
            Provisional::Text(text) => {
                self.making.text.push_str(text);
                message::chunk(&id, text, false)
            }
            Provisional::ToolCall { call_idx, name, args_piece } => {
                message::call_chunk(&id, *call_idx, name.as_deref(), args_piece)
            }
        };
        if self.start.modes.tuple {
            let place = project::place(&piece.run.to_string(), piece.step, "agent", Some(piece.attempt));
            self.send(&Frame::control("messages", json!([chunk, place])));
        }
    }

    fn reset(&mut self, piece: &Piece, reason: &str) {
        self.making = Making::default();
        if self.start.modes.custom {
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
        let (tenant, run) = (self.start.tenant.clone(), self.start.run);
        match self.store.get_run(RunRef { tenant, run }).await {
            // If it has ended, its last event is in the log and comes with the next read.
            Ok(Some(_)) => {}
            Ok(None) => self.done = true,
            Err(error) => tracing::warn!(code = %error.code, "look at the run of a silent stream"),
        }
    }

    fn end(&mut self, state: RunState) {
        self.send(&Frame::control("end", json!({ "status": status(state) })));
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
