//! What a client may resume after.
//!
//! A cursor names a place in the thread's own log, so it means the same on every replica and after
//! every restart: `12` is everything up to event 12; `12-1` stops inside event 12, after the second
//! of the server-sent events that it is shown as. It is only ever looked up within a run that the
//! caller may see, so a cursor of another stream shows nothing of that stream.

use std::fmt;

use evenkeel_core::{Code, Error};

/// A place in a thread's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The event.
    pub(crate) seq: u64,
    /// The last of its parts that was seen; all of them if absent.
    pub(crate) part: Option<usize>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Some(part) => write!(f, "{}-{part}", self.seq),
            None => write!(f, "{}", self.seq),
        }
    }
}

impl Cursor {
    /// From a `Last-Event-ID`. `-1`, `0` and `-` are the beginning.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        if matches!(text, "-1" | "-" | "0") {
            return Ok(Self::default());
        }
        let (seq, part) = match text.split_once('-') {
            Some((seq, part)) => (number(seq, text)?, Some(number(part, text)?)),
            None => (number(text, text)?, None),
        };
        let part = part.map(|part| usize::try_from(part).unwrap_or(usize::MAX));
        Ok(Self { seq, part })
    }

    /// The cursor at the end of a log.
    pub(crate) fn after(seq: u64) -> Self {
        Self { seq, part: None }
    }

    /// The last event of which every part was seen.
    pub(crate) fn complete_to(self) -> u64 {
        if self.part.is_some() { self.seq.saturating_sub(1) } else { self.seq }
    }

    /// Whether this part of an event was seen.
    pub(crate) fn has_seen(self, seq: u64, part: usize) -> bool {
        seq < self.seq || (seq == self.seq && self.part.is_none_or(|seen| part <= seen))
    }

    /// Refuses a place behind the end of the log.
    pub(crate) fn within(self, seq_last: u64) -> Result<Self, Error> {
        if self.seq <= seq_last { Ok(self) } else { Err(invalid(&self.seq.to_string())) }
    }
}

fn number(text: &str, whole: &str) -> Result<u64, Error> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| invalid(whole))
}

fn invalid(text: &str) -> Error {
    let shown: String = text.chars().take(64).collect();
    Error::client(
        Code::CursorInvalid,
        format!("Last-Event-ID `{shown}` is not an event of this stream."),
        "Send the id of the last event that this stream gave, or -1 for the beginning.",
    )
}
