//! Server-sent events: bytes in, events out.
//!
//! The parser is the codec only: it opens nothing, never reconnects (a client that repeats a model
//! call by itself is billed twice) and gives comments too, since a keep-alive tells that the other
//! side lives and nothing more. Lines end with `\n`, `\r\n` or `\r`, wherever a chunk is cut.

/// What a stream holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event with data.
    Event(Event),
    /// A comment line: a keep-alive.
    Comment,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its `event` field; empty for an unnamed one.
    pub name: String,
    /// Its `data` lines, joined by newlines.
    pub data: String,
    /// Its own `id` field; `None` if it has none.
    pub id: Option<String>,
}

/// A line or an event grew beyond the limit: the stream is not what it claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server-sent event is longer than {limit} bytes")]
pub struct TooLong {
    /// The limit.
    pub limit: usize,
}

/// Turns chunks of a body into items.
#[derive(Debug)]
pub struct Parser {
    limit: usize,
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    /// The last byte was `\r`: a `\n` that follows belongs to it.
    after_cr: bool,
    begun: bool,
}

impl Parser {
    /// A parser whose lines and events hold at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            event: Event::default(),
            has_data: false,
            after_cr: false,
            begun: false,
        }
    }

    /// Takes the next chunk and gives the items that it completes.
    ///
    /// # Errors
    /// [`TooLong`]; the parser must not be used afterwards.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Vec<Item>, TooLong> {
        let mut items = Vec::new();
        for &byte in chunk {
            let second_of_crlf = std::mem::replace(&mut self.after_cr, byte == b'\r') && byte == b'\n';
            if second_of_crlf {
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                let line = std::mem::take(&mut self.line);
                items.extend(self.line(&line)?);
            } else if self.line.len() < self.limit {
                self.line.push(byte);
            } else {
                return Err(TooLong { limit: self.limit });
            }
        }
        Ok(items)
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Item>, TooLong> {
        let text = String::from_utf8_lossy(line);
        let first = !std::mem::replace(&mut self.begun, true);
        let text = if first { text.trim_start_matches('\u{feff}') } else { &text };
        if text.is_empty() {
            return Ok(self.dispatch());
        }
        let (field, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => return Ok(Some(Item::Comment)),
            "event" => value.clone_into(&mut self.event.name),
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                if self.event.data.len() + value.len() > self.limit {
                    return Err(TooLong { limit: self.limit });
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
        Ok(None)
    }

    /// A blank line ends an event; one without data is dropped, as the standard says.
    fn dispatch(&mut self) -> Option<Item> {
        let event = std::mem::take(&mut self.event);
        std::mem::take(&mut self.has_data).then_some(Item::Event(event))
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
