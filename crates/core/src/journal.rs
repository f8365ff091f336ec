//! The thread's log: append-only events with dense sequence numbers.
//!
//! The journal is the only source. Prompts, thread state, traces, the stream and the console are
//! projections of it. An event is never changed; compaction and rollback are events too.

pub mod unanswered;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Wall;
use crate::approval::{Answered, Approval};
use crate::id::{ApprovalId, BlobId, CallId, EffectId, RunId, SnapshotId, ThreadId};
use crate::message::Message;
use crate::run::{Attempt, Outcome, WaitReason};

/// One stored event. `seq` is dense per thread and starts at 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its thread.
    pub thread: ThreadId,
    /// Position in the thread's log.
    pub seq: u64,
    /// The run it belongs to.
    pub run: RunId,
    /// The step it belongs to; steps count from 1, 0 is before the first.
    pub step: u32,
    /// When it was written.
    pub at: Wall,
    /// What happened.
    pub body: EventBody,
}

/// An event to be appended; the store gives it its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewEvent {
    /// The step it belongs to.
    pub step: u32,
    /// What happened.
    pub body: EventBody,
}

/// How an unfinished effect is settled after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Reads only: runs again.
    Pure,
    /// Runs again with the same effect id.
    Idempotent,
    /// A file change with known hashes before and after: compared, then done, redone or an error.
    Guarded,
    /// Its only durable effect is the workspace: the snapshot is restored and it runs again.
    Workspace,
    /// Never run again: the model is told that the outcome is unknown.
    Unsafe,
}

/// What policy said about a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It may run.
    Allow,
    /// It may not; the reason goes to the model.
    Deny {
        /// In words the model can act on.
        reason: String,
    },
    /// A person decides.
    Ask {
        /// What the person is asked.
        reason: String,
    },
}

/// A file that a guarded effect changes, with the hash before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Path relative to the workspace.
    pub path: String,
    /// BLAKE3 of the content before; `None` if the file did not exist.
    pub before: Option<String>,
    /// BLAKE3 of the content after; `None` if the call deletes it.
    pub after: Option<String>,
}

/// The durable intent of a call, written before it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EffectIntent {
    /// Its id, the same when the step is redone.
    pub effect: EffectId,
    /// The call it carries out.
    pub call_id: CallId,
    /// The tool's name.
    pub tool: String,
    /// BLAKE3 of the canonical arguments.
    pub args_hash: String,
    /// How it is settled after a crash.
    pub class: EffectClass,
    /// Files with their hashes, for `guarded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Guard>,
    /// The workspace snapshot to restore, for `workspace`.
    pub snapshot: Option<SnapshotId>,
    /// Ids of the policies that decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// The approval that this effect uses up, where policy asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalId>,
}

/// The recorded result of an effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EffectResult {
    /// The effect that this settles.
    pub effect: EffectId,
    /// The call it carried out.
    pub call_id: CallId,
    /// What the model is shown.
    pub text: String,
    /// Whether the model should take it as a failure.
    pub is_error: bool,
    /// The full output, if it was longer than what is shown.
    pub blob: Option<BlobId>,
    /// Milliseconds it took.
    pub ms: u64,
    /// How it was settled: `ran`, `reran`, `already_applied`, `unknown`, `cancelled`, `denied`.
    pub settled: String,
    /// Exit code, signal, limits hit: facts for traces and pages.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub facts: Value,
}

/// The events that count for the state after the newest of `events`, which are in order and without
/// a gap: those that a `Rewound` leaves out are missing.
///
/// Every event follows the one before it, and a `Rewound` the one that it goes back to. What counts
/// is the way from the newest event to the first, so an undone `Rewound` is undone like anything else.
#[must_use]
pub fn counting(events: &[Event]) -> Vec<&Event> {
    let mut way = Vec::with_capacity(events.len());
    let first = events.first().map_or(1, |event| event.seq);
    let mut next = events.last().map_or(0, |event| event.seq);
    while let Some(event) =
        next.checked_sub(first).and_then(|idx| events.get(usize::try_from(idx).unwrap_or(usize::MAX)))
    {
        way.push(event);
        next = match event.body {
            // Whatever it names, it goes back: the way ends.
            EventBody::Rewound { to, .. } => to.min(event.seq - 1),
            _ => event.seq - 1,
        };
    }
    way.reverse();
    way
}

