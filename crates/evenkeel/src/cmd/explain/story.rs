//! A run's journal in words.
//!
//! One event gives at most one line, except a reply, which gives one line for each attempt that
//! led to it. Lines carry the time since the run was accepted and the step.

use evenkeel_core::Wall;
use evenkeel_core::approval::{Answered, Decision};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, Event, EventBody, Verdict};
use evenkeel_core::message::Message;
use evenkeel_core::run::{Attempt, Outcome, RunState, WaitReason};
use serde::Serialize;

use crate::cmd::runs::journal::Journal;
use crate::output::{self, Paint, Style, brief, duration};

const TEXT_MAX: usize = 160;

/// One decision or event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Line {
    /// Milliseconds since the run was accepted.
    pub(crate) at_ms: u64,
    /// The step; 0 is before the first.
    pub(crate) step: u32,
    /// A stable word for scripts.
    pub(crate) kind: &'static str,
    /// In words.
    pub(crate) text: String,
}

/// The whole story of a run.
pub(crate) fn tell(journal: &Journal) -> Vec<Line> {
    let accepted = journal.run.created_at;
    let mut lines = vec![Line { at_ms: 0, step: 0, kind: "accepted", text: accepted_text(journal) }];
    let mut parked_at: Option<Wall> = None;
    for event in &journal.events {
        let line = |kind: &'static str, text: String| Line {
            at_ms: ms_between(accepted, event.at),
            step: event.step,
            kind,
            text,
        };
        match &event.body {
            EventBody::AssistantMessage { message, attempts, finish } => {
                lines.extend(attempts.iter().map(|attempt| line("attempt", attempt_text(attempt))));
                lines.push(line("reply", reply_text(message, finish)));
            }
            EventBody::ModelAttempts { attempts } => {
                lines.extend(attempts.iter().map(|attempt| line("attempt", attempt_text(attempt))));
            }
            // The acceptance has told it.
            EventBody::UserMessage { message } if journal.run.spec.messages.contains(message) => {}
            EventBody::Parked { .. } => {
                parked_at = Some(event.at);
                lines.extend(told(&event.body).map(|(kind, text)| line(kind, text)));
            }
            EventBody::RunClaimed { .. } => {
                let waited = parked_at.take().map(|since| ms_between(since, event.at));
                let text = claimed_text(event, waited);
                lines.push(line(if is_first_claim(event) { "claimed" } else { "resumed" }, text));
            }
            _ => lines.extend(told(&event.body).map(|(kind, text)| line(kind, text))),
        }
    }
    lines
}

/// The story as a person reads it.
pub(crate) fn show(style: Style, journal: &Journal, lines: &[Line]) -> String {
    let run = &journal.run;
    let mut text = format!(
        "run {} on thread {}, assistant {}: {}\n\n",
        run.id,
        run.thread,
        run.spec.assistant,
        style.state(run.state.as_str())
    );
    for line in lines {
        let step = if line.step == 0 { "-".to_owned() } else { line.step.to_string() };
        let clock = style.paint(Paint::Dim, format!("{:>12}", format!("+{}", duration(line.at_ms))));
        text.push_str(&format!("{clock}  step {step:>3}  {}\n", painted(style, line)));
    }
    let usage = run.usage;
    text.push_str(&format!(
        "\n{} steps, {} claims, {} input tokens ({} from a cache), {} output tokens{}",
        run.step,
        run.attempt,
        usage.input_tokens,
        usage.cached_input_tokens,
        usage.output_tokens,
        if usage.estimated { ", partly estimated" } else { "" }
    ));
    text
}

fn painted(style: Style, line: &Line) -> String {
    match line.kind {
        "waiting" | "denied" | "asked" | "note" | "cancel" | "resumed" => {
            style.paint(Paint::Yellow, &line.text)
        }
        "failed" | "expired" => style.paint(Paint::Red, &line.text),
        "completed" => style.paint(Paint::Green, &line.text),
        "attempt" if !line.text.contains(": ok") => style.paint(Paint::Yellow, &line.text),
        _ => line.text.clone(),
    }
}

fn ms_between(earlier: Wall, later: Wall) -> u64 {
    u64::try_from(later.since(earlier).as_millis()).unwrap_or(u64::MAX)
}

