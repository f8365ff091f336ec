//! Runs, steps, attempts: their states and what is stored of them.
//!
//! ```text
//!            admit            claim              last step
//! (nothing) ------> queued ---------> running ------------> completed | failed
//!                     ^  |    park  /    ^  |  cancel
//!                     |  |         v     |  v
//!                     |  |      waiting--+ cancelling -----> cancelled
//!                     |  +-- cancel, deadline --> cancelled | expired
//!                     +----- released at a step boundary (drain)
//! ```
//! Terminal states are never left. `running` means a live owner holds the newest epoch.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::RunLimits;
use crate::approval::Approval;
use crate::id::{IdempotencyKey, ReplicaId, RunId, TenantId, ThreadId};
use crate::message::{Message, Usage};
use crate::{Error, Wall};

/// What a waiting run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// A model deployment that can take the call.
    Model,
    /// A tool.
    Tool,
    /// A person's approval.
    Approval,
    /// Budget.
    Budget,
}

/// The state of a run, derived from its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Stored, not yet claimed.
    Queued,
    /// Claimed by a live owner.
    Running,
    /// Parked: one row, no slot.
    Waiting,
    /// A cancel is stored; its owner has not yet proven everything stopped.
    Cancelling,
    /// Ended well.
    Completed,
    /// Ended with a cause.
    Failed,
    /// Ended by request.
    Cancelled,
    /// Ended because its deadline passed before it could finish.
    Expired,
}

impl Run {
    /// What a person is asked while the run waits for it; empty in any other state.
    #[must_use]
    pub fn asks(&self) -> &[Approval] {
        match &self.wait {
            Some(wait) if self.state == RunState::Waiting && wait.on == WaitReason::Approval => {
                &wait.approvals
            }
            _ => &[],
        }
    }
}

impl RunState {
    /// Whether the state is never left.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::Expired)
    }

    /// The word used in tables, logs and the API of our own.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Cancelling => "cancelling",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// The state of this word, if it is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [
            Self::Queued,
            Self::Running,
            Self::Waiting,
            Self::Cancelling,
            Self::Completed,
            Self::Failed,
            Self::Cancelled,
            Self::Expired,
        ]
        .into_iter()
        .find(|state| state.as_str() == text)
    }
}

/// Who waits for the run; the router serves interactive before batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A person waits; parks for at most a few seconds.
    Interactive,
    /// Durable background work; parks as long as its deadline allows.
    #[default]
    Batch,
}

/// What a second message does on a thread with an active run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyPolicy {
    /// Stored, runs next, in order.
    #[default]
    Enqueue,
    /// Refused with the id of the active run.
    Reject,
    /// The active run stops at once, what it produced is kept.
    Interrupt,
    /// The active run is undone.
    Rollback,
    /// The message enters the active run between two steps.
    Steer,
    /// Waiting messages are joined into one turn.
    Merge,
    /// Only the newest waiting message runs.
    Latest,
}

/// Where a run's workspace comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repository {
    /// A directory on the server's machine, copied.
    Directory(String),
    /// A git URL, cloned.
    Url(String),
    /// An empty workspace.
    Empty,
}

/// Where a run's result goes besides its outcome: to a branch of the repository that it was cloned
/// from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deliver {
    /// The branch; without one it is named after the thread, so that a follow-up adds to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The branch that it starts from and that the pull request asks to change; without one the
    /// repository's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Whether a pull request is wanted.
    #[serde(default)]
    pub pull_request: bool,
    /// The title of commit and pull request; without one the first line of the run's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// Where a run's result is, as the forge itself has shown it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// The branch.
    pub branch: String,
    /// The commit that holds what the run changed.
    pub commit: String,
    /// The pull request's address, if one was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<String>,
}

/// Everything a run was asked to do; stored once at acceptance and never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The assistant's name.
    pub assistant: String,
    /// New messages of this turn.
    pub messages: Vec<Message>,
    /// Where the workspace comes from; `None` for an agent without one.
    pub repository: Option<Repository>,
    /// Where the result is to be delivered; the run does not complete before it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<Deliver>,
    /// Limits of this run.
    pub limits: RunLimits,
    /// Interactive or batch.
    pub class: Class,
    /// What a busy thread does with it.
    pub busy_policy: BusyPolicy,
    /// The run expires at this instant.
    pub deadline: Wall,
    /// It builds on the state right after this event of its thread instead of the newest one; the
    /// claim then begins with `Rewound`. This is how a thread is forked from a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
    /// The request's own words (input, config, metadata, stream modes), kept for the wire.
    pub request: Value,
}

