//! The view of a run: its thread's journal, folded.
//!
//! ```text
//!              AssistantMessage with calls            ToolMessage, Checkpoint
//!   asking ------------------------------> open ------------------------------> asking (step + 1)
//!     |                                     |  EffectIntended, EffectSettled per call
//!     | AssistantMessage without calls      v
//!     +-----------------------------> answered | finished ---------> ended
//! ```
//! | state | holds |
//! |---|---|
//! | asking | `open` and `answer` are empty: the next thing is a model call |
//! | open | the newest message of the run is an assistant's with calls; each call is open, intended or settled |
//! | answered | the newest message is an assistant's without calls |
//!
//! Folding is total: any journal, also one that another version or a crash left behind, gives a
//! view. What is missing for a valid prompt is repaired when the prompt is made.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::Wall;
use evenkeel_core::approval::Approval;
use evenkeel_core::id::{BlobId, CallId, RunId, SnapshotId};
use evenkeel_core::journal::unanswered::Unanswered;
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, Event, EventBody, NewEvent, counting};
use evenkeel_core::message::{Block, Message, Role, ToolCall, Usage};
use evenkeel_core::port::store::Claim;
use evenkeel_core::run::WaitReason;
use serde_json::Value;

/// Notes that the model is shown, as a message of the user.
pub(crate) const NOTE_TRUNCATED: &str = "output_truncated";
/// Where messages entered a run that was under way.
pub(crate) const NOTE_STEERED: &str = "steered";
/// See [`NOTE_TRUNCATED`].
pub(crate) const NOTE_MALFORMED: &str = "malformed_reply";
/// The same call again.
pub(crate) const NOTE_REPEATED: &str = "repeated_call";
/// The provider refused the context as too long.
pub(crate) const NOTE_TOO_LONG: &str = "context_too_long";
/// A summary could not be made.
pub(crate) const NOTE_COMPACTION_FAILED: &str = "compaction_failed";
/// Nothing is left to compact.
pub(crate) const NOTE_COMPACTION_EXHAUSTED: &str = "compaction_exhausted";

/// Where the `finish` tool's text stands in the facts of a settled effect.
pub(crate) const FINISH_FACT: &str = "finish";

/// One message of the context.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Its place in the journal; pending while it is staged.
    pub(crate) seq: Seq,
    /// The run it belongs to.
    pub(crate) run: RunId,
    /// The message; a note is a user's message.
    pub(crate) message: Message,
    /// Its size for estimates.
    pub(crate) bytes: u64,
}

/// A place in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seq {
    /// Durable.
    Stored(u64),
    /// The n-th of the staged events.
    Staged(usize),
}

/// The summary that stands for everything up to and including `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) to: u64,
    pub(crate) text: String,
}

/// An assistant message whose calls are not all answered in the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Open {
    pub(crate) calls: Vec<Call>,
    /// The reply was cut by the token limit: nothing of it runs.
    pub(crate) truncated: bool,
}

/// One call of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) call: ToolCall,
    pub(crate) idx: u32,
    /// How many identical calls in a row this is.
    pub(crate) streak: u32,
    /// What a person was asked about it last, with the answer.
    pub(crate) asked: Option<Approval>,
    pub(crate) state: CallState,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallState {
    /// Nothing is known of it.
    Open,
    /// It may have started. `fresh` when this very process wrote the intent and has not run it yet.
    Intended { intent: EffectIntent, fresh: bool },
    /// It has a result. `changed` when it may have changed files.
    Settled { text: String, is_error: bool, changed: bool },
}

/// What the model answered without a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) finish: String,
}

/// What the provider reported last, and how many entries that covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) tokens: u64,
    pub(crate) n_entries: usize,
}

