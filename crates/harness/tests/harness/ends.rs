//! Every way in which a run ends.

use std::time::Duration;

use evenkeel_core::Code;
use evenkeel_core::journal::EventBody;
use evenkeel_core::run::{Class, Repository, RunSpec, RunState};
use serde_json::json;

use super::lab::{Bench, end_of, in_time};
use super::world::Say;
use evenkeel_core::port::model::ModelRequest;

/// Runs one run of `coder` to its end and says how it ended.
fn end(
    change: impl Fn(&mut RunSpec),
    script: impl Fn(&ModelRequest) -> Say + Send + Sync + 'static,
) -> String {
    in_time(async {
        let bench = Bench::new(7);
        let process = bench.start(script);
        let thread = bench.new_thread();
        let mut spec = bench.spec("coder", "go");
        change(&mut spec);
        let run = bench.admit(thread, spec).await;
        let ended = bench.ended(run).await;
        bench.assert_sound(thread).await;
        assert_eq!(process.harness.stats().n_running, 0, "the slot is free");
        end_of(&ended)
    })
}

fn call(n: u32) -> Say {
    Say::Calls(vec![("put", json!({"what": n}))])
}

#[test]
fn limits_end_an_endless_run_with_their_cause() {
    let endless = |request: &ModelRequest| call(request.step);
    assert_eq!(end(|spec| spec.limits.steps_max = 5, endless), "failed run-step-limit");
    assert_eq!(end(|spec| spec.limits.tokens_max = 100, endless), "failed run-token-limit");
    assert_eq!(end(|spec| spec.limits.wall_ms_max = 5_000, endless), "failed run-deadline");
    let soon = |spec: &mut RunSpec| spec.deadline = evenkeel_core::Wall(1_700_000_000_000 + 3_000);
    assert_eq!(end(soon, endless), "expired run-deadline");
}

#[test]
fn time_ends_a_run_also_in_the_middle_of_a_call() {
    assert_eq!(end(|spec| spec.limits.wall_ms_max = 5_000, |_| Say::Hang), "failed run-deadline");
    let hangs = |_: &ModelRequest| Say::Calls(vec![("hang", json!({}))]);
    assert_eq!(end(|spec| spec.limits.wall_ms_max = 5_000, hangs), "failed run-deadline");
}

#[test]
fn a_tool_that_never_answers_costs_only_its_own_time_limit() {
    let script = |request: &ModelRequest| match request.step {
        1 => Say::Calls(vec![("hang", json!({})), ("put", json!({"what": "after"}))]),
        _ => {
            let results = request.messages.last().unwrap();
            let texts: Vec<_> = results.tool_results().map(|result| result.text.clone()).collect();
            assert_eq!(texts, ["hang did not answer within 1000 ms and was stopped.", "stored"]);
            Say::Text("done")
        }
    };
    assert_eq!(end(|spec| spec.limits.tool_ms_max = 1_000, script), "completed  done");
}

#[test]
fn the_same_call_is_warned_at_three_and_stopped_at_four() {
    in_time(async {
        let bench = Bench::new(8);
        let process = bench.start(|_| Say::Calls(vec![("put", json!({"what": "again", "n": 1}))]));
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        assert_eq!(end_of(&bench.ended(run).await), "failed run-repeats");
        assert_eq!(bench.world.n_executed("put"), 3);
        let requests = process.model.requests();
        assert_eq!(requests.len(), 4);
        let last = requests[3].messages.last().unwrap().tool_results().next().unwrap().text.clone();
        assert!(last.starts_with("stored") && last.contains("3rd time in a row"), "{last}");
        let noted = |event: &evenkeel_core::journal::Event| matches!(&event.body, EventBody::Noted { kind, .. } if kind == "repeated_call");
        assert_eq!(bench.events(thread).await.iter().filter(|event| noted(event)).count(), 1);
        bench.assert_sound(thread).await;
    });
}

#[test]
fn alternating_calls_are_not_repeats() {
    let script = |request: &ModelRequest| match request.step {
        8 => Say::Text("done"),
        step => call(step % 2),
    };
    assert_eq!(end(|_| {}, script), "completed  done");
}

