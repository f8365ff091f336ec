//! The whole router over loopback: both wires, and everything that a provider should not do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::id::{CallId, RunId};
use evenkeel_core::message::{Block, Message, Provenance, Role, ToolCall, ToolResult, ToolSpec};
use evenkeel_core::port::feed::Provisional;
use evenkeel_core::port::model::{
    Model, ModelOutcome, ModelReply, ModelRequest, Permit, Progress, Purpose, Unwatched,
};
use evenkeel_core::run::Class;
use evenkeel_env::Env;
use evenkeel_model::Router;
use evenkeel_model::config::{ProviderKeys, RouterConfig};
use evenkeel_model::wire::validate;
use serde_json::{Value, json};

use crate::scripted::{End, Reply, Scripted, anthropic, error, openai, sse};

const SHORT: &str = "300ms";

/// A configuration over scripted providers: one tier each, `a`, `b` and so on.
fn config(providers: &[(&str, &Scripted)], router: Value) -> RouterConfig {
    let name = |idx: usize| ["a", "b", "c"][idx];
    let mut config =
        json!({"providers": {}, "deployments": {}, "routes": {"coder": {"tiers": []}}, "router": router});
    for (idx, (kind, provider)) in providers.iter().enumerate() {
        let base = if *kind == "openai" { "/v1" } else { "" };
        config["providers"][name(idx)] = json!({"kind": kind, "base_url": format!("http://{}{base}", provider.address), "keys": ["test:key"]});
        config["deployments"][name(idx)] = json!({"provider": name(idx), "model": "large"});
        config["routes"]["coder"]["tiers"].as_array_mut().unwrap().push(json!([name(idx)]));
    }
    serde_json::from_value(config).unwrap()
}

fn quick() -> Value {
    json!({"timeouts": {"headers": SHORT, "first_content": SHORT, "first_content_max": SHORT, "idle": SHORT,
        "idle_with_pings": "600ms"}})
}

fn start(env: &Env, config: RouterConfig) -> Arc<Router> {
    let keys = ProviderKeys::read(&config).unwrap();
    Router::start(env, config, keys).unwrap()
}

fn request(env: &Env, messages: Vec<Message>) -> ModelRequest {
    ModelRequest {
        route: "coder".to_owned(),
        tenant: "t".into(),
        run: RunId::new(env.wall(), &env.generator),
        step: 2,
        purpose: Purpose::Step,
        class: Class::Batch,
        begun: true,
        deadline: env.wall().after(Duration::from_secs(60)),
        system: "You are a coder.".to_owned(),
        messages,
        tools: vec![ToolSpec {
            name: "grep".to_owned(),
            description: "Searches.".to_owned(),
            input_schema: json!({"type": "object", "properties": {"q": {"type": "string"}}}),
        }],
        output_tokens_max: 1_000,
        prior_attempts: 0,
        permit: None,
        fallback: true,
    }
}

fn hello(env: &Env) -> ModelRequest {
    request(env, vec![Message::text("m1", Role::User, "hi")])
}

async fn done(router: &Router, request: ModelRequest) -> ModelReply {
    match router.call(request, Arc::new(Unwatched)).await {
        ModelOutcome::Done(reply) => *reply,
        other => panic!("{other:?}"),
    }
}

fn outcomes(reply: &ModelReply) -> Vec<&str> {
    reply.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect()
}

/// A router over one provider per kind and script.
struct Bench {
    env: Env,
    router: Arc<Router>,
    providers: Vec<Scripted>,
}

type Script = Box<dyn Fn(usize, &Value) -> Reply + Send + Sync>;

