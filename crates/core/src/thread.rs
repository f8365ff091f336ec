//! Threads: a conversation's stored state, with a version; at most one active run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Wall;
use crate::id::{RunId, TenantId, ThreadId};
use crate::run::{BusyPolicy, RunState};

/// A stored thread, without its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Its id.
    pub id: ThreadId,
    /// Its owner among the tenants.
    pub tenant: TenantId,
    /// Free metadata of the client.
    pub metadata: Value,
    /// When it was made.
    pub created_at: Wall,
    /// When a row of it last changed.
    pub updated_at: Wall,
    /// Committed turns: one higher at every committed turn.
    pub version: u64,
    /// The fencing token: one higher at every claim.
    pub epoch: u64,
    /// The newest sequence number in its log; 0 when empty.
    pub seq_last: u64,
    /// The run that holds the thread now.
    pub active: Option<RunId>,
    /// The active run waits until a person answers.
    #[serde(default)]
    pub asks: bool,
    /// Turns that wait for it.
    pub n_waiting: u32,
    /// The newest run, whatever its state.
    pub newest_run: Option<RunId>,
    /// The state of the newest run.
    pub newest_state: Option<RunState>,
    /// What a busy thread does with a message whose request names no policy.
    pub busy_policy: Option<BusyPolicy>,
}
