//! What became of the tasks, in numbers.

use std::collections::BTreeSet;

use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::run::RunState;
use serde::Serialize;

use super::property::TaskView;
use super::turn::{ThreadView, TurnView};
use super::{CLIENT_LEFT, Entry, History, Violation};
use crate::task::chat::CHAT;

/// Tasks and events, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Tasks that clients asked for.
    pub submitted: u64,
    /// Tasks that were accepted.
    pub accepted: u64,
    /// Tasks that completed, with passing tests and no effect lost or doubled.
    pub completed: u64,
    /// Tasks that ended otherwise, or were refused.
    pub failed: u64,
    /// Tasks whose time was up.
    pub expired: u64,
    /// Accepted tasks without an end, or with an end that lost an effect.
    pub lost: u64,
    /// Tasks that happened twice, or with an effect that did.
    pub doubled: u64,
    /// Claims of runs that had been begun and were not parked: after a crash or a drain.
    pub resumed: u64,
    /// Writes refused by fencing.
    pub fenced: u64,
    /// Times that runs were parked.
    pub parked: u64,
    /// Model attempts that gave no answer.
    pub retried_calls: u64,
    /// Calls to providers while they were down.
    pub calls_while_down: u64,
    /// Requests of clients that got no good answer and were sent again.
    pub broken_requests: u64,
}

/// How one task ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskEnd {
    /// Which.
    pub task: usize,
    /// Its script.
    pub script: String,
    /// When the client asked, in milliseconds since the load began.
    pub asked_ms: u64,
    /// When the client was told of its end.
    pub told_ms: Option<u64>,
    /// Whether it succeeded.
    pub ok: bool,
    /// In words, if it did not.
    pub why: String,
}

/// All ends and their sum.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The sum.
    pub counts: Counts,
    /// Each task.
    pub ends: Vec<TaskEnd>,
}

impl Tally {
    /// Counts a history, with the violations that were found in it.
    #[must_use]
    pub fn of(history: &History, violations: &[Violation]) -> Self {
        let with = |properties: &[&str]| -> BTreeSet<String> {
            let found = violations.iter().filter(|violation| properties.contains(&violation.property));
            found.map(|violation| violation.turn.clone()).collect()
        };
        let broken = with(&["P1", "P2", "P3", "P4", "P5", "P6", "P9", "P10", "P11", "H"]);
        let mut tally = Self::default();
        for task in TaskView::all(history) {
            tally.add(&task, broken.contains(&format!("task {}", task.idx)));
        }
        let within_ms = history.answer_within_s().map(|s| (s * 1_000.0) as u64);
        let doubled = with(&["P2"]);
        for thread in ThreadView::all(history) {
            for turn in &thread.turns {
                let name = format!("turn {}", turn.idx);
                tally.add_turn(&thread, turn, broken.contains(&name), within_ms);
                tally.counts.doubled += u64::from(doubled.contains(&name));
            }
            for run in thread.runs {
                tally.add_events(thread.events.iter().filter(|event| event.run == run.id));
            }
        }
        tally.add_whole(history);
        tally
    }

    fn add(&mut self, task: &TaskView<'_>, broken: bool) {
        let counts = &mut self.counts;
        let verdict = task.verdict();
        let state = task.run.map(|run| run.state);
        let tests_pass = verdict.as_ref().is_some_and(|verdict| verdict.tests_pass);
        let n_doubled = verdict.as_ref().map_or(0, |verdict| verdict.doubled.len());
        let completed = state == Some(RunState::Completed);
        let ok = completed && tests_pass && !broken;
        counts.submitted += 1;
        counts.accepted += u64::from(!task.accepted.is_empty());
        counts.completed += u64::from(ok);
        counts.expired += u64::from(state == Some(RunState::Expired));
        counts.failed += u64::from(!ok && state != Some(RunState::Expired));
        let without_end = !task.accepted.is_empty() && !state.is_some_and(RunState::is_terminal);
        counts.lost += u64::from(without_end || (completed && !task.lost_effects().is_empty()));
        counts.doubled += u64::from(n_doubled > 0 || task.runs_on_thread.len() > 1);
        self.ends.push(TaskEnd {
            task: task.idx,
            script: task.script.to_owned(),
            asked_ms: task.invoked_ms.unwrap_or_default(),
            told_ms: task.ended_ms,
            ok,
            why: if ok { String::new() } else { why(task, broken) },
        });
        self.add_events(task.events.iter());
    }