async fn bench(scripts: Vec<(&'static str, Script)>, router: Value) -> Bench {
    let env = Env::seeded(1);
    let mut providers = Vec::new();
    let mut kinds = Vec::new();
    for (kind, script) in scripts {
        providers.push(Scripted::start(&env, script).await);
        kinds.push(kind);
    }
    let pairs: Vec<_> = kinds.into_iter().zip(&providers).collect();
    let router = start(&env, config(&pairs, router));
    Bench { env, router, providers }
}

fn always(reply: Reply) -> Script {
    Box::new(move |_, _| reply.clone())
}

fn first_then(first: Reply, then: Reply) -> Script {
    Box::new(move |n, _| if n == 0 { first.clone() } else { then.clone() })
}

#[tokio::test]
async fn an_answer_on_either_wire() {
    for (kind, reply) in [("openai", openai::answer("hello")), ("anthropic", anthropic::answer("hello"))] {
        let bench = bench(vec![(kind, always(reply))], json!({})).await;
        let reply = done(&bench.router, hello(&bench.env)).await;
        assert_eq!(reply.message.joined_text(), "hello", "{kind}");
        assert_eq!((reply.finish.as_str(), outcomes(&reply)), ("stop", vec!["ok"]));
        let (input, cached, output) = if kind == "openai" { (10, 3, 5) } else { (10, 1, 15) };
        let usage = reply.usage;
        assert_eq!(
            (usage.input_tokens, usage.cached_input_tokens, usage.output_tokens),
            (input, cached, output)
        );
        let body = bench.providers[0].body(0);
        let valid = if kind == "openai" { validate::openai(&body) } else { validate::anthropic(&body) };
        assert_eq!(valid, Ok(()));
        let seen = bench.providers[0].seen.lock().unwrap()[0].clone();
        let (path, key) = if kind == "openai" {
            ("/v1/chat/completions", "authorization: Bearer test:key")
        } else {
            ("/v1/messages", "x-api-key: test:key")
        };
        assert_eq!(seen.path, path);
        assert!(seen.head.contains(key), "{}", seen.head);
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let bench = bench(vec![("openai", always(openai::answer("hello")))], json!({})).await;
    for _ in 0..5 {
        done(&bench.router, hello(&bench.env)).await;
    }
    let snapshot = bench.router.snapshot();
    assert_eq!(snapshot.deployments["a"].outcomes["ok"], 5);
    assert_eq!(snapshot.calls["done"], 5);
}

/// Every way to lose the end of a stream, on both wires: none of them is an answer.
#[tokio::test]
async fn a_stream_without_its_terminal_event_is_never_an_answer() {
    let openai_cuts = vec![
        sse(vec![]),
        sse(vec![openai::text("half of")]),
        sse(vec![openai::text("half of"), openai::done()]),
        sse(vec![openai::text("half of"), openai::usage(10, 2)]),
        Reply { end: End::Cut, ..sse(vec![openai::text("half of")]) },
        sse(vec![
            openai::text("half of"),
            "data: {\"choices\": [{\"index\": 0, \"finish_reason\": \"st".to_owned(),
        ]),
    ];
    let anthropic_cuts = vec![
        sse(vec![]),
        sse(vec![anthropic::start(), anthropic::text(0, "half of")]),
        sse(vec![anthropic::start(), anthropic::text(0, "half of"), anthropic::stop(0)]),
        sse(vec![anthropic::start(), anthropic::text(0, "half of"), anthropic::end()]),
        Reply { end: End::Cut, ..sse(vec![anthropic::start(), anthropic::text(0, "half of")]) },
    ];
    for (kind, cuts, whole) in [
        ("openai", openai_cuts, openai::answer("whole")),
        ("anthropic", anthropic_cuts, anthropic::answer("whole")),
    ] {
        for cut in cuts {
            let bench = bench(vec![(kind, first_then(cut.clone(), whole.clone()))], json!({})).await;
            let reply = done(&bench.router, hello(&bench.env)).await;
            assert_eq!(outcomes(&reply), ["stream_broken", "ok"], "{cut:?}");
            assert_eq!(reply.message.joined_text(), "whole", "{cut:?}");
            assert_eq!(bench.router.snapshot().truncated_streams, 1);
        }
    }
}

#[tokio::test]
async fn a_finished_answer_survives_whatever_follows() {
    let unterminated = sse(vec![openai::text("whole"), openai::finish("stop")]);
    let cut = Reply { end: End::Cut, ..unterminated.clone() };
    let held = Reply { end: End::Hold, ..unterminated.clone() };
    for reply in [unterminated, cut, held] {
        let bench = bench(vec![("openai", always(reply))], json!({})).await;
        let reply = done(&bench.router, hello(&bench.env)).await;
        assert_eq!(reply.message.joined_text(), "whole");
        assert!(reply.usage.estimated);
    }
}

/// M05: an error event inside a 200 stream is judged like a status and fails over.
#[tokio::test]
async fn m05_an_error_inside_the_stream_fails_over() {
    let broken = sse(vec![anthropic::event(
        "error",
        json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
    )]);
    let bench =
        bench(vec![("anthropic", always(broken)), ("openai", always(openai::answer("hello")))], json!({}))
            .await;
    let reply = done(&bench.router, hello(&bench.env)).await;
    assert_eq!(outcomes(&reply), ["overloaded", "ok"]);
    assert_eq!(reply.attempts[1].deployment, "b");
}

#[tokio::test]
async fn an_error_event_of_the_openai_wire_fails_over() {
    let broken = sse(vec![
        openai::text("half"),
        openai::event(
            &json!({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
        ),
    ]);
    let bench =
        bench(vec![("openai", always(broken)), ("openai", always(openai::answer("hello")))], json!({})).await;
    let reply = done(&bench.router, hello(&bench.env)).await;
    assert_eq!(outcomes(&reply), ["quota_dead", "ok"]);
    assert!(bench.router.snapshot().deployments["a"].disabled_until.is_some());
}

#[derive(Default)]
struct Watcher(Mutex<Vec<(u32, Provisional)>>);

impl Progress for Watcher {
    fn piece(&self, attempt: u32, piece: Provisional) {
        self.0.lock().unwrap().push((attempt, piece));
    }
}

/// M06: what was shown of a broken attempt is voided before anything else is shown.
#[tokio::test]
async fn m06_a_partial_answer_is_voided_and_not_repeated() {
    let words: Vec<String> = (0..200).map(|i| openai::text(&format!("w{i} "))).collect();
    let bench = bench(vec![("openai", first_then(sse(words), openai::answer("whole")))], json!({})).await;
    let watcher = Arc::new(Watcher::default());
    let outcome = bench.router.call(hello(&bench.env), watcher.clone()).await;
    let ModelOutcome::Done(reply) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reply.message.joined_text(), "whole");
    let pieces = watcher.0.lock().unwrap().clone();
    assert_eq!(pieces.len(), 202);
    assert_eq!(pieces[200], (1, Provisional::Reset { reason: "stream_broken".to_owned() }));
    assert_eq!(pieces[201], (2, Provisional::Text("whole".to_owned())));
    assert!(bench.router.snapshot().wasted_tokens["stream_broken"] > 0);
}

/// M08: silence after the headers, after a chunk, or filled with keep-alives, ends.
#[tokio::test]
async fn m08_silence_is_a_failure() {
    let pings: Vec<(u64, String)> = (0..100).map(|_| (50, ": PROCESSING\n\n".to_owned())).collect();
    let mut alive = vec![(0, openai::text("one"))];
    alive.extend(pings.clone());
    let silent = |pieces| Reply { pieces, end: End::Hold, ..sse(vec![]) };
    let cases = [
        (silent(vec![]), "slow"),
        (silent(vec![(0, openai::text("one"))]), "stream_broken"),
        (silent(pings), "slow"),
        (silent(alive), "stream_broken"),
    ];
    for (reply, outcome) in cases {
        let scripts = vec![("openai", always(reply)), ("openai", always(openai::answer("hello")))];
        let bench = bench(scripts, quick()).await;
        let reply = done(&bench.router, hello(&bench.env)).await;
        assert_eq!(outcomes(&reply)[0], outcome);
        let last = reply.attempts.last().unwrap();
        assert_eq!((last.deployment.as_str(), last.outcome.as_str()), ("b", "ok"));
        assert!(reply.attempts.len() <= 3, "a broken stream is redone once where it broke");
    }
}

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

#[tokio::test]
async fn a_key_that_a_provider_echoes_is_shown_to_nobody() {
    let echoed =
        error(400, &json!({"error": {"message": "no such project for key test:key", "code": "nope"}}));
    let script: Script = Box::new(move |_, _| echoed.clone());
    let bench = bench(vec![("openai", script)], json!({})).await;
    let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    let ModelOutcome::Fatal { error, attempts } = outcome else { panic!("{outcome:?}") };
    assert!(error.message.contains("for key [key]"), "{error}");
    assert!(!format!("{error} {attempts:?}").contains("test:key"));
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

/// M16 (the router's part): a parked call says what it waits for.
#[tokio::test]
async fn m16_a_parked_call_says_why_and_until_when() {
    let bench =
        bench(vec![("openai", always(error(503, &json!({"error": {"message": "down"}}))))], json!({})).await;
    for _ in 0..6 {
        bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    }
    let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    let ModelOutcome::Park { until_hint, reason, .. } = outcome else { panic!("{outcome:?}") };
    assert!(until_hint.is_some_and(|at| at >= bench.env.wall()));
    assert!(reason.contains("a is down (failures in a row), next probe in"), "{reason}");
    let snapshot = bench.router.snapshot();
    assert_eq!(snapshot.deployments["a"].state, "open");
    assert_eq!(snapshot.transitions.last().unwrap().reason, "failures in a row");
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

/// C05: a call cut by the output limit is never executed, and the model is told nothing false.
#[tokio::test]
async fn c05_a_call_cut_by_the_limit_is_not_executed() {
    let call = json!({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "grep", "arguments": "{\"q\":\"a"}}]});
    let valid =
        json!({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "grep", "arguments": "{}"}}]});
    let cut = |delta: &Value| sse(vec![openai::delta(delta), openai::finish("length"), openai::done()]);
    let block = anthropic::block(0, &json!({"type": "tool_use", "id": "x", "name": "grep", "input": {}}));
    let anthropic_cut = sse(vec![
        anthropic::start(),
        block,
        anthropic::delta(0, &json!({"type": "input_json_delta", "partial_json": "{\"q\":"})),
        anthropic::finish("max_tokens"),
        anthropic::end(),
    ]);
    for (kind, reply) in [("openai", cut(&call)), ("openai", cut(&valid)), ("anthropic", anthropic_cut)] {
        let bench = bench(vec![(kind, always(reply))], json!({})).await;
        let reply = done(&bench.router, hello(&bench.env)).await;
        assert_eq!((reply.finish.as_str(), reply.message.tool_calls().count()), ("length", 0));
        assert!(reply.message.joined_text().contains("Nothing was executed"));
    }
}