#[test]
fn a_reply_cut_by_the_token_limit_runs_nothing_and_says_so() {
    in_time(async {
        let bench = Bench::new(9);
        let process = bench.start(|request| match request.step {
            1 => Say::Cut(vec![("send", json!({"what": "half"}))]),
            2 => Say::CutText("a long story"),
            _ => Say::Text("short"),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        assert_eq!(end_of(&bench.ended(run).await), "completed  short");
        assert!(bench.world.sent.lock().unwrap().is_empty());
        let requests = process.model.requests();
        let told = requests[1].messages.last().unwrap().tool_results().next().unwrap().clone();
        assert!(told.is_error && told.text.contains("nothing of it was executed"), "{told:?}");
        let told = requests[2].messages.last().unwrap().joined_text();
        assert!(told.contains("cut off by the output token limit"), "{told}");
        bench.assert_sound(thread).await;
    });
}

#[test]
fn three_malformed_replies_in_a_row_end_the_run() {
    assert_eq!(end(|_| {}, |_| Say::Empty), "failed reply-malformed");
    assert_eq!(end(|_| {}, |_| Say::CutText("cut")), "failed reply-malformed");
    let recovers = |request: &ModelRequest| match request.messages.len() {
        1 | 2 => Say::Empty,
        _ => Say::Text("now I can"),
    };
    assert_eq!(end(|_| {}, recovers), "completed  now I can");
}

#[test]
fn a_fatal_model_error_ends_the_run_with_its_cause_and_size() {
    in_time(async {
        let bench = Bench::new(10);
        let process = bench.start(|request| match request.step {
            1 => Say::Calls(vec![("bash", json!({"path": "log", "line": "x"}))]),
            _ => Say::Fatal(Code::PayloadTooLarge),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let ended = bench.ended(run).await;
        assert_eq!(end_of(&ended), "failed payload-too-large");
        let outcome = ended.outcome.unwrap();
        let message = outcome.error.unwrap().message;
        assert!(message.contains("step 2") && message.contains("bytes"), "{message}");
        assert!(outcome.diff.unwrap().contains("begin x"), "what it did is kept");
        assert_eq!(process.model.n_calls(), 2, "not tried again");
    });
}

#[test]
fn what_cannot_start_fails_and_is_not_lost() {
    assert_eq!(end(|spec| spec.assistant = "nobody".into(), |_| Say::Text("")), "failed assistant-not-found");
    assert_eq!(end(|spec| spec.assistant = "lost".into(), |_| Say::Text("")), "failed route-unknown");
    let missing = |spec: &mut RunSpec| spec.repository = Some(Repository::Url("missing".into()));
    assert_eq!(end(missing, |_| Say::Text("")), "failed repository-unreadable");
}

#[test]
fn a_panic_ends_one_run_and_the_others_go_on() {
    in_time(async {
        let bench = Bench::new(11);
        let process = bench.start(|request| match request.messages[0].joined_text().as_str() {
            "model" => Say::Panic,
            "tool" => Say::Calls(vec![("panic", json!({}))]),
            _ => Say::Text("fine"),
        });
        let mut ends = Vec::new();
        for text in ["model", "tool", "other"] {
            let thread = bench.new_thread();
            let run = bench.admit(thread, bench.spec("coder", text)).await;
            ends.push(end_of(&bench.ended(run).await));
            bench.assert_sound(thread).await;
        }
        assert_eq!(ends, ["failed run-panicked", "failed run-panicked", "completed  fine"]);
        assert_eq!(process.harness.stats().n_panicked, 2);
        assert_eq!(process.harness.stats().n_running, 0);
    });
}

#[test]
fn a_cancel_stops_every_phase_and_leaves_a_history_that_goes_on() {
    type Script = fn(&ModelRequest) -> Say;
    let phases: [(&str, Script); 3] = [
        ("model", |_| Say::Hang),
        ("tool", |_| {
            Say::Calls(vec![
                ("put", json!({"what": "a"})),
                ("hang", json!({})),
                ("put", json!({"what": "b"})),
            ])
        }),
        ("stream", |_| Say::Stream("I have begun to")),
    ];
    for (phase, script) in phases {
        for hinted in [true, false] {
            in_time(async {
                let bench = Bench::new(12);
                let process = bench.start(move |request| {
                    match request.messages.last().unwrap().joined_text().as_str() {
                        "next" => Say::Text("goes on"),
                        _ => script(request),
                    }
                });
                let thread = bench.new_thread();
                let run = bench.admit(thread, bench.spec("coder", "go")).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                bench.cancel(run).await;
                if hinted {
                    process.harness.cancel(run);
                }
                let ended = bench.ended(run).await;
                assert_eq!(ended.state, RunState::Cancelled, "{phase}");
                let next = bench.admit(thread, bench.spec("coder", "next")).await;
                assert_eq!(end_of(&bench.ended(next).await), "completed  goes on", "{phase}");
                bench.assert_sound(thread).await;
                let transcript = bench.transcript(thread).await;
                assert_eq!(transcript.contains("I have begun to"), phase == "stream", "{transcript}");
                assert_eq!(transcript.contains("stopped before this call"), phase == "tool", "{transcript}");
            });
        }
    }
}

#[test]
fn a_cancel_before_the_claim_and_while_parked_ends_at_once() {
    in_time(async {
        let bench = Bench::new(13);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("chat", "go")).await;
        bench.cancel(run).await;
        assert_eq!(bench.run(run).await.state, RunState::Cancelled);
        let _process = bench.start(|_| Say::Park);
        let run = bench.admit(thread, RunSpec { class: Class::Batch, ..bench.spec("chat", "go") }).await;
        bench.reaches(run, super::lab::is_waiting).await;
        bench.cancel(run).await;
        assert_eq!(bench.run(run).await.state, RunState::Cancelled);
    });
}
