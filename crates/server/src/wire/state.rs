//! A thread's state: a fold over its journal.
//!
//! The log is linear; the conversation is a tree in it, since a rollback or a fork goes back to the
//! state after an earlier event. Each change is a node that knows what it builds on, so that the
//! state after any event can be made again, also one that was left.

use std::collections::BTreeMap;

use evenkeel_core::Wall;
use evenkeel_core::approval::Approval;
use evenkeel_core::id::{CallId, RunId, ThreadId};
use evenkeel_core::journal::unanswered::Unanswered;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::run::{EndReason, Outcome, WaitReason};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{interrupt, message};

/// What a thread holds after the events folded so far.
#[derive(Clone, Debug)]
pub(crate) struct ThreadView {
    thread: ThreadId,
    /// The newest event folded.
    pub(crate) seq: u64,
    nodes: Vec<Node>,
    /// What the newest node holds.
    now: Held,
    points: Vec<Point>,
    /// The checkpoint on which the next one builds.
    head: Option<u64>,
    /// The run that was claimed last; the ends of others change nothing.
    claimed: Option<RunId>,
    /// What that run asks of a person and has no answer to.
    asked: Vec<Approval>,
    /// What was asked at a checkpoint at which a run waited.
    interrupts: BTreeMap<u64, Value>,
    /// Calls that have no results in the conversation yet.
    unanswered: Unanswered,
}

/// A change of the conversation.
#[derive(Clone, Debug)]
struct Node {
    seq: u64,
    builds_on: Option<usize>,
    change: Change,
}

#[derive(Clone, Debug, Default)]
struct Change {
    messages: Vec<Value>,
    /// Whether a message replaces the one of the same id.
    replaces: bool,
    /// Other values; `null` removes.
    others: Map<String, Value>,
}

/// Messages and other values.
#[derive(Clone, Debug, Default)]
struct Held {
    messages: Vec<Value>,
    others: Map<String, Value>,
}

/// A place in the journal that the dialect calls a checkpoint.
#[derive(Clone, Copy, Debug)]
struct Point {
    seq: u64,
    parent: Option<u64>,
    node: Option<usize>,
    run: RunId,
    step: u32,
    at: Wall,
    source: &'static str,
    /// Whether the agent has the next word.
    open: bool,
}

impl Held {
    fn apply(&mut self, change: &Change) {
        for message in &change.messages {
            let id = message.get("id").filter(|_| change.replaces);
            let same = id.and_then(|id| self.messages.iter_mut().find(|held| held.get("id") == Some(id)));
            match same {
                Some(held) => *held = message.clone(),
                None => self.messages.push(message.clone()),
            }
        }
        for (name, value) in &change.others {
            match value {
                Value::Null => drop(self.others.shift_remove(name)),
                value => drop(self.others.insert(name.clone(), value.clone())),
            }
        }
    }

    fn values(&self) -> Value {
        let mut values = Map::from_iter([("messages".to_owned(), Value::Array(self.messages.clone()))]);
        values.extend(self.others.clone());
        Value::Object(values)
    }
}

impl ThreadView {
    /// The view of an empty log.
    pub(crate) fn new(thread: ThreadId) -> Self {
        Self {
            thread,
            seq: 0,
            nodes: Vec::new(),
            now: Held::default(),
            points: Vec::new(),
            head: None,
            claimed: None,
            asked: Vec::new(),
            interrupts: BTreeMap::new(),
            unanswered: Unanswered::default(),
        }
    }

    /// Folds the next event. An event that is folded already changes nothing.
    pub(crate) fn fold(&mut self, event: &Event) {
        if event.seq <= self.seq {
            return;
        }
        self.seq = event.seq;
        if let EventBody::RunEnded { .. } = event.body
            && self.claimed == Some(event.run)
        {
            self.asked.clear();
        }
        let closed = self.unanswered.fold(event.run, event.step, &event.body);
        match &event.body {
            EventBody::RunClaimed { .. } => self.claimed = Some(event.run),
            EventBody::ApprovalRequested(asked) => {
                self.asked.retain(|other| other.call_id != asked.call_id);
                self.asked.push(asked.clone());
            }
            EventBody::ApprovalAnswered { approval, .. } => self.asked.retain(|asked| asked.id != *approval),
            EventBody::Parked { on: WaitReason::Approval, .. } => {
                self.point(event, "loop", true);
                self.interrupts.extend(self.interrupt().map(|interrupt| (event.seq, interrupt)));
            }
            EventBody::UserMessage { .. } => {
                let others = Map::from_iter([("result".to_owned(), Value::Null)]);
                self.change(event, Change { messages: message::of_event(event), replaces: false, others });
                self.point(event, "input", true);
            }
            EventBody::Checkpoint { .. } => self.point(event, "loop", true),
            EventBody::RunEnded { outcome } if self.ends_in_the_open(event.run, outcome) => {
                let messages = closed.iter().flat_map(message::results).collect();
                self.change(event, Change { messages, others: ended(outcome), ..Change::default() });
                self.point(event, "loop", false);
            }
            EventBody::StateWritten { values, .. } => {
                let others = values.as_object().cloned().unwrap_or_default();
                self.change(event, Change { messages: message::of_event(event), replaces: true, others });
                self.point(event, "update", false);
            }
            EventBody::Rewound { to, cause } => self.rewind(event.seq, (*to).min(event.seq - 1), cause),
            _ => {
                let messages = message::of_event(event);
                if !messages.is_empty() {
                    self.change(event, Change { messages, ..Change::default() });
                }
            }
        }
    }