/// A stored run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// Its thread.
    pub thread: ThreadId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Where it stands.
    pub state: RunState,
    /// What it waits for, if it waits.
    pub wait: Option<Waiting>,
    /// Messages before it on its thread, if it is queued.
    pub position: u32,
    /// It is not started before this instant, if it is queued with a delay or a merge window.
    pub not_before: Option<Wall>,
    /// Why it is told to stop, if it is `cancelling`.
    pub stop: Option<EndReason>,
    /// Steps completed (checkpoints).
    pub step: u32,
    /// How often it was claimed; 1 for a run that never resumed.
    pub attempt: u32,
    /// The replica that runs it now.
    pub owner: Option<ReplicaId>,
    /// The thread version after it committed; `None` until it ends, and for a run that ended before
    /// its first claim, which left the conversation as it was.
    pub version: Option<u64>,
    /// The client's key, if it sent one.
    pub key: Option<IdempotencyKey>,
    /// When it was accepted.
    pub created_at: Wall,
    /// When its row last changed.
    pub updated_at: Wall,
    /// What it was asked.
    pub spec: RunSpec,
    /// How it ended, if it has.
    pub outcome: Option<Outcome>,
    /// Tokens of all attempts so far.
    pub usage: Usage,
}

/// Why and since when a run waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// For what.
    pub on: WaitReason,
    /// In words, for people.
    pub reason: String,
    /// Since when.
    pub since: Wall,
    /// When it is next worth a look, if known.
    pub until_hint: Option<Wall>,
    /// The route it waits on, for `WaitReason::Model`.
    pub route: Option<String>,
    /// What a person is asked, for `WaitReason::Approval`, in the order of the calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
}

/// Why a run ended, or is to end, without its own answer. Kept for ever: it is what its client is
/// told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum EndReason {
    /// Somebody cancelled it; what it did is kept.
    Requested,
    /// Somebody cancelled it and had it undone.
    Undone,
    /// A later message with the policy `interrupt` took its place; what it did is kept.
    Interrupted {
        /// The later run.
        by: RunId,
    },
    /// A later message with the policy `rollback` took its place; what it did is undone.
    RolledBack {
        /// The later run.
        by: RunId,
    },
    /// A later message with the policy `latest` took its place before it began.
    Superseded {
        /// The later run.
        by: RunId,
    },
    /// Its messages were joined with those of another waiting run.
    Merged {
        /// The run that answers them.
        into: RunId,
    },
    /// Its messages were taken into the run that was active.
    Steered {
        /// The run that answers them.
        into: RunId,
    },
}

impl EndReason {
    /// Whether what the run did is undone.
    #[must_use]
    pub fn undoes(self) -> bool {
        matches!(self, Self::Undone | Self::RolledBack { .. })
    }

    /// The run that answers in its place.
    #[must_use]
    pub fn answered_by(self) -> Option<RunId> {
        match self {
            Self::Merged { into } | Self::Steered { into } => Some(into),
            _ => None,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The terminal state.
    pub state: RunState,
    /// Why, for `cancelled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// The error, for `failed` and `expired`.
    pub error: Option<Error>,
    /// The final text, for `completed`.
    pub text: String,
    /// What the run changed in its workspace, as a unified diff, kept on any end.
    pub diff: Option<String>,
    /// Where the result was delivered, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Delivered>,
}

/// One try at a model call, as recorded in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counts from 1 over the step.
    pub attempt: u32,
    /// The deployment's name in the configuration.
    pub deployment: String,
    /// The provider's name.
    pub provider: String,
    /// The model's name on the wire.
    pub model: String,
    /// When it started.
    pub started_at: Wall,
    /// Time to first content in milliseconds, if any came.
    pub first_content_ms: Option<u64>,
    /// Total milliseconds.
    pub ms: u64,
    /// `ok` or the error class (`transient`, `overloaded`, ...).
    pub outcome: String,
    /// The cause in words, for anything but `ok`.
    pub cause: Option<String>,
    /// Tokens spent by this attempt, wasted or not.
    pub usage: Usage,
    /// What they cost in millionths of a US dollar, where the deployment has a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micro_usd: Option<u64>,
}
