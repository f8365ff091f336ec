//! What must hold on the threads of a chat: no update is lost, none happens twice, and each reply
//! was computed on the state that it claims.
//!
//! Versions give the order, so every property is one pass over a thread.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::id::RunId;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::run::{Run, RunState};

use super::property::{effects_wrong, unbalanced, wire_status};
use super::turn::{ThreadView, TurnView, counting};
use super::{History, Violation, span};
use crate::task::{Conversation, Item, SolverCall, chat};

/// Every violation on the threads of a history.
pub(super) fn all(history: &History) -> Vec<Violation> {
    let threads = ThreadView::all(history);
    let each_turn: [fn(&ThreadView<'_>, &TurnView<'_>) -> Vec<Violation>; 5] =
        [not_lost, once, same_answer, told_as_stored, stream_is_stored];
    let each_thread: [fn(&ThreadView<'_>) -> Vec<Violation>; 9] = [
        dense,
        one_at_a_time,
        versions_are_a_line,
        context_is_true,
        epochs_rise,
        order_is_kept,
        effects_once,
        conserved,
        spans_closed,
    ];
    let mut violations = Vec::new();
    for thread in &threads {
        violations.extend(
            thread.turns.iter().flat_map(|turn| each_turn.iter().flat_map(|check| check(thread, turn))),
        );
        violations.extend(each_thread.iter().flat_map(|check| check(thread)));
    }
    violations.extend(nothing_foreign(&threads));
    violations
}

/// P1: an acknowledged turn is stored and has an end; if it succeeded, its message and its reply are
/// in the thread.
fn not_lost(thread: &ThreadView<'_>, turn: &TurnView<'_>) -> Vec<Violation> {
    let Some(named) = turn.runs.first() else { return Vec::new() };
    let runs = thread.runs_of(turn);
    let Some(run) = runs.first() else {
        return vec![turn.violation("P1", format!("Run {named} was accepted and is not in the store."))];
    };
    if !run.state.is_terminal() {
        let text = format!("Run {named} was accepted and is still {} at the end.", run.state.as_str());
        return vec![turn.violation("P1", text)];
    }
    if run.state != RunState::Completed && turn.succeeded_ms().is_none() {
        return Vec::new();
    }
    let mut lost = Vec::new();
    if thread.messages_of(turn.idx) == 0 {
        lost.push("its message");
    }
    if thread.replies_to(turn.idx).is_empty() {
        lost.push("its reply");
    }
    if lost.is_empty() {
        return Vec::new();
    }
    let verb = if lost.len() > 1 { "are" } else { "is" };
    let text = format!("The turn was acknowledged, but {} {verb} not in its thread.", lost.join(" and "));
    vec![turn.violation("P1", text)]
}

/// P2: a turn is one run at most, its message and its reply are in the thread once at most, and of
/// one that was refused there is nothing.
fn once(thread: &ThreadView<'_>, turn: &TurnView<'_>) -> Vec<Violation> {
    let counts = [
        ("run", thread.runs_of(turn).len()),
        ("message", thread.messages_of(turn.idx)),
        ("reply", thread.replies_to(turn.idx).len()),
    ];
    let refused = turn.refused.filter(|_| !turn.is_acknowledged());
    let mut violations = Vec::new();
    for (what, n) in counts {
        if n > 1 {
            violations.push(turn.violation("P2", format!("Its {what} is in the thread {n} times.")));
        }
        if let (Some(code), true) = (refused, n > 0) {
            let text = format!("The client was refused with {code}, but its {what} is there.");
            violations.push(turn.violation("P2", text));
        }
    }
    violations
}

/// P2: nothing is in a thread that was not sent to it.
fn nothing_foreign(threads: &[ThreadView<'_>]) -> Vec<Violation> {
    let home: BTreeMap<usize, &str> =
        threads.iter().flat_map(|thread| thread.turns.iter().map(|turn| (turn.idx, thread.id))).collect();
    let mut violations = Vec::new();
    for thread in threads {
        for event in thread.events {
            let EventBody::UserMessage { message } = &event.body else { continue };
            let Some(turn) = chat::turn_of(&message.joined_text()) else { continue };
            let text = match home.get(&turn) {
                Some(id) if *id == thread.id => continue,
                Some(id) => format!("The message of turn {turn} belongs to thread {id}."),
                None => format!("The message of turn {turn} was never sent."),
            };
            violations.push(thread.violation("P2", text));
        }
    }
    violations
}

/// P3: every answer to one key names the same run and gives the same reply.
fn same_answer(thread: &ThreadView<'_>, turn: &TurnView<'_>) -> Vec<Violation> {
    let mut runs: BTreeSet<String> = turn.runs.iter().map(|run| (*run).to_owned()).collect();
    if turn.is_acknowledged() {
        runs.extend(thread.runs_of(turn).iter().map(|run| run.id.to_string()));
    }
    let mut violations = Vec::new();
    if runs.len() > 1 {
        let runs: Vec<String> = runs.into_iter().collect();
        let text = format!("One key was answered with several runs: {}.", runs.join(", "));
        violations.push(turn.violation("P3", text));
    }
    let replies: BTreeSet<&str> = turn.told.iter().filter_map(|told| told.reply).collect();
    if replies.len() > 1 {
        let text = format!("One key was answered with {} different replies.", replies.len());
        violations.push(turn.violation("P3", text));
    }
    violations
}

/// P3: the end and the reply that a client was told are the stored ones.
fn told_as_stored(thread: &ThreadView<'_>, turn: &TurnView<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for told in &turn.told {
        let runs = thread.runs_of(turn);
        let Some(run) = runs.iter().find(|run| run.id.to_string() == told.run) else { continue };
        let word = wire_status(run.state);
        if word != told.status {
            let text = format!(
                "The client was told that run {} ended '{}', the store says '{word}'.",
                told.run, told.status
            );
            violations.push(turn.violation("P3", text));
            continue;
        }
        let stored = thread.replies_to(turn.idx);
        // A reply that is not there at all is lost, which is another property.
        let (Some(reply), false) = (told.reply, stored.is_empty()) else { continue };
        if !stored.iter().any(|stored| stored == reply) {
            violations.push(turn.violation("P3", "The client was told another reply than the stored one."));
        }
    }
    violations
}

/// P9: the pieces that a client saw make up the stored reply.
fn stream_is_stored(thread: &ThreadView<'_>, turn: &TurnView<'_>) -> Vec<Violation> {
    let stored = thread.replies_to(turn.idx);
    let differs = |text: &&&str| !stored.is_empty() && !stored.iter().any(|stored| stored == **text);
    let found = turn.streamed.iter().filter(differs);
    found
        .map(|text| {
            let text = format!("The streamed reply ({} bytes) is not the stored one.", text.len());
            turn.violation("P9", text)
        })
        .collect()
}

/// P4: sequence numbers are 1, 2, 3 without a gap.
fn dense(thread: &ThreadView<'_>) -> Vec<Violation> {
    let wrong = (1..).zip(thread.events).find(|(seq, event)| event.seq != *seq);
    let found = wrong.map(|(seq, event)| {
        thread.violation("P4", format!("Event {seq} of the log has the number {}.", event.seq))
    });
    found.into_iter().collect()
}

/// P4: from its claim to its end a run has the thread alone: no fork.
fn one_at_a_time(thread: &ThreadView<'_>) -> Vec<Violation> {
    let mut active: Option<RunId> = None;
    let mut ended: BTreeSet<RunId> = BTreeSet::new();
    for event in thread.events {
        if ended.contains(&event.run) {
            let text = format!("Event {} comes after the end of its run {}.", event.seq, event.run);
            return vec![thread.violation("P4", text)];
        }
        match (&event.body, active) {
            (EventBody::RunEnded { .. }, _) => {
                ended.insert(event.run);
                active = active.filter(|run| *run != event.run);
            }
            (EventBody::RunClaimed { .. }, None) => active = Some(event.run),
            (EventBody::RunClaimed { .. } | EventBody::AssistantMessage { .. }, Some(run))
                if run != event.run =>
            {
                let text = format!("Event {} is of run {}, while run {run} is active.", event.seq, event.run);
                return vec![thread.violation("P4", text)];
            }
            _ => {}
        }
    }
    Vec::new()
}

/// P4: the turns of the log have the versions 1, 2, 3 ... in its order, and the last is the thread's.
fn versions_are_a_line(thread: &ThreadView<'_>) -> Vec<Violation> {
    let runs: BTreeMap<RunId, &Run> = thread.runs.iter().map(|run| (run.id, run)).collect();
    let mut version = 0;
    for event in thread.events.iter().filter(|event| matches!(event.body, EventBody::RunEnded { .. })) {
        let Some(next) = runs.get(&event.run).and_then(|run| run.version) else { continue };
        if next != version + 1 {
            let text = format!("Run {} has version {next} and follows version {version}.", event.run);
            return vec![thread.violation("P4", text)];
        }
        version = next;
    }
    let in_log: BTreeSet<RunId> = thread.events.iter().map(|event| event.run).collect();
    let outside = thread.runs.iter().find(|run| run.version.is_some() && !in_log.contains(&run.id));
    if let Some(run) = outside {
        return vec![thread.violation("P4", format!("Run {} has a version and no event.", run.id))];
    }
    if version != thread.version {
        let text = format!("The thread has version {}, its last turn {version}.", thread.version);
        return vec![thread.violation("P4", text)];
    }
    Vec::new()
}

/// P5: each reply was computed on exactly the turns that the thread's state holds before it. A
/// summary replaces turns, so a thread is judged up to its first compaction.
fn context_is_true(thread: &ThreadView<'_>) -> Vec<Violation> {
    let mut shown = Conversation::default();
    for event in counting(thread.events) {
        match &event.body {
            EventBody::Compacted { .. } => break,
            EventBody::UserMessage { message } => shown.push_words(Item::User, message.joined_text()),
            EventBody::AssistantMessage { message, .. } => {
                let text = message.joined_text();
                if chat::seen_by(&text).is_some_and(|seen| seen != shown.echo()) {
                    return vec![stale_reply(thread, event, &text)];
                }
                shown.push_words(Item::Assistant, text);
                shown.items.extend(
                    message.tool_calls().map(|call| {
                        Item::Call(SolverCall { name: call.name.clone(), args: call.args.clone() })
                    }),
                );
            }
            _ => {}
        }
    }
    Vec::new()
}

fn stale_reply(thread: &ThreadView<'_>, event: &Event, text: &str) -> Violation {
    let turn = chat::answered_by(text).map(|turn| format!("turn {turn}")).unwrap_or_default();
    let text = format!("The reply in event {} was computed on another state than the thread's.", event.seq);
    Violation { turn, ..thread.violation("P5", text) }
}

/// P6: each claim has a higher epoch than the one before it.
fn epochs_rise(thread: &ThreadView<'_>) -> Vec<Violation> {
    let epochs = thread.events.iter().filter_map(|event| match event.body {
        EventBody::RunClaimed { epoch, .. } => Some(epoch),
        _ => None,
    });
    let epochs: Vec<u64> = epochs.collect();
    let fallen = epochs.windows(2).find(|pair| pair[1] <= pair[0]);
    let found = fallen.map(|pair| {
        thread.violation("P6", format!("Epoch {} was claimed after epoch {}.", pair[1], pair[0]))
    });
    found.into_iter().collect()
}

/// P7: a turn that was asked for after another one had been accepted comes after it in the thread.
fn order_is_kept(thread: &ThreadView<'_>) -> Vec<Violation> {
    let versions = thread.turns.iter().filter_map(|turn| {
        let version = thread.runs_of(turn).first()?.version?;
        Some((turn, version))
    });
    let mut by_start: Vec<(&TurnView<'_>, u64)> = versions.collect();
    let mut by_accepted: Vec<(u64, u64)> =
        by_start.iter().filter_map(|(turn, version)| Some((turn.accepted_ms?, *version))).collect();
    by_start.sort_by_key(|(turn, _)| turn.invoked_ms);
    by_accepted.sort_unstable();
    let mut accepted = by_accepted.into_iter().peekable();
    let mut newest = 0;
    let mut violations = Vec::new();
    for (turn, version) in by_start {
        while let Some((_, earlier)) = accepted.next_if(|(t, _)| *t < turn.invoked_ms) {
            newest = newest.max(earlier);
        }
        if version < newest {
            let text = format!(
                "It has version {version}, but version {newest} had been accepted before it was sent."
            );
            violations.push(turn.violation("P7", text));
        }
    }
    violations
}

/// P10: one intent and one result for each effect.
fn effects_once(thread: &ThreadView<'_>) -> Vec<Violation> {
    let ended = thread.runs.iter().all(|run| run.state == RunState::Completed);
    effects_wrong(thread.events, ended).into_iter().map(|text| thread.violation("P10", text)).collect()
}

/// P12: the tokens of each run are the sum of its attempts.
fn conserved(thread: &ThreadView<'_>) -> Vec<Violation> {
    if thread.events.iter().any(|event| matches!(event.body, EventBody::Compacted { .. })) {
        return Vec::new();
    }
    let events = by_run(thread);
    let wrong = thread.runs.iter().filter_map(|run| {
        let own = events.get(&run.id).into_iter().flatten().copied();
        Some(thread.violation("P12", format!("Run {}: {}", run.id, unbalanced(run, own)?)))
    });
    wrong.collect()
}

/// P13: each attempt at a model call and each tool call has one closed span.
fn spans_closed(thread: &ThreadView<'_>) -> Vec<Violation> {
    let wrong = by_run(thread).into_values().flat_map(|own| span::wrong(own.into_iter()));
    wrong.map(|text| thread.violation("P13", text)).collect()
}

fn by_run<'a>(thread: &ThreadView<'a>) -> BTreeMap<RunId, Vec<&'a Event>> {
    let mut events: BTreeMap<RunId, Vec<&Event>> = BTreeMap::new();
    for event in thread.events {
        events.entry(event.run).or_default().push(event);
    }
    events
}

#[cfg(test)]
pub(super) mod tests;