    /// Whether the end of a run is an end of a turn here: it was claimed, and is not undone.
    fn ends_in_the_open(&self, run: RunId, outcome: &Outcome) -> bool {
        self.claimed == Some(run) && !outcome.reason.is_some_and(EndReason::undoes)
    }

    fn change(&mut self, event: &Event, change: Change) {
        self.now.apply(&change);
        let builds_on = self.nodes.len().checked_sub(1);
        self.nodes.push(Node { seq: event.seq, builds_on, change });
    }

    /// Goes back to the state after the event `to`. What a rollback leaves is no checkpoint any more;
    /// what a fork leaves still is.
    fn rewind(&mut self, seq: u64, to: u64, cause: &str) {
        let builds_on = self.nodes.partition_point(|node| node.seq <= to).checked_sub(1);
        self.now = self.held(builds_on);
        self.nodes.push(Node { seq, builds_on, change: Change::default() });
        if cause == "rollback" {
            self.points.retain(|point| point.seq <= to);
        }
        self.head = self.points.iter().rfind(|point| point.seq <= to).map(|point| point.seq);
    }

    fn point(&mut self, event: &Event, source: &'static str, open: bool) {
        let Event { seq, run, step, at, .. } = *event;
        let node = self.nodes.len().checked_sub(1);
        self.points.push(Point { seq, parent: self.head, node, run, step, at, source, open });
        self.head = Some(seq);
    }

    /// What a node holds, from the root of its branch.
    fn held(&self, node: Option<usize>) -> Held {
        if node == self.nodes.len().checked_sub(1) {
            return self.now.clone();
        }
        let builds_on = |idx: &usize| self.nodes.get(*idx).and_then(|node| node.builds_on);
        let mut branch: Vec<usize> = std::iter::successors(node, builds_on).collect();
        branch.reverse();
        let mut held = Held::default();
        branch.iter().filter_map(|idx| self.nodes.get(*idx)).for_each(|node| held.apply(&node.change));
        held
    }

    /// What the run that was claimed last asks of a person now.
    pub(crate) fn interrupt(&self) -> Option<Value> {
        let open: Vec<&Approval> = self.asked.iter().collect();
        interrupt::interrupt(self.claimed?, &open, |call| self.args_of(call))
    }

    /// The arguments of a call of the conversation.
    fn args_of(&self, id: &CallId) -> Option<Value> {
        let calls =
            self.now.messages.iter().rev().filter_map(|message| message.get("tool_calls")?.as_array());
        let call =
            calls.flatten().find(|call| call.get("id").and_then(Value::as_str) == Some(id.as_str()))?;
        call.get("args").cloned()
    }

    /// The values with what a person is asked now, as a paused run shows them.
    pub(crate) fn paused_values(&self) -> Value {
        let mut values = self.values();
        if let Some(interrupt) = self.interrupt() {
            values["__interrupt__"] = json!([interrupt]);
        }
        values
    }

    /// The state: `messages`, of the last run its `result` and `diff`, and what clients wrote.
    pub(crate) fn values(&self) -> Value {
        if self.is_empty() { json!({}) } else { self.now.values() }
    }

    fn is_empty(&self) -> bool {
        self.now.messages.is_empty() && self.now.others.is_empty()
    }

    fn at(&self, seq: u64) -> Option<&Point> {
        self.points.iter().rev().find(|point| point.seq == seq)
    }

    /// The newest state in the dialect's shape.
    pub(crate) fn state(&self) -> Value {
        match self.head.and_then(|seq| self.at(seq)) {
            Some(point) => self.shape(point),
            None => empty(),
        }
    }