/// Everything that decisions look at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) run: RunId,
    /// Newest durable sequence number.
    pub(crate) seq_last: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) summary: Option<Summary>,
    /// Ranges of the journal whose results are shown as stubs.
    pub(crate) stubs: Vec<(u64, u64)>,
    /// Full outputs that were kept.
    pub(crate) blobs: BTreeMap<CallId, BlobId>,
    /// The step that is under way; counts from 1.
    pub(crate) step: u32,
    pub(crate) open: Option<Open>,
    pub(crate) answer: Option<Answer>,
    /// The text of the `finish` tool.
    pub(crate) finished: Option<String>,
    /// The newest call and how often it came in a row.
    streak: Option<(String, String, u32)>,
    /// Malformed or truncated replies in a row.
    pub(crate) n_malformed: u32,
    /// Model attempts in this step that gave no reply.
    pub(crate) prior_attempts: u32,
    /// Attempts in this step before what it asks was changed: they count no more against its limit,
    /// but their numbers are taken. A span of a trace is named by the number of its attempt.
    pub(crate) n_attempts_before: u32,
    /// Since when this step waits for the model.
    pub(crate) parked_since: Option<Wall>,
    /// Compactions since the last model call.
    pub(crate) n_compacted: u32,
    /// Times the context was refused as too long in this step.
    pub(crate) n_too_long: u32,
    /// The refusal is not yet answered by a compaction.
    pub(crate) too_long: bool,
    pub(crate) compaction_exhausted: bool,
    /// Failed summaries in this run.
    pub(crate) n_compaction_failed: u32,
    pub(crate) usage: Usage,
    pub(crate) reported: Option<Reported>,
    /// The newest checkpoint's workspace.
    pub(crate) checkpoint: Option<SnapshotId>,
    /// The workspace as the run found it.
    pub(crate) base: Option<SnapshotId>,
    /// The newest workspace that a checkpoint of any run names.
    pub(crate) workspace: Option<SnapshotId>,
    /// The conversation went back, and no run has noted since how it found the workspace.
    pub(crate) rewound: bool,
    /// Messages that entered this run after its first step and are not noted yet.
    pub(crate) n_steered: usize,
    pub(crate) cancelling: bool,
    pub(crate) ended: bool,
    /// Calls of whichever run, until they have results in the conversation.
    unanswered: Unanswered,
    n_staged: usize,
}

impl View {
    /// The view of `run` over events from the start of its context. `step` and `usage` are the
    /// run's own totals as stored, for what lies before that start.
    pub(crate) fn of(run: RunId, steps_done: u32, usage: Usage, events: &[Event]) -> Self {
        let mut view = Self::empty(run, steps_done);
        view.seq_last = events.last().map_or(0, |event| event.seq);
        for event in counting(events) {
            view.fold(Seq::Stored(event.seq), event.run, event.step, event.at, &event.body);
        }
        view.usage = usage;
        view
    }

    /// The view of a run at its first claim, without reading: what the turn before left, and the
    /// claim's own events. These are known from the claim: they are the newest of the thread.
    pub(crate) fn begun(before: Option<Self>, claim: &Claim) -> Self {
        let mut view = Self::empty(claim.fence.run, 0);
        if let Some(before) = before {
            view.entries = before.entries;
            view.summary = before.summary;
            view.stubs = before.stubs;
            view.blobs = before.blobs;
            view.reported = before.reported;
            view.workspace = before.workspace;
            view.rewound = before.rewound;
        }
        for (idx, message) in (0_u64..).zip(claim.run.spec.messages.iter().rev()) {
            let seq = Seq::Stored(claim.seq_last.saturating_sub(idx));
            view.push(seq, claim.fence.run, message.clone());
        }
        let n_messages = claim.run.spec.messages.len();
        let first = view.entries.len() - n_messages;
        view.entries[first..].reverse();
        view.seq_last = claim.seq_last;
        view.usage = claim.run.usage;
        view
    }

    /// The size of its messages.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }

    /// Applies what was stored behind the newest known event.
    pub(crate) fn follow(&mut self, events: &[Event]) {
        for event in events {
            self.seq_last = event.seq;
            self.fold(Seq::Stored(event.seq), event.run, event.step, event.at, &event.body);
        }
    }

