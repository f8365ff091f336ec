//! Streams over loopback: both wires, and everything that a provider should not do.

use std::sync::{Arc, Mutex};

use evenkeel_core::id::CallId;
use evenkeel_core::message::{Block, Message, Role};
use evenkeel_core::port::feed::Provisional;
use evenkeel_core::port::model::{Model, ModelOutcome, ModelRequest, Progress, Unwatched};
use evenkeel_model::wire::validate;
use serde_json::{Value, json};

use crate::loopback::{Script, always, bench, done, first_then, hello, outcomes, quick, request};
use crate::scripted::{End, Reply, anthropic, error, openai, sse};

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
            assert_eq!(taken_for_an_answer(kind, cut.clone(), whole.clone()).await, None, "{cut:?}");
        }
    }
}

/// What is wrong with how a stream without its end is taken, if the one after it is whole.
pub(crate) async fn taken_for_an_answer(kind: &'static str, cut: Reply, whole: Reply) -> Option<String> {
    let bench = bench(vec![(kind, first_then(cut, whole))], json!({})).await;
    let reply = done(&bench.router, hello(&bench.env)).await;
    let (text, outcomes) = (reply.message.joined_text(), outcomes(&reply));
    let n_truncated = bench.router.snapshot().truncated_streams;
    let is_redone = text == "whole" && outcomes == ["stream_broken", "ok"] && n_truncated == 1;
    (!is_redone).then(|| format!("'{text}' after {outcomes:?}, {n_truncated} streams counted as cut"))
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
    assert_eq!(pieces[201], (2, Provisional::Text { offset: 0, text: "whole".to_owned() }));
    assert!(bench.router.snapshot().wasted_tokens["stream_broken"] > 0);
}

/// When the first content is late and another deployment is ready, both are asked: one answer, one
/// set of pieces, and the cost of the other attempt on record.
#[tokio::test]
async fn a_late_first_content_is_overtaken_and_its_connection_closed() {
    let silent = Reply { end: End::Hold, ..sse(vec![]) };
    let scripts = vec![("openai", always(silent)), ("anthropic", always(anthropic::answer("hello")))];
    let early = json!({"hedge": {"after_min": "50ms"}, "timeouts": {"first_content_elsewhere_min": "100ms"}});
    let bench = bench(scripts, early).await;
    let watcher = Arc::new(Watcher::default());
    let outcome = bench.router.call(hello(&bench.env), watcher.clone()).await;
    let ModelOutcome::Done(reply) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reply.message.joined_text(), "hello");
    assert_eq!(outcomes(&reply), ["overtaken", "ok"]);
    let overtaken = &reply.attempts[0];
    assert_eq!((overtaken.attempt, overtaken.deployment.as_str()), (1, "a"));
    assert!(overtaken.usage.estimated && overtaken.usage.input_tokens > 0, "{:?}", overtaken.usage);
    let pieces = watcher.0.lock().unwrap().clone();
    assert_eq!(pieces, [(2, Provisional::Text { offset: 0, text: "hello".to_owned() })], "nothing to void");
    let snapshot = bench.router.snapshot();
    assert_eq!((snapshot.deployments["b"].hedges, snapshot.deployments["b"].hedges_won), (1, 1));
    assert_eq!(snapshot.deployments["a"].outcomes["overtaken"], 1);
    assert!(snapshot.deployments.values().all(|deployment| deployment.in_flight == 0));
    until(|| *bench.providers[0].n_abandoned.lock().unwrap() == 1).await;
}

fn late_text() -> String {
    openai::answer("late").pieces.into_iter().map(|(_, piece)| piece).collect()
}

/// Waits until it holds.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}

/// The second attempt may be overtaken as well; the answer is the first one's.
#[tokio::test]
async fn a_second_attempt_can_be_overtaken_too() {
    let late = Reply { pieces: vec![(300, late_text())], ..sse(vec![]) };
    let silent = Reply { end: End::Hold, ..sse(vec![]) };
    let scripts = vec![("openai", always(late)), ("openai", always(silent))];
    let early = json!({"hedge": {"after_min": "50ms"}, "timeouts": {"first_content_elsewhere_min": "100ms"}});
    let bench = bench(scripts, early).await;
    let reply = done(&bench.router, hello(&bench.env)).await;
    assert_eq!(reply.message.joined_text(), "late");
    assert_eq!(outcomes(&reply), ["overtaken", "ok"]);
    assert_eq!(reply.attempts[1].deployment, "a");
    let snapshot = bench.router.snapshot();
    assert_eq!((snapshot.deployments["b"].hedges, snapshot.deployments["b"].hedges_won), (1, 0));
    assert_eq!(snapshot.deployments["b"].state, "closed", "it was not asked for long");
    until(|| *bench.providers[1].n_abandoned.lock().unwrap() == 1).await;
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
            "three whole calls in one event",
            vec![
                openai::delta(&json!({"tool_calls": [
                    {"id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                    {"id": "b", "function": {"name": "f", "arguments": "{\"x\":2}"}},
                    {"id": "c", "function": {"name": "f", "arguments": "{\"x\":3}"}},
                ]})),
                finish(),
            ],
            vec![json!({"x": 1}), json!({"x": 2}), json!({"x": 3})],
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

/// Blocks are told apart by their index, also when they are interleaved; what comes after a block's end
/// does not change it, and neither does a piece for a block that never began.
#[tokio::test]
async fn pieces_go_to_the_block_that_they_name() {
    let begin = |index, id: &str| {
        anthropic::block(index, &json!({"type": "tool_use", "id": id, "name": "f", "input": {}}))
    };
    let piece = |index, json: &str| {
        anthropic::delta(index, &json!({"type": "input_json_delta", "partial_json": json}))
    };
    let reply = sse(vec![
        anthropic::start(),
        begin(0, "a"),
        begin(1, "b"),
        piece(0, "{\"x\":"),
        piece(1, "{\"y\":2}"),
        piece(0, "1}"),
        anthropic::stop(0),
        piece(0, "{\"x\":9}"),
        piece(7, "{\"z\":9}"),
        anthropic::stop(1),
        anthropic::finish("tool_use"),
        anthropic::end(),
    ]);
    let bench = bench(vec![("anthropic", always(reply))], json!({})).await;
    let reply = done(&bench.router, hello(&bench.env)).await;
    let args: Vec<Value> = reply.message.tool_calls().map(|call| call.args.clone()).collect();
    assert_eq!(args, [json!({"x": 1}), json!({"y": 2})]);
    assert_eq!(outcomes(&reply), ["ok"]);
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