/// What happened. Unknown bodies from a later version are kept and shown, never dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventBody {
    /// A claim: a replica began or resumed the run.
    RunClaimed {
        /// The epoch of this claim.
        epoch: u64,
        /// 1 for the first claim.
        attempt: u32,
    },
    /// A message of the user entered the thread.
    UserMessage {
        /// The message.
        message: Message,
    },
    /// The model's reply, committed before any tool runs.
    AssistantMessage {
        /// The message.
        message: Message,
        /// Every try that led to it, the last one `ok`.
        attempts: Vec<Attempt>,
        /// `stop`, `tool_calls`, `length`, `refusal`.
        finish: String,
    },
    /// Model attempts that gave no reply (the run parked or failed).
    ModelAttempts {
        /// The tries.
        attempts: Vec<Attempt>,
    },
    /// What policy said about one call.
    PolicyDecided {
        /// The call.
        call_id: CallId,
        /// The tool's name.
        tool: String,
        /// Allow, deny or ask.
        #[serde(flatten)]
        verdict: Verdict,
        /// Ids of the policies that decided.
        policies: Vec<String>,
    },
    /// A person is asked whether a call may run.
    ApprovalRequested(Approval),
    /// A person answered, or nobody did in time.
    ApprovalAnswered {
        /// The question.
        approval: ApprovalId,
        /// The call.
        call_id: CallId,
        /// The answer.
        answer: Answered,
    },
    /// A call is about to run.
    EffectIntended(EffectIntent),
    /// A call ended.
    EffectSettled(EffectResult),
    /// The tool message of a step: one result for each call of the assistant message before it.
    ToolMessage {
        /// The message.
        message: Message,
    },
    /// A step is complete; resume starts after it.
    Checkpoint {
        /// The workspace as it was.
        snapshot: Option<SnapshotId>,
    },
    /// Older context was replaced. The prompt is a pure function of the journal and this record.
    Compacted {
        /// Results in messages with a sequence number in `from..=to` are shown as stubs
        /// (`summary` absent) or the whole range is replaced by the summary.
        from: u64,
        /// End of the range, inclusive.
        to: u64,
        /// The summary that stands for the range, if one was made.
        summary: Option<String>,
        /// Estimated tokens before and after.
        tokens_before: u64,
        /// Estimated tokens after.
        tokens_after: u64,
    },
    /// The run was parked.
    Parked {
        /// What it waits for.
        on: WaitReason,
        /// In words.
        reason: String,
        /// When it is next worth a look.
        until_hint: Option<Wall>,
    },
    /// A stop was asked for: by a cancel, or by a later message's policy.
    CancelRequested,
    /// From here the thread's state is the one right after the event `to`: what stands between is
    /// kept in the log and is no part of the conversation, its summaries included. Written when a
    /// run is rolled back, and at the claim of a run that builds on an earlier checkpoint.
    Rewound {
        /// The last event that counts; 0 for the empty thread.
        to: u64,
        /// `rollback` or `fork`.
        cause: String,
    },
    /// A client changed the state while no run was open: each message replaces the one of the same
    /// id, or is appended.
    StateWritten {
        /// The messages.
        messages: Vec<Message>,
        /// Other values, as the client wrote them; they replace those of the same name.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        values: Value,
        /// In whose name, as the client says.
        as_node: Option<String>,
    },
    /// Something a reader of the run should know (a repeated call, a repaired reply).
    Noted {
        /// A stable word: `repeated_call`, `malformed_reply`, `output_truncated`, ...
        kind: String,
        /// In words.
        text: String,
    },
    /// The run ended. The last event of a run.
    RunEnded {
        /// How.
        outcome: Outcome,
    },
}
