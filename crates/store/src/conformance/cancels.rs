//! Cancels in every state, and runs whose deadline passes.

use std::time::Duration;

use evenkeel_core::Code;
use evenkeel_core::port::store::{Admit, Cancelled, Expire, TurnCommitted, Written};
use evenkeel_core::run::{RunSpec, RunState};

use super::Stage;
use super::samples::note;
use super::stage::good;

super::cases! {
    a_queued_run_is_cancelled_at_once,
    a_waiting_turn_is_cancelled_beside_its_owner,
    a_parked_run_is_cancelled_at_once,
    a_running_run_is_stopped_by_its_owner,
    a_second_cancel_adds_nothing,
    a_forced_cancel_fences_the_owner,
    an_ended_run_stays_as_it_ended,
    an_unknown_run_is_not_found,
    a_cancelled_holder_hands_its_thread_on,
    a_cancelling_run_that_is_given_up_is_cancelled,
    a_cancelling_run_may_still_complete,
    a_run_past_its_deadline_expires,
    an_owned_run_does_not_expire,
    the_earliest_deadline_expires_first,
}

async fn a_queued_run_is_cancelled_at_once(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let run = stage.enqueue(thread, "hello").await;
    assert_eq!(stage.cancel(run.id).await, Cancelled::Done);
    let run = stage.run(run.id).await;
    assert_eq!((run.state, run.version), (RunState::Cancelled, None), "it never began");
    assert_eq!(stage.log(thread).await, ["cancel requested", "ended cancelled requested"]);
    assert!(stage.ready(me, 9).await.is_empty());
    stage.begin(thread, "next", me).await;
    stage.check_thread(thread).await;
}

async fn a_waiting_turn_is_cancelled_beside_its_owner(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "one", me).await;
    let doomed = stage.enqueue(thread, "two").await;
    let last = stage.enqueue(thread, "three").await;
    assert_eq!(stage.cancel(doomed.id).await, Cancelled::Done);
    stage.check_thread(thread).await;
    assert_eq!(stage.run(last.id).await.position, 0);
    let written = stage.step(&claim.fence, vec![note("still here")]).await;
    assert!(matches!(written, Written::Done { cancelling: false, .. }), "the owner is not disturbed");
    let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&claim, true).await else {
        panic!("the last turn is handed over");
    };
    assert_eq!(next.fence.run, last.id);
    stage.check_thread(thread).await;
}

async fn a_parked_run_is_cancelled_at_once(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "hello", me).await;
    stage.park(&claim.fence, "main").await;
    assert_eq!(stage.cancel(claim.fence.run).await, Cancelled::Done);
    let run = stage.run(claim.fence.run).await;
    assert_eq!((run.state, run.version, &run.wait), (RunState::Cancelled, Some(1), &None));
    assert!(stage.wake(me, "main", 9).await.is_empty());
    assert_eq!(stage.thread(thread).await.epoch, 2, "no late writer can come");
    stage.check_thread(thread).await;
}

async fn a_running_run_is_stopped_by_its_owner(stage: Stage) {
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    assert_eq!(stage.cancel(claim.fence.run).await, Cancelled::Cancelling);
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Cancelling);
    assert_eq!(stage.beat(me).await.cancels, [claim.fence.run], "the owner learns of it");
    let turn = evenkeel_core::port::store::CommitTurn {
        fence: claim.fence.clone(),
        version: claim.version,
        events: Vec::new(),
        outcome: super::samples::ended(RunState::Cancelled),
        take_next: false,
    };
    good(stage.store.commit_turn(turn).await);
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Cancelled);
    assert!(stage.beat(me).await.cancels.is_empty());
    stage.check_thread(claim.fence.thread).await;
}

async fn a_second_cancel_adds_nothing(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.cancel(claim.fence.run).await;
    let before = stage.log(claim.fence.thread).await;
    assert_eq!(stage.cancel(claim.fence.run).await, Cancelled::Cancelling);
    assert_eq!(stage.log(claim.fence.thread).await, before);
}

async fn a_forced_cancel_fences_the_owner(stage: Stage) {
    for asked_before in [false, true] {
        let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
        if asked_before {
            stage.cancel(claim.fence.run).await;
        }
        assert_eq!(stage.cancel_by_force(claim.fence.run).await, Cancelled::Done);
        assert_eq!(stage.step(&claim.fence, vec![note("late")]).await, Written::Fenced);
        assert_eq!(stage.finish(&claim, false).await, TurnCommitted::Fenced);
        assert_eq!(stage.run(claim.fence.run).await.state, RunState::Cancelled);
        stage.check_thread(claim.fence.thread).await;
    }
}

