//! A chat as a history tells it: the threads, and on each the turns that clients asked for.
//!
//! Client and store are brought together by what both name: the thread, and the idempotency key of
//! a turn. Everything else is compared, not assumed.

use std::collections::BTreeMap;

use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::run::Run;

use super::{Entry, History, Violation};
use crate::task::chat;

/// One turn as its client knows it.
#[derive(Debug, Default)]
pub(super) struct TurnView<'a> {
    pub(super) idx: usize,
    pub(super) thread: &'a str,
    pub(super) key: &'a str,
    /// When it was first asked for.
    pub(super) invoked_ms: u64,
    /// When the server first said that it is accepted, or gave its end.
    pub(super) accepted_ms: Option<u64>,
    /// Runs that the server named for it.
    pub(super) runs: Vec<&'a str>,
    pub(super) told: Vec<Told<'a>>,
    pub(super) streamed: Vec<&'a str>,
    /// Refused for good, with this status.
    pub(super) refused: Option<u16>,
}

/// An end that a client was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub(super) run: &'a str,
    pub(super) status: &'a str,
    pub(super) reply: Option<&'a str>,
    pub(super) t: u64,
}

impl<'a> TurnView<'a> {
    fn take(&mut self, entry: &'a Entry) {
        match entry {
            Entry::Invoke { thread, key, attempt, t, .. } => {
                (self.thread, self.key) = (thread, key);
                if *attempt == 1 {
                    self.invoked_ms = *t;
                }
            }
            Entry::Accepted { run, t, .. } => {
                self.runs.push(run);
                self.accepted_ms.get_or_insert(*t);
            }
            Entry::Ok { run, status, reply, t, .. } => {
                self.runs.push(run);
                self.accepted_ms.get_or_insert(*t);
                self.told.push(Told { run, status, reply: reply.as_deref(), t: *t });
            }
            Entry::Streamed { text, .. } => self.streamed.push(text),
            Entry::Fail { code, .. } => self.refused = Some(*code),
            _ => {}
        }
    }

    /// The client was promised that this turn is or will be in its thread.
    pub(super) fn is_acknowledged(&self) -> bool {
        !self.runs.is_empty()
    }

    /// When the client was first told that it succeeded.
    pub(super) fn succeeded_ms(&self) -> Option<u64> {
        self.told.iter().filter(|told| told.status == "success").map(|told| told.t).min()
    }

    pub(super) fn violation(&self, property: &'static str, text: impl Into<String>) -> Violation {
        let turn = format!("turn {}", self.idx);
        Violation { property, thread: self.thread.to_owned(), turn, text: text.into() }
    }
}

/// A thread with its turns, as its clients and as the store know it.
#[derive(Debug, Default)]
pub(super) struct ThreadView<'a> {
    pub(super) id: &'a str,
    pub(super) version: u64,
    pub(super) runs: &'a [Run],
    pub(super) events: &'a [Event],
    pub(super) turns: Vec<TurnView<'a>>,
    runs_by_key: BTreeMap<&'a str, Vec<&'a Run>>,
    /// How often the thread's state has the message of each turn; what was taken back is not in it.
    messages: BTreeMap<usize, usize>,
    replies: BTreeMap<usize, Vec<String>>,
}

impl<'a> ThreadView<'a> {
    /// All threads of a history's chat, each turn on the thread that its client named.
    pub(super) fn all(history: &'a History) -> Vec<Self> {
        let mut turns: BTreeMap<usize, TurnView<'a>> = BTreeMap::new();
        let mut threads: BTreeMap<&str, Self> = BTreeMap::new();
        let of_chat = history.turns();
        for entry in history.entries.iter().filter(|entry| entry.is_of_chat(&of_chat)) {
            if let Some(idx) = entry.task() {
                turns.entry(idx).or_insert_with(|| TurnView { idx, ..TurnView::default() }).take(entry);
            }
            if let Entry::Log { thread, version, runs, events } = entry {
                threads.insert(thread, Self::stored(thread, *version, runs, events));
            }
        }
        for turn in turns.into_values() {
            let id = turn.thread;
            threads.entry(id).or_insert_with(|| Self { id, ..Self::default() }).turns.push(turn);
        }
        threads.into_values().collect()
    }

    fn stored(id: &'a str, version: u64, runs: &'a [Run], events: &'a [Event]) -> Self {
        let mut thread = Self { id, version, runs, events, ..Self::default() };
        for run in runs {
            if let Some(key) = &run.key {
                thread.runs_by_key.entry(&key.0).or_default().push(run);
            }
        }
        for event in counting(events) {
            match &event.body {
                EventBody::UserMessage { message } => {
                    if let Some(turn) = chat::turn_of(&message.joined_text()) {
                        *thread.messages.entry(turn).or_default() += 1;
                    }
                }
                EventBody::AssistantMessage { message, .. } => {
                    let text = message.joined_text();
                    if let Some(turn) = chat::answered_by(&text) {
                        thread.replies.entry(turn).or_default().push(text);
                    }
                }
                _ => {}
            }
        }
        thread
    }

    /// The stored runs that bear this turn's key.
    pub(super) fn runs_of(&self, turn: &TurnView<'_>) -> &[&'a Run] {
        self.runs_by_key.get(turn.key).map_or(&[], Vec::as_slice)
    }

    /// How often this turn's message is in the thread's state.
    pub(super) fn messages_of(&self, turn: usize) -> usize {
        self.messages.get(&turn).copied().unwrap_or_default()
    }

    /// Replies in the thread's state that answer this turn's message.
    pub(super) fn replies_to(&self, turn: usize) -> &[String] {
        self.replies.get(&turn).map_or(&[], Vec::as_slice)
    }

    pub(super) fn violation(&self, property: &'static str, text: impl Into<String>) -> Violation {
        Violation { property, thread: self.id.to_owned(), turn: String::new(), text: text.into() }
    }
}

/// The events of a log that count for the thread's state: each follows the one before it, and a
/// `Rewound` the one that it goes back to. Numbers with a gap, which are another finding, do not
/// disturb it.
pub(super) fn counting(events: &[Event]) -> Vec<&Event> {
    let mut way = Vec::with_capacity(events.len());
    let mut n_before = events.len();
    while let Some(event) = n_before.checked_sub(1).and_then(|idx| events.get(idx)) {
        way.push(event);
        n_before = match event.body {
            EventBody::Rewound { to, .. } => {
                events.partition_point(|other| other.seq <= to).min(n_before - 1)
            }
            _ => n_before - 1,
        };
    }
    way.reverse();
    way
}
