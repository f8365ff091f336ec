//! Runs as the dialect shows them.

use evenkeel_core::run::{BusyPolicy, EndReason, Run, RunState};
use serde_json::{Value, json};

use super::assistant::assistant_id;

/// The dialect's word for a state.
pub(crate) fn status(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "pending",
        RunState::Running | RunState::Waiting | RunState::Cancelling => "running",
        RunState::Completed => "success",
        RunState::Failed => "error",
        RunState::Cancelled => "interrupted",
        RunState::Expired => "timeout",
    }
}

/// The dialect's word for a run: one that waits for a person counts as interrupted.
pub(crate) fn status_of(run: &Run) -> &'static str {
    if run.asks().is_empty() { status(run.state) } else { INTERRUPTED }
}

/// The dialect's word for what waits for a person, or was stopped.
pub(crate) const INTERRUPTED: &str = "interrupted";

/// The states that a word of the dialect may stand for, see [`status_of`]; none for an unknown word.
pub(crate) fn states(status: &str) -> Option<Vec<RunState>> {
    Some(match status {
        "pending" => vec![RunState::Queued],
        "running" => vec![RunState::Running, RunState::Waiting, RunState::Cancelling],
        "success" => vec![RunState::Completed],
        "error" => vec![RunState::Failed],
        "interrupted" => vec![RunState::Cancelled, RunState::Waiting],
        "timeout" => vec![RunState::Expired],
        _ => return None,
    })
}

/// The dialect's word for a busy policy; ours where it has none.
pub(crate) fn strategy(policy: BusyPolicy) -> &'static str {
    match policy {
        BusyPolicy::Enqueue => "enqueue",
        BusyPolicy::Reject => "reject",
        BusyPolicy::Interrupt => "interrupt",
        BusyPolicy::Rollback => "rollback",
        BusyPolicy::Steer => "steer",
        BusyPolicy::Merge => "merge",
        BusyPolicy::Latest => "latest",
    }
}

/// The policy of a word.
pub(crate) fn policy(word: &str) -> Option<BusyPolicy> {
    Some(match word {
        "enqueue" => BusyPolicy::Enqueue,
        "reject" => BusyPolicy::Reject,
        "interrupt" => BusyPolicy::Interrupt,
        "rollback" => BusyPolicy::Rollback,
        "steer" => BusyPolicy::Steer,
        "merge" => BusyPolicy::Merge,
        "latest" => BusyPolicy::Latest,
        _ => return None,
    })
}

/// A run.
pub(crate) fn run(run: &Run) -> Value {
    let request = &run.spec.request;
    let field = |name: &str| request.get(name).cloned().unwrap_or(Value::Null);
    json!({
        "run_id": run.id,
        "thread_id": run.thread,
        "assistant_id": assistant_id(&run.spec.assistant),
        "metadata": request.get("metadata").cloned().unwrap_or_else(|| json!({})),
        "status": status_of(run),
        "kwargs": {
            "input": field("input"),
            "config": field("config"),
            "context": field("context"),
            "stream_mode": field("stream_mode"),
        },
        "multitask_strategy": strategy(run.spec.busy_policy),
        "created_at": run.created_at.iso(),
        "updated_at": run.updated_at.iso(),
        "langsmith_session_name": null,
        "evenkeel": ours(run),
    })
}

/// What the dialect has no words for: our own state, the place in the line, why it waits or ended.
fn ours(run: &Run) -> Value {
    let ended = run.outcome.as_ref().and_then(|outcome| outcome.reason);
    json!({
        "state": run.state,
        "position": (run.state == RunState::Queued).then_some(run.position),
        "waits_because": waits_because(run),
        "approvals": run.asks().iter().map(|asked| asked.id.as_str()).collect::<Vec<_>>(),
        "not_before": run.not_before.map(|at| at.iso()),
        "reason": ended.or(run.stop),
        "answered_by": ended.and_then(EndReason::answered_by),
    })
}

/// Why a run does not run now, in words; `None` for one that runs or has ended.
pub(crate) fn waits_because(run: &Run) -> Option<String> {
    match (run.state, run.position, run.not_before) {
        (RunState::Waiting, ..) => run.wait.as_ref().map(|wait| plain(&wait.reason)),
        (RunState::Queued, 0, Some(at)) => Some(format!("starts not before {}", at.iso())),
        (RunState::Queued, 0, None) => Some("waits for a free slot".to_owned()),
        (RunState::Queued, n, _) => Some(format!("{n} before it on its thread")),
        _ => None,
    }
}

/// Text as a header can hold it.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' }).take(200).collect()
}
