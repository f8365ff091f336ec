//! The properties. Each is one function over the whole history that names every place where it
//! does not hold.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::id::{CallId, EffectId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::message::{Block, Message, Role, Usage};
use evenkeel_core::run::{Run, RunState};
use serde::Serialize;

use super::{Entry, History, span, thread, wire};
use crate::task::{self, Conversation, Facts, Item, Solver, SolverCall, Verdict};

/// A property that does not hold at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Its name.
    pub property: &'static str,
    /// The thread.
    pub thread: String,
    /// The task of the load, for people `task N`.
    pub turn: String,
    /// What is wrong.
    pub text: String,
}

/// Everything that a history says of one task.
#[derive(Default)]
pub(super) struct TaskView<'a> {
    pub(super) idx: usize,
    pub(super) script: &'a str,
    pub(super) thread: &'a str,
    pub(super) invoked_ms: Option<u64>,
    pub(super) accepted: Vec<&'a str>,
    pub(super) answers: Vec<(&'a str, &'a str)>,
    pub(super) ended_ms: Option<u64>,
    pub(super) refused: Option<u16>,
    pub(super) run: Option<&'a Run>,
    pub(super) events: &'a [Event],
    pub(super) runs_on_thread: &'a [String],
    pub(super) facts: Option<&'a Facts>,
}

impl<'a> TaskView<'a> {
    /// All tasks of a history, in order.
    pub(super) fn all(history: &'a History) -> Vec<Self> {
        let mut tasks: BTreeMap<usize, Self> = BTreeMap::new();
        let of_chat = history.turns();
        for entry in history.entries.iter().filter(|entry| !entry.is_of_chat(&of_chat)) {
            let Some(idx) = entry.task() else { continue };
            tasks.entry(idx).or_insert_with(|| Self { idx, ..Self::default() }).take(entry);
        }
        tasks.into_values().collect()
    }

    fn take(&mut self, entry: &'a Entry) {
        match entry {
            Entry::Invoke { script, thread, t, .. } => {
                (self.script, self.thread) = (script, thread);
                self.invoked_ms.get_or_insert(*t);
            }
            Entry::Accepted { run, .. } => self.accepted.push(run),
            Entry::Ok { run, status, t, .. } => {
                self.answers.push((run, status));
                self.ended_ms.get_or_insert(*t);
            }
            Entry::Fail { code, .. } => self.refused = Some(*code),
            Entry::Stored { run, events, .. } => (self.run, self.events) = (Some(&**run), events),
            Entry::Thread { runs, .. } => self.runs_on_thread = runs,
            Entry::Examined { facts, .. } => self.facts = Some(facts),
            _ => {}
        }
    }

    pub(super) fn violation(&self, property: &'static str, text: impl Into<String>) -> Violation {
        let turn = format!("task {}", self.idx);
        Violation { property, thread: self.thread.to_owned(), turn, text: text.into() }
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        let script = task::all().iter().find(|script| script.name == self.script)?;
        Some(Verdict::of(script, self.facts?.clone()))
    }

    /// Effects whose call was made and answered, and which are not in the workspace. A step that a
    /// run never came to is not lost.
    pub(super) fn lost_effects(&self) -> Vec<String> {
        let answered: BTreeSet<&CallId> = self
            .messages()
            .into_iter()
            .flat_map(Message::tool_results)
            .map(|result| &result.call_id)
            .collect();
        let calls = self.messages().into_iter().flat_map(Message::tool_calls);
        let commands =
            calls.filter(|call| answered.contains(&call.id)).filter_map(|call| call.args["command"].as_str());
        let commands: Vec<&str> = commands.collect();
        let made = |line: &String| commands.iter().any(|command| command.contains(&format!("echo '{line}'")));
        self.verdict().map(|verdict| verdict.missing).unwrap_or_default().into_iter().filter(made).collect()
    }

    fn messages(&self) -> Vec<&'a Message> {
        let messages = self.events.iter().filter_map(|event| match &event.body {
            EventBody::UserMessage { message }
            | EventBody::AssistantMessage { message, .. }
            | EventBody::ToolMessage { message } => Some(message),
            _ => None,
        });
        messages.collect()
    }

    fn is_compacted(&self) -> bool {
        self.events.iter().any(|event| matches!(event.body, EventBody::Compacted { .. }))
    }
}

