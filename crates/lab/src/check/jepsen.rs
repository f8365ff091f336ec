//! The history in Jepsen's JSON form, so that others can check it with their own tools.
//!
//! It is a *list-append* history: each thread is a list, and a turn appends its number to it. A client
//! is a process with one operation. Its reply carries a hash of what the model was shown; where that
//! is a state of the thread, the operation also reads the list as it was then, and where it is none it
//! reads a list that never was, `[-1]`. After everything a process of its own reads each whole list.
//!
//! An end that the client was not told, or that was no success, is `info`: it may have happened.

use std::collections::BTreeMap;

use anyhow::Context as _;
use evenkeel_core::journal::EventBody;
use serde_json::{Value, json};

use super::History;
use super::property::TaskView;
use super::turn::{ThreadView, TurnView, counting};
use crate::task::{Conversation, Item, SolverCall, chat};

const NS_PER_MS: u64 = 1_000_000;

/// The history as a JSON array, one operation a line.
///
/// # Errors
/// If an operation cannot be written as JSON.
pub fn jepsen(history: &History) -> anyhow::Result<String> {
    let mut moments: Vec<Moment> = Vec::new();
    let mut lists: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let threads = ThreadView::all(history);
    for thread in &threads {
        let seen = Seen::on(thread);
        for turn in &thread.turns {
            turn_moments(thread.id, turn, &seen, &mut moments);
        }
        lists.insert(thread.id, seen.list);
    }
    let tasks = TaskView::all(history);
    for task in &tasks {
        task_moments(task, &mut moments);
        let is_there = task.events.iter().any(|event| matches!(event.body, EventBody::UserMessage { .. }));
        lists.insert(task.thread, if is_there { vec![task.idx] } else { Vec::new() });
    }
    // Who asked first comes first; of one client the request before its end.
    moments.sort_by_key(|moment| (moment.t_ms, moment.kind != "invoke"));
    let end_ms = moments.last().map_or(0, |moment| moment.t_ms) + 1;
    let first_reader = moments.iter().map(|moment| moment.process + 1).max().unwrap_or_default();
    for (process, (thread, list)) in (first_reader..).zip(&lists) {
        let read =
            |kind, list: Value| Moment { t_ms: end_ms, process, kind, value: json!([["r", thread, list]]) };
        moments.push(read("invoke", Value::Null));
        moments.push(read("ok", json!(list)));
    }
    let mut lines = Vec::with_capacity(moments.len());
    for (index, moment) in moments.iter().enumerate() {
        lines.push(serde_json::to_string(&moment.operation(index)).context("write an operation")?);
    }
    Ok(format!("[\n{}\n]\n", lines.join(",\n")))
}

/// One line: a process asks, or is told.
struct Moment {
    t_ms: u64,
    process: usize,
    kind: &'static str,
    value: Value,
}

impl Moment {
    fn operation(&self, index: usize) -> Value {
        json!({
            "index": index,
            "time": self.t_ms * NS_PER_MS,
            "process": self.process,
            "type": self.kind,
            "f": "txn",
            "value": self.value,
        })
    }
}

/// A thread's list at the end, and what each turn saw of it.
struct Seen {
    list: Vec<usize>,
    /// By turn: the list that its reply was computed on, without the turn itself.
    by_turn: BTreeMap<usize, Value>,
}

impl Seen {
    fn on(thread: &ThreadView<'_>) -> Self {
        let mut seen = Self { list: Vec::new(), by_turn: BTreeMap::new() };
        let mut shown = Conversation::default();
        let mut whole = true;
        for event in counting(thread.events) {
            match &event.body {
                // From here on the model is shown a summary, whose hash says nothing of the turns.
                EventBody::Compacted { .. } => whole = false,
                EventBody::UserMessage { message } => {
                    let text = message.joined_text();
                    seen.list.extend(chat::turn_of(&text));
                    shown.push_words(Item::User, text);
                }
                EventBody::AssistantMessage { message, .. } => {
                    let text = message.joined_text();
                    if let (true, Some(turn), Some(hash)) =
                        (whole, chat::answered_by(&text), chat::seen_by(&text))
                    {
                        seen.note(turn, hash == shown.echo());
                    }
                    shown.push_words(Item::Assistant, text);
                    let calls = message.tool_calls();
                    shown.items.extend(calls.map(|call| {
                        Item::Call(SolverCall { name: call.name.clone(), args: call.args.clone() })
                    }));
                }
                _ => {}
            }
        }
        seen
    }

    fn note(&mut self, turn: usize, is_state: bool) {
        let read = match self.list.split_last() {
            _ if !is_state => json!([-1]),
            Some((last, before)) if *last == turn => json!(before),
            // Its message is not the last one, as when a run was steered: a read of it would say less.
            _ => return,
        };
        self.by_turn.insert(turn, read);
    }
}