/// C06: what a redone attempt brings belongs to its own message.
#[tokio::test]
async fn c06_a_recovered_answer_is_its_own_message() {
    let cut = sse(vec![openai::text("half of turn two")]);
    let bench = bench(vec![("openai", first_then(cut, openai::answer("turn two")))], json!({})).await;
    let history = vec![
        Message::text("m1", Role::User, "one"),
        Message::text("m2", Role::Assistant, "turn one"),
        Message::text("m3", Role::User, "two"),
    ];
    let reply = done(&bench.router, request(&bench.env, history)).await;
    assert_eq!(reply.message.blocks, [Block::Text { text: "turn two".to_owned() }]);
}

#[tokio::test]
async fn tool_calls_with_every_quirk() {
    let call = |call: Value| openai::delta(&json!({"tool_calls": [call]}));
    let finish = || openai::finish("tool_calls");
    let cases: Vec<(&str, Vec<String>, Vec<Value>)> = vec![
        (
            "pieces by index, interleaved",
            vec![
                call(json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}})),
                call(json!({"index": 1, "id": "b", "function": {"name": "g", "arguments": "{\"y\""}})),
                call(json!({"index": 0, "function": {"arguments": "{\"x\":1}"}})),
                call(json!({"index": 1, "function": {"arguments": ":2}"}})),
                finish(),
            ],
            vec![json!({"x": 1}), json!({"y": 2})],
        ),
        (
            "the same index under another id",
            vec![
                call(json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}})),
                call(json!({"index": 0, "id": "b", "function": {"name": "g", "arguments": "{\"y\":2}"}})),
                finish(),
            ],
            vec![json!({"x": 1}), json!({"y": 2})],
        ),
        (
            "no id, no arguments",
            vec![call(json!({"index": 0, "function": {"name": "f"}})), finish()],
            vec![json!({})],
        ),
        (
            "a placeholder, then the arguments",
            vec![
                call(json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}})),
                call(json!({"index": 0, "function": {"arguments": "{\"x\":1}"}})),
                finish(),
            ],
            vec![json!({"x": 1})],
        ),
        (
            "an object instead of a string, and stop instead of tool_calls",
            vec![
                call(json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}})),
                openai::finish("stop"),
            ],
            vec![json!({"x": 1})],
        ),
    ];
    for (what, events, expected) in cases {
        let bench = bench(vec![("openai", always(sse(events)))], json!({})).await;
        let request = hello(&bench.env);
        let (run, step) = (request.run, request.step);
        let reply = done(&bench.router, request).await;
        let args: Vec<Value> = reply.message.tool_calls().map(|call| call.args.clone()).collect();
        assert_eq!(args, expected, "{what}");
        assert_eq!(reply.finish, "tool_calls", "{what}");
        for (idx, call) in reply.message.tool_calls().enumerate() {
            assert_eq!(call.id, CallId::of(run, step, u32::try_from(idx).unwrap()), "{what}");
        }
    }
}

