//! What has gone wrong in comparable systems after a death, a restart or a hang, each with its input.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::id::ReplicaId;
use evenkeel_core::journal::EventBody;
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::port::store::{Cancel, Cancelled, Heartbeat, Steal};
use evenkeel_core::run::{BusyPolicy, RunState};
use serde_json::json;
use tokio::time::sleep;

use super::lab::{Bench, Setup, TENANT, end_of, in_time, is_waiting};
use super::world::Say;

fn one_slot(die_at: Option<usize>) -> Setup {
    Setup { n_slots: 1, die_at, ..Setup::default() }
}

fn three_steps(request: &ModelRequest) -> Say {
    match request.step {
        step @ 1..=2 => Say::Calls(vec![("put", json!({ "what": step }))]),
        _ => Say::Text("done"),
    }
}

/// A process with room for one run dies at any point of it: the runs behind it run all the same.
#[test]
fn a_death_between_two_steps_does_not_block_a_queue_of_one() {
    let play = |die_at: Option<usize>| {
        in_time(async move {
            let bench = Bench::new(100);
            let thread = bench.new_thread();
            let mut runs = Vec::new();
            for n in 0..3 {
                // Two wait on one thread, and one on a thread of its own.
                let on = if n == 2 { bench.new_thread() } else { thread };
                runs.push(bench.send(on, "coder", "go", BusyPolicy::Enqueue).await);
            }
            let mut process = bench.start_with(one_slot(die_at), three_steps);
            let points = process.points.clone();
            let all = async {
                for run in &runs {
                    assert_eq!(end_of(&bench.ended(*run).await), "completed  done", "{die_at:?}");
                }
            };
            tokio::pin!(all);
            tokio::select! {
                biased;
                () = points.died.notified() => {
                    process = bench.start_with(one_slot(None), three_steps);
                    all.await;
                }
                () = &mut all => {}
            }
            drop(process);
            assert_eq!(bench.world.put.lock().unwrap().len(), 6, "{die_at:?}");
            bench.assert_sound(thread).await;
            points.passed()
        })
    };
    let n_points = play(None);
    assert!(n_points > 60, "{n_points}");
    for point in 0..n_points {
        play(Some(point));
    }
}

/// A run that would wait for ever is ended by whoever operates it, whatever its owner does: its
/// thread is free at once, and its slot within seconds, although no hint reached the owner.
#[test]
fn an_operator_ends_a_run_that_hangs_and_its_thread_and_slot_are_free() {
    for phase in ["model", "tool"] {
        in_time(async {
            let bench = Bench::new(101);
            let process = bench.start_with(one_slot(None), move |request| {
                match (request.messages.last().unwrap().joined_text().as_str(), phase) {
                    ("next", _) => Say::Text("done"),
                    (_, "model") => Say::Hang,
                    _ => Say::Calls(vec![("hang", json!({}))]),
                }
            });
            let thread = bench.new_thread();
            let mut spec = bench.spec("coder", "go");
            spec.limits.tool_ms_max = 3_600_000;
            let hung = bench.admit(thread, spec).await;
            bench.reaches(hung, |run| run.state == RunState::Running).await;
            sleep(Duration::from_secs(600)).await;
            assert_eq!(bench.run(hung).await.state, RunState::Running, "{phase}");
            let force = Cancel { tenant: TENANT.into(), run: hung, force: true, undo: false };
            assert_eq!(bench.client().cancel(force).await.unwrap(), Cancelled::Done);
            assert_eq!(bench.run(hung).await.state, RunState::Cancelled, "{phase}");
            let begun = bench.env.wall();
            let next = bench.send(thread, "coder", "next", BusyPolicy::Enqueue).await;
            assert_eq!(end_of(&bench.ended(next).await), "completed  done", "{phase}");
            let waited = bench.env.wall().since(begun);
            assert!(waited < Duration::from_secs(7), "{phase}: {waited:?}");
            assert_eq!(process.harness.stats().n_running, 0, "{phase}");
            // Nobody can say what became of a call that was cut off by force: it has no result, and
            // the next turn's model was shown a history that is valid all the same.
            let ends = bench.events(thread).await.into_iter().rev().find(|event| event.run == hung).unwrap();
            assert!(matches!(ends.body, EventBody::RunEnded { .. }), "{phase}: {ends:?}");
        });
    }
}

