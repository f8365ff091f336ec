//! Calls of a reply that the conversation has no results for yet, and the results that they are given
//! when their run ends so.
//!
//! Whoever ends a run closes its step first, so that each call has its result. A run that waits for a
//! person, or whose owner is gone, is ended by the store alone, which writes no messages: then the
//! log has the reply with its calls, and of each call whatever was settled. Every reader of the log
//! closes the step in the same way, with this: what was settled keeps its result, and the rest is
//! told as what it is. The model is not told that something did not happen which did.

use std::collections::BTreeMap;

use super::{EffectResult, EventBody};
use crate::id::{CallId, MessageId, RunId};
use crate::message::{Block, Message, Role, ToolCall, ToolResult};

/// Shown for a call that was never begun.
pub const NOT_BEGUN: &str = "The run was stopped before this call was begun. It had no effect.";
/// Shown for a call that was begun and has no result.
pub const NOT_KNOWN: &str =
    "The run was stopped before this call had a result. Whether it took effect is unknown.";

/// The calls of the newest reply, until they have their results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unanswered {
    open: Option<Reply>,
}

#[derive(Clone, Debug, PartialEq)]
struct Reply {
    run: RunId,
    step: u32,
    calls: Vec<ToolCall>,
    known: BTreeMap<CallId, Known>,
}

/// What the log says of one call.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    Begun,
    Settled { text: String, is_error: bool },
}

impl Unanswered {
    /// Takes the next event of the log: the message that closes the step of a run that ended in it.
    pub fn fold(&mut self, run: RunId, step: u32, body: &EventBody) -> Option<Message> {
        match body {
            EventBody::AssistantMessage { message, .. } => {
                let calls: Vec<ToolCall> = message.tool_calls().cloned().collect();
                let open = Reply { run, step, calls, known: BTreeMap::new() };
                self.open = Some(open).filter(|open| !open.calls.is_empty());
            }
            EventBody::EffectIntended(intent) => self.note(run, &intent.call_id, Known::Begun),
            EventBody::EffectSettled(EffectResult { call_id, text, is_error, .. }) => {
                self.note(run, call_id, Known::Settled { text: text.clone(), is_error: *is_error });
            }
            // Results, or a way back to before the reply.
            EventBody::ToolMessage { .. } | EventBody::Rewound { .. } => self.open = None,
            EventBody::RunEnded { .. } => {
                return self.open.take_if(|open| open.run == run).map(Reply::closed);
            }
            _ => {}
        }
        None
    }

    fn note(&mut self, run: RunId, call: &CallId, known: Known) {
        if let Some(open) = self.open.as_mut().filter(|open| open.run == run) {
            open.known.insert(call.clone(), known);
        }
    }
}

impl Reply {
    fn closed(mut self) -> Message {
        let calls = std::mem::take(&mut self.calls);
        let blocks = calls.into_iter().map(|call| {
            let (text, is_error) = match self.known.remove(&call.id) {
                Some(Known::Settled { text, is_error }) => (text, is_error),
                Some(Known::Begun) => (NOT_KNOWN.to_owned(), true),
                None => (NOT_BEGUN.to_owned(), true),
            };
            Block::ToolResult(ToolResult { call_id: call.id, name: call.name, text, is_error })
        });
        let id = MessageId(format!("results-{}-{}", self.run, self.step));
        Message { id, role: Role::Tool, blocks: blocks.collect() }
    }
}
