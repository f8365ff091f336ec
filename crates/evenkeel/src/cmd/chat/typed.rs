//! What a typed line means.

/// The words of the busy policies.
pub(super) const POLICIES: [&str; 7] =
    ["enqueue", "reject", "interrupt", "rollback", "steer", "merge", "latest"];

/// What can be typed.
pub(super) const HELP: &str = "\
a line             is sent as a message, also while a reply is coming
/steer TEXT        put it into the run that is going on, between two of its steps
/interrupt TEXT    stop the reply that is coming, keep what it said, answer this
/rollback TEXT     undo the reply that is coming and its question, answer this
/enqueue TEXT      answer it next;  /merge, /latest, /reject likewise
y, n, n BECAUSE    allow what a run asks for, or not; only while it asks
/cancel            stop the reply that is coming
/quit              leave; what is running goes on without you
//TEXT             a message that begins with a slash";

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// An empty one.
    Nothing,
    /// A message, with the policy if it names one.
    Message {
        /// Its text.
        text: String,
        /// What it does while a reply is coming.
        policy: Option<&'static str>,
    },
    /// Stop the reply that is coming.
    Cancel,
    /// Say what can be typed.
    Help,
    /// Leave.
    Quit,
    /// A command that is none.
    Unknown(String),
}

impl Typed {
    /// Reads a line.
    pub(super) fn parse(line: &str) -> Self {
        let line = line.trim();
        let message = |text: &str, policy| Self::Message { text: text.to_owned(), policy };
        let Some(command) = line.strip_prefix('/') else {
            return if line.is_empty() { Self::Nothing } else { message(line, None) };
        };
        if command.starts_with('/') {
            return message(command, None);
        }
        let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let policy = POLICIES.iter().copied().find(|policy| *policy == word);
        match (word, policy) {
            (_, Some(_)) if rest.trim().is_empty() => Self::Help,
            (_, Some(policy)) => message(rest.trim(), Some(policy)),
            ("cancel", None) => Self::Cancel,
            ("help", None) => Self::Help,
            ("quit" | "exit", None) => Self::Quit,
            _ => Self::Unknown(word.to_owned()),
        }
    }
}
