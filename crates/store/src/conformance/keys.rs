//! Idempotency: one key, or one message of the client, is one run.

use evenkeel_core::port::store::{Admit, Admitted};
use evenkeel_core::run::RunSpec;

use super::Stage;
use super::samples::{key, message};
use super::stage::good;

super::cases! {
    the_same_key_is_the_same_run,
    the_same_key_still_knows_the_result,
    a_key_with_another_body_conflicts,
    a_key_holds_for_its_thread,
    a_key_that_makes_a_thread_holds_for_the_tenant,
    a_key_of_another_tenant_is_another,
    a_message_is_accepted_once,
    a_message_with_another_body_conflicts,
    a_message_of_another_thread_is_another,
    a_key_that_met_a_known_message_stays_with_its_run,
    the_same_run_id_is_the_same_run,
    a_run_id_of_another_thread_conflicts,
    a_replay_changes_nothing,
}

async fn the_same_key_is_the_same_run(stage: Stage) {
    let request = Admit { key: key("k"), ..stage.ask(stage.new_thread(), "hello") };
    let (run, _) = stage.accept(request.clone()).await;
    for _ in 0..3 {
        assert_eq!(again(&stage, &request).await, Admitted::Replayed(Box::new(run.clone())));
    }
    assert_eq!(stage.thread(run.thread).await.n_waiting, 0);
}

async fn the_same_key_still_knows_the_result(stage: Stage) {
    let me = stage.replica().await;
    let request = Admit { key: key("k"), claim_for: Some(me), ..stage.ask(stage.new_thread(), "hello") };
    let claim = stage.accept(request.clone()).await.1.expect("the thread was free");
    stage.finish(&claim, false).await;
    let Admitted::Replayed(run) = again(&stage, &request).await else {
        panic!("the key is known");
    };
    assert_eq!(*run, stage.run(claim.fence.run).await);
    assert!(run.outcome.is_some());
    stage.check_thread(run.thread).await;
}

async fn a_key_with_another_body_conflicts(stage: Stage) {
    let request = Admit { key: key("k"), ..stage.ask(stage.new_thread(), "hello") };
    let (run, _) = stage.accept(request.clone()).await;
    let other = Admit { key: key("k"), ..stage.ask(request.thread, "another") };
    assert_eq!(good(stage.store.admit(other).await), Admitted::KeyConflict);
    assert_eq!(stage.thread(run.thread).await.n_waiting, 0);
}

async fn a_key_holds_for_its_thread(stage: Stage) {
    let (one, other) = (stage.new_thread(), stage.new_thread());
    for thread in [one, other] {
        stage.enqueue(thread, "make the thread").await;
    }
    let in_thread =
        |thread, text: &str| Admit { key: key("k"), create_thread: false, ..stage.ask(thread, text) };
    let (first, _) = stage.accept(in_thread(one, "hello")).await;
    let (second, _) = stage.accept(in_thread(other, "hello")).await;
    assert_ne!(first.id, second.id);
    assert_eq!(again(&stage, &in_thread(one, "hello")).await, Admitted::Replayed(Box::new(first)));
}

async fn a_key_that_makes_a_thread_holds_for_the_tenant(stage: Stage) {
    let request = Admit { key: key("k"), ..stage.ask(stage.new_thread(), "hello") };
    let (run, _) = stage.accept(request.clone()).await;
    let elsewhere = Admit { thread: stage.new_thread(), ..request };
    assert_eq!(again(&stage, &elsewhere).await, Admitted::Replayed(Box::new(run)));
}

async fn a_key_of_another_tenant_is_another(stage: Stage) {
    let request = Admit { key: key("k"), ..stage.ask(stage.new_thread(), "hello") };
    let (first, _) = stage.accept(request).await;
    let foreign = Admit { key: key("k"), tenant: "other".into(), ..stage.ask(stage.new_thread(), "hello") };
    assert_ne!(stage.accept(foreign).await.0.id, first.id);
}

async fn a_message_is_accepted_once(stage: Stage) {
    let request = stage.ask(stage.new_thread(), "hello");
    let (run, _) = stage.accept(request.clone()).await;
    assert_eq!(again(&stage, &request).await, Admitted::Replayed(Box::new(run)));
}

async fn a_message_with_another_body_conflicts(stage: Stage) {
    let request = stage.ask(stage.new_thread(), "hello");
    stage.accept(request.clone()).await;
    let other = Admit { body_hash: "another".to_owned(), ..request };
    assert_eq!(again(&stage, &other).await, Admitted::KeyConflict);
}

async fn a_message_of_another_thread_is_another(stage: Stage) {
    let with_message = || {
        let admit = stage.ask(stage.new_thread(), "hello");
        let messages = vec![message("chosen by the client", "hello")];
        Admit { spec: RunSpec { messages, ..admit.spec.clone() }, ..admit }
    };
    let (first, _) = stage.accept(with_message()).await;
    let (second, _) = stage.accept(with_message()).await;
    assert_ne!(first.id, second.id);
}

async fn a_key_that_met_a_known_message_stays_with_its_run(stage: Stage) {
    let request = stage.ask(stage.new_thread(), "hello");
    let (run, _) = stage.accept(request.clone()).await;
    let with_key = Admit { key: key("k"), ..request.clone() };
    assert_eq!(again(&stage, &with_key).await, Admitted::Replayed(Box::new(run)));
    let other = Admit { key: key("k"), ..stage.ask(request.thread, "another") };
    assert_eq!(good(stage.store.admit(other).await), Admitted::KeyConflict);
}

async fn the_same_run_id_is_the_same_run(stage: Stage) {
    let request = stage.ask(stage.new_thread(), "hello");
    let (run, _) = stage.accept(request.clone()).await;
    assert_eq!(good(stage.store.admit(request).await), Admitted::Replayed(Box::new(run)));
}

async fn a_run_id_of_another_thread_conflicts(stage: Stage) {
    let request = stage.ask(stage.new_thread(), "hello");
    stage.accept(request.clone()).await;
    let elsewhere = Admit { run: request.run, ..stage.ask(stage.new_thread(), "hello") };
    assert_eq!(good(stage.store.admit(elsewhere.clone()).await), Admitted::KeyConflict);
    let foreign = Admit { tenant: "other".into(), ..elsewhere };
    assert_eq!(good(stage.store.admit(foreign).await), Admitted::KeyConflict);
}

async fn a_replay_changes_nothing(stage: Stage) {
    let me = stage.replica().await;
    let request = Admit { key: key("k"), ..stage.ask(stage.new_thread(), "hello") };
    let (run, _) = stage.accept(request.clone()).await;
    let before = (stage.thread(run.thread).await, stage.run(run.id).await);
    again(&stage, &Admit { claim_for: Some(me), ..request }).await;
    assert_eq!((stage.thread(run.thread).await, stage.run(run.id).await), before, "not even a claim");
}

/// The same request, sent again: the server gives it a new run id.
async fn again(stage: &Stage, request: &Admit) -> Admitted {
    good(stage.store.admit(Admit { run: stage.new_run(), ..request.clone() }).await)
}
