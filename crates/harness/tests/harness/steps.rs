//! Steps without faults: what is stored, in which order, and what the model is shown.

use evenkeel_core::journal::EventBody;
use evenkeel_core::run::RunState;
use expect_test::expect;
use serde_json::json;

use super::lab::{Bench, Setup, end_of, in_time};
use super::world::Say;

fn name_of(body: &EventBody) -> String {
    match body {
        EventBody::RunClaimed { .. } => "claimed".into(),
        EventBody::UserMessage { .. } => "user".into(),
        EventBody::AssistantMessage { finish, .. } => format!("assistant {finish}"),
        EventBody::ModelAttempts { attempts } => format!("attempts {}", attempts.len()),
        EventBody::PolicyDecided { tool, .. } => format!("policy {tool}"),
        EventBody::EffectIntended(intent) => {
            format!("intent {} {:?} {}", intent.tool, intent.class, intent.snapshot.is_some())
        }
        EventBody::EffectSettled(result) => format!("settled {}", result.settled),
        EventBody::ToolMessage { .. } => "results".into(),
        EventBody::Checkpoint { snapshot } => format!("checkpoint {}", snapshot.is_some()),
        EventBody::Noted { kind, .. } => format!("noted {kind}"),
        EventBody::RunEnded { .. } => "ended".into(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_step_is_stored_in_order_and_later_writers_get_their_intent_when_it_is_their_turn() {
    in_time(async {
        let bench = Bench::new(1);
        let process = bench.start(|request| match request.step {
            1 => Say::Calls(vec![
                ("read", json!({"path": "a"})),
                ("edit", json!({"path": "a", "from": "", "to": "1"})),
                ("bash", json!({"path": "log", "line": "x"})),
                ("read", json!({"path": "a"})),
            ]),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let ended = bench.ended(run).await;
        assert_eq!(end_of(&ended), "completed  done");
        assert_eq!(ended.step, 2);
        assert_eq!(ended.version, Some(1));
        assert!(ended.outcome.unwrap().diff.unwrap().contains("begin x"));
        assert_eq!(ended.usage.input_tokens, 20);
        bench.assert_sound(thread).await;
        let events = bench.events(thread).await;
        let names: Vec<String> =
            events.iter().map(|event| format!("{} {}", event.step, name_of(&event.body))).collect();
        expect![[r#"
            0 claimed
            0 user
            0 checkpoint true
            1 assistant tool_calls
            1 policy read
            1 intent read Pure false
            1 settled ran
            1 policy edit
            1 intent edit Guarded false
            1 settled ran
            1 policy bash
            1 intent bash Workspace true
            1 settled ran
            1 policy read
            1 intent read Pure false
            1 settled ran
            1 results
            1 checkpoint true
            2 assistant stop
            2 checkpoint true
            2 ended"#]]
        .assert_eq(&names.join("\n"));
        expect![[r#"
            User: go
            Assistant: I call. | read({"path":"a"}) | edit({"path":"a","from":"","to":"1"}) | bash({"path":"log","line":"x"}) | read({"path":"a"})
            Tool: read => no such file | edit => edited | bash => exit 0 | read => 1
            Assistant: done"#]]
        .assert_eq(&bench.transcript(thread).await);
        assert_eq!(process.feed.committed.lock().unwrap()[&thread], events.len() as u64);
    });
}

#[test]
fn a_chat_turn_costs_one_commit_and_the_next_turn_follows_in_the_same_slot() {
    in_time(async {
        let bench = Bench::new(2);
        let thread = bench.new_thread();
        let setup = Setup { n_slots: 1, ..Setup::default() };
        let mut runs = Vec::new();
        for text in ["one", "two", "three"] {
            runs.push(bench.admit(thread, bench.spec("chat", text)).await);
        }
        let process = bench.start_with(setup, |request| {
            let n_users = request.messages.len().div_ceil(2);
            Say::Text(["first", "second", "third"][n_users - 1])
        });
        for (run, text) in runs.iter().zip(["first", "second", "third"]) {
            assert_eq!(end_of(&bench.ended(*run).await), format!("completed  {text}"));
        }
        assert_eq!(process.harness.stats().n_claimed, 3);
        assert_eq!(bench.thread(thread).await.version, 3);
        expect![[r#"
            User: one
            Assistant: first
            User: two
            Assistant: second
            User: three
            Assistant: third"#]]
        .assert_eq(&bench.transcript(thread).await);
        bench.assert_sound(thread).await;
    });
}

#[test]
fn finish_ends_the_run_with_its_text_after_the_step_is_stored() {
    in_time(async {
        let bench = Bench::new(3);
        let _process = bench.start(|_| Say::Calls(vec![("finish", json!({"summary": "all good"}))]));
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        assert_eq!(end_of(&bench.ended(run).await), "completed  all good");
        bench.assert_sound(thread).await;
    });
}

#[test]
fn denied_and_refused_calls_tell_the_model_why_and_do_not_run() {
    in_time(async {
        let bench = Bench::new(4);
        let _process = bench.start(|request| match request.step {
            1 => Say::Calls(vec![
                ("forbidden", json!({})),
                ("unknown", json!({})),
                ("edit", json!({"path": "a", "from": "missing", "to": "1"})),
                ("put", json!({"what": "kept"})),
            ]),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        assert_eq!(bench.ended(run).await.state, RunState::Completed);
        assert_eq!(*bench.world.executed.lock().unwrap(), ["put"]);
        expect![[r#"
            User: go
            Assistant: I call. | forbidden({}) | unknown({}) | edit({"path":"a","from":"missing","to":"1"}) | put({"what":"kept"})
            Tool: !forbidden => Not allowed: it is forbidden | !unknown => there is no such tool | !edit => the text to replace is not in the file | put => stored
            Assistant: done"#]]
        .assert_eq(&bench.transcript(thread).await);
        bench.assert_sound(thread).await;
    });
}

#[test]
fn long_output_is_cut_at_characters_and_kept_whole() {
    in_time(async {
        let bench = Bench::new(5);
        let process = bench.start(|request| match request.step {
            1 => Say::Calls(vec![("flood", json!({}))]),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        bench.ended(run).await;
        let requests = process.model.requests();
        let shown = requests[1].messages[2].tool_results().next().unwrap().text.clone();
        assert!(shown.contains("44000 of 60000 characters left out"), "{}", shown.chars().count());
        assert!(shown.chars().count() < 16_200);
        let blob = bench.events(thread).await.into_iter().find_map(|event| match event.body {
            EventBody::EffectSettled(result) => result.blob,
            _ => None,
        });
        let request = evenkeel_core::port::store::GetBlob { blob: blob.unwrap(), offset: 0, limit: u64::MAX };
        assert_eq!(bench.client().get_blob(request).await.unwrap().unwrap().len(), 20_000 * "ä€x".len());
    });
}