fn accepted_text(journal: &Journal) -> String {
    let spec = &journal.run.spec;
    let asked = spec.messages.last().map(Message::joined_text).unwrap_or_default();
    let policy = format!("{:?}", spec.busy_policy).to_lowercase();
    format!("accepted for {} (busy policy {policy}): {}", spec.assistant, brief(&asked, TEXT_MAX))
}

fn is_first_claim(event: &Event) -> bool {
    matches!(event.body, EventBody::RunClaimed { attempt, .. } if attempt <= 1)
}

fn claimed_text(event: &Event, waited_ms: Option<u64>) -> String {
    let EventBody::RunClaimed { epoch, attempt } = &event.body else { return String::new() };
    match (is_first_claim(event), waited_ms) {
        (true, _) => format!("a replica began the run (epoch {epoch})"),
        (false, Some(ms)) => {
            format!("woken after waiting {} and resumed (claim {attempt}, epoch {epoch})", duration(ms))
        }
        (false, None) => {
            format!("taken over and resumed from the last checkpoint (claim {attempt}, epoch {epoch})")
        }
    }
}

/// One try at the model, in words.
pub(crate) fn attempt_text(attempt: &Attempt) -> String {
    let Attempt { attempt: n, deployment, provider, model, ms, outcome, cause, usage, .. } = attempt;
    let mut text = format!("model attempt {n} on {deployment} ({provider}, {model}): {outcome}");
    if let Some(cause) = cause {
        text.push_str(&format!(", {}", brief(cause, TEXT_MAX)));
    }
    text.push_str(&format!(" after {}", duration(*ms)));
    if let Some(first) = attempt.first_content_ms {
        text.push_str(&format!(", first content at {}", duration(first)));
    }
    let tokens = usage.input_tokens + usage.output_tokens;
    if tokens > 0 {
        let wasted = if outcome == "ok" { "" } else { " wasted" };
        text.push_str(&format!(", {tokens} tokens{wasted}"));
    }
    if let Some(cost) = attempt.cost_micro_usd.filter(|cost| *cost > 0) {
        text.push_str(&format!(" for ${}.{:06}", cost / 1_000_000, cost % 1_000_000));
    }
    text
}

fn reply_text(message: &Message, finish: &str) -> String {
    let calls: Vec<String> = message
        .tool_calls()
        .map(|call| format!("{}({})", call.name, brief(&call.args.to_string(), 60)))
        .collect();
    let said = message.joined_text();
    match (calls.is_empty(), said.trim().is_empty()) {
        (true, _) => format!("the model answered ({finish}): {}", brief(&said, TEXT_MAX)),
        (false, true) => format!("the model calls {}", calls.join(", ")),
        (false, false) => format!("the model says {:?} and calls {}", brief(&said, 80), calls.join(", ")),
    }
}

fn answered_text(answer: &Answered) -> (&'static str, String) {
    let by = if answer.by.is_empty() { String::new() } else { format!(" by {}", brief(&answer.by, 40)) };
    let note =
        if answer.note.is_empty() { String::new() } else { format!(": {}", brief(&answer.note, TEXT_MAX)) };
    match answer.decision {
        Decision::Approve => ("approved", format!("approved{by}{note}")),
        Decision::Deny => ("denied", format!("denied{by}{note}")),
        Decision::Expire => ("denied", "nobody answered in time".to_owned()),
    }
}

