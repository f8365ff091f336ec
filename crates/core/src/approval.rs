//! Approvals: what a person is asked before a call runs, and what was answered.
//!
//! Approval, effect and reply are three separate facts. An approval is bound to one call of one step
//! of one run, to the digest of its tool, its canonical arguments and the reason that the person was
//! shown, and to an instant at which it expires. It is used at most once: by the one effect of its
//! call, whose intent names it. A call that is judged otherwise later asks anew.

use serde::{Deserialize, Serialize};

use crate::Wall;
use crate::id::{ApprovalId, CallId};

/// What a person is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// Its id; names the run.
    pub id: ApprovalId,
    /// The step that waits for it.
    pub step: u32,
    /// The call that waits for it.
    pub call_id: CallId,
    /// The tool.
    pub tool: String,
    /// BLAKE3 of the tool, the canonical arguments and the whole reason: what was asked, and nothing
    /// else, may run.
    pub digest: String,
    /// Why a person decides, in words.
    pub reason: String,
    /// The beginning of the canonical arguments; whole they are in the reply that holds the call.
    pub args_shown: String,
    /// Ids of the policies that ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// When it was asked.
    pub asked_at: Wall,
    /// From this instant on no answer counts.
    pub expires_at: Wall,
    /// What was answered, once it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answered>,
}

impl Approval {
    /// Whether an answer to it still counts.
    #[must_use]
    pub fn is_open(&self, now: Wall) -> bool {
        self.answer.is_none() && now < self.expires_at
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The call may run.
    Approve,
    /// It may not.
    Deny,
    /// Nobody answered in time.
    Expire,
}

impl Decision {
    /// The word of the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Deny => "deny",
            Self::Expire => "expire",
        }
    }
}

/// An answer as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// What was decided.
    pub decision: Decision,
    /// Who decided: the name of the key of the request; empty where nobody did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// In the words of the person, for the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When.
    pub at: Wall,
}