#[tokio::test]
async fn malformed_answers_are_redone_three_times_at_most() {
    let bad = sse(vec![
        openai::delta(
            &json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":"}}]}),
        ),
        openai::finish("tool_calls"),
    ]);
    let once = bench(vec![("openai", first_then(bad.clone(), openai::answer("ok")))], json!({})).await;
    assert_eq!(outcomes(&done(&once.router, hello(&once.env)).await), ["stream_broken", "ok"]);
    let scripts = vec![("openai", always(bad.clone())), ("openai", always(bad))];
    let bench = bench(scripts, json!({})).await;
    let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    let ModelOutcome::Fatal { error, attempts } = outcome else { panic!("{outcome:?}") };
    assert_eq!((error.code.as_str(), attempts.len()), ("reply-malformed", 3));
}

#[tokio::test]
async fn malformed_events_are_passed_over_outside_of_calls() {
    let reply = sse(vec![
        openai::text("he"),
        "data: {oops\n\n".to_owned(),
        openai::text("llo"),
        openai::finish("stop"),
    ]);
    let bench = bench(vec![("openai", always(reply))], json!({})).await;
    assert_eq!(done(&bench.router, hello(&bench.env)).await.message.joined_text(), "hello");
}

#[tokio::test]
async fn a_document_instead_of_a_stream_is_read_as_one() {
    let openai_whole = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let anthropic_whole =
        json!({"type": "message", "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"});
    for (kind, whole) in [("openai", openai_whole), ("anthropic", anthropic_whole)] {
        let bench = bench(vec![(kind, always(error(200, &whole)))], json!({})).await;
        assert_eq!(done(&bench.router, hello(&bench.env)).await.message.joined_text(), "hello");
    }
    let page = Reply { content_type: "text/html", ..sse(vec!["<html>".to_owned()]) };
    let bench = bench(vec![("openai", first_then(page, openai::answer("hello")))], json!({})).await;
    assert_eq!(outcomes(&done(&bench.router, hello(&bench.env)).await), ["transient", "ok"]);
}

