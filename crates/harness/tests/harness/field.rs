//! What has gone wrong in comparable systems, each with its input.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::journal::{EventBody, counting};
use evenkeel_core::message::{Message, Role};
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::port::store::{Admit, UpdateThread};
use evenkeel_core::run::{BusyPolicy, EndReason, RunState};
use serde_json::json;
use tokio::time::sleep;

use super::lab::{Bench, Setup, TENANT, end_of, in_time, is_waiting};
use super::world::{Say, TestModel};

fn asked(request: &ModelRequest) -> String {
    let users = request.messages.iter().rev().filter(|message| message.role == Role::User);
    users.map(Message::joined_text).next().unwrap_or_default()
}

/// A message that is held back for more to come is not overtaken by the next one.
#[test]
fn a_held_back_message_keeps_its_place() {
    in_time(async {
        let bench = Bench::new(80);
        let process = bench.start(|request| Say::Text(asked(request).leak()));
        let thread = bench.new_thread();
        let a = bench.send(thread, "chat", "a", BusyPolicy::Merge).await;
        sleep(Duration::from_millis(1_010)).await;
        let b = bench.send(thread, "chat", "b", BusyPolicy::Enqueue).await;
        process.harness.nudge();
        assert_eq!(end_of(&bench.ended(b).await), "completed  b");
        assert_eq!(end_of(&bench.run(a).await), "completed  a");
        assert_eq!(bench.transcript(thread).await, "User: a\nAssistant: a\nUser: b\nAssistant: b");
    });
}