/// A run that was taken over while its old owner hangs in it stops there too.
#[test]
fn a_run_that_was_taken_over_stops_at_its_old_owner_within_seconds() {
    in_time(async {
        let bench = Bench::new(104);
        let run = bench.send(bench.new_thread(), "coder", "go", BusyPolicy::Enqueue).await;
        let old = bench.start_with(one_slot(None), |_| Say::Hang);
        bench.reaches(run, |run| run.state == RunState::Running).await;
        let me = ReplicaId::new(bench.env.wall(), &bench.env.generator);
        let beat =
            Heartbeat { replica: me, address: None, lease_ttl_ms: 60_000, draining: false, health: vec![] };
        bench.client().heartbeat(beat).await.unwrap();
        let steal = Steal { me, dead: vec![old.harness.replica()], limit: 1 };
        assert_eq!(bench.client().steal(steal).await.unwrap().len(), 1);
        let begun = bench.env.wall();
        while old.harness.stats().n_running > 0 {
            sleep(Duration::from_millis(50)).await;
        }
        let took = bench.env.wall().since(begun);
        assert!(took < Duration::from_secs(7), "{took:?}");
        assert_eq!(bench.run(run).await.owner, Some(me), "it is left to its new owner");
        let stats = old.harness.stats();
        assert_eq!((stats.n_fenced, stats.lease_held), (1, true));
    });
}

/// Every way to ask for the state of a run says the same, in the middle of a crash and behind it.
#[test]
fn all_views_of_many_runs_agree_through_a_restart() {
    in_time(async {
        let bench = Bench::new(102);
        let script = |request: &ModelRequest| match request.messages[0].joined_text().as_str() {
            "hang" => Say::Hang,
            "park" if request.permit.is_none() => Say::Park,
            _ => Say::Text("done"),
        };
        let first = bench.start_with(Setup { n_slots: 8, ..Setup::default() }, script);
        let mut runs = Vec::new();
        for n in 0..60 {
            let text = ["hang", "park", "work", "work", "work"][n % 5];
            let thread = bench.new_thread();
            runs.push(bench.send(thread, "chat", text, BusyPolicy::Enqueue).await);
            runs.push(bench.send(thread, "chat", "behind", BusyPolicy::Enqueue).await);
            assert_agreement(&bench).await;
        }
        sleep(Duration::from_secs(1)).await;
        drop(first);
        assert_agreement(&bench).await;
        let second = bench.start(|_| Say::Text("done"));
        for _ in 0..20 {
            sleep(Duration::from_millis(400)).await;
            assert_agreement(&bench).await;
        }
        runs.iter().for_each(|_| second.model.permit());
        for run in &runs {
            let ended = bench.ended(*run).await;
            assert_eq!(end_of(&ended), "completed  done");
            // What has ended cannot be stopped, and does not say that it was.
            assert_eq!(bench.cancel(*run).await, Cancelled::Ended);
            assert_eq!(bench.run(*run).await.state, RunState::Completed);
        }
        assert_agreement(&bench).await;
    });
}

/// The list, the counts, each thread and each run by itself tell the same states.
async fn assert_agreement(bench: &Bench) {
    let runs = bench.runs().await;
    let mut listed: BTreeMap<&str, u64> = BTreeMap::new();
    for run in &runs {
        *listed.entry(run.state.as_str()).or_default() += 1;
        assert_eq!(bench.run(run.id).await.state, run.state);
    }
    let counts = bench.client().counts(()).await.unwrap().runs;
    let counted: BTreeMap<&str, u64> =
        counts.iter().filter(|(_, n)| *n > 0).map(|(state, n)| (state.as_str(), *n)).collect();
    assert_eq!(listed, counted);
    for run in &runs {
        let thread = bench.thread(run.thread).await;
        let of_thread = || runs.iter().filter(|other| other.thread == run.thread);
        // The list is newest first.
        let newest = of_thread().next().map(|run| run.state);
        let n_open = of_thread().filter(|run| !run.state.is_terminal()).count();
        assert_eq!((thread.newest_state, thread.active.is_some()), (newest, n_open > 0));
    }
}

/// What waits for its model goes on waiting when the process is replaced: a start is no reason to try.
#[test]
fn a_deploy_wakes_nothing_that_waits() {
    in_time(async {
        let bench = Bench::new(103);
        let script = |request: &ModelRequest| match request.permit {
            Some(_) => Say::Text("done"),
            None => Say::Park,
        };
        let old = bench.start(script);
        let mut runs = Vec::new();
        for _ in 0..5 {
            runs.push(bench.send(bench.new_thread(), "chat", "go", BusyPolicy::Enqueue).await);
        }
        for run in &runs {
            bench.reaches(*run, is_waiting).await;
        }
        old.harness.drain().await;
        drop(old);
        let new = bench.start(script);
        sleep(Duration::from_secs(10)).await;
        for run in &runs {
            let run = bench.run(*run).await;
            assert_eq!((run.state, run.attempt), (RunState::Waiting, 1));
        }
        assert_eq!(new.model.n_calls(), 0);
        assert_eq!(new.model.parked.lock().unwrap()["main"], 5, "the new process knows of them");
        runs.iter().for_each(|_| new.model.permit());
        for run in &runs {
            assert_eq!(end_of(&bench.ended(*run).await), "completed  done");
        }
    });
}
