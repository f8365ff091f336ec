//! A thread's state: a fold over its journal.

use evenkeel_core::Wall;
use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::thread::Thread;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::message;

/// What a thread holds after the events folded so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadView {
    /// The newest event folded.
    pub(crate) seq: u64,
    messages: Vec<Value>,
    result: Option<Value>,
    diff: Option<Value>,
    points: Vec<Point>,
}

/// A place in the journal that the dialect calls a checkpoint.
#[derive(Clone, Copy, Debug)]
struct Point {
    seq: u64,
    run: RunId,
    step: u32,
    at: Wall,
    source: &'static str,
    n_messages: usize,
}

impl ThreadView {
    /// Folds the next event. An event that is folded already changes nothing.
    pub(crate) fn fold(&mut self, event: &Event) {
        if event.seq <= self.seq {
            return;
        }
        self.seq = event.seq;
        self.messages.extend(message::of_event(event));
        let source = match &event.body {
            EventBody::UserMessage { .. } => {
                self.result = None;
                "input"
            }
            EventBody::Checkpoint { .. } => "loop",
            EventBody::RunEnded { outcome } => {
                self.result = (!outcome.text.is_empty()).then(|| json!(outcome.text));
                if let Some(diff) = &outcome.diff {
                    self.diff = Some(json!(diff));
                }
                "loop"
            }
            _ => return,
        };
        let n_messages = self.messages.len();
        let Event { seq, run, step, at, .. } = *event;
        self.points.push(Point { seq, run, step, at, source, n_messages });
    }

    /// The state: `messages`, and of the last run its `result` and `diff`.
    pub(crate) fn values(&self) -> Value {
        if self.seq == 0 {
            return json!({});
        }
        let mut values = self.values_of(self.messages.len());
        values.extend(self.result.clone().map(|result| ("result".to_owned(), result)));
        values.extend(self.diff.clone().map(|diff| ("diff".to_owned(), diff)));
        Value::Object(values)
    }

    fn values_of(&self, n_messages: usize) -> Map<String, Value> {
        let messages = self.messages.iter().take(n_messages).cloned().collect();
        Map::from_iter([("messages".to_owned(), Value::Array(messages))])
    }

    /// The newest state in the dialect's shape.
    pub(crate) fn state(&self, thread: &Thread) -> Value {
        match self.points.last() {
            Some(point) => self.shape(thread, self.points.len() - 1, *point, self.values()),
            None => empty(),
        }
    }

    /// States, newest first, those before the checkpoint `before` if it is given.
    pub(crate) fn history(&self, thread: &Thread, limit: usize, before: Option<Uuid>) -> Vec<Value> {
        let known = before.map(|id| self.points.iter().position(|p| checkpoint_id(thread.id, p.seq) == id));
        let end = match known {
            None => self.points.len(),
            Some(position) => position.unwrap_or(0),
        };
        let points = self.points.iter().enumerate().take(end).rev().take(limit);
        points
            .map(|(idx, point)| {
                let newest = idx + 1 == self.points.len();
                let values =
                    if newest { self.values() } else { Value::Object(self.values_of(point.n_messages)) };
                self.shape(thread, idx, *point, values)
            })
            .collect()
    }

    fn shape(&self, thread: &Thread, idx: usize, point: Point, values: Value) -> Value {
        let newest = idx + 1 == self.points.len();
        let next: &[&str] = if newest && thread.active.is_none() { &[] } else { &["agent"] };
        let id = checkpoint_id(thread.id, point.seq);
        let parent = idx.checked_sub(1).and_then(|idx| self.points.get(idx));
        let parent = parent.map(|point| checkpoint_id(thread.id, point.seq));
        json!({
            "values": values,
            "next": next,
            "tasks": [],
            "metadata": {
                "source": point.source,
                "step": point.step,
                "run_id": point.run,
                "thread_id": thread.id,
                "seq": point.seq,
            },
            "created_at": point.at.iso(),
            "checkpoint": checkpoint(thread.id, id),
            "parent_checkpoint": parent.map(|id| checkpoint(thread.id, id)),
            "interrupts": [],
            "checkpoint_id": id,
            "parent_checkpoint_id": parent,
        })
    }
}

/// The id of a checkpoint: the same on every replica, since it follows from its place.
fn checkpoint_id(thread: ThreadId, seq: u64) -> Uuid {
    Uuid::new_v5(&thread.0, &seq.to_be_bytes())
}

fn checkpoint(thread: ThreadId, id: Uuid) -> Value {
    json!({ "checkpoint_id": id, "thread_id": thread, "checkpoint_ns": "" })
}

fn empty() -> Value {
    json!({
        "values": {}, "next": [], "tasks": [], "metadata": null, "created_at": null, "checkpoint": null,
        "parent_checkpoint": null, "interrupts": [], "checkpoint_id": null, "parent_checkpoint_id": null,
    })
}
