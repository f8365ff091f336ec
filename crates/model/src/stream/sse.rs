//! A parser of server-sent events that only parses: it never reconnects, because each new request
//! to a model is billed.
//!
//! It splits bytes first and decodes afterwards, so a character may be cut anywhere. Lines end with
//! `\n`, `\r\n` or `\r`; a byte order mark at the beginning is skipped; `data` may repeat. Comments
//! are reported, because they show that the connection lives, and must not be taken for progress.

/// The largest event that is accepted.
pub const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// What the parser found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A complete event.
    Event {
        /// The `event:` field, if there was one.
        name: Option<String>,
        /// All `data:` fields, joined by newlines.
        data: String,
    },
    /// A comment line: alive, no progress.
    Comment,
}

/// An event is larger than [`EVENT_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {EVENT_BYTES_MAX} bytes")]
pub struct TooLarge;

/// The parser; feed it bytes as they come.
#[derive(Default)]
pub struct Parser {
    line: Vec<u8>,
    name: Option<String>,
    data: Option<String>,
    event_bytes: usize,
    begun: bool,
    /// The last byte was `\r`: a `\n` that follows belongs to the same line end.
    after_cr: bool,
}

impl Parser {
    /// Parses further bytes and appends what they complete to `items`.
    ///
    /// # Errors
    /// When an event grows beyond the limit; the stream is then unusable.
    pub fn feed(&mut self, bytes: &[u8], items: &mut Vec<Item>) -> Result<(), TooLarge> {
        for &byte in bytes {
            let after_cr = std::mem::take(&mut self.after_cr);
            match byte {
                b'\n' if after_cr => {}
                b'\n' => self.end_line(items),
                b'\r' => {
                    self.end_line(items);
                    self.after_cr = true;
                }
                _ => self.line.push(byte),
            }
            if self.event_bytes + self.line.len() > EVENT_BYTES_MAX {
                return Err(TooLarge);
            }
        }
        Ok(())
    }

    fn end_line(&mut self, items: &mut Vec<Item>) {
        let mut line = std::mem::take(&mut self.line);
        if !self.begun {
            self.begun = true;
            if line.starts_with(b"\xEF\xBB\xBF") {
                line.drain(..3);
            }
        }
        if line.is_empty() {
            self.end_event(items);
            return;
        }
        self.event_bytes += line.len() + 1;
        let text = String::from_utf8_lossy(&line);
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => items.push(Item::Comment),
            "event" => self.name = Some(value.to_owned()),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // `id`, `retry` and unknown fields mean nothing here.
            _ => {}
        }
    }

    /// An event without data is no event, as the specification says.
    fn end_event(&mut self, items: &mut Vec<Item>) {
        self.event_bytes = 0;
        let name = self.name.take();
        if let Some(data) = self.data.take() {
            items.push(Item::Event { name, data });
        }
    }
}

#[cfg(test)]
mod tests;
