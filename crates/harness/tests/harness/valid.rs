//! What every provider demands of a history, checked on every request that the harness makes.

use std::collections::BTreeSet;

use evenkeel_core::journal::unanswered::Unanswered;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::message::{Block, Message, Provenance, Role};
use evenkeel_core::port::model::{ModelRequest, Purpose};
use evenkeel_model::config::{Capabilities, ProviderKind};
use evenkeel_model::provider::{Bound, Prompt, Target, anthropic, openai};
use evenkeel_model::wire::validate;

/// Panics if a provider would refuse the request.
pub(crate) fn assert_valid(request: &ModelRequest) {
    if let Err(fault) = check(request).and_then(|()| check_on_wires(request)) {
        panic!("invalid request: {fault}\n{:#?}", request.messages);
    }
}

/// The request as both wires carry it, by their strict validators.
pub(crate) fn check_on_wires(request: &ModelRequest) -> Result<(), String> {
    let prompt = Prompt {
        system: &request.system,
        messages: &request.messages,
        tools: &request.tools,
        output_tokens_max: request.output_tokens_max,
    };
    let from = Provenance { provider: "test".to_owned(), model: "test".to_owned() };
    let target = |kind| Target {
        kind,
        uri: http::Uri::from_static("http://127.0.0.1/v1"),
        model: "test".to_owned(),
        capabilities: Capabilities::default(),
        key: None,
        from: from.clone(),
    };
    let parsed = |body: Vec<u8>| serde_json::from_slice(&body).map_err(|error| error.to_string());
    let body = openai::render(prompt, &target(ProviderKind::Openai), Bound::Keep);
    validate::openai(&parsed(body)?).map_err(|faults| faults.join("; "))?;
    let body = anthropic::render(prompt, &target(ProviderKind::Anthropic), Bound::Keep);
    validate::anthropic(&parsed(body)?).map_err(|faults| faults.join("; "))
}

/// What no provider takes, whatever its wire.
pub(crate) fn check(request: &ModelRequest) -> Result<(), String> {
    let messages = &request.messages;
    if request.purpose == Purpose::Compaction && !request.tools.is_empty() {
        return Err("a summary is asked for with tools".to_owned());
    }
    if messages.first().is_none_or(|first| first.role != Role::User) {
        return Err("it does not begin with a user's message".to_owned());
    }
    let mut seen = BTreeSet::new();
    for (idx, message) in messages.iter().enumerate() {
        if message.blocks.is_empty() {
            return Err(format!("message {idx} is empty"));
        }
        if message.blocks.iter().any(|block| matches!(block, Block::Text { text } if text.trim().is_empty()))
        {
            return Err(format!("message {idx} has empty text"));
        }
        let calls: Vec<_> = message.tool_calls().map(|call| call.id.clone()).collect();
        if calls.iter().any(|id| !seen.insert(id.clone())) {
            return Err(format!("message {idx} repeats a call id"));
        }
        if !calls.is_empty() {
            let next =
                messages.get(idx + 1).ok_or_else(|| format!("calls of message {idx} have no results"))?;
            let results: Vec<_> = next.tool_results().map(|result| result.call_id.clone()).collect();
            if next.role != Role::Tool || results != calls {
                return Err(format!("results of message {idx} are {results:?}, not {calls:?}"));
            }
        }
        let follows_calls = idx > 0 && messages[idx - 1].tool_calls().next().is_some();
        if message.role == Role::Tool && !follows_calls {
            return Err(format!("message {idx} has results without calls"));
        }
    }
    if messages.last().is_some_and(|last| last.role == Role::Assistant) {
        return Err("it ends with an assistant's message".to_owned());
    }
    Ok(())
}

/// Panics unless, in the stored conversation as every reader folds it, each ended run's calls have
/// their results directly after them and no result is without its call.
pub(crate) fn assert_paired(events: &[Event]) {
    let mut unanswered = Unanswered::default();
    let messages: Vec<Message> = events
        .iter()
        .filter_map(|event| {
            let closed = unanswered.fold(event.run, event.step, &event.body);
            match &event.body {
                EventBody::UserMessage { message }
                | EventBody::AssistantMessage { message, .. }
                | EventBody::ToolMessage { message } => Some(message.clone()),
                _ => closed,
            }
        })
        .collect();
    for (idx, message) in messages.iter().enumerate() {
        let calls: Vec<_> = message.tool_calls().map(|call| &call.id).collect();
        if !calls.is_empty() {
            let results: Vec<_> = messages[idx + 1].tool_results().map(|result| &result.call_id).collect();
            assert_eq!(calls, results, "results follow their calls");
        }
        if message.role == Role::Tool {
            assert!(messages[idx - 1].tool_calls().next().is_some(), "results follow calls");
        }
    }
}
