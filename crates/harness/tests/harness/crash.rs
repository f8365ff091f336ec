//! The process dies at every point of a run, and another one goes on: what comes out is what would
//! have come out without the crash, and nothing outside happened twice.

use std::sync::LazyLock;
use std::time::Duration;

use evenkeel_core::control::Protect;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::model::{ModelRequest, RouteFacts};
use evenkeel_core::run::{Run, RunState};
use evenkeel_harness::HarnessConfig;
use proptest::prelude::*;
use serde_json::json;

use super::lab::{Bench, Setup, end_of, in_time, is_over};
use super::world::{Files, Say, TestModel, is_compaction};

/// Steps whose every effect can be made exactly-once.
pub(crate) fn repairable(request: &ModelRequest) -> Say {
    match request.step {
        1 => Say::Calls(vec![
            ("read", json!({"path": "a"})),
            ("read", json!({"path": "b"})),
            ("edit", json!({"path": "a", "from": "", "to": "one"})),
            ("bash", json!({"path": "log", "line": "x"})),
            ("read", json!({"path": "log"})),
            ("edit", json!({"path": "a", "from": "one", "to": "two"})),
            ("bash", json!({"path": "log", "line": "y"})),
            ("put", json!({"what": "kept"})),
        ]),
        2 => {
            Say::Calls(vec![("bash", json!({"path": "log", "line": "z"})), ("read", json!({"path": "log"}))])
        }
        3 => Say::Calls(vec![("flood", json!({})), ("read", json!({"path": "a"}))]),
        _ => Say::Text("done"),
    }
}

/// Steps that outgrow the window: what is cut, and when, is part of the journal.
fn growing(request: &ModelRequest) -> Say {
    if is_compaction(request) {
        return Say::Text("what happened before");
    }
    match request.step {
        step @ 1..=8 => Say::Calls(vec![("put", json!({"what": "w".repeat(3_000), "n": step}))]),
        9 => Say::Calls(vec![("flood", json!({}))]),
        _ => Say::Text("done"),
    }
}

pub(crate) struct Outcome {
    transcript: String,
    files: Files,
    put: Vec<String>,
    sent: usize,
    run: Run,
    pub(crate) n_points: usize,
    n_summaries: usize,
}

impl Outcome {
    /// What of this can be told from a run without a crash; nothing if all is well.
    pub(crate) fn differs(&self, calm: &Self) -> Option<String> {
        let parts = [
            ("the transcript", self.transcript == calm.transcript),
            ("the files", self.files == calm.files),
            ("what was put", self.put == calm.put),
            ("the end", end_of(&self.run) == end_of(&calm.run)),
            ("the number of steps", self.run.step == calm.run.step),
        ];
        parts.into_iter().find(|(_, same)| !same).map(|(part, _)| part.to_owned())
    }
}

fn small_window(model: &mut TestModel) {
    model.facts =
        RouteFacts { context_tokens: 6_000, bytes_per_token: 4.0, park_max: Duration::from_secs(600) };
    model.usage.estimated = true;
}

/// Runs the script, with processes that die at these points one after the other; the last lives.
fn with_crashes(script: fn(&ModelRequest) -> Say, die_at: &[usize]) -> Outcome {
    with_crashes_of(|_| {}, script, die_at)
}

fn with_crashes_of(tune: fn(&mut TestModel), script: fn(&ModelRequest) -> Say, die_at: &[usize]) -> Outcome {
    crashing(tune, false, script, die_at)
}

