//! Answers to what a run asks of a person.

use serde::{Deserialize, Serialize};

use crate::approval::Decision;
use crate::id::{ApprovalId, IdempotencyKey, RunId, TenantId};
use crate::run::Run;

/// Answers questions of a run that waits for a person's approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The tenant.
    pub tenant: TenantId,
    /// The run.
    pub run: RunId,
    /// What is answered, each once.
    pub answers: Vec<OneAnswer>,
    /// Who answers.
    pub by: String,
    /// The client's key, with the thread as its scope: the same request again changes nothing.
    pub key: Option<IdempotencyKey>,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneAnswer {
    /// The question.
    pub approval: ApprovalId,
    /// Whether the call may run.
    pub decision: Decision,
    /// In words, for the model.
    pub note: String,
}

/// What became of answers. They are stored all or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AnswerTaken {
    /// Stored. A run of which nothing is open any more is queued again, as the next of its thread.
    Done {
        /// The run as it is now.
        run: Box<Run>,
        /// Newest sequence number of its thread.
        seq_last: u64,
    },
    /// The key is known: nothing was changed.
    Replayed(Box<Run>),
    /// The key names another request.
    KeyConflict,
    /// One of them is not open: it was answered, it expired, or its run went on or ended.
    Closed(Box<Run>),
    /// There is no such run.
    NotFound,
}
