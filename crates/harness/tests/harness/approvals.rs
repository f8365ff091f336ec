//! Calls that a person decides on: asked, answered, expired, and what a crash leaves of that.

use std::time::Duration;

use evenkeel_core::approval::{Approval, Decision};
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::EventBody;
use evenkeel_core::journal::unanswered::{NOT_BEGUN, NOT_KNOWN};
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::port::store::{Answer, AnswerTaken, Cancel, Cancelled, OneAnswer};
use evenkeel_core::run::{BusyPolicy, Run, RunState};
use evenkeel_harness::{HarnessConfig, OnTimeout};
use expect_test::expect;
use serde_json::json;

use super::lab::{Bench, Setup, TENANT, end_of, in_time, is_over, is_waiting};
use super::valid::assert_paired;
use super::world::Say;

fn sends_once(request: &ModelRequest) -> Say {
    match request.step {
        1 if !request.tools.is_empty() => {
            Say::Calls(vec![("send", json!({"what": "mail", "ask": "it leaves the house"}))])
        }
        _ => Say::Text("done"),
    }
}

async fn answered(bench: &Bench, run: RunId, answers: Vec<(&Approval, Decision, &str)>) -> AnswerTaken {
    let answers = answers.into_iter().map(|(asked, decision, note)| OneAnswer {
        approval: asked.id.clone(),
        decision,
        note: note.to_owned(),
    });
    let (tenant, by) = (TenantId::from(TENANT), "ann".to_owned());
    let request = Answer { tenant, run, answers: answers.collect(), by, key: None };
    bench.client().answer(request).await.unwrap()
}

/// Approves whatever is open, until the run has ended.
async fn approved_to_the_end(bench: &Bench, run: RunId) -> Run {
    loop {
        let now = bench.reaches(run, |run| is_over(run) || is_waiting(run)).await;
        if is_over(&now) {
            return now;
        }
        let open: Vec<_> = now.asks().iter().map(|asked| (asked, Decision::Approve, "")).collect();
        answered(bench, run, open).await;
    }
}