/// The kind and words of an event that stands for itself; `None` for one that adds nothing here.
pub(crate) fn told(body: &EventBody) -> Option<(&'static str, String)> {
    Some(match body {
        EventBody::UserMessage { message } => {
            ("message", format!("user: {}", brief(&message.joined_text(), TEXT_MAX)))
        }
        EventBody::PolicyDecided { tool, verdict, policies, .. } => verdict_text(tool, verdict, policies)?,
        EventBody::ApprovalRequested(asked) => (
            "asked",
            format!(
                "a person is asked whether {} may run: {} (evenkeel approvals show {})",
                asked.tool,
                brief(&asked.reason, TEXT_MAX),
                asked.id
            ),
        ),
        EventBody::ApprovalAnswered { answer, .. } => answered_text(answer),
        EventBody::EffectIntended(intent) => ("intent", intent_text(intent)),
        EventBody::EffectSettled(result) => ("settled", result_text(result)),
        EventBody::Checkpoint { snapshot } => {
            ("checkpoint", checkpoint_text(snapshot.as_ref().map(|id| id.as_str())))
        }
        EventBody::Compacted { from, to, summary, tokens_before, tokens_after } => {
            let how = if summary.is_some() { "summarised" } else { "replaced by stubs" };
            (
                "compacted",
                format!("context {from}..{to} {how}: about {tokens_before} -> {tokens_after} tokens"),
            )
        }
        EventBody::Parked { on, reason, .. } => {
            ("waiting", format!("waits for {}: {}", wait_word(*on), brief(reason, TEXT_MAX)))
        }
        EventBody::CancelRequested => ("cancel", "a stop was asked for".to_owned()),
        EventBody::Rewound { to, cause } => {
            ("rewound", format!("the conversation goes back to event {to} ({})", brief(cause, TEXT_MAX)))
        }
        EventBody::StateWritten { messages, .. } => {
            ("state", format!("a client changed the state: {} messages", messages.len()))
        }
        EventBody::Noted { kind, text } => ("note", format!("{kind}: {}", brief(text, TEXT_MAX))),
        EventBody::RunEnded { outcome } => (outcome.state.as_str(), outcome_text(outcome)),
        EventBody::RunClaimed { .. }
        | EventBody::AssistantMessage { .. }
        | EventBody::ModelAttempts { .. }
        | EventBody::ToolMessage { .. } => return None,
    })
}

/// What a run waits for, as a person says it.
pub(crate) fn wait_word(on: WaitReason) -> &'static str {
    match on {
        WaitReason::Model => "a model deployment",
        WaitReason::Tool => "a tool",
        WaitReason::Approval => "an approval",
        WaitReason::Budget => "budget",
    }
}

fn verdict_text(tool: &str, verdict: &Verdict, policies: &[String]) -> Option<(&'static str, String)> {
    let by = if policies.is_empty() { String::new() } else { format!(" (policies {})", policies.join(", ")) };
    match verdict {
        // An allowed call shows in its intent and result.
        Verdict::Allow => None,
        Verdict::Deny { reason } => {
            Some(("denied", format!("policy denies {tool}: {}{by}", brief(reason, TEXT_MAX))))
        }
        Verdict::Ask { reason } => {
            Some(("asked", format!("policy asks about {tool}: {}{by}", brief(reason, TEXT_MAX))))
        }
    }
}

fn intent_text(intent: &EffectIntent) -> String {
    let class = match intent.class {
        EffectClass::Pure => "pure",
        EffectClass::Idempotent => "idempotent",
        EffectClass::Guarded => "guarded",
        EffectClass::Workspace => "workspace",
        EffectClass::Unsafe => "unsafe",
    };
    let by = if intent.policies.is_empty() {
        String::new()
    } else {
        format!(", allowed by {}", intent.policies.join(", "))
    };
    format!("intends {} ({class}{by})", intent.tool)
}

fn result_text(result: &EffectResult) -> String {
    let how = match result.settled.as_str() {
        "ran" => "ran",
        "reran" => "ran again after a crash",
        "already_applied" => "had happened before a crash; not repeated",
        "unknown" => "may have happened before a crash; not repeated, the model was told",
        "cancelled" => "was cancelled",
        "denied" => "was not carried out",
        other => other,
    };
    let mark = if result.is_error { "error: " } else { "" };
    format!("call {how} in {}: {mark}{}", duration(result.ms), brief(&result.text, 100))
}

fn checkpoint_text(snapshot: Option<&str>) -> String {
    match snapshot {
        Some(id) => format!("checkpoint, workspace {}", id.chars().take(10).collect::<String>()),
        None => "checkpoint".to_owned(),
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match (&outcome.error, outcome.state) {
        (Some(error), state) => {
            format!("{} [{}]: {}", state.as_str(), error.code, output::brief(&error.message, TEXT_MAX))
        }
        (None, RunState::Completed) => format!("completed: {}", brief(&outcome.text, TEXT_MAX)),
        (None, state) => state.as_str().to_owned(),
    }
}
