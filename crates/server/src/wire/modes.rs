//! Stream modes: which projections of the journal a client asked for.

use evenkeel_core::Error;
use serde_json::Value;

use super::refusal::malformed;

/// The dialect's modes. Those of which we show nothing are accepted and stay silent.
const KNOWN: [&str; 12] = [
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "events",
    "debug",
    "tasks",
    "checkpoints",
    "tools",
    "lifecycle",
    "metadata",
];

/// The modes of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes {
    /// Full state after each step.
    pub(crate) values: bool,
    /// What each node added.
    pub(crate) updates: bool,
    /// Whole messages under `messages/complete`.
    pub(crate) messages: bool,
    /// Token chunks under `messages`.
    pub(crate) tuple: bool,
    /// Our own kinds: waiting, verdicts, effects, attempts, notes.
    pub(crate) custom: bool,
}

impl Modes {
    /// From a request's `stream_mode`: a word, a list of words, or absent for `values`.
    pub(crate) fn parse(value: Option<&Value>) -> Result<Self, Error> {
        match value {
            None | Some(Value::Null) => Self::from_words(["values"]),
            Some(Value::String(word)) => Self::from_words([word.as_str()]),
            Some(Value::Array(words)) => {
                let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
                Self::from_words(words.ok_or_else(wrong)?)
            }
            Some(_) => Err(wrong()),
        }
    }

    /// The words of these modes.
    pub(crate) fn words(self) -> Vec<&'static str> {
        [
            (self.values, "values"),
            (self.updates, "updates"),
            (self.messages, "messages"),
            (self.tuple, "messages-tuple"),
            (self.custom, "custom"),
        ]
        .into_iter()
        .filter_map(|(on, word)| on.then_some(word))
        .collect()
    }

    /// From words as they stand in a query: `a&stream_mode=b` or `a,b`.
    pub(crate) fn from_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let mut modes = Self::default();
        for word in words {
            match word {
                "values" => modes.values = true,
                "updates" => modes.updates = true,
                "messages" => modes.messages = true,
                "messages-tuple" => modes.tuple = true,
                "custom" => modes.custom = true,
                word if KNOWN.contains(&word) => {}
                word => {
                    return Err(malformed(
                        format!("stream_mode `{word}` is not known."),
                        "Use values, updates, messages, messages-tuple or custom.",
                    ));
                }
            }
        }
        Ok(modes)
    }
}

fn wrong() -> Error {
    malformed(
        "stream_mode is neither a word nor a list of words.",
        "Send \"values\" or [\"values\",\"custom\"].",
    )
}