fn turn_moments(thread: &str, turn: &TurnView<'_>, seen: &Seen, moments: &mut Vec<Moment>) {
    let append = json!(["append", thread, turn.idx]);
    let asked = |read: bool| match read {
        true => json!([["r", thread, null], append]),
        false => json!([append]),
    };
    let read = seen.by_turn.get(&turn.idx).filter(|_| turn.succeeded_ms().is_some());
    let process = turn.idx;
    moments.push(Moment { t_ms: turn.invoked_ms, process, kind: "invoke", value: asked(read.is_some()) });
    let told_ms = turn.told.iter().map(|told| told.t).min();
    let (kind, t_ms, value) = match (turn.succeeded_ms(), turn.refused) {
        (Some(t_ms), _) => {
            let value = read.map_or_else(|| asked(false), |list| json!([["r", thread, list], append]));
            ("ok", t_ms, value)
        }
        (None, Some(_)) if !turn.is_acknowledged() => ("fail", turn.invoked_ms, asked(false)),
        _ => ("info", told_ms.unwrap_or(turn.invoked_ms), asked(false)),
    };
    moments.push(Moment { t_ms, process, kind, value });
}

fn task_moments(task: &TaskView<'_>, moments: &mut Vec<Moment>) {
    let value = json!([["append", task.thread, task.idx]]);
    let asked_ms = task.invoked_ms.unwrap_or_default();
    let kind = match task.answers.first() {
        Some((_, "success")) => "ok",
        None if task.refused.is_some() && task.accepted.is_empty() => "fail",
        _ => "info",
    };
    let moment = |kind, t_ms| Moment { t_ms, process: task.idx, kind, value: value.clone() };
    moments.push(moment("invoke", asked_ms));
    moments.push(moment(kind, task.ended_ms.unwrap_or(asked_ms)));
}

/// Writes a history in Jepsen's form to a file.
///
/// # Errors
/// If the file cannot be written.
pub fn export(history: &History, to: &std::path::Path) -> anyhow::Result<()> {
    let text = jepsen(history)?;
    std::fs::write(to, text).with_context(|| format!("write {}", to.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::jepsen;
    use crate::check::thread::tests::good;
    use crate::check::{Entry, tests};

    fn operations(history: &crate::check::History) -> Vec<Value> {
        serde_json::from_str(&jepsen(history).unwrap()).unwrap()
    }

    fn values(operations: &[Value], kind: &str) -> Vec<Value> {
        let found = operations.iter().filter(|operation| operation["type"] == kind);
        found.map(|operation| operation["value"].clone()).collect()
    }

    #[test]
    fn each_turn_appends_reads_and_is_read() {
        let operations = operations(&good());
        assert_eq!(operations.len(), 2 * (5 + 2), "five turns, and a last read of two threads");
        let thread = operations[0]["value"][0][1].clone();
        assert_eq!(
            operations[0],
            json!({
                "index": 0, "time": 0, "process": 0, "type": "invoke", "f": "txn",
                "value": [["r", thread, null], ["append", thread, 0]],
            })
        );
        let ok = values(&operations, "ok");
        assert_eq!(ok[0], json!([["r", thread, []], ["append", thread, 0]]));
        assert!(ok.contains(&json!([["r", thread, [0, 1]], ["append", thread, 2]])), "{ok:?}");
        assert!(ok.contains(&json!([["r", thread, [0, 1, 2]]])), "the last read: {ok:?}");
        let times: Vec<u64> = operations.iter().filter_map(|operation| operation["time"].as_u64()).collect();
        assert!(times.is_sorted() && times.contains(&1_000_000_000), "{times:?}");
        let open = operations.iter().fold(std::collections::BTreeSet::new(), |mut open, operation| {
            let process = operation["process"].as_u64().unwrap();
            let fits =
                if operation["type"] == "invoke" { open.insert(process) } else { open.remove(&process) };
            assert!(fits, "a process does one thing at a time: {operation}");
            open
        });
        assert!(open.is_empty());
    }

    #[test]
    fn what_a_client_does_not_know_is_info_and_a_refusal_is_fail() {
        let mut history = good();
        history.entries.retain(|entry| !matches!(entry, Entry::Ok { task: 1 | 2, .. }));
        history.entries.retain(|entry| !matches!(entry, Entry::Accepted { task: 2, .. }));
        history.entries.push(Entry::Fail { task: 2, code: 409, text: String::new(), t: 9_000 });
        let operations = operations(&history);
        assert_eq!((values(&operations, "info").len(), values(&operations, "fail").len()), (1, 1));
    }

    #[test]
    fn a_reply_on_a_state_that_never_was_reads_one() {
        let mut history = good();
        for entry in &mut history.entries {
            if let Entry::Log { events, .. } = entry {
                crate::check::thread::tests::say(&mut events[2], "Well. [re 0] [seen 0000000000000000]");
                break;
            }
        }
        let ok = values(&operations(&history), "ok");
        assert_eq!(ok[0][0][2], json!([-1]));
    }

    #[test]
    fn a_task_is_a_list_of_its_own() {
        let operations = operations(&tests::good().history());
        let kinds: Vec<&str> = operations.iter().filter_map(|operation| operation["type"].as_str()).collect();
        assert_eq!(kinds, ["invoke", "ok", "invoke", "ok"]);
        assert_eq!(operations[3]["value"][0][2], json!([0]));
    }
}
