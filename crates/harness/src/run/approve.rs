//! Approvals: which calls a person decides on, asking, and what an answer allows.
//!
//! ```text
//!   judged "ask" --- no answer yet ---> parked, asked --- approve ---> judged again --- runs, once
//!                                            |                              |
//!                                            +--- deny, expire ---> refused |
//!                                            +<---------- asked otherwise --+
//! ```
//! What is asked is the tool, its canonical arguments and the reason of policy, all in one digest.
//! The call is judged again when the run goes on, because earlier calls of the step may have moved
//! what its arguments mean; an answer counts only for the very question that was asked. Since a
//! call has one effect, and an effect one intent, an answer is used at most once.
//!
//! While it waits the run holds no slot and no connection: it is one row. Questions of all calls
//! that are left in the step are asked together.

use std::time::Duration;

use evenkeel_core::approval::{Answered, Approval, Decision};
use evenkeel_core::id::ApprovalId;
use evenkeel_core::journal::{EventBody, Verdict};
use evenkeel_core::message::ToolCall;
use evenkeel_core::port::store::Park;
use evenkeel_core::port::tools::Prepared;
use evenkeel_core::run::WaitReason;
use evenkeel_core::{Code, Error, Origin, Wall};

use super::commit::Stop;
use super::drive::{Driver, Left};
use super::state::{Call, canonical};
use super::step::Ending;
use crate::config::OnTimeout;

/// Characters of the arguments that are stored with a question.
const ARGS_SHOWN_MAX: usize = 2_000;
/// Characters of the reason that are stored with a question; the digest covers all of it.
const REASON_MAX: usize = 4_000;

/// What a judged call may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It runs, with the approval that it uses up.
    Runs(Option<ApprovalId>),
    /// It does not, and the model is told why.
    Refused(String),
    /// A person has yet to decide; policy's reason.
    Asks(String),
}

/// What a judged call may do, given what was answered so far.
pub(crate) fn standing(call: &Call, prepared: &Prepared) -> Standing {
    if let Some(text) = &prepared.refusal {
        return Standing::Refused(text.clone());
    }
    match &prepared.verdict {
        Verdict::Allow => Standing::Runs(None),
        Verdict::Deny { reason } => Standing::Refused(format!("Not allowed: {reason}")),
        Verdict::Ask { reason } => answered(call, reason),
    }
}

fn answered(call: &Call, reason: &str) -> Standing {
    let digest = digest(&call.call, reason);
    let asked = call.asked.as_ref().filter(|asked| asked.digest == digest);
    let Some((asked, answer)) = asked.and_then(|asked| Some((asked, asked.answer.as_ref()?))) else {
        return Standing::Asks(reason.to_owned());
    };
    match answer.decision {
        Decision::Approve => Standing::Runs(Some(asked.id.clone())),
        Decision::Deny => Standing::Refused(denied(answer)),
        Decision::Expire => Standing::Refused(format!(
            "Not allowed: it needs a person's approval ({reason}), and nobody answered in time. \
             Reach the goal another way, or say in the summary what was not approved."
        )),
    }
}

fn denied(answer: &Answered) -> String {
    let said = if answer.note.is_empty() { String::new() } else { format!(", who says: {}", answer.note) };
    format!("Not allowed: a person was asked and denied it{said}.")
}

/// What an answer is bound to.
pub(crate) fn digest(call: &ToolCall, reason: &str) -> String {
    let asked = serde_json::json!([call.name, canonical(&call.args), reason]);
    blake3::hash(asked.to_string().as_bytes()).to_hex().to_string()
}

fn shortened(text: &str, n_chars_max: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= n_chars_max {
        return text.to_owned();
    }
    let begin: String = text.chars().take(n_chars_max).collect();
    format!("{begin} [{} more characters]", n_chars - n_chars_max)
}