/// Every violation in a history.
pub(super) fn all(history: &History) -> Vec<Violation> {
    let tasks = TaskView::all(history);
    let each: [fn(&TaskView<'_>) -> Vec<Violation>; 12] = [
        once_at_most,
        same_answer,
        single_line,
        context_is_true,
        stream_is_stored,
        effects_once,
        steps_grow,
        transcript_is_the_scripts,
        calls_are_answered,
        wires_accept,
        conserved,
        spans_closed,
    ];
    let mut violations: Vec<Violation> =
        tasks.iter().flat_map(|task| each.iter().flat_map(|check| check(task))).collect();
    violations.extend(not_lost(&tasks));
    violations.extend(thread::all(history));
    violations.extend(wires_and_gauges(history));
    violations
}

/// P1: an accepted task is stored and has an end.
fn not_lost(tasks: &[TaskView<'_>]) -> Vec<Violation> {
    let lost = |task: &TaskView<'_>| {
        let run = task.accepted.first()?;
        match task.run {
            None => Some(task.violation("P1", format!("Run {run} was accepted and is not in the store."))),
            Some(stored) if !stored.state.is_terminal() => {
                let text =
                    format!("Run {run} was accepted and is still {} at the end.", stored.state.as_str());
                Some(task.violation("P1", text))
            }
            _ => None,
        }
    };
    tasks.iter().filter_map(lost).collect()
}

/// P2: a task is at most one run, a refused one none, and its message is in the thread once.
fn once_at_most(task: &TaskView<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let n_runs = task.runs_on_thread.len();
    if n_runs > 1 {
        violations.push(task.violation("P2", format!("One task became {n_runs} runs on its thread.")));
    }
    if let (Some(code), true) = (task.refused, task.accepted.is_empty() && n_runs > 0) {
        violations
            .push(task.violation("P2", format!("The client was refused with {code}, but there is a run.")));
    }
    let users = task.messages().into_iter().filter(|message| message.role == Role::User);
    let tagged = users.filter(|message| message.joined_text().contains("[lab task=")).count();
    let began = task.events.iter().any(|event| matches!(event.body, EventBody::AssistantMessage { .. }));
    if tagged > 1 || (began && tagged == 0) {
        violations
            .push(task.violation("P2", format!("The client's message is in the thread {tagged} times.")));
    }
    violations
}

/// P3: every answer to one idempotency key names the same run, and its end is as stored.
fn same_answer(task: &TaskView<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let runs: BTreeSet<&str> =
        task.accepted.iter().chain(task.answers.iter().map(|(run, _)| run)).copied().collect();
    if runs.len() > 1 {
        let runs: Vec<&str> = runs.into_iter().collect();
        violations.push(
            task.violation("P3", format!("One key was answered with several runs: {}.", runs.join(", "))),
        );
    }
    for (run, status) in &task.answers {
        let Some(stored) = task.run else { continue };
        let word = wire_status(stored.state);
        if word != *status {
            let text =
                format!("The client was told that run {run} ended '{status}', the store says '{word}'.");
            violations.push(task.violation("P3", text));
        }
    }
    violations
}

/// The client's word for a state.
pub(super) fn wire_status(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "pending",
        RunState::Running | RunState::Waiting | RunState::Cancelling => "running",
        RunState::Completed => "success",
        RunState::Failed => "error",
        RunState::Cancelled => "interrupted",
        RunState::Expired => "timeout",
    }
}

/// P4: sequence numbers are dense, epochs never fall, and nothing follows the end of a run.
fn single_line(task: &TaskView<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for pair in task.events.windows(2) {
        let [one, next] = pair else { continue };
        if next.seq != one.seq + 1 {
            violations
                .push(task.violation("P4", format!("Event {} is followed by event {}.", one.seq, next.seq)));
        }
        if matches!(one.body, EventBody::RunEnded { .. }) {
            violations
                .push(task.violation("P4", format!("Event {} comes after the end of the run.", next.seq)));
        }
    }
    let epochs = task.events.iter().filter_map(|event| match event.body {
        EventBody::RunClaimed { epoch, .. } => Some(epoch),
        _ => None,
    });
    let epochs: Vec<u64> = epochs.collect();
    if let Some(pair) = epochs.windows(2).find(|pair| pair[1] <= pair[0]) {
        violations
            .push(task.violation("P6", format!("Epoch {} was claimed after epoch {}.", pair[1], pair[0])));
    }
    violations
}

