//! The tools port: what may be called, whether this call may run, and running it.
//!
//! The harness calls `prepare` (verdict, effect class, guards), journals the intent, then
//! `execute`, then journals the result. After a crash it settles intents without a result by their
//! class and asks `guards_now` for guarded ones.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::Error;
use crate::agent::Agent;
use crate::id::{EffectId, RunId, TenantId, ThreadId};
use crate::journal::{EffectClass, Guard, Verdict};
use crate::message::{ToolCall, ToolSpec};

/// One call, with everything that policy and tools may look at.
#[derive(Clone, Debug)]
pub struct ToolRequest {
    /// The tenant.
    pub tenant: TenantId,
    /// The thread.
    pub thread: ThreadId,
    /// The run.
    pub run: RunId,
    /// The agent's name.
    pub agent: String,
    /// Step and place in the step.
    pub step: u32,
    /// Place in the step, from 0.
    pub call_idx: u32,
    /// The effect's id, the same when the step is redone; MCP servers get it in `_meta`.
    pub effect: EffectId,
    /// The run's workspace on the host, if it has one.
    pub workspace: Option<PathBuf>,
    /// The call.
    pub call: ToolCall,
    /// Time limit of the call.
    pub timeout: Duration,
}

/// A judged call, ready to run.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The call.
    pub request: ToolRequest,
    /// Allow, deny or ask.
    pub verdict: Verdict,
    /// Ids of the policies that decided.
    pub policies: Vec<String>,
    /// How it is settled after a crash.
    pub class: EffectClass,
    /// Whether it may run beside other calls of the same step (pure calls may).
    pub parallel: bool,
    /// Files that it changes, for `guarded`.
    pub guards: Vec<Guard>,
    /// `Some` when the call cannot run as asked (unknown tool, bad arguments, an edit that does
    /// not match): the text goes to the model and nothing runs.
    pub refusal: Option<String>,
}

/// What a call returned. Full output; the harness cuts it for the model and keeps the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// The text, whole (already limited by the runner's hard cap).
    pub text: String,
    /// Whether the model should take it as a failure.
    pub is_error: bool,
    /// Exit code, signal, limits hit, ...: facts for traces and pages.
    pub facts: Value,
    /// The call asks the run to end with this result (the `finish` tool).
    pub finish: Option<String>,
}

/// Where the guarded files stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// All files as before: it did not run.
    Before,
    /// All files as after: it ran.
    After,
    /// Neither.
    Other,
}

/// Tools and policy as the harness sees them.
pub trait Tools: Send + Sync {
    /// The tools offered to this agent, in its fixed order.
    fn offered(&self, agent: &Agent) -> BoxFuture<'_, Result<Vec<ToolSpec>, Error>>;

    /// Judges a call and says what it will touch. Changes nothing. A failure inside is a deny.
    fn prepare(&self, request: ToolRequest) -> BoxFuture<'_, Prepared>;

    /// Runs an allowed call to its end, its timeout or its drop; dropping stops it.
    fn execute(&self, prepared: Prepared) -> BoxFuture<'_, ToolOutput>;

    /// Compares guarded files with their hashes.
    fn guards_now(&self, workspace: PathBuf, guards: Vec<Guard>) -> BoxFuture<'_, GuardState>;

    /// Gives back everything held for a run (MCP sessions, processes).
    fn release(&self, run: RunId) -> BoxFuture<'_, ()>;
}