impl Driver {
    /// Notes questions whose time has passed. `Some` when the run ends with that.
    pub(crate) async fn expire_questions(&mut self) -> Result<Option<Left>, Stop> {
        let now = self.host.now();
        let calls = self.journal.view.open.iter().flat_map(|open| &open.calls);
        let asked = calls.filter_map(|call| call.asked.clone());
        let passed: Vec<Approval> =
            asked.filter(|asked| asked.answer.is_none() && now >= asked.expires_at).collect();
        for asked in &passed {
            let (by, note) = (String::new(), String::new());
            let answer = Answered { decision: Decision::Expire, by, note, at: now };
            self.journal.stage(EventBody::ApprovalAnswered {
                approval: asked.id.clone(),
                call_id: asked.call_id.clone(),
                answer,
            });
        }
        match (passed.first(), self.host.config.approval_on_timeout) {
            (Some(first), OnTimeout::Fail) => {
                let error = unanswered(first);
                self.end(Ending::failed(error)).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Parks the run until a person has answered for this call, and for those behind it in the step
    /// that need an answer too.
    pub(crate) async fn ask(&mut self, call: &Call, prepared: &Prepared, reason: &str) -> Result<Left, Stop> {
        let mut questions = vec![self.question(call, reason, prepared.policies.clone())];
        for later in self.open_calls().into_iter().filter(|later| later.idx > call.idx) {
            let prepared = self.unless_stopped(self.tools().prepare(self.request(&later))).await?;
            if let Standing::Asks(reason) = standing(&later, &prepared) {
                questions.push(self.question(&later, &reason, prepared.policies));
            }
        }
        for (question, is_new) in &questions {
            if *is_new {
                self.journal.stage(EventBody::ApprovalRequested(question.clone()));
            }
        }
        let approvals: Vec<Approval> = questions.into_iter().map(|(question, _)| question).collect();
        let until_hint = approvals.iter().map(|asked| asked.expires_at).min();
        let reason = waits_for(&approvals);
        tracing::info!(run = %self.journal.fence.run, n = approvals.len(), "waits for approvals");
        self.journal
            .park(|fence, events| Park {
                fence,
                on: WaitReason::Approval,
                reason: reason.clone(),
                until_hint,
                route: None,
                approvals: approvals.clone(),
                events,
            })
            .await?;
        self.host.count(|counters| counters.n_asked += 1);
        Ok(Left::Asks)
    }

    /// The question about a call, and whether it is asked for the first time.
    fn question(&self, call: &Call, reason: &str, policies: Vec<String>) -> (Approval, bool) {
        let digest = digest(&call.call, reason);
        let now = self.host.now();
        let known = call.asked.as_ref().filter(|asked| asked.digest == digest && asked.is_open(now));
        if let Some(known) = known {
            return (known.clone(), false);
        }
        let (run, step) = (self.journal.fence.run, self.journal.view.step);
        let asked = Approval {
            id: ApprovalId::of(run, step, call.idx, &digest),
            step,
            call_id: call.call.id.clone(),
            tool: call.call.name.clone(),
            digest,
            reason: shortened(reason, REASON_MAX),
            args_shown: shortened(&canonical(&call.call.args).to_string(), ARGS_SHOWN_MAX),
            policies,
            asked_at: now,
            expires_at: self.expires_at(now),
            answer: None,
        };
        (asked, true)
    }

    /// A question is open as long as the configuration says, and never beyond the run's own time.
    fn expires_at(&self, now: Wall) -> Wall {
        now.after(Duration::from_millis(self.host.config.approval_ms)).min(self.rules.until())
    }
}

fn waits_for(approvals: &[Approval]) -> String {
    let first = approvals.first().map_or("", |asked| asked.reason.as_str());
    let first = shortened(first, 200);
    match approvals {
        [one] => format!("{} waits for an approval: {first}", one.tool),
        _ => format!("{} calls wait for approvals, the first: {first}", approvals.len()),
    }
}

fn unanswered(asked: &Approval) -> Error {
    Error::new(
        Code::ApprovalExpired,
        Origin::Client,
        format!("Nobody answered approval {} of a call of {} in time.", asked.id, asked.tool),
        "Answer sooner, raise approvals.timeout, or let calls be denied instead: approvals.on_timeout = \"deny\".",
    )
}