    fn empty(run: RunId, steps_done: u32) -> Self {
        Self {
            run,
            seq_last: 0,
            entries: Vec::new(),
            summary: None,
            stubs: Vec::new(),
            blobs: BTreeMap::new(),
            step: steps_done + 1,
            open: None,
            answer: None,
            finished: None,
            streak: None,
            n_malformed: 0,
            prior_attempts: 0,
            n_attempts_before: 0,
            parked_since: None,
            n_compacted: 0,
            n_too_long: 0,
            too_long: false,
            compaction_exhausted: false,
            n_compaction_failed: 0,
            usage: Usage::default(),
            reported: None,
            checkpoint: None,
            base: None,
            workspace: None,
            rewound: false,
            n_steered: 0,
            cancelling: false,
            ended: false,
            unanswered: Unanswered::default(),
            n_staged: 0,
        }
    }

    /// Applies an event that is about to be committed.
    pub(crate) fn stage(&mut self, event: &NewEvent, now: Wall) {
        let seq = Seq::Staged(self.n_staged);
        self.n_staged += 1;
        self.fold(seq, self.run, event.step, now, &event.body);
        if let EventBody::EffectIntended(intent) = &event.body {
            self.mark_fresh(intent);
        }
    }

    /// This process has lost track of what it was about to run: intents are settled by their class.
    pub(crate) fn forget_fresh(&mut self) {
        for call in self.open.iter_mut().flat_map(|open| open.calls.iter_mut()) {
            if let CallState::Intended { fresh, .. } = &mut call.state {
                *fresh = false;
            }
        }
    }

    /// The staged events became durable; the newest has this sequence number.
    pub(crate) fn committed(&mut self, seq_last: u64) {
        let first = seq_last + 1 - u64::try_from(self.n_staged).unwrap_or(0).min(seq_last);
        for entry in &mut self.entries {
            if let Seq::Staged(idx) = entry.seq {
                entry.seq = Seq::Stored(first + u64::try_from(idx).unwrap_or(0));
            }
        }
        self.n_staged = 0;
        self.seq_last = seq_last;
    }

    /// The highest streak: how often the newest call came in a row.
    pub(crate) fn streak(&self) -> u32 {
        self.streak.as_ref().map_or(0, |(_, _, n)| *n)
    }

