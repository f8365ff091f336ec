//! What can be wrong with the store itself, beyond its speed and its process. Only a simulated store
//! has these faults: a real one would have to be broken from the inside.

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// Nothing is carried out; what was asked for happens when the fault ends.
    Stall,
    /// Writes are carried out, and the connection breaks before their answer is there.
    LoseAnswers {
        /// Share of writes.
        p: f64,
    },
    /// Operations are refused before they are carried out.
    Errors {
        /// Share of operations.
        p: f64,
    },
    /// The server has only so many connections left: one more is refused.
    Crowd {
        /// Connections.
        connections: usize,
    },
    /// Writes are refused; reads go on.
    ReadOnly,
}

impl Trouble {
    /// Its name in scenario files and reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::LoseAnswers { .. } => "lose_answers",
            Self::Errors { .. } => "errors",
            Self::Crowd { .. } => "crowd",
            Self::ReadOnly => "read_only",
        }
    }

    /// What a live run can do in its place, in words.
    pub(super) fn live_instead(&self) -> &'static str {
        match self {
            Self::Stall => "aim 'hold' at link:replicas-store",
            Self::LoseAnswers { .. } => "aim 'hold_answers' at link:replicas-store",
            Self::Errors { .. } => "aim 'cut' at link:replicas-store",
            Self::Crowd { .. } => "set EVENKEEL_SERVER__STORE_CONNECTIONS=1",
            Self::ReadOnly => "leave the fault out",
        }
    }

    /// Values that make no sense, in words.
    pub(super) fn problem(&self) -> Option<String> {
        match *self {
            Self::LoseAnswers { p } | Self::Errors { p } if !(p > 0.0 && p <= 1.0) => {
                Some(format!("p is {p}, but it is a share of operations: more than 0, at most 1."))
            }
            Self::Crowd { connections: 0 } => {
                Some("connections is 0: that is the kind 'restart', or 'refuse' on the link.".to_owned())
            }
            _ => None,
        }
    }
}