/// The same, also with the mistake that intents are stored after their effects.
pub(crate) fn crashing(
    tune: fn(&mut TestModel),
    stores_intents_late: bool,
    script: fn(&ModelRequest) -> Say,
    die_at: &[usize],
) -> Outcome {
    let die_at = die_at.to_vec();
    in_time(async move {
        let bench = Bench::new(30);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let setup = |die_at| Setup { die_at, tune, stores_intents_late, ..Setup::default() };
        for point in die_at {
            let process = bench.start_with(setup(Some(point)), script);
            tokio::select! {
                biased;
                () = process.points.died.notified() => {}
                _ = bench.reaches(run, is_over) => {}
            }
            drop(process);
        }
        let process = bench.start_with(setup(None), script);
        let run = bench.ended(run).await;
        bench.assert_sound(thread).await;
        let files = bench.world.files.lock().unwrap().clone();
        let put = bench.world.put.lock().unwrap().values().cloned().collect();
        let sent = bench.world.sent.lock().unwrap().len();
        let transcript = bench.transcript(thread).await;
        let is_summary = |event: &&Event| matches!(event.body, EventBody::Compacted { summary: Some(_), .. });
        let n_summaries = bench.events(thread).await.iter().filter(is_summary).count();
        Outcome { transcript, files, put, sent, run, n_points: process.points.passed(), n_summaries }
    })
}

#[test]
fn a_crash_at_every_point_changes_nothing_that_can_be_seen() {
    let calm = with_crashes(repairable, &[]);
    assert_eq!(end_of(&calm.run), "completed  done");
    assert_eq!(calm.files["a"], "two");
    assert_eq!(calm.files["log"], "begin x\nend x\nbegin y\nend y\nbegin z\nend z\n");
    assert!(calm.n_points > 80, "{}", calm.n_points);
    for point in 0..calm.n_points {
        let crashed = with_crashes(repairable, &[point]);
        assert_eq!(crashed.differs(&calm), None, "died at {point}");
    }
}

#[test]
fn a_crash_at_every_point_of_a_run_that_is_compacted_changes_nothing() {
    let calm = with_crashes_of(small_window, growing, &[]);
    assert_eq!(end_of(&calm.run), "completed  done");
    assert!(calm.n_summaries > 0);
    for point in 0..calm.n_points {
        let crashed = with_crashes_of(small_window, growing, &[point]);
        assert_eq!(crashed.transcript, calm.transcript, "died at {point}");
        assert_eq!(crashed.n_summaries, calm.n_summaries, "died at {point}");
    }
}

fn unsafe_steps(request: &ModelRequest) -> Say {
    match request.step {
        1 => Say::Calls(vec![("send", json!({"what": "first"})), ("send", json!({"what": "second"}))]),
        2 => Say::Calls(vec![("send", json!({"what": "third"}))]),
        _ => Say::Text("done"),
    }
}

#[test]
fn an_unsafe_call_is_never_repeated_and_the_model_is_told() {
    let calm = with_crashes(unsafe_steps, &[]);
    assert_eq!(calm.sent, 3);
    let mut n_unknown = 0;
    for point in 0..calm.n_points {
        let crashed = with_crashes(unsafe_steps, &[point]);
        let unknown = crashed.transcript.matches("Outcome unknown").count();
        n_unknown += unknown;
        assert!(crashed.sent <= 3 && crashed.sent + unknown >= 3, "died at {point}");
        assert_eq!(end_of(&crashed.run), "completed  done", "died at {point}");
        if unknown == 0 {
            assert_eq!(crashed.transcript, calm.transcript, "died at {point}");
        }
    }
    assert!(n_unknown > 0, "some points lie between an intent and its result");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_number_of_crashes_changes_nothing_that_can_be_seen(points in proptest::collection::vec(0usize..60, 1..6)) {
        static CALM: LazyLock<Outcome> = LazyLock::new(|| with_crashes(repairable, &[]));
        let crashed = with_crashes(repairable, &points);
        prop_assert_eq!(&crashed.transcript, &CALM.transcript);
        prop_assert_eq!(&crashed.files, &CALM.files);
        prop_assert_eq!(end_of(&crashed.run), end_of(&CALM.run));
    }
}