    /// A turn succeeds if its client was told so in time. It is lost if it was acknowledged and has no
    /// end, or an end that its thread does not show.
    fn add_turn(
        &mut self,
        thread: &ThreadView<'_>,
        turn: &TurnView<'_>,
        broken: bool,
        within_ms: Option<u64>,
    ) {
        let counts = &mut self.counts;
        let state = thread.runs_of(turn).first().map(|run| run.state);
        let told_ms = turn.succeeded_ms();
        let in_time = told_ms.is_some_and(|told| {
            within_ms.is_none_or(|within| told.saturating_sub(turn.invoked_ms) <= within)
        });
        let ok = in_time && state == Some(RunState::Completed) && !broken;
        let ended = state.is_some_and(RunState::is_terminal);
        let promised = state == Some(RunState::Completed) || told_ms.is_some();
        let is_there = thread.messages_of(turn.idx) > 0 && !thread.replies_to(turn.idx).is_empty();
        counts.submitted += 1;
        counts.accepted += u64::from(turn.is_acknowledged());
        counts.completed += u64::from(ok);
        counts.expired += u64::from(state == Some(RunState::Expired));
        counts.failed += u64::from(!ok && state != Some(RunState::Expired));
        counts.lost += u64::from(turn.is_acknowledged() && (!ended || (promised && !is_there)));
        self.ends.push(TaskEnd {
            task: turn.idx,
            script: CHAT.to_owned(),
            asked_ms: turn.invoked_ms,
            told_ms: turn.told.iter().map(|told| told.t).min(),
            ok,
            why: if ok { String::new() } else { why_not(thread, turn, broken) },
        });
    }

    fn add_events<'a>(&mut self, events: impl Iterator<Item = &'a Event>) {
        let counts = &mut self.counts;
        // The first claim begins the run, and a claim after a park wakes it; any other resumes it.
        let mut at_rest = true;
        for event in events {
            match &event.body {
                EventBody::RunClaimed { .. } => {
                    counts.resumed += u64::from(!at_rest);
                    at_rest = false;
                }
                EventBody::Parked { .. } => {
                    counts.parked += 1;
                    at_rest = true;
                }
                EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } => {
                    counts.retried_calls +=
                        attempts.iter().filter(|attempt| attempt.outcome != "ok").count() as u64;
                }
                _ => {}
            }
        }
    }

    fn add_whole(&mut self, history: &History) {
        for entry in &history.entries {
            match entry {
                Entry::Provider { calls_while_down, .. } => self.counts.calls_while_down += calls_while_down,
                Entry::Fenced { n } => self.counts.fenced += n,
                Entry::Info { why, .. } => self.counts.broken_requests += u64::from(why != CLIENT_LEFT),
                _ => {}
            }
        }
    }
}

fn why_not(thread: &ThreadView<'_>, turn: &TurnView<'_>, broken: bool) -> String {
    if let Some(code) = turn.refused {
        return format!("refused with {code}");
    }
    let Some(run) = thread.runs_of(turn).first() else {
        return "not accepted, or not in the store".to_owned();
    };
    if let Some(error) = run.outcome.as_ref().and_then(|outcome| outcome.error.as_ref()) {
        return format!("{} [{}]", error.message, error.code);
    }
    match turn.succeeded_ms() {
        _ if run.state != RunState::Completed => format!("{} at the end", run.state.as_str()),
        _ if broken => "it violates a property".to_owned(),
        Some(told) => {
            format!("answered after {:.1} s", told.saturating_sub(turn.invoked_ms) as f64 / 1_000.0)
        }
        None => "its client never got the answer".to_owned(),
    }
}

fn why(task: &TaskView<'_>, broken: bool) -> String {
    if let Some(code) = task.refused {
        return format!("refused with {code}");
    }
    let Some(run) = task.run else { return "not accepted, or not in the store".to_owned() };
    if let Some(error) = run.outcome.as_ref().and_then(|outcome| outcome.error.as_ref()) {
        return format!("{} [{}]", error.message, error.code);
    }
    if run.state != RunState::Completed {
        return format!("{} at the end", run.state.as_str());
    }
    match task.facts {
        _ if broken => "it violates a property".to_owned(),
        None => "its end was not examined".to_owned(),
        Some(facts) => format!("its tests fail: {}", facts.text.lines().last().unwrap_or_default()),
    }
}
