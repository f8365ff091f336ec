//! A story from a journal with an outage, a crash, a denial and an end.

use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, Event, EventBody, Verdict};
use evenkeel_core::message::{Block, Message, Role, ToolCall, Usage};
use evenkeel_core::run::{Attempt, BusyPolicy, Class, Outcome, Run, RunSpec, RunState, WaitReason};
use evenkeel_core::{Code, Wall};
use expect_test::expect;
use serde_json::{Value, json};

use super::story::{show, tell};
use crate::cmd::runs::journal::Journal;
use crate::output::Style;

const ID: &str = "01900000-0000-7000-8000-000000000001";

fn run() -> Run {
    Run {
        id: ID.parse().expect("a UUID"),
        thread: ID.parse().expect("a UUID"),
        tenant: TenantId::from("default"),
        state: RunState::Completed,
        not_before: None,
        stop: None,
        wait: None,
        position: 0,
        step: 1,
        attempt: 3,
        owner: None,
        version: Some(1),
        key: None,
        created_at: Wall(1_000),
        updated_at: Wall(40_000),
        spec: RunSpec {
            assistant: "coder".to_owned(),
            messages: vec![Message::text("m1", Role::User, "Fix the test.\nPlease.")],
            repository: None,
            deliver: None,
            limits: evenkeel_core::agent::RunLimits::default(),
            class: Class::Batch,
            busy_policy: BusyPolicy::Enqueue,
            deadline: Wall(9_999_999),
            from_seq: None,
            request: Value::Null,
        },
        outcome: None,
        usage: Usage { input_tokens: 1200, cached_input_tokens: 200, output_tokens: 80, estimated: false },
    }
}

fn attempt(n: u32, outcome: &str, cause: Option<&str>) -> Attempt {
    Attempt {
        attempt: n,
        deployment: "acme-large".to_owned(),
        provider: "acme".to_owned(),
        model: "large-2".to_owned(),
        started_at: Wall(1_500),
        first_content_ms: (outcome == "ok").then_some(350),
        ms: 2_100,
        outcome: outcome.to_owned(),
        cause: cause.map(str::to_owned),
        usage: Usage { input_tokens: 100, ..Usage::default() },
        cost_micro_usd: None,
    }
}

fn journal() -> Journal {
    let thread: ThreadId = ID.parse().expect("a UUID");
    let id: RunId = ID.parse().expect("a UUID");
    let call = ToolCall {
        id: "call_1".into(),
        name: "bash".to_owned(),
        args: json!({"command": "make test"}),
        wire_id: None,
    };
    let message = Message { id: "m2".into(), role: Role::Assistant, blocks: vec![Block::ToolCall(call)] };
    let intent = EffectIntent {
        effect: "e1".into(),
        call_id: "call_1".into(),
        tool: "bash".to_owned(),
        args_hash: "h".to_owned(),
        class: EffectClass::Workspace,
        guards: vec![],
        snapshot: None,
        policies: vec!["workspace".to_owned()],
        approval: None,
    };
    let result = EffectResult {
        effect: "e1".into(),
        call_id: "call_1".into(),
        text: "2 passed\nmore".to_owned(),
        is_error: false,
        blob: None,
        ms: 900,
        settled: "reran".to_owned(),
        facts: Value::Null,
    };
    let denied = EventBody::PolicyDecided {
        call_id: "call_2".into(),
        tool: "bash".to_owned(),
        verdict: Verdict::Deny { reason: "The network is closed.".to_owned() },
        policies: vec!["default-deny".to_owned()],
    };
    let waits = EventBody::Parked {
        on: WaitReason::Model,
        reason: "acme-large is open".to_owned(),
        until_hint: None,
    };
    let error = evenkeel_core::Error::client(Code::RunSteps, "Used up 8 steps.", "Raise steps_max.");
    let ended = Outcome {
        state: RunState::Failed,
        reason: None,
        error: Some(error),
        text: String::new(),
        diff: None,
        delivered: None,
    };
    let bodies = [
        (1_100, 0, EventBody::RunClaimed { epoch: 1, attempt: 1 }),
        (
            4_000,
            1,
            EventBody::ModelAttempts { attempts: vec![attempt(1, "transient", Some("connection refused"))] },
        ),
        (4_000, 1, waits),
        (34_500, 1, EventBody::RunClaimed { epoch: 2, attempt: 2 }),
        (
            37_000,
            1,
            EventBody::AssistantMessage {
                message,
                attempts: vec![attempt(2, "ok", None)],
                finish: "tool_calls".to_owned(),
            },
        ),
        (37_000, 1, EventBody::EffectIntended(intent)),
        (38_000, 1, EventBody::RunClaimed { epoch: 3, attempt: 3 }),
        (39_000, 1, EventBody::EffectSettled(result)),
        (39_100, 1, denied),
        (39_500, 1, EventBody::Checkpoint { snapshot: Some("0123456789abcdef".into()) }),
        (40_000, 1, EventBody::RunEnded { outcome: ended }),
    ];
    let events = bodies.into_iter().zip(1..).map(|((at, step, body), seq)| Event {
        thread,
        seq,
        run: id,
        step,
        at: Wall(at),
        body,
    });
    Journal { run: run(), events: events.collect() }
}

#[test]
fn a_story_says_what_happened_and_why() {
    let journal = journal();
    expect![[r#"
        run 01900000-0000-7000-8000-000000000001 on thread 01900000-0000-7000-8000-000000000001, assistant coder: completed

               +0 ms  step   -  accepted for coder (busy policy enqueue): Fix the test.…
             +100 ms  step   -  a replica began the run (epoch 1)
              +3.0 s  step   1  model attempt 1 on acme-large (acme, large-2): transient, connection refused after 2.1 s, 100 tokens wasted
              +3.0 s  step   1  waits for a model deployment: acme-large is open
             +33.5 s  step   1  woken after waiting 30.5 s and resumed (claim 2, epoch 2)
             +36.0 s  step   1  model attempt 2 on acme-large (acme, large-2): ok after 2.1 s, first content at 350 ms, 100 tokens
             +36.0 s  step   1  the model calls bash({"command":"make test"})
             +36.0 s  step   1  intends bash (workspace, allowed by workspace)
             +37.0 s  step   1  taken over and resumed from the last checkpoint (claim 3, epoch 3)
             +38.0 s  step   1  call ran again after a crash in 900 ms: 2 passed…
             +38.1 s  step   1  policy denies bash: The network is closed. (policies default-deny)
             +38.5 s  step   1  checkpoint, workspace 0123456789
             +39.0 s  step   1  failed [run-step-limit]: Used up 8 steps.

        1 steps, 3 claims, 1200 input tokens (200 from a cache), 80 output tokens"#]].assert_eq(&show(Style::plain(), &journal, &tell(&journal)));
}

#[test]
fn a_word_near_a_code_is_recognised() {
    assert_eq!(super::near("store_is_in_use"), Some(Code::StoreInUse));
    assert_eq!(super::near("nonsense"), None);
}
