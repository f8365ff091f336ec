//! What a person sees while a run goes on: one line for each thing that happened.

use evenkeel_core::journal::EventBody;
use evenkeel_core::run::Attempt;
use evenkeel_core::{Error, Origin};
use serde_json::Value;

use crate::cmd::explain::story::{attempt_text, told};
use crate::output::{self, Paint, Style, brief};

/// Prints progress and adds up what the end reports.
pub(crate) struct Progress {
    quiet: bool,
    style: Style,
    /// The newest step.
    pub(crate) step: u64,
    /// The id of the last event that was seen; `-1` before the first.
    pub(crate) last_id: String,
    /// The model's words and calls, held until the event that names their step.
    reply: Vec<String>,
    pub(crate) error: Option<Error>,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            quiet,
            style: Style::stderr(),
            step: 0,
            last_id: "-1".to_owned(),
            reply: Vec::new(),
            error: None,
            input_tokens: 0,
            output_tokens: 0,
        }
    }

    /// The first lines.
    pub(crate) fn begin(&self, address: &str, thread: &str, run: &str) {
        self.say(&self.style.paint(Paint::Dim, format!("run {run} on thread {thread} at {address}")));
    }

    /// Prints a line.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            eprintln!("{line}");
        }
    }

    /// Takes one event of the stream.
    pub(crate) fn event(&mut self, name: &str, data: &Value) {
        for line in self.lines(name, data) {
            self.say(&line);
        }
    }

    /// The lines of an event.
    pub(crate) fn lines(&mut self, name: &str, data: &Value) -> Vec<String> {
        let mut lines = Vec::new();
        match name {
            "metadata" if data["attempt"].as_u64().unwrap_or(1) > 1 => {
                lines.push(self.style.paint(Paint::Yellow, "  resumed from the last checkpoint"));
            }
            "updates" => self.reply = reply(data),
            "custom" => {
                lines.extend(self.step_line(data));
                lines.extend(self.custom(data));
            }
            "error" => self.error = Some(cause(data)),
            _ => {}
        }
        lines
    }

    /// A heading when a step begins.
    fn step_line(&mut self, data: &Value) -> Option<String> {
        let step = data["step"].as_u64().filter(|step| *step > self.step)?;
        self.step = step;
        Some(self.style.paint(Paint::Bold, format!("step {step}")))
    }

    fn custom(&mut self, data: &Value) -> Vec<String> {
        let kind = data["type"].as_str().unwrap_or_default();
        match kind {
            "model_called" => {
                let attempts: Vec<Attempt> =
                    serde_json::from_value(data["attempts"].clone()).unwrap_or_default();
                self.count(&attempts);
                let failed = attempts.iter().filter(|attempt| attempt.outcome != "ok");
                let mut lines: Vec<String> =
                    failed.map(|attempt| self.warning(&attempt_text(attempt))).collect();
                lines.append(&mut self.reply);
                lines
            }
            "attempt_reset" => {
                vec![self.warning(&format!(
                    "reply dropped: {}",
                    brief(data["reason"].as_str().unwrap_or_default(), 120)
                ))]
            }
            _ => self.journal(kind, data),
        }
    }

    fn count(&mut self, attempts: &[Attempt]) {
        for attempt in attempts {
            self.input_tokens += attempt.usage.input_tokens;
            self.output_tokens += attempt.usage.output_tokens;
        }
    }

    fn warning(&self, text: &str) -> String {
        format!("  {}", self.style.paint(Paint::Yellow, text))
    }

    /// Events that are shown on the wire as they stand in the journal.
    fn journal(&mut self, kind: &str, data: &Value) -> Vec<String> {
        let mut body = data.clone();
        if kind == "waiting" {
            body["type"] = "parked".into();
        }
        match serde_json::from_value::<EventBody>(body) {
            Ok(EventBody::ModelAttempts { attempts }) => {
                self.count(&attempts);
                attempts.iter().map(|attempt| self.warning(&attempt_text(attempt))).collect()
            }
            // A call was shown when it was asked for, and a checkpoint is the next step's heading.
            Ok(EventBody::EffectIntended(_) | EventBody::Checkpoint { .. }) => Vec::new(),
            Ok(body) => told(&body).into_iter().map(|(kind, text)| self.painted(kind, &text)).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn painted(&self, kind: &str, text: &str) -> String {
        match kind {
            "waiting" | "denied" | "asked" | "note" | "cancel" => self.warning(text),
            _ => format!("  {}", self.style.paint(Paint::Dim, text)),
        }
    }
}

/// The text of the model's reply, and the calls that it asks for.
fn reply(data: &Value) -> Vec<String> {
    let messages = data["agent"]["messages"].as_array().cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for message in &messages {
        let text = message["content"].as_str().unwrap_or_default();
        if !text.trim().is_empty() {
            lines.push(format!("  {}", brief(text, 160)));
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let name = output::safe(call["name"].as_str().unwrap_or_default());
            lines.push(format!("  -> {name} {}", brief(&call["args"].to_string(), 120)));
        }
    }
    lines
}

/// The cause of an end as the wire names it.
fn cause(data: &Value) -> Error {
    let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
    let code = text("error").parse().unwrap_or(evenkeel_core::Code::Internal);
    Error::new(code, Origin::Ours, text("message"), text("remedy"))
}
