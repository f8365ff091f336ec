//! The history: one JSON line for each thing that a client did or was told, and at the end what
//! the store holds.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use evenkeel_core::Mono;
use evenkeel_core::journal::Event;
use evenkeel_core::run::Run;
use evenkeel_env::Env;
use serde::{Deserialize, Serialize};

use crate::task::Facts;
use crate::task::chat::CHAT;

/// Why a request has no answer when its client went away before one could come.
pub(crate) const CLIENT_LEFT: &str = "The client left.";

/// One line. `t` is in milliseconds since the load began; `task` numbers the tasks of the load, or the
/// turns of a chat, from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "snake_case")]
pub enum Entry {
    /// The run of the lab itself.
    Begin {
        /// The scenario.
        scenario: String,
        /// The seed.
        seed: u64,
        /// `full` or `none`.
        protect: String,
        /// Seconds within which a turn must be answered to count as a success; none for tasks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer_within_s: Option<f64>,
    },
    /// A client asks for a task (again, if `attempt` is more than 1).
    Invoke {
        /// Which task of the load.
        task: usize,
        /// The script that it plays.
        script: String,
        /// The thread.
        thread: String,
        /// The idempotency key, the same for every attempt.
        key: String,
        /// Counts from 1.
        attempt: u32,
        /// When.
        t: u64,
    },
    /// The server accepted it as this run.
    Accepted {
        /// Which task of the load.
        task: usize,
        /// The run.
        run: String,
        /// When.
        t: u64,
    },
    /// The server said that the run has ended.
    Ok {
        /// Which task of the load.
        task: usize,
        /// The run.
        run: String,
        /// The word that it used: `success`, `error`, ...
        status: String,
        /// The reply to a chat turn as the client got it; none if the answer had none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reply: Option<String>,
        /// When.
        t: u64,
    },
    /// The reply to a chat turn as it came in pieces, over as many connections as it took.
    Streamed {
        /// Which turn of the load.
        task: usize,
        /// The pieces, joined.
        text: String,
    },
    /// The server refused the task for good.
    Fail {
        /// Which task of the load.
        task: usize,
        /// HTTP status.
        code: u16,
        /// What it said.
        text: String,
        /// When.
        t: u64,
    },
    /// The client does not know what became of a request.
    Info {
        /// Which task of the load.
        task: usize,
        /// What happened.
        why: String,
        /// When.
        t: u64,
    },
    /// A fault began or ended.
    Fault {
        /// What it was done to.
        target: String,
        /// What was done.
        kind: String,
        /// Whether it began.
        on: bool,
        /// When.
        t: u64,
    },
    /// What the store holds of a task's run at the end. Absent for a run that is not there.
    Stored {
        /// Which task of the load.
        task: usize,
        /// The run's row.
        run: Box<Run>,
        /// Its events.
        events: Vec<Event>,
    },
    /// Runs that the store holds on a task's thread, by their ids.
    Thread {
        /// Which task of the load.
        task: usize,
        /// The runs.
        runs: Vec<String>,
    },
    /// A whole thread of a chat as the store holds it at the end.
    Log {
        /// The thread.
        thread: String,
        /// Its version.
        version: u64,
        /// Its runs.
        runs: Vec<Run>,
        /// Its events.
        events: Vec<Event>,
    },
    /// After everything had healed, a replica was asked for one more turn.
    Tail {
        /// The replica.
        replica: String,
        /// What went wrong, if it did.
        trouble: Option<String>,
    },
    /// What was found in the workspace at the end.
    Examined {
        /// Which task of the load.
        task: usize,
        /// What was found.
        facts: Facts,
    },
    /// What a provider counted.
    Provider {
        /// Its name.
        name: String,
        /// Calls while it was down.
        calls_while_down: u64,
        /// Answers that it was still sending after everything had ended.
        streams: u64,
        /// Requests that broke the rules of its wire.
        validation_failures: u64,
        /// What was wrong with the first of them.
        violations: Vec<String>,
    },
    /// Slots in use after everything had ended, by component.
    Idle {
        /// The component.
        component: String,
        /// Slots in use.
        in_use: u64,
    },
    /// The product's own count of writes that it refused by fencing.
    Fenced {
        /// How many.
        n: u64,
    },
    /// The process ended although nobody ended it.
    Crash {
        /// How, with the last words of its log.
        text: String,
        /// When.
        t: u64,
    },
}

