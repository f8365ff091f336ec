//! The end of a step and the end of a run.

use std::time::Duration;

use evenkeel_core::id::{MessageId, SnapshotId};
use evenkeel_core::journal::{EffectIntent, EffectResult, EventBody};
use evenkeel_core::message::{Block, Message, Role, ToolResult};
use evenkeel_core::run::{Delivered, EndReason, Outcome, RunState};
use serde_json::Value;
use tokio::time::timeout;

use super::commit::Stop;
use super::drive::Driver;
use super::prompt;
use super::state::{Call, CallState, NOTE_TRUNCATED};
use super::step::Ending;

/// The diff at the end of a run is worth this much waiting, not the run's result.
const DIFF_WAIT: Duration = Duration::from_secs(30);

/// Shown for calls in a reply that the token limit cut.
const TRUNCATED: &str = "Your reply was cut off by the output token limit, so nothing of it was executed. \
     Send a shorter reply: fewer calls at once, or a large file in several smaller pieces.";
/// Shown when a reply without calls was cut.
const TRUNCATED_TEXT: &str = "Your last reply was cut off by the output token limit. Go on from where it ends, \
     in shorter replies.";
/// Shown for calls that a cancel or a limit left open.
const STOPPED: &str = "The run was stopped before this call had a result.";

impl Driver {
    /// Closes the step: tool message, workspace, checkpoint, in one commit.
    pub(crate) async fn commit_results(&mut self) -> Result<(), Stop> {
        let snapshot = self.snapshot_now().await?;
        let truncated = self.journal.view.open.as_ref().map(|open| open.truncated);
        match truncated {
            Some(truncated) => {
                self.stage_tool_message(if truncated { TRUNCATED } else { prompt::INTERRUPTED })
            }
            None => self
                .journal
                .stage(EventBody::Noted { kind: NOTE_TRUNCATED.to_owned(), text: TRUNCATED_TEXT.to_owned() }),
        }
        self.journal.stage(EventBody::Checkpoint { snapshot });
        self.journal.flush().await
    }

    /// One result for each call; calls without one get `otherwise` as an error.
    fn stage_tool_message(&mut self, otherwise: &str) {
        let Some(open) = &self.journal.view.open else { return };
        let blocks = open.calls.iter().map(|call| Block::ToolResult(result_of(call, otherwise))).collect();
        let id = MessageId(format!("results-{}-{}", self.journal.fence.run, self.journal.view.step));
        self.journal.stage(EventBody::ToolMessage { message: Message { id, role: Role::Tool, blocks } });
    }

    /// What the model answered is durable before anything slow is done for the end of the run.
    pub(crate) async fn keep_answer(&mut self) -> Result<(), Stop> {
        if self.journal.view.base.is_some() && self.journal.view.answer.is_some() && !self.journal.is_clean()
        {
            self.journal.flush().await?;
        }
        Ok(())
    }

    /// Closes a step that is under way, so that the history is valid however the run ends.
    pub(crate) async fn close_step(&mut self) {
        let view = &self.journal.view;
        if view.open.is_none() && view.answer.is_none() {
            return;
        }
        self.stage_cancelled_effects();
        self.stage_tool_message(STOPPED);
        let snapshot = self.last_snapshot().await;
        self.journal.stage(EventBody::Checkpoint { snapshot });
    }

    fn stage_cancelled_effects(&mut self) {
        let calls = self.journal.view.open.iter().flat_map(|open| open.calls.clone());
        for call in calls.collect::<Vec<_>>() {
            if let CallState::Intended { intent, .. } = call.state {
                self.journal.stage(EventBody::EffectSettled(cancelled(intent)));
            }
        }
    }

    /// A run that is undone leaves the workspace as it found it. When this fails, the next run of the
    /// thread does it: it begins at the newest checkpoint that counts.
    pub(crate) async fn undo(&self) -> Result<(), Stop> {
        let Some(base) = self.journal.view.base.clone().filter(|_| self.journal.view.cancelling) else {
            return Ok(());
        };
        if !self.journal.stop_reason().await?.is_some_and(EndReason::undoes) {
            return Ok(());
        }
        let restored = self.workspaces().restore(self.journal.fence.thread, base);
        match timeout(DIFF_WAIT, restored).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(run = %self.journal.fence.run, %error, "workspace of an undone run not restored");
            }
            Err(_) => {
                tracing::warn!(run = %self.journal.fence.run, "workspace of an undone run not restored in time")
            }
        }
        Ok(())
    }

    /// What is stored of the end: always with what the run changed.
    pub(crate) fn outcome(ending: &Ending, diff: Option<String>, delivered: Option<Delivered>) -> Outcome {
        let text = match ending.state {
            RunState::Completed => ending.text.clone(),
            _ => String::new(),
        };
        Outcome { state: ending.state, reason: None, error: ending.error.clone(), text, diff, delivered }
    }

    /// What the run changed so far.
    pub(crate) async fn diff(&self) -> Option<String> {
        let base = self.journal.view.base.clone()?;
        let thread = self.journal.fence.thread;
        match timeout(DIFF_WAIT, self.workspaces().diff(thread, base)).await {
            Ok(Ok(diff)) => Some(diff),
            Ok(Err(error)) => {
                tracing::warn!(run = %self.journal.fence.run, %error, "diff at the end of the run failed");
                None
            }
            Err(_) => None,
        }
    }

    async fn last_snapshot(&self) -> Option<SnapshotId> {
        self.journal.view.base.as_ref()?;
        timeout(DIFF_WAIT, self.workspaces().snapshot(self.journal.fence.thread)).await.ok()?.ok()
    }
}

fn result_of(call: &Call, otherwise: &str) -> ToolResult {
    let (text, is_error) = match &call.state {
        CallState::Settled { text, is_error, .. } => (text.clone(), *is_error),
        CallState::Open | CallState::Intended { .. } => (otherwise.to_owned(), true),
    };
    ToolResult { call_id: call.call.id.clone(), name: call.call.name.clone(), text, is_error }
}

fn cancelled(intent: EffectIntent) -> EffectResult {
    EffectResult {
        effect: intent.effect,
        call_id: intent.call_id,
        text: STOPPED.to_owned(),
        is_error: true,
        blob: None,
        ms: 0,
        settled: "cancelled".to_owned(),
        facts: Value::Null,
    }
}
