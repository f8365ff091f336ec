//! Random histories, however broken, render to requests that both strict validators accept.

use evenkeel_core::id::{CallId, RunId};
use evenkeel_core::message::{Block, Message, Provenance, Role, ToolCall, ToolResult, ToolSpec};
use evenkeel_model::config::{Capabilities, ProviderKind};
use evenkeel_model::provider::{Bound, Decoder, Prompt, Target, request};
use evenkeel_model::stream::answer::{Assembler, Place};
use evenkeel_model::wire::validate;
use proptest::prelude::*;
use serde_json::{Value, json};

fn from(provider: &str) -> Provenance {
    Provenance { provider: provider.to_owned(), model: "large".to_owned() }
}

fn target(kind: ProviderKind) -> Target {
    Target {
        kind,
        uri: "http://127.0.0.1/".parse().unwrap(),
        model: "large".to_owned(),
        capabilities: Capabilities { replay_reasoning: true, ..Capabilities::default() },
        key: None,
        from: from("home"),
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just(" \n".to_owned()), "[a-zäß€😀\"\\\\\n ]{1,20}"]
}

fn call_id() -> impl Strategy<Value = CallId> {
    prop_oneof![
        4 => (0u8..6).prop_map(|n| CallId(format!("call_{n}"))),
        1 => "[a-z:/.€]{0,60}".prop_map(CallId),
    ]
}

fn block(kind: ProviderKind) -> impl Strategy<Value = Block> {
    let raw = match kind {
        ProviderKind::Openai => r#""some  \u0072easoning""#,
        ProviderKind::Anthropic => r#"{"type":"thinking",  "thinking":"\u0068m","signature":"s=="}"#,
    };
    prop_oneof![
        3 => text().prop_map(|text| Block::Text { text }),
        3 => (call_id(), 0u8..3).prop_map(|(id, n)| Block::ToolCall(ToolCall {
            id, name: format!("tool_{n}"), args: json!({"n": n}), wire_id: Some("toolu_x".to_owned()) })),
        3 => (call_id(), text(), any::<bool>()).prop_map(|(call_id, text, is_error)| {
            Block::ToolResult(ToolResult { call_id, name: "tool".to_owned(), text, is_error })
        }),
        1 => Just(Block::Opaque { raw: raw.to_owned(), from: from("home") }),
        1 => Just(Block::Opaque { raw: "{\"secret\":1}".to_owned(), from: from("abroad") }),
    ]
}

fn messages(kind: ProviderKind) -> impl Strategy<Value = Vec<Message>> {
    let role = prop_oneof![Just(Role::User), Just(Role::Assistant), Just(Role::Tool)];
    let message = (role, prop::collection::vec(block(kind), 0..5));
    prop::collection::vec(message, 0..12).prop_map(|messages| {
        let numbered = messages.into_iter().enumerate();
        numbered.map(|(n, (role, blocks))| Message { id: format!("m{n}").into(), role, blocks }).collect()
    })
}

fn render(messages: &[Message], kind: ProviderKind, bound: Bound) -> String {
    let tools = [ToolSpec {
        name: "tool_0".to_owned(),
        description: "A tool.".to_owned(),
        input_schema: json!({"type": "object"}),
    }];
    let prompt = Prompt { system: "You are.", messages, tools: &tools, output_tokens_max: 100 };
    String::from_utf8(request(prompt, &target(kind), bound).into_body().to_vec()).unwrap()
}

