//! Server-sent events as bytes: `\r\n` between lines, name, data, id, then an empty line.

use std::fmt::Write as _;

use bytes::BytesMut;
use serde_json::Value;

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    /// Its name.
    pub(crate) event: &'static str,
    /// Its data.
    pub(crate) data: Value,
    /// Its id; only what is stored has one.
    pub(crate) id: Option<String>,
}

impl Frame {
    /// A frame of something that is not stored.
    pub(crate) fn control(event: &'static str, data: Value) -> Self {
        Self { event, data, id: None }
    }

    /// Appends the bytes.
    pub(crate) fn write(&self, out: &mut BytesMut) {
        let Self { event, data, id } = self;
        // JSON text holds no line break, so data is one line. Writing to memory does not fail.
        let _ = write!(out, "event: {event}\r\ndata: {data}\r\n");
        if let Some(id) = id {
            let _ = write!(out, "id: {id}\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The sign of life on a silent stream.
pub(crate) const HEARTBEAT: &[u8] = b": heartbeat\r\n\r\n";
