//! What a turn asks of the store.

use std::time::Duration;

use evenkeel_core::id::ThreadId;
use evenkeel_core::message::Role;
use evenkeel_core::port::model::ModelRequest;
use evenkeel_core::port::store::{Admit, Admitted, StoreClient, ThreadRef};
use evenkeel_core::run::{BusyPolicy, Run, RunSpec};
use evenkeel_env::slots::Slot;

use super::lab::{Bench, Process, TENANT, end_of, in_time};
use super::world::Say;

/// Says what it was asked so far.
fn echo(request: &ModelRequest) -> Say {
    let users = request.messages.iter().filter(|message| message.role == Role::User);
    let texts: Vec<String> = users.map(|message| message.joined_text()).collect();
    Say::Text(texts.join(" + ").leak())
}

/// A slot, as soon as the process has its lease.
async fn slot(process: &Process) -> Slot {
    loop {
        match process.harness.slot() {
            Some(slot) => return slot,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// A turn as the edge makes it: admitted with a claim, driven here.
async fn turn(bench: &Bench, process: &Process, thread: ThreadId, spec: RunSpec) -> Run {
    let replica = process.harness.replica();
    let request = Admit { claim_for: Some(replica), ..bench.request(thread, spec) };
    let admitted = StoreClient(process.store.clone()).admit(request).await.unwrap();
    let Admitted::Accepted { run, claim: Some(claim), .. } = admitted else {
        panic!("not claimed: {admitted:?}");
    };
    process.harness.adopt(*claim, slot(process).await);
    bench.ended(run.id).await
}

#[test]
fn a_chat_turn_is_two_round_trips_also_with_a_history() {
    in_time(async {
        let bench = Bench::new(70);
        let process = bench.start(echo);
        let thread = bench.new_thread();
        process.store.of_runs();
        let mut expected = Vec::new();
        for text in ["one", "two", "three", "four"] {
            expected.push(text);
            let run = turn(&bench, &process, thread, bench.spec("chat", text)).await;
            assert_eq!(end_of(&run), format!("completed  {}", expected.join(" + ")));
            assert_eq!(process.store.of_runs(), ["admit", "commit_turn"], "{text}");
        }
        bench.assert_sound(thread).await;
        assert_eq!(bench.thread(thread).await.version, 4);
    });
}

#[test]
fn a_turn_that_is_handed_over_is_one_round_trip_more() {
    in_time(async {
        let bench = Bench::new(71);
        let process = bench.start(echo);
        let thread = bench.new_thread();
        let replica = process.harness.replica();
        process.store.of_runs();
        let request = Admit { claim_for: Some(replica), ..bench.request(thread, bench.spec("chat", "one")) };
        let store = StoreClient(process.store.clone());
        let Admitted::Accepted { claim: Some(claim), .. } = store.admit(request).await.unwrap() else {
            panic!("the thread is free");
        };
        let waiting = bench.request(thread, bench.spec("chat", "two"));
        let second = waiting.run;
        store.admit(waiting).await.unwrap();
        process.harness.adopt(*claim, slot(&process).await);
        assert_eq!(end_of(&bench.ended(second).await), "completed  one + two");
        assert_eq!(process.store.of_runs(), ["admit", "admit", "commit_turn", "commit_turn"]);
    });
}

/// What is kept is a copy: a turn on another replica, a client's write, an undone turn or a thread
/// made anew is never overlooked.
#[test]
fn what_another_wrote_is_read() {
    in_time(async {
        let bench = Bench::new(72);
        let (here, there) = (bench.start(echo), bench.start(echo));
        let thread = bench.new_thread();
        turn(&bench, &here, thread, bench.spec("chat", "one")).await;
        turn(&bench, &there, thread, bench.spec("chat", "two")).await;
        here.store.of_runs();
        let run = turn(&bench, &here, thread, bench.spec("chat", "three")).await;
        assert_eq!(end_of(&run), "completed  one + two + three");
        assert_eq!(here.store.of_runs(), ["admit", "read_events", "commit_turn"]);
        let undo = bench.request(thread, bench.spec("chat", "four"));
        let rollback = RunSpec { busy_policy: BusyPolicy::Rollback, ..bench.spec("chat", "five") };
        let undone = undo.run;
        bench.client().admit(undo).await.unwrap();
        here.harness.nudge();
        bench.reaches(undone, |run| run.owner.is_some()).await;
        let five = bench.admit(thread, rollback).await;
        assert_eq!(end_of(&bench.ended(five).await), "completed  one + two + three + five");
        let fork = RunSpec { from_seq: Some(0), ..bench.spec("chat", "six") };
        assert_eq!(end_of(&turn(&bench, &here, thread, fork).await), "completed  six");
        let of = ThreadRef { tenant: TENANT.into(), thread };
        bench.client().delete_thread(of).await.unwrap();
        let run = turn(&bench, &there, thread, bench.spec("chat", "anew")).await;
        assert_eq!(end_of(&run), "completed  anew");
        let run = turn(&bench, &here, thread, bench.spec("chat", "again")).await;
        assert_eq!(end_of(&run), "completed  anew + again");
    });
}
