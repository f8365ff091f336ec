//! The model is away: park, wake, give up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_core::control::Protect;
use evenkeel_core::run::{Class, RunSpec, RunState};
use evenkeel_harness::HarnessConfig;
use serde_json::json;

use super::lab::{Bench, Setup, end_of, in_time, is_waiting};
use super::world::{Fail, Say, TestModel};

#[test]
fn parked_runs_hold_no_slot_and_each_permit_wakes_one() {
    in_time(async {
        let bench = Bench::new(20);
        let up = Arc::new(AtomicBool::new(false));
        let is_up = up.clone();
        let process = bench.start(move |request| {
            if request.permit.is_some() || is_up.load(Ordering::Relaxed) {
                Say::Text("done")
            } else {
                Say::Park
            }
        });
        let mut runs = Vec::new();
        for _ in 0..5 {
            runs.push(bench.admit(bench.new_thread(), bench.spec("coder", "go")).await);
        }
        for run in &runs {
            let parked = bench.reaches(*run, is_waiting).await;
            assert_eq!(parked.wait.unwrap().route.as_deref(), Some("main"));
        }
        assert_eq!(process.harness.slots()[0].in_use, 0);
        assert_eq!(process.model.parked.lock().unwrap()["main"], 5);
        process.model.permit();
        process.model.permit();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut n_done = 0;
        for run in &runs {
            n_done += usize::from(bench.run(*run).await.state == RunState::Completed);
        }
        assert_eq!(n_done, 2, "one for each permit");
        assert_eq!(process.model.parked.lock().unwrap()["main"], 3);
        up.store(true, Ordering::Relaxed);
        for _ in 0..5 {
            process.model.permit();
        }
        for run in &runs {
            let ended = bench.ended(*run).await;
            assert_eq!(end_of(&ended), "completed  done");
            assert_eq!(ended.usage.input_tokens, 20, "the attempt before the park is accounted");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(process.model.n_dropped.load(Ordering::Relaxed), 7, "every permit came back");
        assert_eq!(process.model.parked.lock().unwrap()["main"], 0);
        let prior = process.model.requests().last().unwrap().prior_attempts;
        assert_eq!(prior, 1);
    });
}

#[test]
fn a_lost_permit_strands_nobody() {
    in_time(async {
        let bench = Bench::new(21);
        let since = bench.env.wall();
        let env = bench.env.clone();
        let _process = bench.start(move |_| {
            if env.wall().since(since) > Duration::from_secs(30) { Say::Text("done") } else { Say::Park }
        });
        let run = bench.admit(bench.new_thread(), bench.spec("chat", "go")).await;
        assert_eq!(end_of(&bench.ended(run).await), "completed  done");
        assert!(bench.env.wall().since(since) < Duration::from_secs(60));
    });
}

#[test]
fn an_interactive_turn_waits_five_seconds_and_then_fails_with_the_cause() {
    in_time(async {
        let bench = Bench::new(22);
        let process = bench.start(|_| Say::Park);
        let thread = bench.new_thread();
        let begun = bench.env.wall();
        let spec = RunSpec { class: Class::Interactive, ..bench.spec("chat", "go") };
        let run = bench.admit(thread, spec).await;
        let ended = bench.ended(run).await;
        assert_eq!(end_of(&ended), "failed provider-unavailable");
        let waited = bench.env.wall().since(begun);
        assert!((5_000..6_000).contains(&waited.as_millis()), "{waited:?}");
        assert_eq!(process.model.n_calls(), 1, "the end costs no call");
        bench.assert_sound(thread).await;
    });
}

/// A durable run waits as long as its route allows, and is then told why nothing came.
#[test]
fn a_parked_run_fails_when_its_route_allows_no_more() {
    in_time(async {
        let bench = Bench::new(25);
        let tune: fn(&mut TestModel) = |model| model.facts.park_max = Duration::from_secs(20);
        let _process = bench.start_with(Setup { tune, ..Setup::default() }, |_| Say::Park);
        let begun = bench.env.wall();
        let run = bench.admit(bench.new_thread(), bench.spec("chat", "go")).await;
        assert_eq!(end_of(&bench.ended(run).await), "failed provider-unavailable");
        let waited = bench.env.wall().since(begun);
        assert!((Duration::from_secs(20)..Duration::from_secs(25)).contains(&waited), "{waited:?}");
    });
}

#[test]
fn a_parked_run_expires_at_its_deadline() {
    in_time(async {
        let bench = Bench::new(23);
        let _process = bench.start(|_| Say::Park);
        let mut spec = bench.spec("chat", "go");
        spec.deadline = bench.env.wall().after(Duration::from_secs(20));
        let run = bench.admit(bench.new_thread(), spec).await;
        assert_eq!(end_of(&bench.ended(run).await), "expired run-deadline");
    });
}

#[test]
fn parked_in_the_middle_of_a_task_it_goes_on_where_it_was() {
    in_time(async {
        let bench = Bench::new(24);
        let process = bench.start(|request| match request.step {
            1 => Say::Calls(vec![("send", json!({"what": "once"}))]),
            2 if request.permit.is_none() => Say::Park,
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        bench.reaches(run, is_waiting).await;
        process.model.permit();
        assert_eq!(end_of(&bench.ended(run).await), "completed  done");
        assert_eq!(*bench.world.sent.lock().unwrap(), ["once"]);
        bench.assert_sound(thread).await;
    });
}

#[test]
fn without_protection_an_outage_or_a_fatal_error_fails_the_run_at_once() {
    in_time(async {
        let bench = Bench::new(25);
        let config = HarnessConfig { protect: Protect::None, ..HarnessConfig::default() };
        let _process = bench.start_with(Setup { config, ..Setup::default() }, |_| Say::Park);
        let run = bench.admit(bench.new_thread(), bench.spec("coder", "go")).await;
        assert_eq!(end_of(&bench.ended(run).await), "failed provider-unavailable");
    });
}

#[test]
fn the_store_goes_away_at_any_operation_and_nothing_is_lost_or_doubled() {
    let operations = [
        "read_events",
        "commit_step",
        "commit_turn",
        "park",
        "claim_ready",
        "wake",
        "put_blob",
        "steal",
        "count_parked",
        "expire",
    ];
    for operation in operations {
        for (happened, hangs) in [(false, false), (true, false), (false, true), (true, true)] {
            in_time(async {
                let bench = Bench::new(26);
                let process = bench.start(|request| match request.step {
                    1 if request.tools.is_empty() => Say::Text("done"),
                    1 => Say::Calls(vec![("send", json!({"what": "once"})), ("flood", json!({}))]),
                    2 if request.prior_attempts == 0 => Say::Park,
                    _ => Say::Text("done"),
                });
                *process.store.fail.lock().unwrap() = Some(Fail { operation, times: 2, happened, hangs });
                let thread = bench.new_thread();
                let run = bench.admit(thread, bench.spec("coder", "go")).await;
                let next = bench.admit(thread, bench.spec("chat", "next")).await;
                bench.reaches(run, is_waiting).await;
                process.model.permit();
                for run in [run, next] {
                    assert_eq!(
                        end_of(&bench.ended(run).await),
                        "completed  done",
                        "{operation} {happened} {hangs}"
                    );
                }
                assert_eq!(*bench.world.sent.lock().unwrap(), ["once"], "{operation} {happened} {hangs}");
                bench.assert_sound(thread).await;
                assert_eq!(bench.thread(thread).await.version, 2);
            });
        }
    }
}
