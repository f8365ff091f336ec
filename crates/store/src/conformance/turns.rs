//! A turn from its request to its end, and the log that it leaves.

use evenkeel_core::id::ReplicaId;
use evenkeel_core::port::store::{
    Admit, Admitted, CommitTurn, CreateThread, ThreadCreated, ThreadRef, TurnCommitted,
};
use evenkeel_core::run::RunState;
use serde_json::json;

use super::Stage;
use super::samples::{ended, note};
use super::stage::good;

super::cases! {
    a_thread_is_made_once,
    a_turn_leaves_its_log,
    a_turn_needs_its_thread,
    a_message_enters_the_log_with_the_claim,
    versions_go_up_by_one,
    the_end_is_the_last_event,
    every_end_is_kept,
    a_turn_does_not_end_in_an_open_state,
    tails_of_many_threads_are_read_at_once,
}

async fn a_thread_is_made_once(stage: Stage) {
    let request = CreateThread {
        tenant: stage.tenant.clone(),
        thread: stage.new_thread(),
        metadata: json!({ "topic": "boats" }),
        busy_policy: None,
    };
    let ThreadCreated::Created(made) = good(stage.store.create_thread(request.clone()).await) else {
        panic!("the thread is new");
    };
    assert_eq!((made.version, made.epoch, made.seq_last, made.active), (0, 0, 0, None));
    let again = CreateThread { metadata: json!({ "topic": "trains" }), ..request.clone() };
    assert_eq!(good(stage.store.create_thread(again).await), ThreadCreated::Exists(made.clone()));
    assert_eq!(stage.thread(request.thread).await, made, "the metadata stayed");
    let foreign = CreateThread { tenant: "other".into(), ..request };
    assert_eq!(good(stage.store.create_thread(foreign).await), ThreadCreated::Taken);
}

async fn a_turn_leaves_its_log(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "hello", me).await;
    assert_eq!((claim.fence.epoch, claim.version, claim.context_from), (1, 0, 1));
    assert_eq!((claim.run.state, claim.run.attempt, claim.run.owner), (RunState::Running, 1, Some(me)));
    stage.step(&claim.fence, vec![note("working")]).await;
    let done = stage.finish(&claim, false).await;
    assert_eq!(done, TurnCommitted::Done { version: 1, seq_last: 5, next: None });
    let log = stage.log(thread).await;
    let expected =
        ["claimed epoch 1 attempt 1", "user hello", "note working", "note last", "ended completed"];
    assert_eq!(log, expected);
    let run = stage.run(claim.fence.run).await;
    assert_eq!((run.state, run.version, run.owner), (RunState::Completed, Some(1), None));
    assert_eq!(run.outcome, Some(ended(RunState::Completed)));
    stage.check_thread(thread).await;
}

async fn a_turn_needs_its_thread(stage: Stage) {
    let admit = Admit { create_thread: false, ..stage.ask(stage.new_thread(), "hello") };
    assert_eq!(good(stage.store.admit(admit).await), Admitted::ThreadNotFound);
}

async fn a_message_enters_the_log_with_the_claim(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let run = stage.enqueue(thread, "hello").await;
    assert_eq!((run.state, run.position, run.attempt), (RunState::Queued, 0, 0));
    assert!(stage.log(thread).await.is_empty(), "a queued message is not yet said");
    let claims = stage.ready(me, 1).await;
    assert_eq!(claims.len(), 1);
    assert_eq!(stage.log(thread).await, ["claimed epoch 1 attempt 1", "user hello"]);
    stage.check_thread(thread).await;
}

async fn versions_go_up_by_one(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    for version in 1..=3 {
        let claim = stage.begin(thread, "again", me).await;
        assert_eq!((claim.version, claim.fence.epoch), (version - 1, version));
        let TurnCommitted::Done { version: reached, .. } = stage.finish(&claim, false).await else {
            panic!("the turn ends");
        };
        assert_eq!(reached, version);
    }
    assert_eq!(stage.thread(thread).await.version, 3);
    stage.check_thread(thread).await;
}

async fn the_end_is_the_last_event(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "hello", me).await;
    stage.finish(&claim, false).await;
    stage.step(&claim.fence, vec![note("too late")]).await;
    stage.finish(&claim, false).await;
    assert_eq!(stage.log(thread).await.last().map(String::as_str), Some("ended completed"));
    stage.check_thread(thread).await;
}

async fn every_end_is_kept(stage: Stage) {
    let me = stage.replica().await;
    for state in [RunState::Completed, RunState::Failed, RunState::Cancelled, RunState::Expired] {
        let claim = stage.begin(stage.new_thread(), "hello", me).await;
        let turn = end_as(&claim, state);
        good(stage.store.commit_turn(turn).await);
        let run = stage.run(claim.fence.run).await;
        assert_eq!((run.state, run.outcome), (state, Some(ended(state))));
        stage.check_thread(claim.fence.thread).await;
    }
}

async fn a_turn_does_not_end_in_an_open_state(stage: Stage) {
    let me: ReplicaId = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    let refused = stage.store.commit_turn(end_as(&claim, RunState::Waiting)).await;
    assert!(refused.is_err(), "an open state is no end");
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Running);
    stage.check_thread(claim.fence.thread).await;
}

async fn tails_of_many_threads_are_read_at_once(stage: Stage) {
    let me = stage.replica().await;
    let (short, long, missing) = (stage.new_thread(), stage.new_thread(), stage.new_thread());
    stage.begin(short, "hello", me).await;
    let claim = stage.begin(long, "hello", me).await;
    stage.step(&claim.fence, vec![note("working"), note("on it")]).await;
    let threads = [long, missing, short].map(|thread| ThreadRef { tenant: stage.tenant.clone(), thread });
    let mut tails = good(stage.store.read_tails(threads.to_vec()).await);
    tails.sort_unstable();
    let mut expected = vec![(short, 2), (long, 4)];
    expected.sort_unstable();
    assert_eq!(tails, expected);
    assert!(good(stage.store.read_tails(Vec::new()).await).is_empty());
}

fn end_as(claim: &evenkeel_core::port::store::Claim, state: RunState) -> CommitTurn {
    CommitTurn {
        fence: claim.fence.clone(),
        version: claim.version,
        events: Vec::new(),
        outcome: ended(state),
        take_next: false,
    }
}
