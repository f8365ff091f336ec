//! Decisions as tables: what comes next, how an effect is settled, how a history is repaired.

use std::time::Duration;

use evenkeel_core::Wall;
use evenkeel_core::agent::RunLimits;
use evenkeel_core::id::{EffectId, RunId, SnapshotId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, Event, EventBody, Guard};
use evenkeel_core::message::{Block, Message, Role, ToolCall, ToolResult, Usage};
use evenkeel_core::port::tools::GuardState;
use evenkeel_core::run::{Class, WaitReason};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::output::shown;
use super::prompt::valid;
use super::recover::{Settlement, settlement};
use super::state::{NOTE_TOO_LONG, View};
use super::step::{Action, Moment, Rules, next};

pub(crate) fn run_id() -> RunId {
    "01890000-0000-7000-8000-000000000001".parse().unwrap()
}

pub(crate) fn calls(names: &[&str]) -> Message {
    let blocks = names.iter().map(|name| {
        let (id, args) = name.split_once('=').unwrap_or((name, ""));
        Block::ToolCall(ToolCall {
            id: id.into(),
            name: "tool".into(),
            args: json!({ "a": args }),
            wire_id: None,
        })
    });
    Message { id: "m".into(), role: Role::Assistant, blocks: blocks.collect() }
}

pub(crate) fn results(ids: &[&str]) -> Message {
    let blocks = ids.iter().map(|id| {
        let (call_id, text) = ((*id).into(), (*id).to_owned());
        Block::ToolResult(ToolResult { call_id, name: "tool".into(), text, is_error: false })
    });
    Message { id: "r".into(), role: Role::Tool, blocks: blocks.collect() }
}

fn intent(id: &str, class: EffectClass) -> EffectIntent {
    EffectIntent {
        effect: EffectId::from(id),
        call_id: id.into(),
        tool: "tool".into(),
        args_hash: String::new(),
        class,
        guards: vec![Guard { path: "a".into(), before: None, after: None }],
        snapshot: Some(SnapshotId::from("snap")),
        policies: Vec::new(),
        approval: None,
    }
}

/// What was summarised and stubbed in a run that is undone is as it was before.
#[test]
fn a_rewind_takes_summaries_and_stubs_with_it() {
    let other: RunId = "01890000-0000-7000-8000-000000000002".parse().unwrap();
    let user = |id: &str| EventBody::UserMessage { message: Message::text(id, Role::User, id) };
    let compacted = |to, summary: Option<&str>| EventBody::Compacted {
        from: 1,
        to,
        summary: summary.map(str::to_owned),
        tokens_before: 9,
        tokens_after: 1,
    };
    let back = |to| EventBody::Rewound { to, cause: "rollback".to_owned() };
    let view = |bodies: &[EventBody]| {
        let event = |(seq, body): (u64, &EventBody)| Event {
            thread: "01890000-0000-7000-8000-000000000003".parse().unwrap(),
            seq,
            run: other,
            step: 1,
            at: Wall(0),
            body: body.clone(),
        };
        let events: Vec<Event> = (1..).zip(bodies).map(event).collect();
        let view = View::of(run_id(), 0, Usage::default(), &events);
        let texts: Vec<String> = view.entries.iter().map(|entry| entry.message.joined_text()).collect();
        (view.summary.map(|summary| summary.text), view.stubs.len(), texts.join(" "), view.seq_last)
    };
    let mut log = vec![user("a"), user("b"), user("c"), compacted(1, None), compacted(2, Some("ab"))];
    assert_eq!(view(&log), (Some("ab".to_owned()), 0, "c".to_owned(), 5));
    log.push(back(3));
    assert_eq!(view(&log), (None, 0, "a b c".to_owned(), 6));
    log.push(user("d"));
    log.push(back(4));
    assert_eq!(view(&log), (None, 1, "a b c".to_owned(), 8), "another way back");
    log.push(back(7));
    assert_eq!(view(&log), (None, 0, "a b c d".to_owned(), 9), "an undone way back is undone");
    log.push(back(5));
    assert_eq!(view(&log), (Some("ab".to_owned()), 0, "c".to_owned(), 10));
    log.push(back(0));
    assert_eq!(view(&log), (None, 0, String::new(), 11));
}

