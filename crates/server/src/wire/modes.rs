//! Stream modes: which projections of the journal a client asked for.

use evenkeel_core::Error;
use serde_json::Value;

use super::refusal::malformed;

/// Words that the clients know and of which the dialect itself shows nothing here: accepted, silent.
const SILENT: [&str; 3] = ["tools", "lifecycle", "metadata"];

/// The modes of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes {
    /// Full state after each step.
    pub(crate) values: bool,
    /// What each node added.
    pub(crate) updates: bool,
    /// Messages as far as they have come under `messages/partial`, whole under `messages/complete`.
    pub(crate) messages: bool,
    /// Token chunks under `messages`.
    pub(crate) tuple: bool,
    /// Our own kinds: waiting, verdicts, effects, attempts, notes.
    pub(crate) custom: bool,
    /// Begin and end of each model call and each tool call.
    pub(crate) tasks: bool,
    /// Each checkpoint in the shape of a state.
    pub(crate) checkpoints: bool,
    /// Tasks and checkpoints, each with its step and instant.
    pub(crate) debug: bool,
    /// What happens in the form of callbacks: `on_chat_model_stream`, `on_tool_end` and so on.
    pub(crate) events: bool,
    /// What a thread's stream says between runs.
    pub(crate) thread: ThreadModes,
}

/// What a thread's stream shows beside the modes of its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadModes {
    /// Everything that the runs' own streams show.
    pub(crate) runs: bool,
    /// That runs begin and end.
    pub(crate) lifecycle: bool,
    /// The state after a client changed it.
    pub(crate) state_update: bool,
}

impl ThreadModes {
    /// From words of a query; `run_modes` without any.
    pub(crate) fn from_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let mut modes = Self::default();
        for word in words {
            match word {
                "run_modes" => modes.runs = true,
                "lifecycle" => modes.lifecycle = true,
                "state_update" => modes.state_update = true,
                word => {
                    return Err(malformed(
                        format!("stream_mode `{word}` is not a mode of a thread's stream."),
                        "Use run_modes, lifecycle or state_update.",
                    ));
                }
            }
        }
        let none = modes == Self::default();
        modes.runs |= none;
        Ok(modes)
    }
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
            (self.tasks, "tasks"),
            (self.checkpoints, "checkpoints"),
            (self.debug, "debug"),
            (self.events, "events"),
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
                "tasks" => modes.tasks = true,
                "checkpoints" => modes.checkpoints = true,
                "debug" => modes.debug = true,
                "events" => modes.events = true,
                word if SILENT.contains(&word) => {}
                word => {
                    return Err(malformed(
                        format!("stream_mode `{word}` is not known."),
                        "Use values, updates, messages, messages-tuple, custom, tasks, checkpoints, debug or events.",
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