async fn an_ended_run_stays_as_it_ended(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.finish(&claim, false).await;
    let before = stage.run(claim.fence.run).await;
    assert_eq!(stage.cancel(claim.fence.run).await, Cancelled::Ended);
    assert_eq!(stage.cancel_by_force(claim.fence.run).await, Cancelled::Ended);
    stage.clock.advance(Duration::from_secs(3600));
    assert!(expire(&stage, 9).await.is_empty());
    assert_eq!(stage.run(claim.fence.run).await, before);
    stage.check_thread(claim.fence.thread).await;
}

async fn an_unknown_run_is_not_found(stage: Stage) {
    assert_eq!(stage.cancel(stage.new_run()).await, Cancelled::NotFound);
}

async fn a_cancelled_holder_hands_its_thread_on(stage: Stage) {
    for parked in [false, true] {
        let (thread, me) = (stage.new_thread(), stage.replica().await);
        let claim = stage.begin(thread, "one", me).await;
        let next = stage.enqueue(thread, "two").await;
        if parked {
            stage.park(&claim.fence, "main").await;
        }
        assert_eq!(stage.cancel_by_force(claim.fence.run).await, Cancelled::Done);
        stage.check_thread(thread).await;
        let claims = stage.ready(me, 9).await;
        assert_eq!(claims.iter().map(|claim| claim.fence.run).collect::<Vec<_>>(), [next.id]);
        stage.check_thread(thread).await;
    }
}

async fn a_cancelling_run_that_is_given_up_is_cancelled(stage: Stage) {
    for by_park in [false, true] {
        let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
        stage.cancel(claim.fence.run).await;
        let written = match by_park {
            true => stage.park(&claim.fence, "main").await,
            false => stage.release(&claim.fence).await,
        };
        assert!(matches!(written, Written::Done { cancelling: true, .. }));
        assert_eq!(stage.run(claim.fence.run).await.state, RunState::Cancelled);
        stage.check_thread(claim.fence.thread).await;
    }
}

async fn a_cancelling_run_may_still_complete(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.cancel(claim.fence.run).await;
    assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { .. }));
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Completed, "it was finished before");
    stage.check_thread(claim.fence.thread).await;
}

async fn a_run_past_its_deadline_expires(stage: Stage) {
    let me = stage.replica().await;
    let parked = stage.begin(stage.new_thread(), "parked", me).await;
    stage.park(&parked.fence, "main").await;
    let queued = stage.enqueue(stage.new_thread(), "queued").await;
    let behind = stage.enqueue(parked.fence.thread, "behind").await;
    stage.clock.advance(Duration::from_millis(59_999));
    assert!(expire(&stage, 9).await.is_empty());
    stage.clock.advance(Duration::from_millis(1));
    let ended = expire(&stage, 9).await;
    assert_eq!(ended, [parked.fence.run, queued.id, behind.id]);
    for run in ended {
        let run = stage.run(run).await;
        assert_eq!(run.state, RunState::Expired);
        let error = run.outcome.and_then(|outcome| outcome.error).expect("an expired run says why");
        assert_eq!(error.code, Code::RunDeadline);
    }
    assert!(expire(&stage, 9).await.is_empty());
    for thread in [parked.fence.thread, queued.thread] {
        stage.check_thread(thread).await;
    }
}

async fn an_owned_run_does_not_expire(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.clock.advance(Duration::from_secs(3600));
    assert!(expire(&stage, 9).await.is_empty(), "its owner ends it");
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Running);
}

async fn the_earliest_deadline_expires_first(stage: Stage) {
    let mut by_deadline = Vec::new();
    for deadline_s in [30, 10, 20] {
        let admit = stage.ask(stage.new_thread(), "hello");
        let deadline = stage.env.wall().after(Duration::from_secs(deadline_s));
        let admit = Admit { spec: RunSpec { deadline, ..admit.spec.clone() }, ..admit };
        by_deadline.push((deadline_s, stage.accept(admit).await.0.id));
    }
    by_deadline.sort_unstable();
    stage.clock.advance(Duration::from_secs(60));
    let mut ended = expire(&stage, 2).await;
    ended.extend(expire(&stage, 2).await);
    assert_eq!(ended, by_deadline.into_iter().map(|(_, run)| run).collect::<Vec<_>>());
}

async fn expire(stage: &Stage, limit: u32) -> Vec<evenkeel_core::id::RunId> {
    good(stage.store.expire(Expire { limit }).await).into_iter().map(|(_, run)| run).collect()
}