/// P5: each reply was computed on exactly the turns that the thread holds before it. Summaries
/// replace turns, so a compacted run is judged up to its first compaction.
fn context_is_true(task: &TaskView<'_>) -> Vec<Violation> {
    let mut shown = Conversation::default();
    for event in task.events {
        match &event.body {
            EventBody::Compacted { .. } => break,
            EventBody::UserMessage { message } => shown.items.push(Item::User(message.joined_text())),
            EventBody::AssistantMessage { message, .. } => {
                let text = message.joined_text();
                let seen = text.rsplit_once("[seen ").and_then(|(_, seen)| seen.strip_suffix(']'));
                if seen.is_some_and(|seen| seen != shown.echo()) {
                    let text = format!(
                        "The reply of step {} was computed on another state than the thread's.",
                        event.step
                    );
                    return vec![task.violation("P5", text)];
                }
                shown.items.push(Item::Assistant(text));
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

/// P9: what the run says it ended with is what its last reply says.
fn stream_is_stored(task: &TaskView<'_>) -> Vec<Violation> {
    let ends = task.events.iter().filter(|event| matches!(event.body, EventBody::RunEnded { .. })).count();
    match task.run {
        Some(run) if run.state.is_terminal() && ends != 1 => {
            vec![task.violation("P9", format!("The run has ended, and its log has {ends} ends."))]
        }
        _ => Vec::new(),
    }
}

/// P10: one intent and after it one result for each effect, no effect twice in the workspace.
fn effects_once(task: &TaskView<'_>) -> Vec<Violation> {
    let ended = task.run.is_some_and(|run| run.state == RunState::Completed);
    let texts = effects_wrong(task.events, ended);
    let mut violations: Vec<Violation> = texts.into_iter().map(|text| task.violation("P10", text)).collect();
    for line in task.verdict().map(|verdict| verdict.doubled).unwrap_or_default() {
        violations.push(task.violation("P10", format!("'{line}' happened more than once in the workspace.")));
    }
    for line in task.lost_effects().iter().filter(|_| ended) {
        violations
            .push(task.violation("P10", format!("'{line}' did not happen, although its call was answered.")));
    }
    violations
}

/// What is wrong with the intents and results in a log; `ended` if all of them must be settled.
pub(super) fn effects_wrong(events: &[Event], ended: bool) -> Vec<String> {
    let mut intents: BTreeMap<&EffectId, u32> = BTreeMap::new();
    let mut results: BTreeMap<&EffectId, u32> = BTreeMap::new();
    let mut wrong = Vec::new();
    for event in events {
        match &event.body {
            EventBody::EffectIntended(intent) => *intents.entry(&intent.effect).or_default() += 1,
            EventBody::EffectSettled(result) => {
                if !intents.contains_key(&result.effect) {
                    wrong.push(format!("Effect {} has a result, and no intent before it.", result.effect));
                }
                *results.entry(&result.effect).or_default() += 1;
            }
            _ => {}
        }
    }
    for (what, counts) in [("intended", &intents), ("settled", &results)] {
        for (effect, n) in counts.iter().filter(|(_, n)| **n > 1) {
            wrong.push(format!("Effect {effect} was {what} {n} times."));
        }
    }
    for effect in intents.keys().filter(|effect| ended && !results.contains_key(*effect)) {
        wrong.push(format!("Effect {effect} was intended and never settled."));
    }
    wrong
}

/// P11: checkpoints count 1, 2, 3 ..., and each step has one reply.
fn steps_grow(task: &TaskView<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    // A checkpoint 0 is the workspace as given.
    let mut step_before = 0;
    let mut replies: BTreeSet<u32> = BTreeSet::new();
    for event in task.events {
        match event.body {
            EventBody::Checkpoint { .. } if event.step == 0 && step_before == 0 => {}
            EventBody::Checkpoint { .. } if event.step != step_before + 1 => {
                let text = format!("Checkpoint {} follows checkpoint {step_before}.", event.step);
                violations.push(task.violation("P11", text));
                step_before = event.step;
            }
            EventBody::Checkpoint { .. } => step_before = event.step,
            EventBody::AssistantMessage { .. } if !replies.insert(event.step) => {
                violations.push(task.violation("P11", format!("Step {} has two replies.", event.step)));
            }
            _ => {}
        }
    }
    violations
}

/// P11: the calls of a completed run are those of a run without any fault.
fn transcript_is_the_scripts(task: &TaskView<'_>) -> Vec<Violation> {
    let completed = task.run.is_some_and(|run| run.state == RunState::Completed);
    let Some(script) = task::all().iter().find(|script| script.name == task.script).filter(|_| completed)
    else {
        return Vec::new();
    };
    let messages = task.messages();
    let looks = messages.first().map_or(0, |message| Solver::looks(&message.joined_text()));
    let calls = messages.into_iter().flat_map(|message| message.tool_calls());
    let calls: Vec<SolverCall> =
        calls.map(|call| SolverCall { name: call.name.clone(), args: call.args.clone() }).collect();
    let wanted: Vec<SolverCall> = script.calls(looks).collect();
    if calls == wanted {
        return Vec::new();
    }
    let at = calls.iter().zip(&wanted).take_while(|(call, wanted)| call == wanted).count();
    let name = |calls: &[SolverCall]| calls.get(at).map_or("nothing".to_owned(), |call| call.name.clone());
    let text =
        format!("Call {} is {} where a run without faults has {}.", at + 1, name(&calls), name(&wanted));
    vec![task.violation("P11", text)]
}

/// H: every call of a reply is answered exactly once, before the next reply.
fn calls_are_answered(task: &TaskView<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut open: BTreeSet<&CallId> = BTreeSet::new();
    let mut seen: BTreeSet<&CallId> = BTreeSet::new();
    for message in task.messages() {
        if message.role == Role::Assistant && !open.is_empty() {
            violations
                .push(task.violation("H", format!("A reply comes while {} calls are open.", open.len())));
            open.clear();
        }
        for block in &message.blocks {
            match block {
                Block::ToolCall(call) if !seen.insert(&call.id) => {
                    violations.push(task.violation("H", format!("Call id {} is there twice.", call.id)));
                }
                Block::ToolCall(call) => drop(open.insert(&call.id)),
                Block::ToolResult(result) if !open.remove(&result.call_id) => {
                    violations.push(
                        task.violation(
                            "H",
                            format!("A result answers {}, which is not open.", result.call_id),
                        ),
                    );
                }
                Block::Text { text } if text.is_empty() => {
                    violations.push(task.violation("H", "A text block is empty."));
                }
                _ => {}
            }
        }
    }
    violations
}

/// H: both wires accept the history of a run that has ended; the calls of one that failed may be open.
fn wires_accept(task: &TaskView<'_>) -> Vec<Violation> {
    if task.run.is_none_or(|run| run.state != RunState::Completed) {
        return Vec::new();
    }
    wire::findings(&task.messages()).into_iter().take(3).map(|text| task.violation("H", text)).collect()
}

/// P12: the run's tokens are the sum of its attempts.
fn conserved(task: &TaskView<'_>) -> Vec<Violation> {
    // Summaries are calls too, and are not in the log of the thread's turns.
    let Some(run) = task.run.filter(|_| !task.is_compacted()) else { return Vec::new() };
    unbalanced(run, task.events.iter()).map(|text| task.violation("P12", text)).into_iter().collect()
}

/// P13: each attempt at a model call and each tool call has one closed span.
fn spans_closed(task: &TaskView<'_>) -> Vec<Violation> {
    span::wrong(task.events.iter()).into_iter().map(|text| task.violation("P13", text)).collect()
}

/// What is wrong with the tokens of a run that has ended, given its events.
pub(super) fn unbalanced<'a>(run: &Run, events: impl Iterator<Item = &'a Event>) -> Option<String> {
    let mut sum = Usage::default();
    for event in events {
        if let EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } =
            &event.body
        {
            attempts.iter().for_each(|attempt| sum.add(attempt.usage));
        }
    }
    let differs = (sum.input_tokens, sum.output_tokens) != (run.usage.input_tokens, run.usage.output_tokens);
    (differs && run.state.is_terminal()).then(|| {
        format!(
            "The run counts {} + {} tokens, its attempts {} + {}.",
            run.usage.input_tokens, run.usage.output_tokens, sum.input_tokens, sum.output_tokens,
        )
    })
}

/// P12 and H over the whole: slots are back at zero, no request broke the rules of its wire.
fn wires_and_gauges(history: &History) -> Vec<Violation> {
    let whole = |property, text| Violation { property, thread: String::new(), turn: String::new(), text };
    let found = history.entries.iter().filter_map(|entry| match entry {
        Entry::Idle { component, in_use } if *in_use > 0 => Some(whole(
            "P12",
            format!("{in_use} slots of {component} are still in use after everything has ended."),
        )),
        Entry::Provider { name, validation_failures, violations, .. } if *validation_failures > 0 => {
            let first = violations.first().map_or("", String::as_str);
            let text = format!(
                "{validation_failures} requests to {name} broke the rules of its wire, first: {first}"
            );
            Some(whole("H", text))
        }
        Entry::Provider { name, streams, .. } if *streams > 0 => Some(whole(
            "P12",
            format!("{streams} streams from {name} are still open after everything has ended."),
        )),
        Entry::Crash { text, .. } => Some(whole("P8", format!("The process ended by itself: {text}"))),
        Entry::Tail { replica, trouble: Some(trouble) } => {
            Some(whole("P8", format!("After everything had healed, {replica} did not serve: {trouble}")))
        }
        _ => None,
    });
    found.collect()
}
