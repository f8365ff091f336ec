//! Calls of a step: judged, journalled, run, settled.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::id::{EffectId, SnapshotId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, EventBody, Verdict};
use evenkeel_core::port::tools::{Prepared, ToolOutput, ToolRequest};
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::approve::{Standing, standing};
use super::commit::Stop;
use super::drive::{Driver, Left};
use super::output;
use super::recover::{self, Settlement};
use super::state::{Call, CallState, FINISH_FACT, NOTE_REPEATED, args_hash};
use super::step::STREAK_WARNED;

/// Pure calls of one step that run at once.
const PARALLEL_MAX: usize = 8;

/// Shown for an interrupted call that is no longer what was approved.
const ASKED_OTHERWISE: &str =
    "Not run again after an interruption: it is not the call that was approved before";

/// How a settled effect came by its result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    Ran,
    Reran,
    AlreadyApplied,
    Unknown,
    Denied,
}

impl Settled {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ran => "ran",
            Self::Reran => "reran",
            Self::AlreadyApplied => "already_applied",
            Self::Unknown => "unknown",
            Self::Denied => "denied",
        }
    }
}

impl Driver {
    /// Judges open calls in order and stages verdicts and intents: of calls that may run side by
    /// side, or of one that must run alone. A call that must run alone waits until everything
    /// before it is settled: only then is it known that a crash cannot let an earlier, pure call
    /// see what a later one changed, and only then is the workspace as the call finds it.
    ///
    /// A call that a person decides on waits likewise; then the run is parked: `Some`.
    pub(crate) async fn prepare(&mut self) -> Result<Option<Left>, Stop> {
        if let Some(left) = self.expire_questions().await? {
            return Ok(Some(left));
        }
        for call in self.open_calls() {
            let prepared = self.judged(&call).await?;
            let standing = standing(&call, &prepared);
            let alone = match &standing {
                Standing::Runs(_) => !prepared.parallel,
                Standing::Refused(_) => false,
                Standing::Asks(_) => true,
            };
            if alone && !self.ready.is_empty() {
                self.held = Some(prepared);
                break;
            }
            if let Standing::Asks(reason) = standing {
                return self.ask(&call, &prepared, &reason).await.map(Some);
            }
            self.judge(&call, prepared, standing).await?;
            if alone {
                break;
            }
        }
        Ok(None)
    }

    /// The judged call. One that was held back is still good: only pure calls ran since.
    async fn judged(&mut self, call: &Call) -> Result<Prepared, Stop> {
        match self.held.take() {
            Some(held) if held.request.call_idx == call.idx => Ok(held),
            _ => self.unless_stopped(self.tools().prepare(self.request(call))).await,
        }
    }

    pub(crate) fn open_calls(&self) -> Vec<Call> {
        let calls = self.journal.view.open.iter().flat_map(|open| &open.calls);
        calls.filter(|call| call.state == CallState::Open).cloned().collect()
    }

    pub(crate) fn request(&self, call: &Call) -> ToolRequest {
        let fence = &self.journal.fence;
        let until = self.rules.until().since(self.host.now());
        let timeout = Duration::from_millis(self.rules.limits.tool_ms_max).min(until);
        ToolRequest {
            tenant: fence.tenant.clone(),
            thread: fence.thread,
            run: fence.run,
            agent: self.agent.name.clone(),
            step: self.journal.view.step,
            call_idx: call.idx,
            effect: EffectId::of(fence.run, self.journal.view.step, call.idx),
            workspace: self.workspace.clone(),
            call: call.call.clone(),
            timeout,
        }
    }

    /// Stages what was decided of a call.
    async fn judge(&mut self, call: &Call, mut prepared: Prepared, standing: Standing) -> Result<(), Stop> {
        self.journal.stage(EventBody::PolicyDecided {
            call_id: call.call.id.clone(),
            tool: call.call.name.clone(),
            verdict: prepared.verdict.clone(),
            policies: prepared.policies.clone(),
        });
        let snapshot = match standing {
            Standing::Runs(_) if prepared.class == EffectClass::Workspace => self.snapshot_now().await?,
            _ => None,
        };
        let mut intent = intent(call, &prepared, snapshot);
        match standing {
            Standing::Runs(approval) => {
                intent.approval = approval;
                self.journal.stage(EventBody::EffectIntended(intent));
                prepared.verdict = Verdict::Allow;
                self.ready.insert(call.idx, prepared);
                Ok(())
            }
            Standing::Refused(text) | Standing::Asks(text) => {
                self.journal.stage(EventBody::EffectIntended(intent.clone()));
                self.stage_result(&intent, Settled::Denied, &ToolOutput::error(text), 0).await
            }
        }
    }

