//! A second message while a run is under way, by each policy: what the first run does, what the model
//! sees next, and that a crash at any point changes none of it.

use std::time::Duration;

use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::journal::{Event, EventBody, NewEvent, counting};
use evenkeel_core::message::{Message, Role};
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::port::store::{Cancel, StateWrite, WriteState};
use evenkeel_core::run::{BusyPolicy, EndReason, RunSpec, RunState};
use serde_json::json;
use tokio::time::sleep;

use super::lab::{Bench, Process, Setup, TENANT, end_of, in_time};
use super::world::{Files, Say};

/// The newest message of the user.
fn asked(request: &ModelRequest) -> String {
    let users = request.messages.iter().rev().filter(|message| message.role == Role::User);
    users.map(Message::joined_text).next().unwrap_or_default()
}

/// All messages of the user that the model sees.
fn all_asked(request: &ModelRequest) -> Vec<String> {
    let users = request.messages.iter().filter(|message| message.role == Role::User);
    users.map(Message::joined_text).collect()
}

fn log(line: &str) -> Say {
    Say::Calls(vec![("bash", json!({"path": "log", "line": line}))])
}

/// Works for two steps when it is asked for the first, and then hangs in this way; answers the
/// second with what it finds in the file.
fn worker(hangs: fn() -> Say) -> impl Fn(&ModelRequest) -> Say + Copy + Send + Sync + 'static {
    move |request| match (asked(request).as_str(), request.step) {
        ("before", 1) => log("before"),
        ("before", _) => Say::Text("noted"),
        ("first", 1) => log("first"),
        ("first", _) => hangs(),
        ("second", 1) => Say::Calls(vec![("read", json!({"path": "log"}))]),
        _ => Say::Text("done"),
    }
}