#[tokio::test]
async fn a_context_that_is_too_long_goes_to_the_compactor() {
    let long = error(400, &json!({"error": {"code": "context_length_exceeded", "message": "too long"}}));
    let bench = bench(vec![("openai", always(long))], json!({})).await;
    let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    assert!(
        matches!(outcome, ModelOutcome::ContextTooLong { ref attempts } if attempts.len() == 1),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_upstream() {
    let held = Reply { end: End::Hold, ..sse(vec![openai::text("one")]) };
    let bench = bench(vec![("openai", always(held))], json!({})).await;
    let (router, provider, request) = (bench.router.clone(), bench.providers[0].clone(), hello(&bench.env));
    let call = async move {
        router.call(request, Arc::new(Unwatched)).await;
    };
    let task = bench.env.spawner.spawn("call", Box::pin(call));
    while provider.n_seen() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.router.snapshot().deployments["a"].in_flight, 1);
    task.abort();
    while *provider.n_abandoned.lock().unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    let snapshot = bench.router.snapshot();
    assert_eq!((snapshot.deployments["a"].in_flight, snapshot.calls["cancelled"]), (0, 1));
}

#[tokio::test]
async fn an_outage_end_to_end_parks_probes_and_comes_back() {
    let up = Arc::new(Mutex::new(false));
    let is_up = up.clone();
    let script: Script = Box::new(move |_, _| {
        if *is_up.lock().unwrap() {
            openai::answer("hello")
        } else {
            error(503, &json!({"error": {"message": "down"}}))
        }
    });
    let router = json!({"breaker": {"open_first": "40ms", "open_max_early": "80ms"}});
    let bench = bench(vec![("openai", script)], router).await;
    for _ in 0..8 {
        let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
        assert!(matches!(outcome, ModelOutcome::Park { .. }), "{outcome:?}");
    }
    bench.router.parked("coder", 8);
    let probe = bench.router.next_permit().await;
    assert_eq!((probe.0.route(), probe.0.deployment()), ("coder", "a"));
    let with = |permit: Permit| ModelRequest { permit: Some(permit), ..hello(&bench.env) };
    let outcome = bench.router.call(with(probe), Arc::new(Unwatched)).await;
    assert!(matches!(outcome, ModelOutcome::Park { .. }), "{outcome:?}");
    *up.lock().unwrap() = true;
    for n_left in (0..8).rev() {
        let permit = bench.router.next_permit().await;
        bench.router.parked("coder", n_left);
        done(&bench.router, with(permit)).await;
    }
    let snapshot = bench.router.snapshot();
    assert_eq!(snapshot.deployments["a"].state, "ramping");
    assert_eq!(snapshot.deployments["a"].n_opened, 1);
    assert!(snapshot.deployments["a"].seconds_to_recover.is_some());
    serde_json::to_value(snapshot).unwrap();
}

/// Permits that nobody takes run out; a waker that comes late gets one that is still good.
#[tokio::test(start_paused = true)]
async fn a_late_waker_gets_a_permit_that_is_still_good() {
    let env = Env::seeded(1);
    // Nothing listens there, and the paused clock runs ahead of any connection.
    let unreachable = json!({
        "providers": {"a": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        "deployments": {"a": {"provider": "a", "model": "large"}},
        "routes": {"coder": {"tiers": [["a"]]}},
    });
    let router = start(&env, serde_json::from_value(unreachable).unwrap());
    router.parked("coder", 1);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let permit = router.next_permit().await;
    let snapshot = router.snapshot();
    assert_eq!(snapshot.routes["coder"].permits_outstanding, 1);
    assert!(snapshot.deployments["a"].permits >= 9, "{:?}", snapshot.deployments["a"].permits);
    let more = tokio::time::timeout(Duration::from_millis(10), router.next_permit()).await;
    assert!(more.is_err(), "there is one parked run and one permit");
    router.parked("coder", 0);
    drop(permit);
    assert_eq!(router.snapshot().routes["coder"].permits_outstanding, 0);
}

#[tokio::test]
async fn an_unknown_route_is_the_callers_mistake() {
    let bench = bench(vec![("openai", always(openai::answer("x")))], json!({})).await;
    let unknown = ModelRequest { route: "nowhere".to_owned(), ..hello(&bench.env) };
    let outcome = bench.router.call(unknown, Arc::new(Unwatched)).await;
    assert!(
        matches!(outcome, ModelOutcome::Fatal { ref error, .. } if error.code.as_str() == "route-unknown")
    );
    assert_eq!(bench.router.route("nowhere"), None);
    assert_eq!(bench.router.route("coder").unwrap().context_tokens, 200_000);
}