    /// Whether a call of the open step may have changed files.
    pub(crate) fn step_changed_files(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.calls.iter().any(|call| matches!(call.state, CallState::Settled { changed: true, .. }))
        })
    }

    fn fold(&mut self, seq: Seq, run: RunId, step: u32, at: Wall, body: &EventBody) {
        match body {
            EventBody::UserMessage { message } => self.push(seq, run, message.clone()),
            EventBody::StateWritten { messages, .. } => {
                for message in messages {
                    self.put(seq, run, message.clone());
                }
            }
            EventBody::AssistantMessage { message, .. } | EventBody::ToolMessage { message } => {
                self.push(seq, run, message.clone());
            }
            EventBody::Noted { kind, text } if kind == NOTE_TRUNCATED || kind == NOTE_MALFORMED => {
                let id = format!("note-{run}-{step}-{kind}");
                self.push(seq, run, Message::text(id.as_str(), Role::User, text));
            }
            EventBody::EffectSettled(EffectResult { call_id, blob: Some(blob), .. }) => {
                self.blobs.insert(call_id.clone(), blob.clone());
            }
            EventBody::Compacted { from, to, summary, .. } => self.compacted(*from, *to, summary.clone()),
            EventBody::Rewound { .. } => self.rewound = true,
            EventBody::Checkpoint { snapshot } => {
                self.rewound &= step > 0;
                self.workspace = snapshot.clone().or_else(|| self.workspace.take());
            }
            _ => {}
        }
        if let Some(message) = self.unanswered.fold(run, step, body) {
            self.push(seq, run, message);
        }
        self.reported(body);
        if run == self.run {
            self.fold_own(step, at, body);
        }
        debug_assert!(self.holds(), "{self:?}");
    }

    /// Events of this run move its state.
    fn fold_own(&mut self, step: u32, at: Wall, body: &EventBody) {
        match body {
            EventBody::AssistantMessage { message, attempts, finish } => {
                self.spend(attempts.iter().map(|attempt| attempt.usage));
                self.answered(message, finish);
            }
            EventBody::ModelAttempts { attempts } => {
                self.spend(attempts.iter().map(|attempt| attempt.usage));
                self.prior_attempts += u32::try_from(attempts.len()).unwrap_or(u32::MAX);
            }
            EventBody::EffectIntended(intent) => self.set(&intent.call_id, |state| {
                *state = CallState::Intended { intent: intent.clone(), fresh: false };
            }),
            EventBody::EffectSettled(result) => self.settled(result),
            EventBody::ToolMessage { .. } => self.open = None,
            EventBody::Checkpoint { snapshot } => self.checkpointed(step, snapshot.clone()),
            EventBody::Compacted { .. } => {
                self.n_compacted += 1;
                self.asks_anew();
                self.too_long = false;
            }
            EventBody::Parked { on: WaitReason::Model, .. } => {
                self.parked_since = Some(self.parked_since.unwrap_or(at));
            }
            EventBody::ApprovalRequested(asked) => self.set_call(&asked.call_id, |call| {
                call.asked = Some(asked.clone());
            }),
            EventBody::ApprovalAnswered { approval, call_id, answer } => self.set_call(call_id, |call| {
                if let Some(asked) = call.asked.as_mut().filter(|asked| asked.id == *approval) {
                    asked.answer = Some(answer.clone());
                }
            }),
            EventBody::CancelRequested => self.cancelling = true,
            EventBody::UserMessage { .. } => self.n_steered += usize::from(step > 0),
            EventBody::Noted { kind, .. } => self.noted(kind),
            EventBody::RunEnded { .. } => self.ended = true,
            EventBody::RunClaimed { .. }
            | EventBody::StateWritten { .. }
            | EventBody::Rewound { .. }
            | EventBody::Parked { .. }
            | EventBody::PolicyDecided { .. } => {}
        }
    }

    fn push(&mut self, seq: Seq, run: RunId, message: Message) {
        let bytes = message_bytes(&message);
        self.entries.push(Entry { seq, run, message, bytes });
    }

    /// Replaces the message of the same id, or appends it.
    fn put(&mut self, seq: Seq, run: RunId, message: Message) {
        match self.entries.iter_mut().find(|entry| entry.message.id == message.id) {
            Some(entry) => {
                entry.bytes = message_bytes(&message);
                entry.message = message;
                self.reported = None;
            }
            None => self.push(seq, run, message),
        }
    }

    fn answered(&mut self, message: &Message, finish: &str) {
        let truncated = finish == "length";
        self.n_malformed = if truncated { self.n_malformed + 1 } else { 0 };
        self.open = None;
        self.answer = None;
        self.parked_since = None;
        self.n_compacted = 0;
        self.n_too_long = 0;
        self.too_long = false;
        self.compaction_exhausted = false;
        let mut calls = Vec::new();
        for (idx, call) in message.tool_calls().enumerate() {
            let streak = self.count_streak(call);
            let idx = u32::try_from(idx).unwrap_or(u32::MAX);
            calls.push(Call { call: call.clone(), idx, streak, asked: None, state: CallState::Open });
        }
        if calls.is_empty() {
            self.answer = Some(Answer { text: message.joined_text(), finish: finish.to_owned() });
        } else {
            self.open = Some(Open { calls, truncated });
        }
    }

    fn count_streak(&mut self, call: &ToolCall) -> u32 {
        let args = args_hash(&call.args);
        let n = match &self.streak {
            Some((name, same, n)) if *name == call.name && *same == args => n + 1,
            _ => 1,
        };
        self.streak = Some((call.name.clone(), args, n));
        n
    }

    fn settled(&mut self, result: &EffectResult) {
        if let Some(finish) = result.facts.get(FINISH_FACT).and_then(Value::as_str) {
            self.finished = Some(finish.to_owned());
        }
        let may_have_run = !matches!(result.settled.as_str(), "denied");
        self.set(&result.call_id, |state| {
            let class = match state {
                CallState::Intended { intent, .. } => Some(intent.class),
                _ => None,
            };
            let changed = may_have_run && class != Some(EffectClass::Pure);
            *state = CallState::Settled { text: result.text.clone(), is_error: result.is_error, changed };
        });
    }

    fn set(&mut self, call_id: &CallId, change: impl FnOnce(&mut CallState)) {
        self.set_call(call_id, |call| change(&mut call.state));
    }

    fn set_call(&mut self, call_id: &CallId, change: impl FnOnce(&mut Call)) {
        let calls = self.open.iter_mut().flat_map(|open| open.calls.iter_mut());
        if let Some(call) = calls.into_iter().find(|call| call.call.id == *call_id) {
            change(call);
        }
    }

    fn mark_fresh(&mut self, intent: &EffectIntent) {
        self.set(&intent.call_id, |state| {
            if let CallState::Intended { fresh, .. } = state {
                *fresh = true;
            }
        });
    }

    fn checkpointed(&mut self, step: u32, snapshot: Option<SnapshotId>) {
        if step == 0 {
            self.base.clone_from(&snapshot);
        }
        self.checkpoint = snapshot.or_else(|| self.checkpoint.take());
        self.step = step + 1;
        self.open = None;
        self.answer = None;
        (self.prior_attempts, self.n_attempts_before) = (0, 0);
        self.parked_since = None;
    }

    /// What the step asks is another question from now on, with all its attempts before it.
    fn asks_anew(&mut self) {
        self.n_attempts_before = self.n_attempts_before.saturating_add(self.prior_attempts);
        self.prior_attempts = 0;
    }

    fn noted(&mut self, kind: &str) {
        match kind {
            NOTE_MALFORMED => self.n_malformed += 1,
            NOTE_TOO_LONG => {
                self.n_too_long += 1;
                self.too_long = true;
                self.n_compacted = 0;
            }
            NOTE_COMPACTION_FAILED => {
                self.n_compaction_failed += 1;
                self.asks_anew();
            }
            NOTE_COMPACTION_EXHAUSTED => self.compaction_exhausted = true,
            NOTE_STEERED => self.n_steered = 0,
            _ => {}
        }
    }

    fn compacted(&mut self, from: u64, to: u64, summary: Option<String>) {
        self.reported = None;
        let Some(text) = summary else {
            self.stubs.push((from, to));
            return;
        };
        self.entries.retain(|entry| !matches!(entry.seq, Seq::Stored(seq) if seq <= to));
        self.stubs.retain(|(_, end)| *end > to);
        self.summary = Some(Summary { to, text });
    }

    fn reported(&mut self, body: &EventBody) {
        let EventBody::AssistantMessage { attempts, .. } = body else { return };
        let Some(last) = attempts.last() else { return };
        let tokens = last.usage.input_tokens + last.usage.output_tokens;
        if tokens > 0 && !last.usage.estimated {
            self.reported = Some(Reported { tokens, n_entries: self.entries.len() });
        }
    }

    fn spend(&mut self, usages: impl Iterator<Item = Usage>) {
        for usage in usages {
            self.usage.add(usage);
        }
    }

    /// The facts of the module's table.
    fn holds(&self) -> bool {
        let ids: BTreeSet<_> = self.open.iter().flat_map(|open| &open.calls).map(|call| call.idx).collect();
        let n_calls = self.open.as_ref().map_or(0, |open| open.calls.len());
        !(self.open.is_some() && self.answer.is_some())
            && ids.len() == n_calls
            && self.reported.is_none_or(|reported| reported.n_entries <= self.entries.len())
    }
}

/// The size of a message for estimates: its texts and arguments, with a little for the frame.
pub(crate) fn message_bytes(message: &Message) -> u64 {
    let frame = 16;
    let blocks = message.blocks.iter().map(|block| match block {
        Block::Text { text } => text.len(),
        Block::ToolCall(call) => frame + call.name.len() + call.args.to_string().len(),
        Block::ToolResult(result) => frame + result.text.len(),
        Block::Opaque { raw, .. } => raw.len(),
    });
    u64::try_from(frame + blocks.sum::<usize>()).unwrap_or(u64::MAX)
}

/// BLAKE3 of the arguments with the keys of all objects sorted.
pub(crate) fn args_hash(args: &Value) -> String {
    blake3::hash(canonical(args).to_string().as_bytes()).to_hex().to_string()
}

/// The same value with the keys of all objects sorted.
pub(crate) fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().collect();
            Value::Object(sorted.into_iter().map(|(key, value)| (key.clone(), canonical(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}