impl Entry {
    /// The task of the load, or the turn of the chat, that it speaks of.
    pub(crate) fn task(&self) -> Option<usize> {
        match self {
            Self::Invoke { task, .. }
            | Self::Accepted { task, .. }
            | Self::Ok { task, .. }
            | Self::Streamed { task, .. }
            | Self::Fail { task, .. }
            | Self::Info { task, .. }
            | Self::Stored { task, .. }
            | Self::Thread { task, .. }
            | Self::Examined { task, .. } => Some(*task),
            _ => None,
        }
    }

    /// Whether it speaks of a chat, given the turns of it.
    pub(super) fn is_of_chat(&self, turns: &BTreeSet<usize>) -> bool {
        match self {
            Self::Log { .. } => true,
            entry => entry.task().is_some_and(|task| turns.contains(&task)),
        }
    }
}

/// A whole history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The lines, in order.
    pub entries: Vec<Entry>,
}

impl History {
    /// Reads JSON lines.
    ///
    /// # Errors
    /// If a line is not an entry; the error names it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let entry = |(n, line): (usize, &str)| {
            serde_json::from_str(line).with_context(|| format!("line {n} is not an entry of a history"))
        };
        Ok(Self { entries: lines.map(entry).collect::<anyhow::Result<_>>()? })
    }

    /// The turns that clients of a chat asked for.
    pub(super) fn turns(&self) -> BTreeSet<usize> {
        let asked = self.entries.iter().filter_map(|entry| match entry {
            Entry::Invoke { task, script, .. } if script == CHAT => Some(*task),
            _ => None,
        });
        asked.collect()
    }

    /// Seconds within which a turn must be answered to count as a success.
    pub(super) fn answer_within_s(&self) -> Option<f64> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Begin { answer_within_s, .. } => *answer_within_s,
            _ => None,
        })
    }

    /// The history as JSON lines.
    ///
    /// # Errors
    /// If an entry cannot be written as JSON.
    pub fn to_lines(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        for entry in &self.entries {
            text.push_str(&serde_json::to_string(entry).context("write an entry of the history")?);
            text.push('\n');
        }
        Ok(text)
    }
}

/// Collects a history while a scenario runs. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    env: Env,
    state: Arc<Mutex<Recorded>>,
}

struct Recorded {
    begun: Mono,
    entries: Vec<Entry>,
    so_far: SoFar,
    ended: BTreeSet<usize>,
}

/// What clients know so far, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SoFar {
    /// Asked for.
    pub(crate) submitted: usize,
    /// Ended well.
    pub(crate) succeeded: usize,
    /// Ended otherwise.
    pub(crate) failed: usize,
}

impl SoFar {
    /// A client that sent its request twice is told twice; it ends once.
    fn count(&mut self, entry: &Entry, ended: &mut BTreeSet<usize>) {
        match entry {
            Entry::Invoke { attempt: 1, .. } => self.submitted += 1,
            Entry::Ok { task, status, .. } if ended.insert(*task) => {
                *(if status == "success" { &mut self.succeeded } else { &mut self.failed }) += 1;
            }
            Entry::Fail { task, .. } if ended.insert(*task) => self.failed += 1,
            _ => {}
        }
    }
}

impl Recorder {
    /// An empty history whose time begins now.
    #[must_use]
    pub fn new(env: &Env) -> Self {
        let recorded = Recorded {
            begun: env.mono(),
            entries: Vec::new(),
            so_far: SoFar::default(),
            ended: BTreeSet::new(),
        };
        Self { env: env.clone(), state: Arc::new(Mutex::new(recorded)) }
    }

    fn state(&self) -> MutexGuard<'_, Recorded> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the history's time begin now.
    pub fn restart(&self) {
        self.state().begun = self.env.mono();
    }

    /// Milliseconds since the time began.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let begun = self.state().begun;
        u64::try_from(self.env.mono().since(begun).as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds the entry that `make` gives for the present instant.
    pub fn add(&self, make: impl FnOnce(u64) -> Entry) {
        let entry = make(self.now_ms());
        let Recorded { entries, so_far, ended, .. } = &mut *self.state();
        so_far.count(&entry, ended);
        entries.push(entry);
    }

    /// What clients know so far.
    pub(crate) fn so_far(&self) -> SoFar {
        self.state().so_far
    }

    /// What was collected so far.
    #[must_use]
    pub fn history(&self) -> History {
        History { entries: self.state().entries.clone() }
    }
}