fn check(messages: &[Message], kind: ProviderKind) -> Result<(), TestCaseError> {
    for bound in [Bound::Keep, Bound::Strip] {
        let body = render(messages, kind, bound);
        let value: Value = serde_json::from_str(&body).unwrap();
        let valid = match kind {
            ProviderKind::Openai => validate::openai(&value),
            ProviderKind::Anthropic => validate::anthropic(&value),
        };
        prop_assert_eq!(valid, Ok(()), "{}", body);
        prop_assert!(!body.contains("secret"), "a foreign block was sent: {}", body);
        prop_assert!(bound == Bound::Keep || !body.contains("s=="), "a block was not stripped: {}", body);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_history_is_valid_on_the_openai_wire(messages in messages(ProviderKind::Openai)) {
        check(&messages, ProviderKind::Openai)?;
    }

    #[test]
    fn any_history_is_valid_on_the_anthropic_wire(messages in messages(ProviderKind::Anthropic)) {
        check(&messages, ProviderKind::Anthropic)?;
    }

    /// What a provider answers with comes back in the next request as it was: an answer is decoded
    /// from the wire's own form and its rendering holds the same texts and calls.
    #[test]
    fn answers_survive_the_round_trip(
        texts in prop::collection::vec("[a-zäß€😀\"\\\\ ]{0,9}[a-z]", 1..3),
        args in prop::collection::vec("[a-zäß€😀\"\\\\\n ]{0,12}", 0..4),
    ) {
        let place = Place { run: run(), step: 1, from: from("home") };
        let joined = texts.join("\n\n");
        let calls: Vec<Value> = args.iter().map(|arg| json!({"q": arg})).collect();

        let openai = json!({"choices": [{"index": 0, "finish_reason": if calls.is_empty() { "stop" } else { "tool_calls" },
            "message": {"content": joined, "tool_calls": calls.iter().enumerate().map(|(n, args)| json!({"index": n,
                "id": format!("id{n}"), "type": "function", "function": {"name": "f", "arguments": args.to_string()}})).collect::<Vec<_>>()}}]});
        let mut content: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        content.extend(calls.iter().enumerate().map(|(n, args)| json!({"type": "tool_use", "id": format!("id{n}"), "name": "f", "input": args})));
        let anthropic = json!({"content": content, "stop_reason": "end_turn"});

        for (kind, whole) in [(ProviderKind::Openai, openai), (ProviderKind::Anthropic, anthropic)] {
            let mut assembler = Assembler::default();
            let mut decoder = Decoder::new(kind);
            decoder.whole(&whole, &mut assembler);
            decoder.end(&mut assembler);
            let answer = assembler.into_answer(&place, 0).unwrap();
            let history = [Message::text("m0", Role::User, "hi"), answer.message];
            check(&history, kind)?;
            let body: Value = serde_json::from_str(&render(&history, kind, Bound::Keep)).unwrap();
            let (sent_text, sent_args) = read_back(kind, &body);
            prop_assert_eq!(sent_text, joined.clone());
            prop_assert_eq!(sent_args, calls.clone());
        }
    }
}

fn read_back(kind: ProviderKind, body: &Value) -> (String, Vec<Value>) {
    match kind {
        ProviderKind::Openai => {
            let message = &body["messages"][2];
            let args =
                message["tool_calls"].as_array().into_iter().flatten().map(|call| {
                    serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap()
                });
            (message["content"].as_str().unwrap_or_default().to_owned(), args.collect())
        }
        ProviderKind::Anthropic => {
            let blocks = body["messages"][1]["content"].as_array().unwrap();
            let of = |kind: &'static str| blocks.iter().filter(move |block| block["type"] == kind);
            let texts: Vec<&str> = of("text").map(|block| block["text"].as_str().unwrap()).collect();
            (texts.join("\n\n"), of("tool_use").map(|block| block["input"].clone()).collect())
        }
    }
}

fn run() -> RunId {
    RunId::new(evenkeel_core::Wall(1), &evenkeel_core::Generator::from_seed(1))
}

/// Raw blocks go back byte by byte, spaces and escapes included.
#[test]
fn raw_blocks_are_replayed_byte_by_byte() {
    for (kind, raw) in [
        (ProviderKind::Anthropic, r#"{"type":"thinking",  "thinking":"\u0068m", "signature":"s=="}"#),
        (ProviderKind::Openai, r#""some  \u0072easoning""#),
    ] {
        let message = Message {
            id: "m1".into(),
            role: Role::Assistant,
            blocks: vec![
                Block::Opaque { raw: raw.to_owned(), from: from("home") },
                Block::Text { text: "x".to_owned() },
            ],
        };
        let history = [Message::text("m0", Role::User, "hi"), message];
        assert!(render(&history, kind, Bound::Keep).contains(raw), "{kind:?}");
    }
}
