//! What is wrong with a connection, and what follows for a new one and for the next bytes of one.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::Mono;
use serde::{Deserialize, Serialize};

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Everything arrives later by this much, in each direction.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
    /// Connections are cut, and new ones end as soon as they open.
    Cut {},
    /// Connections are cut, and nobody listens: new ones are refused.
    Refuse {},
    /// Connections open, but nothing passes; what was sent arrives when the fault ends.
    Hold {},
    /// Requests arrive; answers do not, until the fault ends.
    HoldAnswers {},
    /// Only so many bytes a second pass, in each direction of each connection.
    Throttle {
        /// Bytes a second.
        bytes_per_s: u64,
    },
}

impl Fault {
    /// Its name in scenario files and reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Delay { .. } => "delay",
            Self::Cut {} => "cut",
            Self::Refuse {} => "refuse",
            Self::Hold {} => "hold",
            Self::HoldAnswers {} => "hold_answers",
            Self::Throttle { .. } => "throttle",
        }
    }

    /// Values that make no sense, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Throttle { bytes_per_s: 0 } => {
                Some("bytes_per_s is 0: that is the kind 'hold'.".to_owned())
            }
            _ => None,
        }
    }
}

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the one who connected.
    Requests,
    /// Back to it.
    Answers,
}

/// What becomes of a connection that somebody opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It goes on to the target.
    Passes,
    /// It ends at once.
    Ends,
}

/// What becomes of the next bytes of an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// They pass after this time.
    PassAfter(Duration),
    /// They wait until the faults change.
    Wait,
    /// The connection ends.
    End,
}

/// The faults that are active now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rules {
    next_id: u64,
    active: BTreeMap<u64, Fault>,
}

/// When one direction of a connection is free again, under a throttle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    free_at: Mono,
}

impl Rules {
    /// Adds a fault; the number takes it back.
    pub(crate) fn add(&mut self, fault: Fault) -> u64 {
        self.next_id += 1;
        self.active.insert(self.next_id, fault);
        self.next_id
    }

    /// Takes a fault back.
    pub(crate) fn remove(&mut self, id: u64) {
        self.active.remove(&id);
    }

    /// Whether somebody listens.
    pub(crate) fn listens(&self) -> bool {
        !self.active.values().any(|fault| matches!(fault, Fault::Refuse {}))
    }

    fn cuts(&self) -> bool {
        self.active.values().any(|fault| matches!(fault, Fault::Cut {} | Fault::Refuse {}))
    }

    /// What becomes of a new connection.
    pub(crate) fn opening(&self) -> Opening {
        if self.cuts() { Opening::Ends } else { Opening::Passes }
    }

    /// What becomes of `n_bytes` that arrived at `now`. Of several faults the strongest counts.
    pub(crate) fn step(&self, direction: Direction, n_bytes: usize, now: Mono, pace: &mut Pace) -> Step {
        if self.cuts() {
            return Step::End;
        }
        let holds = self.active.values().any(|fault| match fault {
            Fault::Hold {} => true,
            Fault::HoldAnswers {} => direction == Direction::Answers,
            _ => false,
        });
        if holds {
            return Step::Wait;
        }
        let mut after = Duration::ZERO;
        for fault in self.active.values() {
            match fault {
                Fault::Delay { ms } => after = after.max(Duration::from_millis(*ms)),
                Fault::Throttle { bytes_per_s } => after = after.max(pace.pass(n_bytes, *bytes_per_s, now)),
                _ => {}
            }
        }
        Step::PassAfter(after)
    }
}

impl Pace {
    /// Enters bytes that arrive at `now`, and says how long they take to pass.
    fn pass(&mut self, n_bytes: usize, bytes_per_s: u64, now: Mono) -> Duration {
        let takes = Duration::from_secs_f64(n_bytes as f64 / bytes_per_s as f64);
        self.free_at = self.free_at.max(now).after(takes);
        self.free_at.since(now)
    }
}
