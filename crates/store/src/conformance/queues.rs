//! Turns that wait on a busy thread: their order, their limit, and that none is forgotten.

use evenkeel_core::port::store::{Admit, Admitted, TurnCommitted};
use evenkeel_core::run::BusyPolicy;
use futures_util::future::join_all;

use super::Stage;
use super::stage::good;

super::cases! {
    a_second_message_waits_in_order,
    the_end_of_a_turn_takes_the_next,
    the_end_of_a_turn_leaves_the_next_claimable,
    reject_names_the_active_run,
    reject_sees_a_run_that_only_waits_for_its_claim,
    of_many_at_once_that_reject_one_is_accepted,
    many_at_once_wait_in_one_line,
    a_full_thread_takes_no_more,
    a_known_request_is_answered_though_the_thread_is_full,
    a_parked_run_keeps_its_thread,
    two_threads_do_not_wait_for_each_other,
}

async fn a_second_message_waits_in_order(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let first = stage.begin(thread, "one", me).await;
    let second = Admit { claim_for: Some(me), ..stage.ask(thread, "two") };
    let (second, claim) = stage.accept(second).await;
    assert!(claim.is_none(), "the thread is held");
    let third = stage.enqueue(thread, "three").await;
    assert_eq!((second.position, third.position), (0, 1));
    assert_eq!(stage.run(third.id).await.position, 1);
    let stored = stage.thread(thread).await;
    assert_eq!((stored.active, stored.n_waiting), (Some(first.fence.run), 2));
    assert_eq!(stored.newest_run, Some(third.id));
    assert!(stage.ready(me, 9).await.is_empty(), "what waits behind a holder cannot be claimed");
    stage.check_thread(thread).await;
}

async fn the_end_of_a_turn_takes_the_next(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let mut claim = stage.begin(thread, "one", me).await;
    let mut expected = vec![claim.fence.run];
    for text in ["two", "three"] {
        expected.push(stage.enqueue(thread, text).await.id);
    }
    let mut ran = vec![claim.fence.run];
    while let TurnCommitted::Done { next: Some(next), version, .. } = stage.finish(&claim, true).await {
        assert_eq!((next.version, next.fence.epoch), (version, claim.fence.epoch + 1));
        assert_eq!(next.run.owner, Some(me));
        claim = *next;
        ran.push(claim.fence.run);
        stage.check_thread(thread).await;
    }
    assert_eq!(ran, expected, "in order of arrival");
    let users: Vec<String> =
        stage.log(thread).await.into_iter().filter(|line| line.starts_with("user")).collect();
    assert_eq!(users, ["user one", "user two", "user three"]);
    stage.check_thread(thread).await;
}

async fn the_end_of_a_turn_leaves_the_next_claimable(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "one", me).await;
    let waiting = stage.enqueue(thread, "two").await;
    let done = stage.finish(&claim, false).await;
    assert!(matches!(done, TurnCommitted::Done { next: None, .. }));
    stage.check_thread(thread).await;
    let claims = stage.ready(me, 9).await;
    assert_eq!(claims.iter().map(|claim| claim.fence.run).collect::<Vec<_>>(), [waiting.id]);
    stage.check_thread(thread).await;
}

async fn reject_names_the_active_run(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "one", me).await;
    let busy = good(stage.store.admit(stage.ask_with(thread, "second", BusyPolicy::Reject)).await);
    assert_eq!(busy, Admitted::Busy(claim.fence.run));
    stage.finish(&claim, false).await;
    stage.accept(stage.ask_with(thread, "second", BusyPolicy::Reject)).await;
    stage.check_thread(thread).await;
}

async fn reject_sees_a_run_that_only_waits_for_its_claim(stage: Stage) {
    let thread = stage.new_thread();
    let queued = stage.enqueue(thread, "one").await;
    let busy = good(stage.store.admit(stage.ask_with(thread, "second", BusyPolicy::Reject)).await);
    assert_eq!(busy, Admitted::Busy(queued.id));
}

async fn of_many_at_once_that_reject_one_is_accepted(stage: Stage) {
    let thread = stage.new_thread();
    let asked = (0..20).map(|n| {
        let ask = stage.ask_with(thread, &format!("message {n}"), BusyPolicy::Reject);
        stage.store.admit(ask)
    });
    let (mut accepted, mut named) = (Vec::new(), Vec::new());
    for answer in join_all(asked).await {
        match good(answer) {
            Admitted::Accepted { run, .. } => accepted.push(run.id),
            Admitted::Busy(active) => named.push(active),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((accepted.len(), named.len()), (1, 19));
    assert!(named.iter().all(|active| *active == accepted[0]), "each refusal names the one that runs");
    stage.check_thread(thread).await;
}

async fn many_at_once_wait_in_one_line(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let asked = (0..12).map(|n| stage.store.admit(stage.ask(thread, &format!("message {n}"))));
    let mut expected = Vec::new();
    for answer in join_all(asked).await {
        match good(answer) {
            Admitted::Accepted { run, .. } => expected.push((run.position, run.id)),
            other => panic!("{other:?}"),
        }
    }
    let mut claim = stage.ready(me, 9).await.remove(0);
    assert!(stage.ready(me, 9).await.is_empty(), "one run of a thread at a time");
    let mut ran = vec![claim.fence.run];
    while let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&claim, true).await {
        claim = *next;
        ran.push(claim.fence.run);
    }
    assert_eq!(ran.len(), 12, "nobody is lost");
    let mut told: Vec<_> = expected.iter().filter(|(_, run)| *run != ran[0]).copied().collect();
    told.sort_unstable();
    assert_eq!(
        told.iter().map(|(_, run)| *run).collect::<Vec<_>>(),
        ran[1..],
        "each has the place it was told"
    );
    stage.check_thread(thread).await;
}

async fn a_full_thread_takes_no_more(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "one", me).await;
    let limited = |text: &str| Admit { n_waiting_max: 2, ..stage.ask(thread, text) };
    stage.accept(limited("two")).await;
    stage.accept(limited("three")).await;
    assert_eq!(good(stage.store.admit(limited("four")).await), Admitted::Full);
    stage.finish(&claim, true).await;
    stage.accept(limited("four")).await;
    stage.check_thread(thread).await;
}

async fn a_known_request_is_answered_though_the_thread_is_full(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    stage.begin(thread, "one", me).await;
    let request = Admit { n_waiting_max: 1, key: super::samples::key("k"), ..stage.ask(thread, "two") };
    let (run, _) = stage.accept(request.clone()).await;
    let again = Admit { run: stage.new_run(), ..request };
    assert_eq!(good(stage.store.admit(again).await), Admitted::Replayed(Box::new(run)));
}

async fn a_parked_run_keeps_its_thread(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "one", me).await;
    let waiting = stage.enqueue(thread, "two").await;
    stage.park(&claim.fence, "main").await;
    assert!(stage.ready(me, 9).await.is_empty(), "the next turn waits for the parked one");
    assert_eq!(stage.thread(thread).await.active, Some(claim.fence.run));
    stage.check_thread(thread).await;
    let woken = stage.wake(me, "main", 9).await.remove(0);
    let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&woken, true).await else {
        panic!("the waiting turn is handed over");
    };
    assert_eq!(next.fence.run, waiting.id);
    stage.check_thread(thread).await;
}

async fn two_threads_do_not_wait_for_each_other(stage: Stage) {
    let me = stage.replica().await;
    let one = stage.begin(stage.new_thread(), "one", me).await;
    let other = stage.begin(stage.new_thread(), "two", me).await;
    assert_eq!((one.fence.epoch, other.fence.epoch), (1, 1));
}
