//! What a response carries, and whether the rest of it can be had elsewhere.
//!
//! The stream of a run and the wait for its end are projections of the journal: when their replica
//! goes away, another one can go on where they stopped. For that the gateway gives only whole events
//! to the client (half an event cannot be continued), remembers the id of the last one, and knows
//! whether the end was among them. Everything else is passed on as it comes.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};

/// An event longer than this is passed on in pieces; while it is under way nothing can be resumed.
const EVENT_MAX: usize = 256 << 10;
/// Bytes of a line that are looked at: more than any id or event name has.
const LINE_MAX: usize = 256;

/// What a response carries.
pub(super) enum Carried {
    /// Server-sent events of a run.
    Events(Events),
    /// White space as a sign of life, then one JSON value.
    Value {
        /// Whether the value has begun.
        begun: bool,
    },
    /// Something else, whole in itself.
    Other,
}

impl Carried {
    /// What a response with these headers carries.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (kind, location) = (text(header::CONTENT_TYPE), text(header::LOCATION));
        match status {
            StatusCode::OK if kind.starts_with("text/event-stream") && !location.is_empty() => {
                Self::Events(Events::default())
            }
            StatusCode::OK if location.ends_with("/join") => Self::Value { begun: false },
            _ => Self::Other,
        }
    }

    /// Takes bytes in; gives out what the client may have now.
    pub(super) fn pass(&mut self, bytes: Bytes) -> Bytes {
        match self {
            Self::Events(events) => events.pass(bytes),
            Self::Value { begun } => {
                *begun |= bytes.iter().any(|byte| !byte.is_ascii_whitespace());
                bytes
            }
            Self::Other => bytes,
        }
    }

    /// Whether an end of the body here is the end of what it carries.
    pub(super) fn is_whole(&self) -> bool {
        match self {
            Self::Events(events) => events.ended,
            Self::Value { begun } => *begun,
            Self::Other => true,
        }
    }

    /// Whether another replica can go on from here.
    pub(super) fn can_go_on(&self) -> bool {
        match self {
            Self::Events(events) => !events.in_pieces && !events.ended,
            Self::Value { begun } => !begun,
            Self::Other => false,
        }
    }

    /// Whether a response carries the same kind of thing.
    pub(super) fn is_continued_by<B>(&self, response: &http::Response<B>) -> bool {
        let other = Self::of(response.status(), response.headers());
        std::mem::discriminant(self) == std::mem::discriminant(&other)
    }

    /// The id of the last event that the client has.
    pub(super) fn last_id(&self) -> Option<&str> {
        match self {
            Self::Events(events) => events.last_id.as_deref(),
            _ => None,
        }
    }

    /// Forgets what was not given out: it comes again from elsewhere.
    pub(super) fn begin_again(&mut self) {
        if let Self::Events(events) = self {
            let last_id = events.last_id.take();
            *events = Events { last_id, ..Events::default() };
        }
    }
}

/// The events of a stream, as far as they have come.
#[derive(Default)]
pub(super) struct Events {
    /// The beginning of an event whose end has not come.
    partial: BytesMut,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// Of the current event.
    id: Option<String>,
    is_end: bool,
    /// A piece of the current event was given out.
    in_pieces: bool,
    last_id: Option<String>,
    ended: bool,
}

impl Events {
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        let whole_to = self.read(&bytes);
        if self.partial.is_empty() && whole_to == bytes.len() {
            return bytes;
        }
        self.partial.extend_from_slice(&bytes);
        // The event that has begun and not ended.
        let open = if whole_to == 0 { self.partial.len() } else { bytes.len() - whole_to };
        self.in_pieces |= open > EVENT_MAX;
        let kept = if self.in_pieces { 0 } else { open };
        self.partial.split_to(self.partial.len() - kept).freeze()
    }

    /// Reads the lines. Replies with the place behind the last event that ends here.
    fn read(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        let mut whole_to = 0;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            at += piece.len();
            let room = LINE_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
            if piece.ends_with(b"\n") && self.line_ends() {
                whole_to = at;
            }
        }
        whole_to
    }

    /// Takes in the current line. Replies whether an event ends with it.
    fn line_ends(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_ascii_end();
        if line.is_empty() {
            self.event_ends();
            return true;
        }
        if let Some(id) = line.strip_prefix(b"id:") {
            self.id = Some(String::from_utf8_lossy(id.trim_ascii()).into_owned());
        }
        if let Some(name) = line.strip_prefix(b"event:") {
            self.is_end = matches!(name.trim_ascii(), b"end" | b"error");
        }
        false
    }

    fn event_ends(&mut self) {
        if let Some(id) = self.id.take() {
            self.last_id = Some(id);
        }
        self.ended |= std::mem::take(&mut self.is_end);
        self.in_pieces = false;
    }
}