/// What a run hangs in, by name.
type Phase = (&'static str, fn() -> Say);

/// Where a run may be when it is stopped: in a model call, in a reply, in a tool.
fn phases() -> [Phase; 3] {
    [
        ("model", || Say::Hang),
        ("stream", || Say::Stream("I have begun to")),
        ("tool", || Say::Calls(vec![("put", json!({"what": "a"})), ("hang", json!({}))])),
    ]
}

/// A turn before, a first turn that hangs, and a second with this policy.
struct Played {
    bench: Bench,
    thread: ThreadId,
    first: RunId,
    second: RunId,
    requests: Vec<ModelRequest>,
    n_points: usize,
    took: Duration,
}

/// Plays it, with a process that dies at this point; another one goes on.
async fn play(policy: BusyPolicy, hangs: fn() -> Say, die_at: Option<usize>) -> Played {
    let bench = Bench::new(60);
    let thread = bench.new_thread();
    let before = bench.send(thread, "coder", "before", BusyPolicy::Enqueue).await;
    let mut process = bench.start_with(Setup { die_at, ..Setup::default() }, worker(hangs));
    let mut n_points = or_died(&bench, &mut process, hangs, bench.ended(before)).await;
    let first = bench.send(thread, "coder", "first", BusyPolicy::Enqueue).await;
    let is_stuck = async {
        bench.reaches(first, |run| run.step == 1).await;
        sleep(Duration::from_millis(500)).await;
    };
    n_points += or_died(&bench, &mut process, hangs, is_stuck).await;
    let begun = bench.env.wall();
    let second = bench.send(thread, "coder", "second", policy).await;
    n_points += or_died(&bench, &mut process, hangs, bench.ended(second)).await;
    bench.ended(first).await;
    let requests = process.model.requests();
    n_points += process.points.passed();
    let took = bench.env.wall().since(begun);
    Played { bench, thread, first, second, requests, n_points, took }
}

/// Waits, also through the death of the process: then another one takes its place. Replies with the
/// points that a dead one passed.
async fn or_died<T>(
    bench: &Bench,
    process: &mut Process,
    hangs: fn() -> Say,
    wait: impl Future<Output = T>,
) -> usize {
    let points = process.points.clone();
    let mut n_points = 0;
    tokio::pin!(wait);
    tokio::select! {
        biased;
        () = points.died.notified() => {
            n_points = points.passed();
            *process = bench.start_with(Setup::default(), worker(hangs));
            wait.await;
        }
        _ = &mut wait => {}
    }
    n_points
}

/// What must hold whatever the policy and wherever the process died.
async fn assert_answered(played: &Played) {
    let Played { bench, thread, second, .. } = played;
    assert_eq!(end_of(&bench.run(*second).await), "completed  done");
    bench.assert_sound(*thread).await;
    for text in ["before", "first", "second"] {
        assert_eq!(n_entered(&bench.events(*thread).await, text), 1, "{text}");
    }
}

fn n_entered(events: &[Event], text: &str) -> usize {
    let is_it = |event: &&Event| matches!(&event.body, EventBody::UserMessage { message } if message.joined_text() == text);
    events.iter().filter(is_it).count()
}

fn files(bench: &Bench) -> Files {
    bench.world.files.lock().unwrap().clone()
}

const BEFORE: &str = "begin before\nend before\n";
const BOTH: &str = "begin before\nend before\nbegin first\nend first\n";

#[test]
fn an_interrupted_run_stops_at_once_and_what_it_did_is_kept() {
    for (phase, hangs) in phases() {
        in_time(async {
            let played = play(BusyPolicy::Interrupt, hangs, None).await;
            assert_answered(&played).await;
            let Played { bench, thread, first, second, requests, .. } = &played;
            assert_eq!(bench.reason(*first).await, Some(EndReason::Interrupted { by: *second }));
            assert!(played.took < Duration::from_secs(3), "{phase}: {:?}", played.took);
            assert_eq!(files(bench)["log"], BOTH, "{phase}");
            let last = requests.last().unwrap();
            assert_eq!(all_asked(last), ["before", "first", "second"], "{phase}");
            let transcript = bench.transcript(*thread).await;
            assert_eq!(transcript.contains("I have begun to"), phase == "stream", "{transcript}");
            assert_eq!(transcript.contains("!hang => The run was stopped"), phase == "tool", "{transcript}");
            assert_eq!(transcript.contains("put => stored"), phase == "tool", "{transcript}");
            assert!(transcript.contains("read => begin before\nend before\nbegin first"), "{transcript}");
        });
    }
}

/// Text that was shown before a stop is in the thread, marked as cut, and the model sees it.
#[test]
fn the_text_that_was_streamed_before_an_interrupt_is_kept_and_marked() {
    in_time(async {
        let played = play(BusyPolicy::Interrupt, || Say::Stream("I have begun to"), None).await;
        let events = played.bench.events(played.thread).await;
        let cut = events.iter().find_map(|event| match &event.body {
            EventBody::AssistantMessage { message, finish, .. } if finish == "cancelled" => {
                Some((event.run, message.joined_text()))
            }
            _ => None,
        });
        assert_eq!(cut, Some((played.first, "I have begun to".to_owned())));
        let last = played.requests.last().unwrap();
        assert!(last.messages.iter().any(|message| message.joined_text() == "I have begun to"));
    });
}

#[test]
fn a_rolled_back_run_leaves_neither_words_nor_files() {
    for (phase, hangs) in phases() {
        in_time(async {
            let played = play(BusyPolicy::Rollback, hangs, None).await;
            assert_answered(&played).await;
            let Played { bench, thread, first, second, requests, .. } = &played;
            assert_eq!(bench.reason(*first).await, Some(EndReason::RolledBack { by: *second }));
            assert!(played.took < Duration::from_secs(3), "{phase}: {:?}", played.took);
            assert_eq!(files(bench)["log"], BEFORE, "{phase}");
            assert_eq!(all_asked(requests.last().unwrap()), ["before", "second"], "{phase}");
            let transcript = bench.transcript(*thread).await;
            assert!(transcript.contains("read => begin before\nend before\n"), "{transcript}");
            assert!(!transcript.contains("first"), "{transcript}");
            let diff = bench.run(*first).await.outcome.unwrap().diff.unwrap();
            assert!(diff.contains("begin first"), "what was undone can still be looked at");
        });
    }
}

#[test]
fn a_crash_at_every_point_of_a_rollback_changes_nothing_that_counts() {
    let calm = in_time(async {
        let played = play(BusyPolicy::Rollback, || Say::Hang, None).await;
        (played.bench.transcript(played.thread).await, played.n_points)
    });
    assert!(calm.1 > 60, "{}", calm.1);
    for point in 0..calm.1 {
        in_time(async {
            let played = play(BusyPolicy::Rollback, || Say::Hang, Some(point)).await;
            assert_answered(&played).await;
            let Played { bench, thread, first, second, .. } = &played;
            assert_eq!(bench.transcript(*thread).await, calm.0, "died at {point}");
            assert_eq!(files(bench)["log"], BEFORE, "died at {point}");
            let reason = bench.reason(*first).await;
            assert_eq!(reason, Some(EndReason::RolledBack { by: *second }), "died at {point}");
        });
    }
}

#[test]
fn a_crash_at_every_point_of_an_interrupt_keeps_what_was_done() {
    let n_points = in_time(async { play(BusyPolicy::Interrupt, || Say::Hang, None).await.n_points });
    for point in 0..n_points {
        in_time(async {
            let played = play(BusyPolicy::Interrupt, || Say::Hang, Some(point)).await;
            assert_answered(&played).await;
            let Played { bench, first, second, .. } = &played;
            assert_eq!(files(bench)["log"], BOTH, "died at {point}");
            let reason = bench.reason(*first).await;
            assert_eq!(reason, Some(EndReason::Interrupted { by: *second }), "died at {point}");
        });
    }
}

#[test]
fn an_undoing_cancel_leaves_neither_words_nor_files() {
    in_time(async {
        let bench = Bench::new(61);
        let thread = bench.new_thread();
        let process = bench.start(worker(|| Say::Hang));
        let before = bench.send(thread, "coder", "before", BusyPolicy::Enqueue).await;
        bench.ended(before).await;
        let first = bench.send(thread, "coder", "first", BusyPolicy::Enqueue).await;
        sleep(Duration::from_secs(2)).await;
        let cancel = Cancel { tenant: TENANT.into(), run: first, force: false, undo: true };
        bench.client().cancel(cancel).await.unwrap();
        process.harness.cancel(first);
        bench.ended(first).await;
        assert_eq!(bench.reason(first).await, Some(EndReason::Undone));
        assert_eq!(files(&bench)["log"], BEFORE);
        assert!(!bench.transcript(thread).await.contains("first"));
        bench.assert_sound(thread).await;
    });
}

/// A task of four steps, steered in its second.
fn steered(request: &ModelRequest) -> Say {
    match request.step {
        step @ 1..=3 => Say::Calls(vec![("put", json!({"what": step}))]),
        _ if asked(request) == "left" => Say::Text("turned left"),
        _ => Say::Text("straight on"),
    }
}

async fn steer(die_at: Option<usize>) -> (Bench, ThreadId, [RunId; 2], usize, Vec<ModelRequest>) {
    let bench = Bench::new(62);
    let thread = bench.new_thread();
    let run = bench.send(thread, "coder", "go", BusyPolicy::Steer).await;
    let process = bench.start_with(Setup { die_at, ..Setup::default() }, steered);
    let points = process.points.clone();
    let died = points.died.notified();
    tokio::pin!(died);
    tokio::select! {
        biased;
        () = &mut died => {}
        _ = bench.reaches(run, |run| run.step == 1) => {}
    }
    let steering = bench.send(thread, "coder", "left", BusyPolicy::Steer).await;
    let has_died = die_at.is_some_and(|at| process.points.passed() > at);
    if !has_died {
        tokio::select! {
            biased;
            () = &mut died => {}
            _ = async { tokio::join!(bench.ended(steering), bench.ended(run)) } => {}
        }
    }
    let (n_points, mut requests) = (process.points.passed(), process.model.requests());
    drop(process);
    let other = bench.start(steered);
    bench.ended(steering).await;
    bench.ended(run).await;
    requests.extend(other.model.requests());
    (bench, thread, [run, steering], n_points, requests)
}

#[test]
fn a_steering_message_enters_between_two_steps_and_says_where() {
    in_time(async {
        let (bench, thread, [run, steering], _, requests) = steer(None).await;
        assert_eq!(end_of(&bench.run(run).await), "completed  turned left");
        assert_eq!(bench.reason(steering).await, Some(EndReason::Steered { into: run }));
        assert_eq!(bench.thread(thread).await.version, 1, "one turn");
        let first = requests.iter().find(|request| asked(request) == "left").unwrap();
        assert!(first.step < 4, "it did not wait for the end");
        assert_eq!(first.messages[first.messages.len() - 2].role, Role::Tool, "between two steps");
        let notes: Vec<(u32, String)> = notes(&bench.events(thread).await);
        assert_eq!(notes, [(first.step, format!("1 message(s) entered before step {}.", first.step))]);
        bench.assert_sound(thread).await;
    });
}

fn notes(events: &[Event]) -> Vec<(u32, String)> {
    let notes = events.iter().filter_map(|event| match &event.body {
        EventBody::Noted { kind, text } if kind == "steered" => Some((event.step, text.clone())),
        _ => None,
    });
    notes.collect()
}

#[test]
fn a_crash_at_every_point_neither_loses_nor_doubles_a_steering_message() {
    let n_points = in_time(async { steer(None).await.3 });
    assert!(n_points > 25, "{n_points}");
    for point in 0..n_points {
        in_time(async {
            let (bench, thread, [run, steering], ..) = steer(Some(point)).await;
            let events = bench.events(thread).await;
            assert_eq!(n_entered(&events, "left"), 1, "died at {point}");
            match bench.reason(steering).await {
                Some(reason) => {
                    assert_eq!(reason, EndReason::Steered { into: run }, "died at {point}");
                    assert_eq!(notes(&events).len(), 1, "died at {point}");
                    assert_eq!(end_of(&bench.run(run).await), "completed  turned left", "died at {point}");
                }
                None => assert_eq!(end_of(&bench.run(steering).await), "completed  turned left"),
            }
            bench.assert_sound(thread).await;
        });
    }
}

#[test]
fn a_steering_message_after_the_last_step_is_a_turn_of_its_own() {
    in_time(async {
        let bench = Bench::new(63);
        let _process = bench.start(|request| match asked(request).as_str() {
            "late" => Say::Text("second"),
            _ => Say::Text("first"),
        });
        let thread = bench.new_thread();
        let run = bench.send(thread, "chat", "go", BusyPolicy::Steer).await;
        bench.reaches(run, |run| run.state == RunState::Running).await;
        let late = bench.send(thread, "chat", "late", BusyPolicy::Steer).await;
        assert_eq!(end_of(&bench.ended(run).await), "completed  first");
        assert_eq!(end_of(&bench.ended(late).await), "completed  second");
        assert_eq!(bench.thread(thread).await.version, 2);
        bench.assert_sound(thread).await;
    });
}

/// What the model was asked, as its answer.
fn echo(request: &ModelRequest) -> Say {
    Say::Text(all_asked(request).join(" + ").leak())
}

async fn merge(die_at: Option<usize>) -> (Bench, ThreadId, Vec<RunId>, usize) {
    let bench = Bench::new(64);
    let thread = bench.new_thread();
    let process = bench.start_with(Setup { die_at, ..Setup::default() }, echo);
    let mut runs = Vec::new();
    for text in ["one", "two", "three"] {
        runs.push(bench.send(thread, "chat", text, BusyPolicy::Merge).await);
        sleep(Duration::from_secs(1)).await;
    }
    tokio::select! {
        biased;
        () = process.points.died.notified() => {}
        _ = bench.ended(runs[0]) => {}
    }
    let n_points = process.points.passed();
    drop(process);
    let _other = bench.start(echo);
    for run in &runs {
        bench.ended(*run).await;
    }
    (bench, thread, runs, n_points)
}

#[test]
fn messages_that_come_together_are_one_turn_also_through_crashes() {
    let n_points = in_time(async {
        let (bench, thread, runs, n_points) = merge(None).await;
        let events = bench.events(thread).await;
        let waited = events[0].at.since(bench.run(runs[2]).await.created_at);
        assert!((3_000..4_200).contains(&waited.as_millis()), "{waited:?}");
        n_points
    });
    for point in std::iter::once(None).chain((0..n_points).map(Some)) {
        in_time(async {
            let (bench, thread, runs, _) = merge(point).await;
            assert_eq!(
                end_of(&bench.run(runs[0]).await),
                "completed  one + two + three",
                "died at {point:?}"
            );
            for joined in &runs[1..] {
                assert_eq!(bench.reason(*joined).await, Some(EndReason::Merged { into: runs[0] }));
            }
            assert_eq!(bench.thread(thread).await.version, 1);
            bench.assert_sound(thread).await;
        });
    }
}

#[test]
fn only_the_latest_of_the_waiting_messages_runs() {
    in_time(async {
        let bench = Bench::new(65);
        let process = bench.start(echo);
        let thread = bench.new_thread();
        let first = bench.send(thread, "chat", "first", BusyPolicy::Latest).await;
        bench.reaches(first, |run| run.state == RunState::Running).await;
        let mut later = Vec::new();
        for text in ["a", "b", "c"] {
            later.push(bench.send(thread, "chat", text, BusyPolicy::Latest).await);
        }
        assert_eq!(end_of(&bench.ended(first).await), "completed  first");
        assert_eq!(end_of(&bench.ended(later[2]).await), "completed  first + c");
        for (old, by) in [(later[0], later[1]), (later[1], later[2])] {
            assert_eq!(bench.reason(old).await, Some(EndReason::Superseded { by }));
        }
        assert_eq!(process.model.n_calls(), 2);
        bench.assert_sound(thread).await;
    });
}

/// Two blocking calls replaced by a third: the last one wins, the input of the others is gone.
#[test]
fn of_three_rollbacks_in_a_row_the_last_one_wins() {
    in_time(async {
        let bench = Bench::new(66);
        let _process = bench.start(echo);
        let thread = bench.new_thread();
        let mut runs = Vec::new();
        for text in ["a", "b", "c"] {
            runs.push(bench.send(thread, "chat", text, BusyPolicy::Rollback).await);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(end_of(&bench.ended(runs[2]).await), "completed  c");
        for replaced in &runs[..2] {
            let reason = bench.reason(*replaced).await.unwrap();
            assert!(matches!(reason, EndReason::RolledBack { .. }), "{reason:?}");
        }
        let transcript = bench.transcript(thread).await;
        assert_eq!(transcript, "User: c\nAssistant: c");
    });
}

#[test]
fn a_fork_sees_the_words_and_the_files_of_its_checkpoint() {
    in_time(async {
        let bench = Bench::new(67);
        let process = bench.start(|request| match (asked(request).as_str(), request.step) {
            ("look", 1) => Say::Calls(vec![("read", json!({"path": "log"}))]),
            (text, 1) => log(text.to_owned().leak()),
            _ => Say::Text("done"),
        });
        let thread = bench.new_thread();
        let one = bench.send(thread, "coder", "one", BusyPolicy::Enqueue).await;
        bench.ended(one).await;
        let fork_at = bench.thread(thread).await.seq_last;
        let two = bench.send(thread, "coder", "two", BusyPolicy::Enqueue).await;
        bench.ended(two).await;
        // Twice from the same place: neither sees what the other did.
        for (idx, text) in ["left", "right"].into_iter().enumerate() {
            let spec = RunSpec { from_seq: Some(fork_at), ..bench.spec("coder", text) };
            let fork = bench.admit(thread, spec).await;
            bench.ended(fork).await;
            let expected = format!("begin one\nend one\nbegin {text}\nend {text}\n");
            assert_eq!(files(&bench)["log"], expected, "fork {idx}");
            assert_eq!(all_asked(process.model.requests().last().unwrap()), ["one", text]);
        }
        let look = bench.send(thread, "coder", "look", BusyPolicy::Enqueue).await;
        bench.ended(look).await;
        assert_eq!(all_asked(process.model.requests().last().unwrap()), ["one", "right", "look"]);
        bench.assert_sound(thread).await;
    });
}

#[test]
fn what_a_client_wrote_is_what_the_model_sees() {
    in_time(async {
        let bench = Bench::new(68);
        let process = bench.start(echo);
        let thread = bench.new_thread();
        let one = bench.send(thread, "chat", "one", BusyPolicy::Enqueue).await;
        bench.ended(one).await;
        let first = bench.run(one).await.spec.messages[0].id.clone();
        let body = EventBody::StateWritten {
            messages: vec![
                Message::text(first.as_str(), Role::User, "better"),
                Message::text("added", Role::User, "more"),
            ],
            values: json!({}),
            as_node: None,
        };
        let request = WriteState {
            tenant: TENANT.into(),
            thread,
            writer: RunId::new(bench.env.wall(), &bench.env.generator),
            events: vec![NewEvent { step: 0, body }],
        };
        let written = bench.client().write_state(request).await.unwrap();
        assert!(matches!(written, StateWrite::Done { version: 2, .. }), "{written:?}");
        let two = bench.send(thread, "chat", "two", BusyPolicy::Enqueue).await;
        bench.ended(two).await;
        assert_eq!(all_asked(process.model.requests().last().unwrap()), ["better", "more", "two"]);
        let events = bench.events(thread).await;
        assert_eq!(counting(&events).len(), events.len());
    });
}