    /// The state at a checkpoint, if there is such a checkpoint.
    pub(crate) fn state_at(&self, id: Uuid) -> Option<Value> {
        self.find(id).map(|point| self.shape(point))
    }

    /// The event behind which a checkpoint lies.
    pub(crate) fn seq_of(&self, id: Uuid) -> Option<u64> {
        self.find(id).map(|point| point.seq)
    }

    fn find(&self, id: Uuid) -> Option<&Point> {
        self.points.iter().find(|point| checkpoint_id(self.thread, point.seq) == id)
    }

    /// States, newest first: those before the checkpoint `before` if it is given, and those whose
    /// metadata holds what `metadata` holds.
    pub(crate) fn history(&self, limit: usize, before: Option<Uuid>, metadata: &Value) -> Vec<Value> {
        let position = |id: Uuid| self.points.iter().position(|p| checkpoint_id(self.thread, p.seq) == id);
        let end = before.map_or(self.points.len(), |id| position(id).unwrap_or(0));
        let points = self.points.iter().take(end).rev();
        points.filter(|p| holds(&self.about(p), metadata)).take(limit).map(|p| self.shape(p)).collect()
    }

    fn about(&self, point: &Point) -> Value {
        json!({
            "source": point.source,
            "step": point.step,
            // A client's own write belongs to no run.
            "run_id": (point.source != "update").then_some(point.run),
            "thread_id": self.thread,
            "seq": point.seq,
        })
    }

    fn shape(&self, point: &Point) -> Value {
        let id = checkpoint_id(self.thread, point.seq);
        let parent = point.parent.map(|seq| checkpoint_id(self.thread, seq));
        let is_head = self.head == Some(point.seq);
        let asked = self.interrupts.get(&point.seq);
        let node = if asked.is_some() { "tools" } else { "agent" };
        let next: &[&str] = if point.open { &[node] } else { &[] };
        // What was asked at the newest checkpoint may be answered by now.
        let interrupts: Vec<Value> = match asked {
            Some(_) if is_head => self.interrupt().into_iter().collect(),
            asked => asked.cloned().into_iter().collect(),
        };
        let held = self.held(point.node);
        json!({
            "values": held.values(),
            "next": next,
            "tasks": next.iter().map(|name| task(id, name, &interrupts)).collect::<Vec<_>>(),
            "metadata": self.about(point),
            "created_at": point.at.iso(),
            "checkpoint": checkpoint(self.thread, id),
            "parent_checkpoint": parent.map(|id| checkpoint(self.thread, id)),
            "interrupts": interrupts,
            "checkpoint_id": id,
            "parent_checkpoint_id": parent,
        })
    }
}

/// What the end of a run leaves beside its messages.
fn ended(outcome: &Outcome) -> Map<String, Value> {
    let result = if outcome.text.is_empty() { Value::Null } else { json!(outcome.text) };
    let diff = outcome.diff.iter().map(|diff| ("diff".to_owned(), json!(diff)));
    let delivered = outcome.delivered.iter().map(|delivered| ("delivered".to_owned(), json!(delivered)));
    [("result".to_owned(), result)].into_iter().chain(diff).chain(delivered).collect()
}

/// Whether `value` has every member of `wanted`, with the same value; objects within likewise.
pub(crate) fn holds(value: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Object(wanted) => {
            wanted.iter().all(|(key, wanted)| value.get(key).is_some_and(|value| holds(value, wanted)))
        }
        Value::Null => true,
        wanted => value == wanted,
    }
}

/// The id of a checkpoint: the same on every replica, since it follows from its place.
pub(crate) fn checkpoint_id(thread: ThreadId, seq: u64) -> Uuid {
    Uuid::new_v5(&thread.0, &seq.to_be_bytes())
}

/// A checkpoint as it is named.
pub(crate) fn checkpoint(thread: ThreadId, id: Uuid) -> Value {
    json!({ "checkpoint_id": id, "thread_id": thread, "checkpoint_ns": "" })
}

fn task(checkpoint: Uuid, name: &str, interrupts: &[Value]) -> Value {
    json!({
        "id": Uuid::new_v5(&checkpoint, name.as_bytes()), "name": name, "path": ["__pregel_pull", name],
        "error": null, "interrupts": interrupts, "checkpoint": null, "state": null, "result": null,
    })
}

fn empty() -> Value {
    json!({
        "values": {}, "next": [], "tasks": [], "metadata": null, "created_at": null, "checkpoint": null,
        "parent_checkpoint": null, "interrupts": [], "checkpoint_id": null, "parent_checkpoint_id": null,
    })
}
