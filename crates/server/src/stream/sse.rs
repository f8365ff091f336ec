//! Server-sent events as bytes: `\r\n` between lines, name, data, id, then an empty line.

use bytes::Bytes;
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

    /// The bytes.
    pub(crate) fn bytes(&self) -> Bytes {
        let id = self.id.as_ref().map(|id| format!("id: {id}\r\n")).unwrap_or_default();
        // JSON text holds no line break, so data is one line.
        Bytes::from(format!("event: {}\r\ndata: {}\r\n{id}\r\n", self.event, self.data))
    }
}

/// The sign of life on a silent stream.
pub(crate) fn heartbeat() -> Bytes {
    Bytes::from_static(b": heartbeat\r\n\r\n")
}