#[test]
fn an_asked_call_waits_without_a_slot_and_runs_once_when_approved() {
    in_time(async {
        let bench = Bench::new(41);
        let process = bench.start(sends_once);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let waiting = bench.reaches(run, is_waiting).await;
        let asked = &waiting.asks()[0];
        assert_eq!((asked.tool.as_str(), asked.reason.as_str()), ("send", "it leaves the house"));
        assert_eq!(asked.args_shown, r#"{"ask":"it leaves the house","what":"mail"}"#);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(process.harness.stats().n_running, 0);
        assert_eq!(process.harness.free_slots(), 100);
        assert!(bench.world.sent.lock().unwrap().is_empty());
        answered(&bench, run, vec![(asked, Decision::Approve, "")]).await;
        assert_eq!(end_of(&bench.ended(run).await), "completed  done");
        assert_eq!(*bench.world.sent.lock().unwrap(), ["mail"]);
        let events = bench.events(thread).await;
        let used = events.iter().find_map(|event| match &event.body {
            EventBody::EffectIntended(intent) => intent.approval.clone(),
            _ => None,
        });
        assert_eq!(used.as_ref(), Some(&asked.id), "the intent names the approval that it uses up");
        bench.assert_sound(thread).await;
    });
}

/// Results of parallel calls that need approval were lost in other systems, and made up later.
#[test]
fn calls_that_are_asked_together_each_keep_their_own_answer_and_result() {
    in_time(async {
        let bench = Bench::new(42);
        let _process = bench.start(|request| match request.step {
            1 => Say::Calls(vec![
                ("read", json!({"path": "a"})),
                ("put", json!({"what": "one", "ask": "first"})),
                ("send", json!({"what": "two", "ask": "second"})),
                ("put", json!({"what": "three", "ask": "third"})),
            ]),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let waiting = bench.reaches(run, is_waiting).await;
        let asked = waiting.asks();
        let tools: Vec<_> = asked.iter().map(|asked| asked.reason.as_str()).collect();
        assert_eq!(tools, ["first", "second", "third"], "asked together");
        answered(&bench, run, vec![(&asked[1], Decision::Deny, "mail is off today")]).await;
        answered(&bench, run, vec![(&asked[2], Decision::Approve, "")]).await;
        assert_eq!(bench.run(run).await.state, RunState::Waiting, "one is open still");
        answered(&bench, run, vec![(&asked[0], Decision::Approve, "")]).await;
        bench.ended(run).await;
        expect![[r#"
            User: go
            Assistant: I call. | read({"path":"a"}) | put({"what":"one","ask":"first"}) | send({"what":"two","ask":"second"}) | put({"what":"three","ask":"third"})
            Tool: read => no such file | put => stored | !send => Not allowed: a person was asked and denied it, who says: mail is off today. | put => stored
            Assistant: done"#]]
        .assert_eq(&bench.transcript(thread).await);
        assert_eq!(bench.world.put.lock().unwrap().len(), 2);
        assert!(bench.world.sent.lock().unwrap().is_empty());
        bench.assert_sound(thread).await;
    });
}

#[test]
fn an_answer_that_never_comes_is_a_denial_or_the_end_as_configured() {
    in_time(async {
        for (on_timeout, end) in
            [(OnTimeout::Deny, "completed  done"), (OnTimeout::Fail, "failed approval-expired")]
        {
            let bench = Bench::new(43);
            let config = HarnessConfig {
                approval_ms: 60_000,
                approval_on_timeout: on_timeout,
                ..HarnessConfig::default()
            };
            let _process = bench.start_with(Setup { config, ..Setup::default() }, sends_once);
            let thread = bench.new_thread();
            let run = bench.admit(thread, bench.spec("coder", "go")).await;
            let waiting = bench.reaches(run, is_waiting).await;
            assert_eq!(
                waiting.asks()[0].expires_at,
                waiting.asks()[0].asked_at.after(Duration::from_secs(60))
            );
            assert_eq!(end_of(&bench.ended(run).await), end);
            assert!(bench.world.sent.lock().unwrap().is_empty());
            bench.assert_sound(thread).await;
        }
    });
}

/// An approval is for what the person was shown: when an earlier call of the step moves what a later
/// one means, the later one is asked again.
#[test]
fn a_call_that_means_something_else_by_now_is_asked_again() {
    in_time(async {
        let bench = Bench::new(44);
        let _process = bench.start(|request| match request.step {
            1 => Say::Calls(vec![
                ("put", json!({"what": "one", "ask": "first"})),
                ("edit", json!({"path": "policy", "from": "", "to": " and the link points elsewhere"})),
                ("send", json!({"what": "two", "ask": "second"})),
            ]),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let first = bench.reaches(run, is_waiting).await;
        answered(&bench, run, first.asks().iter().map(|asked| (asked, Decision::Approve, "")).collect())
            .await;
        let again = bench.reaches(run, |now| is_waiting(now) && now.asks().len() == 1).await;
        assert_eq!(again.asks()[0].reason, "second and the link points elsewhere");
        assert!(bench.world.sent.lock().unwrap().is_empty());
        assert_ne!(again.asks()[0].id, first.asks()[1].id);
        let old = answered(&bench, run, vec![(&first.asks()[1], Decision::Approve, "")]).await;
        assert!(matches!(old, AnswerTaken::Closed(_)));
        assert_eq!(end_of(&approved_to_the_end(&bench, run).await), "completed  done");
        assert_eq!(*bench.world.sent.lock().unwrap(), ["two"]);
        bench.assert_sound(thread).await;
    });
}

#[test]
fn a_message_waits_behind_a_question_and_a_cancel_ends_it() {
    in_time(async {
        let bench = Bench::new(45);
        let _process = bench.start(sends_once);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        bench.reaches(run, is_waiting).await;
        let behind = bench.send(thread, "chat", "and then?", BusyPolicy::Enqueue).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(bench.run(behind).await.state, RunState::Queued, "it is not overtaken");
        assert_eq!(bench.cancel(run).await, Cancelled::Done);
        assert_eq!(bench.ended(run).await.state, RunState::Cancelled);
        assert_eq!(bench.ended(behind).await.state, RunState::Completed);
        assert!(bench.world.sent.lock().unwrap().is_empty());
        bench.assert_sound(thread).await;
    });
}

/// A run that waits for a person is ended by the store alone, in whichever way. What its step has done by
/// then is told to the next turn as done, and what it has not as not done; the history is valid, which
/// the model of these tests insists on.
#[test]
fn a_run_that_ends_while_it_waits_leaves_what_it_did_and_did_not() {
    type End = fn(&Bench, RunId, ThreadId) -> BoxFuture<'_, ()>;
    let ends: [(&str, End); 4] = [
        ("cancel", |bench, run, _| {
            Box::pin(async move { assert_eq!(bench.cancel(run).await, Cancelled::Done) })
        }),
        ("force", |bench, run, _| {
            Box::pin(async move {
                let request = Cancel { tenant: TENANT.into(), run, force: true, undo: false };
                bench.client().cancel(request).await.unwrap();
            })
        }),
        ("interrupt", |bench, _, thread| {
            Box::pin(async move {
                bench.send(thread, "coder", "next", BusyPolicy::Interrupt).await;
            })
        }),
        ("time", |_, _, _| Box::pin(tokio::time::sleep(Duration::from_secs(7_200)))),
    ];
    for (name, end) in ends {
        in_time(async {
            let bench = Bench::new(46);
            let process = bench.start(|request| {
                match (request.messages.last().unwrap().joined_text().as_str(), request.step) {
                    ("next", _) => Say::Text("goes on"),
                    (_, 1) => Say::Calls(vec![
                        ("put", json!({"what": "a"})),
                        ("send", json!({"what": "mail", "ask": "it leaves the house"})),
                        ("put", json!({"what": "b"})),
                    ]),
                    _ => Say::Text("done"),
                }
            });
            let thread = bench.new_thread();
            let run = bench.admit(thread, bench.spec("coder", "go")).await;
            bench.reaches(run, is_waiting).await;
            end(&bench, run, thread).await;
            bench.reaches(run, is_over).await;
            if name != "interrupt" {
                bench.send(thread, "coder", "next", BusyPolicy::Enqueue).await;
            }
            let next = bench.thread(thread).await.active.expect("the next turn is under way");
            assert_eq!(end_of(&bench.ended(next).await), "completed  goes on", "{name}");
            assert_eq!(bench.world.put.lock().unwrap().len(), 1, "{name}");
            bench.assert_sound(thread).await;
            let requests = process.model.requests();
            let told = requests.last().unwrap().messages.iter().flat_map(|message| message.tool_results());
            let told: Vec<&str> = told.map(|result| result.text.as_str()).collect();
            assert_eq!(told, ["stored", NOT_BEGUN, NOT_BEGUN], "{name}");
        });
    }
}

/// A run that is ended by force in the middle of a call: nobody knows what that did.
#[test]
fn a_call_that_was_cut_off_by_force_is_told_as_unknown() {
    in_time(async {
        let bench = Bench::new(47);
        let script = |request: &ModelRequest| match request.messages.last().unwrap().joined_text().as_str() {
            "next" => Say::Text("goes on"),
            _ => Say::Calls(vec![("put", json!({"what": "a"})), ("hang", json!({})), ("put", json!({}))]),
        };
        let process = bench.start(script);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        wait_for_call(&bench, "hang").await;
        let request = Cancel { tenant: TENANT.into(), run, force: true, undo: false };
        assert_eq!(bench.client().cancel(request).await.unwrap(), Cancelled::Done);
        let next = bench.send(thread, "coder", "next", BusyPolicy::Enqueue).await;
        assert_eq!(end_of(&bench.ended(next).await), "completed  goes on");
        let requests = process.model.requests();
        let told = requests.last().unwrap().messages.iter().flat_map(|message| message.tool_results());
        let told: Vec<&str> = told.map(|result| result.text.as_str()).collect();
        assert_eq!(told, ["stored", NOT_KNOWN, NOT_BEGUN]);
        // The effect itself stays open in the log for ever: nobody saw how it ended.
        assert_paired(&bench.events(thread).await);
    });
}

async fn wait_for_call(bench: &Bench, tool: &str) {
    while bench.world.n_executed(tool) == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The process dies at every point around a question, and another one goes on: each call is asked
/// once, and made once.
#[test]
fn wherever_a_process_dies_an_approved_call_is_asked_once_and_made_once() {
    in_time(async {
        let mut n_points = usize::MAX;
        let mut point = 0;
        while point < n_points {
            let bench = Bench::new(46);
            let script = |request: &ModelRequest| match request.step {
                1 => Say::Calls(vec![
                    ("bash", json!({"path": "log", "line": "x", "ask": "it runs a command"})),
                    ("put", json!({"what": "kept", "ask": "it stores"})),
                    ("send", json!({"what": "mail", "ask": "it sends"})),
                ]),
                _ => Say::Text("done"),
            };
            let setup = Setup { die_at: Some(point), ..Setup::default() };
            let dying = bench.start_with(setup, script);
            let thread = bench.new_thread();
            let run = bench.admit(thread, bench.spec("coder", "go")).await;
            let died = tokio::select! {
                () = dying.points.died.notified() => true,
                _ = approved_to_the_end(&bench, run) => false,
            };
            if !died {
                n_points = n_points.min(dying.points.passed());
            }
            drop(dying);
            let _other = bench.start(script);
            let ended = approved_to_the_end(&bench, run).await;
            assert_eq!(end_of(&ended), "completed  done", "died at {point}");
            assert_eq!(bench.world.files.lock().unwrap()["log"], "begin x\nend x\n", "died at {point}");
            assert_eq!(bench.world.put.lock().unwrap().len(), 1, "died at {point}");
            assert!(bench.world.sent.lock().unwrap().len() <= 1, "died at {point}");
            let asked = bench.events(thread).await.into_iter().filter_map(|event| match event.body {
                EventBody::ApprovalRequested(asked) => Some(asked.reason),
                _ => None,
            });
            let asked: Vec<String> = asked.collect();
            assert_eq!(asked, ["it runs a command", "it stores", "it sends"], "died at {point}");
            bench.assert_sound(thread).await;
            point += 1;
        }
        assert!(point > 20, "it died at {point} points");
    });
}