/// Changes of metadata in a loop neither conflict with turns nor are lost.
#[test]
fn metadata_written_beside_two_turns_disturbs_neither() {
    in_time(async {
        let bench = Bench::new(81);
        let _process = bench.start(|request| match request.step {
            1..=3 => Say::Calls(vec![("put", json!({"what": request.step}))]),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let runs = [
            bench.send(thread, "coder", "one", BusyPolicy::Enqueue).await,
            bench.send(thread, "coder", "two", BusyPolicy::Enqueue).await,
        ];
        let mut n_read = 0;
        while !bench.run(runs[1]).await.state.is_terminal() {
            n_read += 1;
            let metadata = json!({ "n_read": n_read });
            let mark = UpdateThread { tenant: TENANT.into(), thread, metadata, busy_policy: None };
            bench.client().update_thread(mark).await.unwrap();
            sleep(Duration::from_millis(7)).await;
        }
        for run in runs {
            let run = bench.run(run).await;
            assert_eq!((end_of(&run).as_str(), run.attempt), ("completed  done", 1));
        }
        let stored = bench.thread(thread).await;
        assert_eq!((stored.version, stored.metadata["n_read"].clone()), (2, json!(n_read)));
        assert!(n_read > 50, "{n_read}");
        bench.assert_sound(thread).await;
    });
}

/// Two replicas claim from one queue: no run is claimed by both.
#[test]
fn of_a_thousand_claims_by_two_replicas_none_overlap() {
    in_time(async {
        let bench = Bench::new(82);
        let mut runs = Vec::new();
        for _ in 0..1_000 {
            runs.push(bench.send(bench.new_thread(), "chat", "go", BusyPolicy::Enqueue).await);
        }
        let processes = [bench.start(|_| Say::Text("done")), bench.start(|_| Say::Text("done"))];
        for run in &runs {
            let run = bench.ended(*run).await;
            assert_eq!((end_of(&run).as_str(), run.attempt), ("completed  done", 1));
        }
        let n_calls = processes.iter().map(|process| process.model.n_calls());
        assert_eq!(n_calls.clone().sum::<usize>(), 1_000);
        assert!(n_calls.min() > Some(100), "both took part");
    });
}

fn slow(model: &mut TestModel) {
    model.latency = Duration::from_secs(200);
}

/// A model call that is longer than any lease is not begun a second time.
#[test]
fn a_call_of_two_hundred_seconds_is_made_once() {
    in_time(async {
        let bench = Bench::new(83);
        let one = bench.start_with(Setup { tune: slow, ..Setup::default() }, |_| Say::Text("done"));
        let other = bench.start_with(Setup { tune: slow, ..Setup::default() }, |_| Say::Text("done"));
        let run = bench.send(bench.new_thread(), "chat", "go", BusyPolicy::Enqueue).await;
        let run = bench.ended(run).await;
        assert_eq!((end_of(&run).as_str(), run.attempt), ("completed  done", 1));
        assert_eq!(one.model.n_calls() + other.model.n_calls(), 1);
    });
}

/// A tool that never returns does not block its thread for the next client.
#[test]
fn a_hung_run_ends_by_its_deadline_and_the_thread_goes_on() {
    in_time(async {
        let bench = Bench::new(84);
        let _process = bench.start(|request| match asked(request).as_str() {
            "next" => Say::Text("here"),
            _ => Say::Calls(vec![("hang", json!({}))]),
        });
        let thread = bench.new_thread();
        let mut spec = bench.spec("coder", "hang");
        spec.deadline = bench.env.wall().after(Duration::from_secs(10));
        spec.limits.tool_ms_max = 3_600_000;
        let hung = bench.admit(thread, spec).await;
        let next = bench.send(thread, "coder", "next", BusyPolicy::Enqueue).await;
        assert_eq!(bench.ended(hung).await.state, RunState::Expired);
        assert_eq!(end_of(&bench.ended(next).await), "completed  here");
        bench.assert_sound(thread).await;
    });
}

/// Of 25 turns sent at once every one is there, in the order in which they were accepted.
#[test]
fn twenty_five_turns_at_once_are_all_there_in_order() {
    in_time(async {
        let bench = Bench::new(85);
        let _process = bench.start(|_| Say::Text("ok"));
        let thread = bench.new_thread();
        let mut runs = Vec::new();
        for n in 0..25 {
            runs.push(bench.send(thread, "chat", &format!("turn {n}"), BusyPolicy::Enqueue).await);
        }
        for run in &runs {
            assert_eq!(end_of(&bench.ended(*run).await), "completed  ok");
        }
        let events = bench.events(thread).await;
        let texts = events.iter().filter_map(|event| match &event.body {
            EventBody::UserMessage { message } => Some(message.joined_text()),
            _ => None,
        });
        let expected: Vec<String> = (0..25).map(|n| format!("turn {n}")).collect();
        assert_eq!(texts.collect::<Vec<_>>(), expected);
        assert_eq!(bench.thread(thread).await.version, 25);
    });
}

/// A run whose process dies again and again goes on, and neither it nor its thread is stuck.
#[test]
fn ten_dead_processes_leave_neither_a_ghost_run_nor_a_busy_thread() {
    in_time(async {
        let bench = Bench::new(86);
        let thread = bench.new_thread();
        let run = bench.send(thread, "chat", "go", BusyPolicy::Enqueue).await;
        for n in 1..=10 {
            let dying = bench.start(|_| Say::Hang);
            bench.reaches(run, |run| run.attempt == n && run.state == RunState::Running).await;
            drop(dying);
            // Until somebody takes over, the row says who has it: it is neither idle nor ended.
            assert_eq!(bench.thread(thread).await.newest_state, Some(RunState::Running));
        }
        let _process = bench.start(|_| Say::Text("done"));
        let run = bench.ended(run).await;
        assert_eq!((end_of(&run).as_str(), run.attempt), ("completed  done", 11));
        let next = bench.send(thread, "chat", "next", BusyPolicy::Reject).await;
        assert_eq!(end_of(&bench.ended(next).await), "completed  done");
        assert_eq!(bench.thread(thread).await.active, None);
        bench.assert_sound(thread).await;
    });
}

/// A message that is sent while the run before it is stuck in a dead process runs all the same.
#[test]
fn what_waits_behind_a_dead_run_is_not_forgotten() {
    in_time(async {
        let bench = Bench::new(87);
        let thread = bench.new_thread();
        let run = bench.send(thread, "chat", "go", BusyPolicy::Enqueue).await;
        let dying = bench.start(|_| Say::Hang);
        bench.reaches(run, |run| run.state == RunState::Running).await;
        drop(dying);
        let waiting = bench.send(thread, "chat", "waits", BusyPolicy::Enqueue).await;
        let replacing = bench.send(thread, "chat", "replaces", BusyPolicy::Interrupt).await;
        let begun = bench.env.wall();
        let _process = bench.start(|_| Say::Text("done"));
        assert_eq!(end_of(&bench.ended(replacing).await), "completed  done");
        assert!(bench.env.wall().since(begun) < Duration::from_secs(6));
        for replaced in [run, waiting] {
            let reason = bench.reason(replaced).await;
            assert_eq!(reason, Some(EndReason::Interrupted { by: replacing }));
        }
        bench.assert_sound(thread).await;
    });
}

/// A replica that drains takes nothing new, and its successor in the same instant is another.
#[test]
fn a_draining_replica_claims_nothing_while_its_successor_does() {
    in_time(async {
        let bench = Bench::new(88);
        let old = bench.start(|_| Say::Text("old"));
        old.harness.drain().await;
        let new = bench.start(|_| Say::Text("new"));
        assert_ne!(old.harness.replica(), new.harness.replica());
        for _ in 0..20 {
            let run = bench.send(bench.new_thread(), "chat", "go", BusyPolicy::Enqueue).await;
            old.harness.nudge();
            assert_eq!(end_of(&bench.ended(run).await), "completed  new");
        }
        assert_eq!(old.model.n_calls(), 0);
    });
}

/// A turn of the system and one of a user that fall on the same moment are two turns, one after the
/// other, and each has its own answer.
#[test]
fn a_turn_of_the_system_and_one_of_a_user_do_not_mix() {
    in_time(async {
        let bench = Bench::new(89);
        let process = bench.start(|request| Say::Text(format!("to {}", asked(request)).leak()));
        let thread = bench.new_thread();
        let request = bench.request(thread, bench.spec("chat", "remind me"));
        let (system, due) = (request.run, Duration::from_secs(1));
        bench.client().admit(Admit { delay_ms: 1_000, ..request }).await.unwrap();
        sleep(due).await;
        let user = bench.send(thread, "chat", "hello", BusyPolicy::Enqueue).await;
        process.harness.nudge();
        assert_eq!(end_of(&bench.ended(system).await), "completed  to remind me");
        assert_eq!(end_of(&bench.ended(user).await), "completed  to hello");
        let expected = "User: remind me\nAssistant: to remind me\nUser: hello\nAssistant: to hello";
        assert_eq!(bench.transcript(thread).await, expected);
        let mut runs: Vec<_> = bench.events(thread).await.iter().map(|event| event.run).collect();
        runs.dedup();
        assert_eq!(runs, [system, user], "no event of one stands among those of the other");
    });
}

fn with_slots(n_slots: usize) -> Setup {
    Setup { n_slots, ..Setup::default() }
}

/// A thread is not bound to the worker that served it: while that one is busy another takes the next
/// turn, and the first one the turn after that.
#[test]
fn any_worker_serves_any_turn() {
    in_time(async {
        let bench = Bench::new(90);
        let answer = |name: &'static str| {
            move |request: &ModelRequest| match asked(request).as_str() {
                "hang" => Say::Hang,
                _ => Say::Text(name),
            }
        };
        let thread = bench.new_thread();
        let one = bench.start_with(with_slots(1), answer("one"));
        let first = bench.send(thread, "chat", "first", BusyPolicy::Enqueue).await;
        assert_eq!(end_of(&bench.ended(first).await), "completed  one");
        let hung = bench.send(bench.new_thread(), "chat", "hang", BusyPolicy::Enqueue).await;
        bench.reaches(hung, |run| run.state == RunState::Running).await;
        let other = bench.start_with(with_slots(1), answer("other"));
        let second = bench.send(thread, "chat", "second", BusyPolicy::Enqueue).await;
        assert_eq!(end_of(&bench.ended(second).await), "completed  other");
        other.harness.drain().await;
        bench.cancel(hung).await;
        one.harness.cancel(hung);
        let third = bench.send(thread, "chat", "third", BusyPolicy::Enqueue).await;
        assert_eq!(end_of(&bench.ended(third).await), "completed  one");
        bench.assert_sound(thread).await;
    });
}

/// Whatever the holder of a thread was doing when it died, the next message is answered soon.
#[test]
fn a_dead_holder_blocks_nobody_whatever_it_was_doing() {
    for doing in ["nothing", "a call", "a tool", "stopping"] {
        in_time(async {
            let bench = Bench::new(91);
            let thread = bench.new_thread();
            let dying = bench.start(move |_| match doing {
                "nothing" => Say::Text("done"),
                "a tool" => Say::Calls(vec![("hang", json!({}))]),
                _ => Say::Hang,
            });
            let run = bench.send(thread, "coder", "go", BusyPolicy::Enqueue).await;
            if doing == "nothing" {
                bench.ended(run).await;
            } else {
                bench.reaches(run, |run| run.state == RunState::Running).await;
                sleep(Duration::from_millis(500)).await;
            }
            if doing == "stopping" {
                bench.cancel(run).await;
            }
            drop(dying);
            let other = bench.start(|_| Say::Text("done"));
            let begun = bench.env.wall();
            let next = bench.send(thread, "coder", "next", BusyPolicy::Enqueue).await;
            other.harness.nudge();
            assert_eq!(end_of(&bench.ended(next).await), "completed  done", "{doing}");
            let waited = bench.env.wall().since(begun);
            assert!(waited < Duration::from_secs(6), "{doing}: {waited:?}");
            assert!(bench.run(run).await.state.is_terminal(), "{doing}");
            bench.assert_sound(thread).await;
        });
    }
}

/// While a run waits in the middle of its task, nothing of the next message happens on its thread.
#[test]
fn the_next_turn_waits_also_while_the_run_before_it_only_waits() {
    in_time(async {
        let bench = Bench::new(92);
        let process = bench.start(|request| match (asked(request).as_str(), request.step) {
            ("first", 1) => Say::Calls(vec![("put", json!({"what": "first"}))]),
            ("first", 2) if request.permit.is_none() => Say::Park,
            ("second", 1) => Say::Calls(vec![("put", json!({"what": "second"}))]),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let first = bench.send(thread, "coder", "first", BusyPolicy::Enqueue).await;
        bench.reaches(first, is_waiting).await;
        let second = bench.send(thread, "coder", "second", BusyPolicy::Enqueue).await;
        let elsewhere = bench.send(bench.new_thread(), "chat", "other", BusyPolicy::Enqueue).await;
        // Whoever looks for work has looked, and found other work only.
        bench.ended(elsewhere).await;
        process.harness.nudge();
        sleep(Duration::from_secs(5)).await;
        let states = [bench.run(first).await.state, bench.run(second).await.state];
        assert_eq!(states, [RunState::Waiting, RunState::Queued]);
        process.model.permit();
        for run in [first, second] {
            assert_eq!(end_of(&bench.ended(run).await), "completed  done");
        }
        let events = bench.events(thread).await;
        let mut runs: Vec<_> = events.iter().map(|event| event.run).collect();
        runs.dedup();
        assert_eq!(runs, [first, second], "neither stands inside the other");
        let put: Vec<_> = bench.world.put.lock().unwrap().values().cloned().collect();
        assert_eq!((put.len(), bench.world.n_executed("put")), (2, 2), "{put:?}");
        bench.assert_sound(thread).await;
    });
}

/// A workspace takes twenty seconds to make, and its process may die over it. What is sent meanwhile
/// is taken at once, and is in the conversation once when there is a workspace, by whatever policy.
#[test]
fn a_message_during_a_slow_start_is_taken_at_once_and_delivered() {
    const BOOT: Duration = Duration::from_secs(20);
    let policies = [
        (BusyPolicy::Enqueue, "one,two"),
        (BusyPolicy::Steer, "one,two"),
        (BusyPolicy::Merge, "one,two"),
        (BusyPolicy::Latest, "one,two"),
        (BusyPolicy::Interrupt, "one,two"),
        (BusyPolicy::Rollback, "two"),
    ];
    for (seed, ((policy, expected), dies)) in
        (88..).zip(policies.into_iter().flat_map(|of| [(of, false), (of, true)]))
    {
        in_time(async {
            let bench = Bench::new(seed);
            *bench.world.boot.lock().unwrap() = BOOT;
            let begun = bench.env.wall();
            let booted = Arc::new(Mutex::new(None));
            let script = {
                let (booted, env) = (booted.clone(), bench.env.clone());
                move |_: &ModelRequest| {
                    booted.lock().unwrap().get_or_insert(env.wall());
                    Say::Text("done")
                }
            };
            let mut process = bench.start(script.clone());
            let thread = bench.new_thread();
            let first = bench.send(thread, "coder", "one", BusyPolicy::Enqueue).await;
            process.harness.nudge();
            sleep(Duration::from_secs(1)).await;
            assert_eq!(bench.run(first).await.state, RunState::Running, "it makes its workspace");
            let sent_at = bench.env.wall();
            let second = bench.send(thread, "coder", "two", policy).await;
            assert!(bench.env.wall().since(sent_at) < Duration::from_millis(100), "{policy:?} waited");
            if dies {
                drop(process);
                process = bench.start(script);
            }
            process.harness.nudge();
            for run in [first, second] {
                bench.ended(run).await;
            }
            let first_call = booted.lock().unwrap().expect("the model was asked");
            assert!(first_call.since(begun) >= BOOT, "{policy:?}: not before there was a workspace");
            let events = bench.events(thread).await;
            let said: Vec<String> = counting(&events)
                .into_iter()
                .filter_map(|event| match &event.body {
                    EventBody::UserMessage { message } => Some(message.joined_text()),
                    _ => None,
                })
                .collect();
            assert_eq!(said.join(","), expected, "{policy:?}, dies: {dies}");
            let transcript = bench.transcript(thread).await;
            assert!(transcript.ends_with("Assistant: done"), "{policy:?}: {transcript}");
            bench.assert_sound(thread).await;
        });
    }
}
