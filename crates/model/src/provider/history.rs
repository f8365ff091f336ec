//! Makes a stored history valid for any provider.
//!
//! Stored histories are valid when they are written, but they outlive what they were written for:
//! a run was killed between a call and its result, a steering message came in between, another
//! provider takes over. What holds of the turns made here, whatever comes in: the first turn is the
//! user's and so is the last; turns of the user, the model and tools alternate; every call is
//! answered directly after its turn, exactly once, in order; results without a call are gone;
//! nothing is empty; call ids are unique and fit both wires; blocks bound to another provider, key
//! or model are gone.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::id::CallId;
use evenkeel_core::message::{Block, Message, Provenance, Role, ToolResult};
use serde_json::Value;

use super::Bound;

/// One turn of a valid history.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn<'a> {
    /// The user's texts.
    User(Vec<&'a str>),
    /// The model's items, at least one.
    Assistant(Vec<Item<'a>>),
    /// Answers to all calls of the turn before, in its order.
    Results(Vec<Answered<'a>>),
}

/// One item of a model's turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<'a> {
    /// Text with something in it.
    Text(&'a str),
    /// A call.
    Call {
        /// Its id on the wire.
        id: String,
        /// The tool.
        name: &'a str,
        /// The arguments.
        args: &'a Value,
    },
    /// A block of this very provider, key and model, as raw JSON.
    Raw(&'a str),
}

/// One answered call.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered<'a> {
    /// The call's id on the wire.
    pub id: String,
    /// What the model sees.
    pub text: &'a str,
    /// Whether it is a failure.
    pub is_error: bool,
}

/// What a call without a stored result is answered with.
pub const UNANSWERED: &str =
    "The call was interrupted and has no result. It may or may not have had an effect.";
const OPENING: &str = "(The conversation continues.)";
const CONTINUE: &str = "Continue.";

/// Makes valid turns for a target.
#[must_use]
pub fn turns<'a>(messages: &'a [Message], target: &Provenance, bound: Bound) -> Vec<Turn<'a>> {
    let mut history = History { turns: Vec::new(), ids: BTreeSet::new() };
    for (idx, message) in messages.iter().enumerate() {
        match message.role {
            // Results are taken by the turn that called; text beside them is the user's.
            Role::User | Role::Tool => history.user(message),
            Role::Assistant => {
                let later = messages.get(idx + 1..).unwrap_or_default();
                history.assistant(message, results_until_next_answer(later), target, bound);
            }
        }
    }
    history.close()
}

/// The first result for each call among the messages before the model speaks again.
fn results_until_next_answer(later: &[Message]) -> BTreeMap<&CallId, &ToolResult> {
    let mut results = BTreeMap::new();
    for message in later.iter().take_while(|message| message.role != Role::Assistant) {
        for result in message.tool_results() {
            results.entry(&result.call_id).or_insert(result);
        }
    }
    results
}

struct History<'a> {
    turns: Vec<Turn<'a>>,
    ids: BTreeSet<String>,
}

impl<'a> History<'a> {
    fn user(&mut self, message: &'a Message) {
        for block in &message.blocks {
            if let Block::Text { text } = block
                && !text.trim().is_empty()
            {
                self.say(text);
            }
        }
    }

    fn say(&mut self, text: &'a str) {
        match self.turns.last_mut() {
            Some(Turn::User(texts)) => texts.push(text),
            _ => self.turns.push(Turn::User(vec![text])),
        }
    }

    fn assistant(
        &mut self,
        message: &'a Message,
        results: BTreeMap<&'a CallId, &'a ToolResult>,
        target: &Provenance,
        bound: Bound,
    ) {
        let mut items = Vec::new();
        let mut answers = Vec::new();
        let mut seen = BTreeSet::new();
        for block in &message.blocks {
            match block {
                Block::Text { text } if !text.trim().is_empty() => items.push(Item::Text(text)),
                Block::Opaque { raw, from } if bound == Bound::Keep && from == target => {
                    items.push(Item::Raw(raw));
                }
                Block::ToolCall(call) if seen.insert(&call.id) && call.args.is_object() => {
                    let id = self.wire_id(&call.id);
                    items.push(Item::Call { id: id.clone(), name: &call.name, args: &call.args });
                    answers.push(answer(id, results.get(&call.id).copied()));
                }
                _ => {}
            }
        }
        // Reasoning alone, without anything said or called, is an unfinished turn.
        if items.iter().all(|item| matches!(item, Item::Raw(_))) {
            return;
        }
        match self.turns.last() {
            None => self.say(OPENING),
            Some(Turn::Assistant(_)) => self.say(CONTINUE),
            Some(Turn::User(_) | Turn::Results(_)) => {}
        }
        self.turns.push(Turn::Assistant(items));
        if !answers.is_empty() {
            self.turns.push(Turn::Results(answers));
        }
    }

    /// Our own id, made to fit (at most 40 letters, digits, `_` and `-`) and unique in the history.
    fn wire_id(&mut self, id: &CallId) -> String {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let stem: String = id.as_str().chars().map(|c| if fits(c) { c } else { '_' }).take(32).collect();
        let stem = if stem.is_empty() { "call".to_owned() } else { stem };
        let mut unique = stem.clone();
        let mut n = 1;
        while !self.ids.insert(unique.clone()) {
            n += 1;
            unique = format!("{stem}-{n}");
        }
        unique
    }

    fn close(mut self) -> Vec<Turn<'a>> {
        match self.turns.last() {
            None => self.say(OPENING),
            Some(Turn::Assistant(_)) => self.say(CONTINUE),
            Some(Turn::User(_) | Turn::Results(_)) => {}
        }
        self.turns
    }
}

fn answer<'a>(id: String, result: Option<&'a ToolResult>) -> Answered<'a> {
    match result {
        Some(result) if result.text.trim().is_empty() => {
            Answered { id, text: "(no output)", is_error: result.is_error }
        }
        Some(result) => Answered { id, text: &result.text, is_error: result.is_error },
        None => Answered { id, text: UNANSWERED, is_error: true },
    }
}