    /// The workspace as it is now. The last checkpoint's unless this step changed files already.
    pub(crate) async fn snapshot_now(&mut self) -> Result<Option<SnapshotId>, Stop> {
        if self.workspace.is_none() {
            return Ok(None);
        }
        if let Some(snapshot) = &self.journal.view.checkpoint
            && !self.journal.view.step_changed_files()
        {
            return Ok(Some(snapshot.clone()));
        }
        let snapshot = self.unless_stopped(self.workspaces().snapshot(self.journal.fence.thread)).await?;
        snapshot.map(Some).map_err(Stop::Refused)
    }

    /// Runs what was prepared. Results that came before an interruption are kept.
    pub(crate) async fn run_calls(&mut self) -> Result<(), Stop> {
        self.journal.flush().await?;
        if self.journal.view.cancelling {
            return Ok(());
        }
        self.journal.check_lease()?;
        let mut ready = std::mem::take(&mut self.ready);
        let intents = self.intents(|fresh| fresh).into_iter();
        let calls: Vec<_> =
            intents.filter_map(|(call, intent)| Some((intent, ready.remove(&call.idx)?))).collect();
        if calls.is_empty() {
            self.journal.view.forget_fresh();
            return Ok(());
        }
        self.run_all(calls, Settled::Ran).await
    }

    /// Runs calls side by side and stages their results in the order of the calls.
    async fn run_all(&mut self, calls: Vec<(EffectIntent, Prepared)>, how: Settled) -> Result<(), Stop> {
        let host = self.host.clone();
        let grace = Duration::from_millis(host.config.tool_grace_ms);
        let mut running = stream::iter(calls.into_iter().enumerate().map(|(idx, (intent, prepared))| {
            let host = host.clone();
            async move { (idx, intent, execute(&host, prepared, grace).await) }
        }))
        .buffer_unordered(PARALLEL_MAX);
        let mut done: BTreeMap<usize, (EffectIntent, (ToolOutput, u64))> = BTreeMap::new();
        let stopped = loop {
            match self.unless_stopped(running.next()).await {
                Ok(Some((idx, intent, output))) => drop(done.insert(idx, (intent, output))),
                Ok(None) => break None,
                Err(stop) => break Some(stop),
            }
        };
        drop(running);
        for (intent, (output, ms)) in done.into_values() {
            self.stage_result(&intent, how, &output, ms).await?;
        }
        stopped.map_or(Ok(()), Err)
    }

    /// Settles every effect that an earlier claim left without a result.
    pub(crate) async fn settle(&mut self) -> Result<(), Stop> {
        self.journal.flush().await?;
        self.journal.check_lease()?;
        let mut rerun = Vec::new();
        for (call, intent) in self.intents(|fresh| !fresh) {
            match self.settlement(&intent).await? {
                Settlement::AlreadyApplied => {
                    let output = ToolOutput { text: recover::APPLIED.to_owned(), ..ToolOutput::default() };
                    self.stage_result(&intent, Settled::AlreadyApplied, &output, 0).await?;
                }
                Settlement::Unknown(text) => {
                    self.stage_result(&intent, Settled::Unknown, &ToolOutput::error(text), 0).await?;
                }
                Settlement::RestoreAndRerun(snapshot) => {
                    let restored = self.workspaces().restore(self.journal.fence.thread, snapshot);
                    self.unless_stopped(restored).await?.map_err(Stop::Refused)?;
                    rerun.push((call, intent));
                }
                Settlement::Rerun => rerun.push((call, intent)),
            }
        }
        self.rerun(rerun).await
    }

    async fn settlement(&mut self, intent: &EffectIntent) -> Result<Settlement, Stop> {
        let guards = match &self.workspace {
            Some(workspace) if recover::asks_guards(intent) => {
                let looked = self.tools().guards_now(workspace.clone(), intent.guards.clone());
                Some(self.unless_stopped(looked).await?)
            }
            _ => None,
        };
        Ok(recover::settlement(intent, guards))
    }