#[test]
fn a_crash_in_the_second_turn_leaves_the_first_answer_alone() {
    let script = |request: &ModelRequest| {
        if request.messages.last().unwrap().joined_text() == "one" {
            Say::Text("first")
        } else {
            Say::Text("second")
        }
    };
    let play = |die_at: Option<usize>| {
        in_time(async move {
            let bench = Bench::new(31);
            let thread = bench.new_thread();
            let first = bench.admit(thread, bench.spec("chat", "one")).await;
            let second = bench.admit(thread, bench.spec("chat", "two")).await;
            let process = bench.start_with(Setup { die_at, ..Setup::default() }, script);
            tokio::select! {
                biased;
                () = process.points.died.notified() => {}
                _ = bench.reaches(second, is_over) => {}
            }
            let n_points = process.points.passed();
            drop(process);
            let _other = bench.start(script);
            assert_eq!(end_of(&bench.ended(first).await), "completed  first");
            assert_eq!(end_of(&bench.ended(second).await), "completed  second");
            bench.assert_sound(thread).await;
            (bench.transcript(thread).await, n_points)
        })
    };
    let (calm, n_points) = play(None);
    assert!(n_points >= 8);
    for point in 0..n_points {
        assert_eq!(play(Some(point)).0, calm, "died at {point}");
    }
}

#[test]
fn a_dead_replica_costs_at_most_five_seconds() {
    in_time(async {
        let bench = Bench::new(32);
        let run = bench.admit(bench.new_thread(), bench.spec("coder", "go")).await;
        let dying = bench.start(|_| Say::Hang);
        let other = bench.start(|_| Say::Text("done"));
        bench.reaches(run, |run| run.state == RunState::Running).await;
        let owner = bench.run(run).await.owner.unwrap();
        // Whichever of the two has it dies.
        let survivor = if owner == dying.harness.replica() {
            drop(dying);
            other
        } else {
            drop(other);
            let _ = dying;
            bench.start(|_| Say::Text("done"))
        };
        let begun = bench.env.wall();
        let ended = bench.ended(run).await;
        assert_eq!(end_of(&ended), "completed  done");
        assert!(bench.env.wall().since(begun) <= Duration::from_millis(5_200));
        assert!(survivor.harness.stats().n_stolen <= 1);
    });
}

#[test]
fn without_protection_a_stolen_run_fails() {
    in_time(async {
        let bench = Bench::new(33);
        let config = HarnessConfig { protect: Protect::None, ..HarnessConfig::default() };
        let run = bench.admit(bench.new_thread(), bench.spec("coder", "go")).await;
        let dying = bench.start_with(Setup { config: config.clone(), ..Setup::default() }, |_| Say::Hang);
        bench.reaches(run, |run| run.state == RunState::Running).await;
        drop(dying);
        let _other = bench.start_with(Setup { config, ..Setup::default() }, |_| Say::Text("done"));
        assert_eq!(end_of(&bench.ended(run).await), "failed internal");
    });
}

#[test]
fn an_earlier_call_of_the_step_is_not_undone_when_a_later_one_is_put_back() {
    // The crash comes in the middle of the second call; the first edited another file.
    let script = |request: &ModelRequest| match request.step {
        1 => Say::Calls(vec![
            ("edit", json!({"path": "a", "from": "", "to": "one"})),
            ("bash", json!({"path": "log", "line": "x"})),
        ]),
        _ => Say::Text("done"),
    };
    in_time(async {
        let bench = Bench::new(34);
        let thread = bench.new_thread();
        let run = bench.admit(thread, bench.spec("coder", "go")).await;
        let mut point = 0;
        loop {
            let process = bench.start_with(Setup { die_at: Some(point), ..Setup::default() }, script);
            tokio::select! {
                biased;
                () = process.points.died.notified() => {}
                _ = bench.reaches(run, is_over) => break,
            }
            point += 3;
        }
        let files = bench.world.files.lock().unwrap().clone();
        assert_eq!(files["a"], "one");
        assert_eq!(files["log"], "begin x\nend x\n");
        let events = bench.events(thread).await;
        let n_claims =
            events.iter().filter(|event| matches!(event.body, EventBody::RunClaimed { .. })).count();
        assert!(n_claims > 5, "{n_claims}");
    });
}
