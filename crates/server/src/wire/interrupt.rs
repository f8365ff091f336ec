//! What a waiting run asks of a person, as the dialect shows it, and the answers that it takes.
//!
//! All questions of a wait are one interrupt: `action_requests` and `review_configs` in the order of
//! the calls, as the dialect's user interfaces know them, and our own `approvals` beside them.

use evenkeel_core::approval::{Approval, Decision};
use evenkeel_core::id::{ApprovalId, CallId, RunId};
use evenkeel_core::port::store::OneAnswer;
use evenkeel_core::{Code, Error};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::refusal::malformed;

/// Characters of a note at most.
const NOTE_CHARS_MAX: usize = 4_000;

/// The interrupt of these open questions of a run; `None` if there are none. `args` finds the whole
/// arguments of a call.
pub(crate) fn interrupt(
    run: RunId,
    open: &[&Approval],
    args: impl Fn(&CallId) -> Option<Value>,
) -> Option<Value> {
    let first = open.first()?;
    let args = |asked: &Approval| args(&asked.call_id).unwrap_or_else(|| json!(asked.args_shown));
    let actions: Vec<Value> = open
        .iter()
        .map(|asked| json!({ "name": asked.tool, "args": args(asked), "description": asked.reason }))
        .collect();
    let reviews: Vec<Value> = open
        .iter()
        .map(|asked| json!({ "action_name": asked.tool, "allowed_decisions": ["approve", "reject"] }))
        .collect();
    let approvals: Vec<Value> = open
        .iter()
        .map(|asked| {
            json!({
                "id": asked.id,
                "call_id": asked.call_id,
                "tool": asked.tool,
                "reason": asked.reason,
                "expires_at": asked.expires_at.iso(),
            })
        })
        .collect();
    Some(json!({
        "id": interrupt_id(run, first.step),
        "value": {
            "action_requests": actions,
            "review_configs": reviews,
            "approvals": approvals,
            "run_id": run,
        },
    }))
}

/// The id of what a step asks: the same on every replica.
fn interrupt_id(run: RunId, step: u32) -> String {
    Uuid::new_v5(&run.0, &step.to_be_bytes()).simple().to_string()
}

/// What `command.resume` answers of a run's questions.
///
/// It is one decision for all of them, a list with one for each (also as `decisions`), or a map from
/// the id of the interrupt, or of single approvals, to decisions.
pub(crate) fn answers(run: RunId, asks: &[Approval], resume: &Value) -> Result<Vec<OneAnswer>, Error> {
    let open: Vec<&Approval> = asks.iter().filter(|asked| asked.answer.is_none()).collect();
    let Some(first) = open.first() else {
        return Ok(Vec::new());
    };
    let interrupt = interrupt_id(run, first.step);
    match resume.as_object() {
        Some(map) if names_questions(map) => {
            let mut answers = Vec::new();
            for (id, value) in map {
                if *id == interrupt {
                    answers.extend(decisions(&open, value)?);
                } else {
                    let asked = open.iter().find(|asked| asked.id.as_str() == id);
                    answers.push(decision(asked.ok_or_else(|| closed(id))?, value)?);
                }
            }
            Ok(answers)
        }
        _ => decisions(&open, resume),
    }
}

/// Whether every key is the id of an interrupt or of an approval.
fn names_questions(map: &Map<String, Value>) -> bool {
    let is_id = |key: &str| {
        ApprovalId::from(key).run().is_some()
            || (key.len() == 32 && key.chars().all(|c| c.is_ascii_hexdigit()))
    };
    !map.is_empty() && map.keys().all(|key| is_id(key))
}

/// One decision for all, or a list with one for each.
fn decisions(open: &[&Approval], value: &Value) -> Result<Vec<OneAnswer>, Error> {
    let list = value.get("decisions").unwrap_or(value);
    let Some(list) = list.as_array() else {
        return open.iter().map(|asked| decision(asked, value)).collect();
    };
    if list.len() != open.len() {
        return Err(malformed(
            format!("{} calls wait for an answer, and `command.resume` holds {}.", open.len(), list.len()),
            "Send one decision for each of `action_requests`, in their order.",
        ));
    }
    open.iter().zip(list).map(|(asked, value)| decision(asked, value)).collect()
}

/// A single decision: `true`, a word, or an object with the word in `type` or `decision`.
pub(crate) fn decision(asked: &Approval, value: &Value) -> Result<OneAnswer, Error> {
    let word = match value {
        Value::Bool(true) => "approve",
        Value::Bool(false) => "deny",
        Value::String(word) => word.as_str(),
        other => ["type", "decision"].iter().find_map(|key| other.get(key)?.as_str()).unwrap_or_default(),
    };
    let decision = match word {
        "approve" | "approved" | "accept" | "yes" => Decision::Approve,
        "deny" | "denied" | "reject" | "ignore" | "respond" | "response" | "no" => Decision::Deny,
        "edit" => {
            return Err(malformed(
                "A call cannot be approved with other arguments than it was asked with.",
                "Deny it and say in `message` what should be done instead.",
            ));
        }
        _ => {
            return Err(malformed(
                "`command.resume` holds no decision.",
                "Send true or false, \"approve\" or \"deny\", or {\"type\":\"reject\",\"message\":\"why\"}.",
            ));
        }
    };
    Ok(OneAnswer { approval: asked.id.clone(), decision, note: note(value)? })
}

/// The words that go with a decision.
fn note(value: &Value) -> Result<String, Error> {
    let said =
        ["message", "note", "args"].iter().find_map(|key| value.get(key)?.as_str()).unwrap_or_default();
    if said.chars().count() > NOTE_CHARS_MAX {
        return Err(malformed(
            format!("The words that go with the decision are longer than {NOTE_CHARS_MAX} characters."),
            "Send fewer.",
        ));
    }
    Ok(said.to_owned())
}

/// The question of this id is not open.
pub(crate) fn closed(id: &str) -> Error {
    Error::client(
        Code::ApprovalClosed,
        format!("{id} is not open: it was answered, it expired, or its run went on without it."),
        "GET /v1/approvals lists what is open.",
    )
}

/// Nothing on the thread waits for an answer.
pub(crate) fn nothing_asked() -> Error {
    Error::client(
        Code::ApprovalClosed,
        "Nothing on this thread waits for an answer.",
        "Send `input` for a new turn; GET /v1/approvals lists what is open.",
    )
}
