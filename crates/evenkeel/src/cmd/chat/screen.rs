//! What a person sees: replies as they arrive, and what happens around them.

use std::collections::BTreeMap;
use std::io::Write as _;

use evenkeel_core::Error;
use serde_json::{Value, json};

use super::session::{Heard, Sent};
use crate::output::{self, Paint, Style};

/// Prints a conversation.
pub(super) struct Screen {
    json: bool,
    style: Style,
    /// What was printed of each reply: one that is told again after a lost connection is not printed
    /// twice.
    told: BTreeMap<String, String>,
    /// The reply that the cursor stands in.
    within: Option<String>,
}

impl Screen {
    pub(super) fn new(json: bool) -> Self {
        Self { json, style: Style::stderr(), told: BTreeMap::new(), within: None }
    }

    /// A remark that is no part of a reply.
    pub(super) fn note(&mut self, text: &str) {
        self.end_line();
        eprintln!("{}", self.style.paint(Paint::Dim, output::safe(text)));
    }

    /// A message was accepted.
    pub(super) fn sent(&mut self, sent: &Sent) {
        if let Some(because) = &sent.waits_because
            && !self.json
        {
            self.note(&format!("accepted as {}: {because}", sent.run));
        }
    }

    /// A message was not accepted.
    pub(super) fn refused(&mut self, error: &Error) {
        self.end_line();
        let code = self.style.paint(Paint::Red, format!("error[{}]:", error.code));
        eprintln!("{code} {}\n  {}", output::safe(&error.message), output::safe(&error.remedy));
    }

    /// Shows an event; `false` if it says that a message got no answer.
    pub(super) fn show(&mut self, heard: &Heard) -> Result<bool, Error> {
        let Heard { name, data, id } = heard;
        if self.json {
            self.print(&format!("{}\n", json!({ "event": name, "id": id, "data": data })))?;
            return Ok(name != "error");
        }
        match name.as_str() {
            "messages" => self.message(&data[0])?,
            "custom" => self.happened(data),
            "metadata" => self.turned(data),
            "error" => {
                let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
                self.end_line();
                let code = self.style.paint(Paint::Red, format!("error[{}]:", text("error")));
                eprintln!("{code} {}", output::safe(&text("message")));
                return Ok(false);
            }
            _ => {}
        }
        Ok(true)
    }

    /// A piece of a reply, or its whole.
    fn message(&mut self, message: &Value) -> Result<(), Error> {
        let text = |key: &str| message[key].as_str().unwrap_or_default();
        if !matches!(text("type"), "AIMessageChunk" | "ai") {
            return Ok(());
        }
        let (id, piece, is_last) = (text("id"), text("content"), message["chunk_position"] == "last");
        let told = self.told.entry(id.to_owned()).or_default();
        // The last piece repeats the whole after a lost connection.
        let fresh = if is_last { piece.strip_prefix(told.as_str()).unwrap_or(piece) } else { piece };
        let fresh = fresh.to_owned();
        told.push_str(&fresh);
        if !fresh.is_empty() {
            if self.within.as_deref() != Some(id) {
                self.end_line();
            }
            self.print(&output::safe(&fresh))?;
            self.within = Some(id.to_owned());
        }
        if is_last {
            self.told.remove(id);
            self.end_line();
        }
        Ok(())
    }

    /// What happens underneath, as far as somebody who waits wants to know.
    fn happened(&mut self, data: &Value) {
        let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
        match text("type").as_str() {
            "waiting" => self.note(&format!("waiting: {}", text("reason"))),
            "effect_intended" => self.note(&format!("calls {}", text("tool"))),
            "attempt_reset" => {
                self.told.remove(&text("message_id"));
                self.note("the reply broke off and begins anew");
            }
            _ => {}
        }
    }

    fn turned(&mut self, data: &Value) {
        let reason = data["reason"]["reason"].as_str().unwrap_or_default();
        if data["answered_by"].is_string() && !reason.is_empty() {
            self.note(&format!("{reason} into the run that answers"));
        }
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        let mut out = std::io::stdout().lock();
        let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        printed.map_err(|error| Error::internal(format!("Cannot write to stdout: {error}.")))
    }

    /// Ends the line that the cursor stands in.
    fn end_line(&mut self) {
        if self.within.take().is_some() {
            println!();
        }
    }
}
