//! The history: one JSON line for each thing that a client did or was told, and at the end what
//! the store holds.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use evenkeel_core::Mono;
use evenkeel_core::journal::Event;
use evenkeel_core::run::Run;
use evenkeel_env::Env;
use serde::{Deserialize, Serialize};

use crate::task::Facts;

/// One line. `t` is in milliseconds since the load began; `task` numbers the tasks from 0.
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
        /// When.
        t: u64,
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
    state: Arc<Mutex<(Mono, Vec<Entry>)>>,
}

impl Recorder {
    /// An empty history whose time begins now.
    #[must_use]
    pub fn new(env: &Env) -> Self {
        Self { env: env.clone(), state: Arc::new(Mutex::new((env.mono(), Vec::new()))) }
    }

    /// Lets the history's time begin now.
    pub fn restart(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = self.env.mono();
    }

    /// Milliseconds since the time began.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let begun = self.state.lock().unwrap_or_else(PoisonError::into_inner).0;
        u64::try_from(self.env.mono().since(begun).as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds the entry that `make` gives for the present instant.
    pub fn add(&self, make: impl FnOnce(u64) -> Entry) {
        let entry = make(self.now_ms());
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.push(entry);
    }

    /// What was collected so far.
    #[must_use]
    pub fn history(&self) -> History {
        History { entries: self.state.lock().unwrap_or_else(PoisonError::into_inner).1.clone() }
    }
}