    /// Judges and runs interrupted calls once more: policy may have changed since.
    async fn rerun(&mut self, calls: Vec<(Call, EffectIntent)>) -> Result<(), Stop> {
        let mut known = Vec::new();
        for (call, intent) in calls {
            let request = self.request(&call);
            let mut prepared = self.unless_stopped(self.tools().prepare(request)).await?;
            let text = match standing(&call, &prepared) {
                Standing::Runs(_) => {
                    prepared.verdict = Verdict::Allow;
                    known.push((intent, prepared));
                    continue;
                }
                Standing::Refused(text) => text,
                Standing::Asks(reason) => format!("{ASKED_OTHERWISE} ({reason})"),
            };
            self.stage_result(&intent, Settled::Denied, &ToolOutput::error(text), 0).await?;
        }
        let (beside, alone): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|(_, prepared)| prepared.parallel);
        self.run_all(beside, Settled::Reran).await?;
        for call in alone {
            self.run_all(vec![call], Settled::Reran).await?;
        }
        Ok(())
    }

    /// Calls with an intent and no result.
    fn intents(&self, wanted: impl Fn(bool) -> bool) -> Vec<(Call, EffectIntent)> {
        let calls = self.journal.view.open.iter().flat_map(|open| &open.calls);
        calls
            .filter_map(|call| match &call.state {
                CallState::Intended { intent, fresh } if wanted(*fresh) => {
                    Some((call.clone(), intent.clone()))
                }
                _ => None,
            })
            .collect()
    }

    async fn stage_result(
        &mut self,
        intent: &EffectIntent,
        how: Settled,
        output: &ToolOutput,
        ms: u64,
    ) -> Result<(), Stop> {
        let shown = output::shown(&output.text, self.rules.limits.tool_output_chars_max);
        let blob = if shown.cut { Some(self.journal.keep(output.text.as_bytes()).await?) } else { None };
        let text = self.warned(intent, shown.text);
        self.journal.stage(EventBody::EffectSettled(EffectResult {
            effect: intent.effect.clone(),
            call_id: intent.call_id.clone(),
            text,
            is_error: output.is_error,
            blob,
            ms,
            settled: how.as_str().to_owned(),
            facts: facts(output),
        }));
        Ok(())
    }

    /// Adds the warning to the result of a call that comes again and again.
    fn warned(&mut self, intent: &EffectIntent, text: String) -> String {
        let calls = self.journal.view.open.iter().flat_map(|open| &open.calls);
        let streak = calls.filter(|call| call.call.id == intent.call_id).map(|call| call.streak).max();
        if streak != Some(STREAK_WARNED) {
            return text;
        }
        let warning = format!(
            "This is the same call of {} for the {STREAK_WARNED}rd time in a row. The result will not change; \
             the run is stopped if it comes once more. Do something else.",
            intent.tool
        );
        self.journal.stage(EventBody::Noted { kind: NOTE_REPEATED.to_owned(), text: warning.clone() });
        format!("{text}\n\n[{warning}]")
    }
}

/// Runs one call with a limit of our own behind the tool's.
async fn execute(host: &crate::host::Host, prepared: Prepared, grace: Duration) -> (ToolOutput, u64) {
    let begun = Instant::now();
    let limit = prepared.request.timeout;
    let name = prepared.request.call.name.clone();
    let output = match timeout(limit + grace, host.parts.tools.execute(prepared)).await {
        Ok(output) => output,
        Err(_) => ToolOutput::error(format!(
            "{name} did not answer within {} ms and was stopped.",
            limit.as_millis()
        )),
    };
    (output, u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX))
}

fn intent(call: &Call, prepared: &Prepared, snapshot: Option<SnapshotId>) -> EffectIntent {
    EffectIntent {
        effect: prepared.request.effect.clone(),
        call_id: call.call.id.clone(),
        tool: call.call.name.clone(),
        args_hash: args_hash(&call.call.args),
        class: prepared.class,
        guards: prepared.guards.clone(),
        snapshot,
        policies: prepared.policies.clone(),
        approval: None,
    }
}

/// The tool's facts; the text of `finish` is one, because a resumed run must know it.
fn facts(output: &ToolOutput) -> Value {
    let Some(finish) = &output.finish else {
        return output.facts.clone();
    };
    let mut facts = match &output.facts {
        Value::Object(map) => map.clone(),
        Value::Null => serde_json::Map::new(),
        other => serde_json::Map::from_iter([("output".to_owned(), other.clone())]),
    };
    facts.insert(FINISH_FACT.to_owned(), Value::from(finish.as_str()));
    Value::Object(facts)
}

/// Errors as outputs.
trait AsError {
    fn error(text: impl Into<String>) -> ToolOutput;
}

impl AsError for ToolOutput {
    fn error(text: impl Into<String>) -> ToolOutput {
        ToolOutput { text: text.into(), is_error: true, ..ToolOutput::default() }
    }
}