fn settled(id: &str, facts: Value) -> EventBody {
    EventBody::EffectSettled(EffectResult {
        effect: EffectId::from(id),
        call_id: id.into(),
        text: "ok".into(),
        is_error: false,
        blob: None,
        ms: 0,
        settled: "ran".into(),
        facts,
    })
}

fn assistant(message: Message, finish: &str) -> EventBody {
    EventBody::AssistantMessage { message, attempts: Vec::new(), finish: finish.into() }
}

/// A journal of one run; steps follow from the checkpoints.
fn view(bodies: Vec<EventBody>) -> View {
    let mut step = 1;
    let mut events = Vec::new();
    for (seq, body) in (1..).zip(bodies) {
        let thread = "01890000-0000-7000-8000-000000000002".parse().unwrap();
        let at = Wall(seq * 1_000);
        let is_checkpoint = matches!(body, EventBody::Checkpoint { .. });
        events.push(Event { thread, seq, run: run_id(), step, at, body });
        step += u32::from(is_checkpoint);
    }
    View::of(run_id(), 0, Usage::default(), &events)
}

fn user() -> EventBody {
    EventBody::UserMessage { message: Message::text("u", Role::User, "go") }
}

fn text(text: &str) -> Message {
    Message::text("m", Role::Assistant, text)
}

fn checkpoint() -> EventBody {
    EventBody::Checkpoint { snapshot: None }
}

fn check(bodies: Vec<EventBody>, expected: Expect) {
    let rules = Rules {
        limits: RunLimits { steps_max: 3, tokens_max: 1_000, ..RunLimits::default() },
        class: Class::Interactive,
        deadline: Wall(100_000),
        wall_until: Wall(90_000),
        has_tools: true,
        park_max: Duration::from_secs(5),
    };
    let moment = Moment { estimate: 10, threshold: 100, permit: false };
    let said = |now| match next(&view(bodies.clone()), &rules, moment, Wall(now)) {
        Action::End(ending) => {
            let code = ending.error.map_or("", |error| error.code.as_str());
            format!("End {} {code} {}", ending.state.as_str(), ending.text).trim().to_owned()
        }
        other => format!("{other:?}"),
    };
    expected.assert_eq(&format!("{} | at the wall limit: {}", said(20_000), said(95_000)));
}

#[test]
fn what_comes_next() {
    let intended = |id: &str| EventBody::EffectIntended(intent(id, EffectClass::Pure));
    let open = || vec![user(), assistant(calls(&["a", "b=2"]), "tool_calls")];
    let with = |mut bodies: Vec<EventBody>, more: Vec<EventBody>| {
        bodies.extend(more);
        bodies
    };
    check(vec![user()], expect!["CallModel | at the wall limit: End failed run-deadline"]);
    check(open(), expect!["Prepare | at the wall limit: End failed run-deadline"]);
    check(
        with(open(), vec![settled("a", Value::Null), intended("b")]),
        expect!["Settle | at the wall limit: End failed run-deadline"],
    );
    check(
        with(open(), vec![settled("a", Value::Null), settled("b", Value::Null)]),
        expect!["CommitResults | at the wall limit: CommitResults"],
    );
    check(
        with(open(), vec![settled("a", json!({"finish": "bye"})), settled("b", Value::Null)]),
        expect!["End completed  bye | at the wall limit: End completed  bye"],
    );
    check(
        vec![user(), assistant(text("answer"), "stop")],
        expect!["End completed  answer | at the wall limit: End completed  answer"],
    );
    check(
        vec![user(), assistant(calls(&["a"]), "length")],
        expect!["CommitResults | at the wall limit: CommitResults"],
    );
    check(
        vec![user(), assistant(text("no"), "refusal")],
        expect!["End failed content-rejected | at the wall limit: End failed content-rejected"],
    );
    check(
        with(open(), vec![EventBody::CancelRequested]),
        expect!["End cancelled | at the wall limit: End cancelled"],
    );
    check(
        vec![user(), checkpoint(), checkpoint(), checkpoint()],
        expect!["End failed run-step-limit | at the wall limit: End failed run-deadline"],
    );
    check(
        vec![user(), assistant(calls(&["a", "b", "c", "d"]), "tool_calls")],
        expect!["End failed run-repeats | at the wall limit: End failed run-repeats"],
    );
    let parked = EventBody::Parked { on: WaitReason::Model, reason: String::new(), until_hint: None };
    check(
        vec![user(), parked],
        expect!["End failed provider-unavailable | at the wall limit: End failed run-deadline"],
    );
    let too_long = || EventBody::Noted { kind: NOTE_TOO_LONG.into(), text: String::new() };
    check(vec![user(), too_long()], expect!["Compact | at the wall limit: End failed run-deadline"]);
    check(
        vec![user(), too_long(), too_long(), too_long()],
        expect!["End failed context-too-long | at the wall limit: End failed run-deadline"],
    );
}

