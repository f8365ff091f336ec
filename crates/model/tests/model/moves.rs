//! Histories that move between providers and keys, over loopback, and those that must be mended.

use std::sync::Arc;

use evenkeel_core::id::CallId;
use evenkeel_core::message::{Block, Message, Provenance, Role, ToolCall, ToolResult};
use evenkeel_core::port::model::{Model, ModelOutcome, Unwatched};
use evenkeel_model::wire::validate;
use serde_json::json;

use crate::loopback::{Script, always, bench, done, first_then, hello, outcomes, request};
use crate::scripted::{Reply, anthropic, error, openai, sse};

fn thinking(from: &Provenance) -> Message {
    let raw = r#"{"signature":"s==","type":"thinking",  "thinking":"hm\u00e4"}"#;
    Message {
        id: "m2".into(),
        role: Role::Assistant,
        blocks: vec![
            Block::Opaque { raw: raw.to_owned(), from: from.clone() },
            Block::Text { text: "I thought.".to_owned() },
        ],
    }
}

/// M09: items of another key are not replayed; should the provider refuse them all the same, the
/// call is made once more without them instead of failing for ever.
#[tokio::test]
async fn m09_items_of_another_key_are_dropped() {
    let refused = error(
        400,
        &json!({"type": "error", "error": {"type": "invalid_request_error",
        "message": "messages.1.content.0: Invalid `signature` in `thinking` block"}}),
    );
    let think = sse(vec![
        anthropic::start(),
        anthropic::block(0, &json!({"type": "thinking", "thinking": "", "signature": ""})),
        anthropic::delta(0, &json!({"type": "thinking_delta", "thinking": "hm"})),
        anthropic::delta(0, &json!({"type": "signature_delta", "signature": "s=="})),
        anthropic::stop(0),
        anthropic::text(1, "I thought."),
        anthropic::stop(1),
        anthropic::finish("end_turn"),
        anthropic::end(),
    ]);
    let replies = [think, refused, anthropic::answer("again")];
    let script: Script = Box::new(move |n, _| replies[n.min(2)].clone());
    let bench = bench(vec![("anthropic", script)], json!({})).await;
    let first = done(&bench.router, hello(&bench.env)).await;
    assert!(
        matches!(&first.message.blocks[0], Block::Opaque { from, .. } if from.provider.starts_with("a@"))
    );

    let history =
        vec![Message::text("m1", Role::User, "hi"), first.message, Message::text("m3", Role::User, "go on")];
    let reply = done(&bench.router, request(&bench.env, history)).await;
    assert_eq!(outcomes(&reply), ["foreign_items", "ok"]);
    assert!(bench.providers[0].body(1).to_string().contains("s=="));
    assert!(!bench.providers[0].body(2).to_string().contains("s=="));

    let other_key = Provenance { provider: "a@00000000".to_owned(), model: "large".to_owned() };
    let history = vec![
        Message::text("m1", Role::User, "hi"),
        thinking(&other_key),
        Message::text("m3", Role::User, "go on"),
    ];
    done(&bench.router, request(&bench.env, history)).await;
    assert!(!bench.providers[0].body(3).to_string().contains("s=="));
}

/// M10: thinking of one provider is not sent to another.
#[tokio::test]
async fn m10_foreign_thinking_is_not_sent() {
    let from = Provenance { provider: "elsewhere".to_owned(), model: "large".to_owned() };
    for (kind, reply) in [("openai", openai::answer("x")), ("anthropic", anthropic::answer("x"))] {
        let bench = bench(vec![(kind, always(reply))], json!({})).await;
        let history = vec![
            Message::text("m1", Role::User, "hi"),
            thinking(&from),
            Message::text("m3", Role::User, "go on"),
        ];
        done(&bench.router, request(&bench.env, history)).await;
        let body = bench.providers[0].body(0).to_string();
        assert!(!body.contains("s==") && body.contains("I thought."), "{body}");
    }
}

fn open_call() -> Vec<Message> {
    let call = ToolCall {
        id: CallId::from("call_1"),
        name: "grep".to_owned(),
        args: json!({"q": "x"}),
        wire_id: Some("toolu_01:weird/id".to_owned()),
    };
    vec![
        Message::text("m1", Role::User, "hi"),
        Message { id: "m2".into(), role: Role::Assistant, blocks: vec![Block::ToolCall(call)] },
    ]
}

/// M11: a call made on one provider is answered on another, in that one's own terms.
#[tokio::test]
async fn m11_an_open_call_moves_to_another_provider() {
    let limited = Reply {
        headers: vec![("retry-after", "30".to_owned())],
        ..error(429, &json!({"error": {"message": "slower"}}))
    };
    let scripts = vec![("anthropic", always(limited)), ("openai", always(openai::answer("found")))];
    let bench = bench(scripts, json!({})).await;
    let mut history = open_call();
    let result = ToolResult {
        call_id: "call_1".into(),
        name: "grep".to_owned(),
        text: "a line".to_owned(),
        is_error: false,
    };
    history.push(Message { id: "m3".into(), role: Role::Tool, blocks: vec![Block::ToolResult(result)] });
    let reply = done(&bench.router, request(&bench.env, history)).await;
    assert_eq!(outcomes(&reply), ["rate_limited", "ok"]);
    assert_eq!(validate::anthropic(&bench.providers[0].body(0)), Ok(()));
    assert_eq!(validate::openai(&bench.providers[1].body(0)), Ok(()));
    assert!(bench.router.snapshot().deployments["a"].throttled_until.is_some());
}

/// M15 (the router's part): after a 529 in the middle of a run the same step is made again from the
/// same history, byte for byte.
#[tokio::test]
async fn m15_the_step_is_repeated_on_the_same_history() {
    let overloaded =
        error(529, &json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}));
    let bench =
        bench(vec![("anthropic", first_then(overloaded, anthropic::answer("done")))], json!({})).await;
    bench.router.parked("coder", 0);
    let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    let ModelOutcome::Park { attempts, .. } = outcome else { panic!("{outcome:?}") };
    bench.router.parked("coder", 1);
    let permit = bench.router.next_permit().await;
    let mut again = hello(&bench.env);
    (again.permit, again.prior_attempts) = (Some(permit), 1);
    let reply = done(&bench.router, again).await;
    assert_eq!((attempts[0].attempt, reply.attempts[0].attempt), (1, 2), "attempts count over the step");
    assert_eq!(bench.providers[0].body(0), bench.providers[0].body(1));
}

/// M18: a history that ends in an unfinished turn is made valid before it is sent.
#[tokio::test]
async fn m18_an_unfinished_turn_is_repaired() {
    for (kind, reply) in [("openai", openai::answer("x")), ("anthropic", anthropic::answer("x"))] {
        let bench = bench(vec![(kind, always(reply))], json!({})).await;
        let mut history = open_call();
        history.push(Message::text("m3", Role::User, "continue"));
        done(&bench.router, request(&bench.env, history)).await;
        let body = bench.providers[0].body(0);
        let valid = if kind == "openai" { validate::openai(&body) } else { validate::anthropic(&body) };
        assert_eq!(valid, Ok(()), "{body}");
        assert!(body.to_string().contains("The call was interrupted"), "{body}");
    }
}
