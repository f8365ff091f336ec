//! Sample values: specs, messages and events with the least that they need.

use evenkeel_core::Wall;
use evenkeel_core::agent::RunLimits;
use evenkeel_core::id::{BlobId, CallId, EffectId, IdempotencyKey, MessageId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, EventBody, NewEvent};
use evenkeel_core::message::{Message, Role, Usage};
use evenkeel_core::run::{Attempt, BusyPolicy, Class, Outcome, RunSpec, RunState};
use serde_json::{Value, json};

/// What a run is asked: one message, interactive, no deadline.
#[must_use]
pub fn spec(message_id: &str, text: &str) -> RunSpec {
    RunSpec {
        assistant: "chat".to_owned(),
        messages: vec![message(message_id, text)],
        repository: None,
        deliver: None,
        limits: RunLimits::default(),
        class: Class::Interactive,
        busy_policy: BusyPolicy::Enqueue,
        deadline: Wall(u64::MAX),
        from_seq: None,
        request: json!({ "input": text }),
    }
}

/// Tokens of a short reply.
#[must_use]
pub fn usage() -> Usage {
    Usage { input_tokens: 10, cached_input_tokens: 4, output_tokens: 3, estimated: false }
}

/// An outcome of this state.
#[must_use]
pub fn ended(state: RunState) -> Outcome {
    Outcome { state, reason: None, error: None, text: "done".to_owned(), diff: None, delivered: None }
}

/// An event that only says something.
#[must_use]
pub fn note(text: &str) -> NewEvent {
    NewEvent { step: 1, body: EventBody::Noted { kind: "note".to_owned(), text: text.to_owned() } }
}

/// The end of a step.
#[must_use]
pub fn checkpoint(step: u32) -> NewEvent {
    NewEvent { step, body: EventBody::Checkpoint { snapshot: None } }
}

/// The model's reply, which cost these tokens.
#[must_use]
pub fn reply(step: u32, text: &str, usage: Usage) -> NewEvent {
    let message = Message::text(format!("reply-{step}"), Role::Assistant, text);
    let body =
        EventBody::AssistantMessage { message, attempts: vec![attempt(usage)], finish: "stop".to_owned() };
    NewEvent { step, body }
}

/// One try at a model call.
#[must_use]
pub fn attempt(usage: Usage) -> Attempt {
    Attempt {
        attempt: 1,
        deployment: "primary".to_owned(),
        provider: "fake".to_owned(),
        model: "echo".to_owned(),
        started_at: Wall(0),
        first_content_ms: Some(10),
        ms: 20,
        outcome: "ok".to_owned(),
        cause: None,
        usage,
        cost_micro_usd: None,
    }
}

/// The intent of an effect.
#[must_use]
pub fn intend(effect: &str) -> NewEvent {
    let body = EventBody::EffectIntended(EffectIntent {
        effect: EffectId::from(effect),
        call_id: CallId::from("call_1"),
        tool: effect.to_owned(),
        args_hash: String::new(),
        class: EffectClass::Unsafe,
        guards: Vec::new(),
        snapshot: None,
        policies: Vec::new(),
        approval: None,
    });
    NewEvent { step: 1, body }
}

/// The result of an effect.
#[must_use]
pub fn settle(effect: &str) -> NewEvent {
    let body = EventBody::EffectSettled(EffectResult {
        effect: EffectId::from(effect),
        call_id: CallId::from("call_1"),
        text: effect.to_owned(),
        is_error: false,
        blob: None,
        ms: 1,
        settled: "ran".to_owned(),
        facts: Value::Null,
    });
    NewEvent { step: 1, body }
}

/// The result of an effect whose whole output is a blob.
#[must_use]
pub fn settle_with(effect: &str, blob: BlobId) -> NewEvent {
    let mut event = settle(effect);
    if let EventBody::EffectSettled(result) = &mut event.body {
        result.blob = Some(blob);
    }
    event
}

/// A client's key.
#[must_use]
pub fn key(text: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey::from(text))
}

/// A message of the user.
#[must_use]
pub fn message(id: &str, text: &str) -> Message {
    Message::text(MessageId::from(id), Role::User, text)
}