#[test]
fn how_an_interrupted_effect_is_settled() {
    use EffectClass::*;
    let how = |class, guards| settlement(&intent("a", class), guards);
    assert_eq!(how(Pure, None), Settlement::Rerun);
    assert_eq!(how(Idempotent, None), Settlement::Rerun);
    assert_eq!(how(Guarded, Some(GuardState::Before)), Settlement::Rerun);
    assert_eq!(how(Guarded, Some(GuardState::After)), Settlement::AlreadyApplied);
    assert!(matches!(how(Guarded, Some(GuardState::Other)), Settlement::Unknown(_)));
    assert!(matches!(how(Guarded, None), Settlement::Unknown(_)), "nothing to compare");
    assert_eq!(how(Workspace, None), Settlement::RestoreAndRerun(SnapshotId::from("snap")));
    let lost = EffectIntent { snapshot: None, ..intent("a", Workspace) };
    assert!(matches!(settlement(&lost, None), Settlement::Unknown(_)), "nothing to go back to");
    assert!(matches!(how(Unsafe, None), Settlement::Unknown(_)));
}

/// A history in one line: roles with the ids of their calls and results.
fn line(messages: &[Message]) -> String {
    let words = messages.iter().map(|message| {
        let calls = message.tool_calls().map(|call| call.id.to_string());
        let results = message
            .tool_results()
            .map(|result| format!("{}{}", result.call_id, if result.is_error { "!" } else { "" }));
        format!("{:?}({})", message.role, calls.chain(results).collect::<Vec<_>>().join(" "))
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_broken_history_is_repaired_both_ways() {
    let user = || Message::text("u", Role::User, "go");
    let check = |messages: Vec<Message>, expected: Expect| expected.assert_eq(&line(&valid(messages)));
    check(vec![user(), calls(&["a", "b"])], expect!["User() Assistant(a b) Tool(a! b!)"]);
    check(vec![user(), calls(&["a", "b"]), results(&["b"])], expect!["User() Assistant(a b) Tool(a! b)"]);
    check(vec![user(), calls(&["a"]), user()], expect!["User() Assistant(a) Tool(a!) User()"]);
    check(vec![user(), results(&["a"]), text("x")], expect!["User() Assistant()"]);
    check(vec![user(), calls(&["a"]), results(&["x", "a", "a"])], expect!["User() Assistant(a) Tool(a)"]);
    check(
        vec![user(), calls(&["a"]), results(&["a"]), results(&["a"])],
        expect!["User() Assistant(a) Tool(a)"],
    );
    check(vec![user(), calls(&["a", "a"]), results(&["a"])], expect!["User() Assistant(a) Tool(a)"]);
    check(vec![user(), text("  "), text("x")], expect!["User() Assistant()"]);
}

proptest! {
    #[test]
    fn cut_output_is_whole_characters_and_says_how_much_is_missing(text in "[aä€😀\n]{0,300}", chars_max in 0usize..200) {
        let cut = shown(&text, chars_max);
        let n_chars = text.chars().count();
        prop_assert_eq!(cut.cut, n_chars > chars_max);
        if cut.cut {
            let said = format!("[... {} of {n_chars} characters left out", n_chars - chars_max);
            prop_assert!(cut.text.contains(&said), "{}", cut.text);
        } else {
            prop_assert_eq!(cut.text, text);
        }
    }
}
