//! Fencing: only the newest claim writes, and what is refused leaves no trace but a count.

use evenkeel_core::port::store::{Claim, Fence, Steal, TurnCommitted, Written};
use evenkeel_core::run::RunState;
use futures_util::future::{join, join_all};

use super::Stage;
use super::samples::note;
use super::stage::good;

super::cases! {
    a_stolen_run_is_not_written_by_its_old_owner,
    a_parked_run_is_not_written,
    a_released_run_is_not_written,
    an_ended_run_is_not_written,
    a_wrong_epoch_is_fenced_whichever_way,
    another_run_of_the_thread_is_not_the_holder,
    another_thread_is_not_the_runs,
    an_old_version_is_a_conflict,
    every_fenced_write_is_counted,
    a_hundred_fenced_writes_at_once_are_all_counted,
    of_two_writers_from_one_version_one_is_refused,
}

async fn a_stolen_run_is_not_written_by_its_old_owner(stage: Stage) {
    let (dead, me) = (stage.replica().await, stage.replica().await);
    let old = stage.begin(stage.new_thread(), "hello", dead).await;
    let steal = Steal { me, dead: vec![dead], limit: 1 };
    let new = good(stage.store.steal(steal).await).remove(0);
    assert_eq!((new.fence.epoch, new.run.attempt, new.run.owner), (2, 2, Some(me)));
    refused_everywhere(&stage, &old).await;
    assert!(matches!(stage.finish(&new, false).await, TurnCommitted::Done { version: 1, .. }));
    refused_everywhere(&stage, &old).await;
    stage.check_thread(old.fence.thread).await;
}

async fn a_parked_run_is_not_written(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.park(&claim.fence, "main").await;
    refused_everywhere(&stage, &claim).await;
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Waiting);
}

async fn a_released_run_is_not_written(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.release(&claim.fence).await;
    refused_everywhere(&stage, &claim).await;
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Queued);
}

async fn an_ended_run_is_not_written(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.finish(&claim, false).await;
    refused_everywhere(&stage, &claim).await;
    stage.check_thread(claim.fence.thread).await;
}

async fn a_wrong_epoch_is_fenced_whichever_way(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    for epoch in [0, 2, u64::MAX] {
        let fence = Fence { epoch, ..claim.fence.clone() };
        refused_everywhere(&stage, &Claim { fence, ..claim.clone() }).await;
    }
    assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { .. }));
}

async fn another_run_of_the_thread_is_not_the_holder(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "one", stage.replica().await).await;
    let waiting = stage.enqueue(claim.fence.thread, "two").await;
    let fence = Fence { run: waiting.id, ..claim.fence.clone() };
    refused_everywhere(&stage, &Claim { fence, ..claim.clone() }).await;
    let fence = Fence { run: stage.new_run(), ..claim.fence.clone() };
    refused_everywhere(&stage, &Claim { fence, ..claim }).await;
}

async fn another_thread_is_not_the_runs(stage: Stage) {
    let me = stage.replica().await;
    let one = stage.begin(stage.new_thread(), "one", me).await;
    let other = stage.begin(stage.new_thread(), "two", me).await;
    for thread in [other.fence.thread, stage.new_thread()] {
        let fence = Fence { thread, ..one.fence.clone() };
        refused_everywhere(&stage, &Claim { fence, ..one.clone() }).await;
    }
}

async fn an_old_version_is_a_conflict(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let first = stage.begin(thread, "one", me).await;
    stage.finish(&first, false).await;
    let second = stage.begin(thread, "two", me).await;
    let before = stage.log(thread).await;
    for version in [0, 2] {
        assert_eq!(stage.commit(&second.fence, version, true).await, TurnCommitted::VersionConflict);
    }
    assert_eq!(stage.log(thread).await, before);
    assert!(matches!(stage.commit(&second.fence, 1, true).await, TurnCommitted::Done { version: 2, .. }));
}

async fn every_fenced_write_is_counted(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.finish(&claim, false).await;
    let before = stage.n_fenced().await;
    refused_everywhere(&stage, &claim).await;
    assert_eq!(stage.n_fenced().await, before + 5, "step, turn, steering, park and release");
}

async fn a_hundred_fenced_writes_at_once_are_all_counted(stage: Stage) {
    let me = stage.replica().await;
    let mut claims = Vec::new();
    for _ in 0..10 {
        let claim = stage.begin(stage.new_thread(), "hello", me).await;
        stage.finish(&claim, false).await;
        claims.push(claim);
    }
    let before = stage.n_fenced().await;
    let writes = (0..100).map(|n| stage.release(&claims[n % 10].fence));
    for written in join_all(writes).await {
        assert_eq!(written, Written::Fenced);
    }
    assert_eq!(stage.n_fenced().await, before + 100);
}

async fn of_two_writers_from_one_version_one_is_refused(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let (one, other) = join(stage.finish(&claim, false), stage.finish(&claim, false)).await;
    let n_done = [&one, &other].iter().filter(|end| matches!(end, TurnCommitted::Done { .. })).count();
    assert_eq!(n_done, 1, "{one:?} {other:?}");
    assert!([one, other].contains(&TurnCommitted::Fenced));
    assert_eq!(stage.thread(claim.fence.thread).await.version, 1);
    stage.check_thread(claim.fence.thread).await;
}

/// Every fenced write with this claim is refused and leaves the log as it is.
async fn refused_everywhere(stage: &Stage, claim: &Claim) {
    let before = stage.log(claim.fence.thread).await;
    assert_eq!(stage.step(&claim.fence, vec![note("zombie")]).await, Written::Fenced);
    assert_eq!(stage.finish(claim, true).await, TurnCommitted::Fenced);
    assert_eq!(stage.take_steered(&claim.fence).await, Written::Fenced);
    assert_eq!(stage.park(&claim.fence, "main").await, Written::Fenced);
    assert_eq!(stage.release(&claim.fence).await, Written::Fenced);
    assert_eq!(stage.log(claim.fence.thread).await, before);
}
