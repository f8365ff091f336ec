//! Threads as the dialect shows them.

use evenkeel_core::run::{EndReason, Run, RunState};
use evenkeel_core::thread::Thread;
use serde_json::{Map, Value, json};

use super::run::strategy;

/// The dialect's word for where a thread stands; derived from rows, never stored.
pub(crate) fn status(thread: &Thread, newest: Option<&Run>) -> &'static str {
    if thread.asks {
        return "interrupted";
    }
    if thread.active.is_some() || thread.n_waiting > 0 {
        return "busy";
    }
    match newest.map(|run| run.state).or(thread.newest_state) {
        Some(RunState::Failed | RunState::Expired) => "error",
        // Answered by another run, undone, or replaced before it began: nothing is left half done.
        Some(RunState::Cancelled) if newest.is_some_and(left_nothing) => "idle",
        Some(RunState::Cancelled) => "interrupted",
        Some(RunState::Queued | RunState::Running | RunState::Waiting | RunState::Cancelling) => "busy",
        Some(RunState::Completed) | None => "idle",
    }
}

fn left_nothing(run: &Run) -> bool {
    let reason = run.outcome.as_ref().and_then(|outcome| outcome.reason);
    reason.is_some_and(|reason| {
        reason.undoes() || reason.answered_by().is_some() || matches!(reason, EndReason::Superseded { .. })
    })
}

/// What is read of a thread besides its row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beside<'a> {
    /// The newest run.
    pub(crate) newest: Option<&'a Run>,
    /// The interrupt of the run that waits for a person.
    pub(crate) interrupt: Option<Value>,
    /// `None` where the dialect would not show them.
    pub(crate) values: Option<Value>,
}

/// A thread.
pub(crate) fn thread(thread: &Thread, beside: Beside<'_>) -> Value {
    let Beside { newest, interrupt, values } = beside;
    let interrupts =
        interrupt.zip(thread.active).map(|(interrupt, run)| (run.to_string(), json!([interrupt])));
    let error = newest.and_then(|run| run.outcome.as_ref()).and_then(|outcome| outcome.error.as_ref());
    json!({
        "thread_id": thread.id,
        "created_at": thread.created_at.iso(),
        "updated_at": thread.updated_at.iso(),
        "state_updated_at": thread.updated_at.iso(),
        "metadata": thread.metadata,
        "status": status(thread, newest),
        "config": {},
        "values": values,
        "error": error.map(|error| json!({ "error": error.code, "message": error.message })),
        "interrupts": interrupts.into_iter().collect::<Map<String, Value>>(),
        "multitask_strategy": thread.busy_policy.map(strategy),
    })
}
