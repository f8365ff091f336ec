//! Effects: at most one intent and one result each, whatever is repeated.

use evenkeel_core::port::store::{CommitTurn, Park, RunRef, Written};
use evenkeel_core::run::{RunState, WaitReason};

use super::Stage;
use super::samples::{ended, intend, note, settle};
use super::stage::good;

super::cases! {
    effects_are_read_in_order,
    an_intent_is_stored_once,
    a_result_is_stored_once,
    a_refused_batch_leaves_nothing,
    one_batch_may_intend_and_settle,
    one_batch_may_not_repeat_itself,
    a_denied_call_has_a_result_without_an_intent,
    effects_of_a_park_are_kept,
    a_turn_does_not_settle_twice,
    effects_belong_to_their_run,
}

async fn effects_are_read_in_order(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.step(&claim.fence, vec![intend("zeta"), intend("alpha")]).await;
    stage.step(&claim.fence, vec![settle("alpha")]).await;
    assert_eq!(effects(&stage, &claim).await, [("zeta".to_owned(), false), ("alpha".to_owned(), true)]);
}

async fn an_intent_is_stored_once(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.step(&claim.fence, vec![intend("write")]).await;
    let again = stage.step(&claim.fence, vec![intend("write")]).await;
    assert_eq!(again, Written::EffectExists("write".into()));
}

async fn a_result_is_stored_once(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.step(&claim.fence, vec![intend("write")]).await;
    stage.step(&claim.fence, vec![settle("write")]).await;
    for repeated in [settle("write"), intend("write")] {
        let again = stage.step(&claim.fence, vec![repeated]).await;
        assert_eq!(again, Written::EffectExists("write".into()));
    }
}

async fn a_refused_batch_leaves_nothing(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.step(&claim.fence, vec![intend("write")]).await;
    let before = stage.log(claim.fence.thread).await;
    let batch = vec![note("a"), intend("other"), intend("write")];
    assert_eq!(stage.step(&claim.fence, batch).await, Written::EffectExists("write".into()));
    assert_eq!(stage.log(claim.fence.thread).await, before);
    assert_eq!(effects(&stage, &claim).await.len(), 1);
    stage.check_thread(claim.fence.thread).await;
}

async fn one_batch_may_intend_and_settle(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.step(&claim.fence, vec![intend("write"), settle("write")]).await;
    assert_eq!(effects(&stage, &claim).await, [("write".to_owned(), true)]);
}

async fn one_batch_may_not_repeat_itself(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    for batch in [
        vec![intend("write"), intend("write")],
        vec![settle("write"), settle("write")],
        vec![settle("write"), intend("write")],
    ] {
        assert_eq!(stage.step(&claim.fence, batch).await, Written::EffectExists("write".into()));
    }
    assert!(effects(&stage, &claim).await.is_empty());
}

async fn a_denied_call_has_a_result_without_an_intent(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let written = stage.step(&claim.fence, vec![settle("denied")]).await;
    assert!(matches!(written, Written::Done { .. }));
    assert!(effects(&stage, &claim).await.is_empty(), "what was never intended is no effect");
    let again = stage.step(&claim.fence, vec![settle("denied")]).await;
    assert_eq!(again, Written::EffectExists("denied".into()));
}

async fn effects_of_a_park_are_kept(stage: Stage) {
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    let park = |events| Park {
        fence: claim.fence.clone(),
        on: WaitReason::Tool,
        reason: "the tool is away".to_owned(),
        until_hint: None,
        route: None,
        approvals: Vec::new(),
        events,
    };
    let twice = good(stage.store.park(park(vec![intend("write"), intend("write")])).await);
    assert_eq!(twice, Written::EffectExists("write".into()));
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Running, "a refused park parks nothing");
    good(stage.store.park(park(vec![intend("write")])).await);
    assert_eq!(effects(&stage, &claim).await, [("write".to_owned(), false)]);
    stage.check_thread(claim.fence.thread).await;
}

async fn a_turn_does_not_settle_twice(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.step(&claim.fence, vec![intend("write"), settle("write")]).await;
    let turn = CommitTurn {
        fence: claim.fence.clone(),
        version: claim.version,
        events: vec![settle("write")],
        outcome: ended(RunState::Completed),
        take_next: false,
    };
    assert!(stage.store.commit_turn(turn).await.is_err(), "a caller that settles twice is at fault");
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Running);
    stage.check_thread(claim.fence.thread).await;
}

async fn effects_belong_to_their_run(stage: Stage) {
    let me = stage.replica().await;
    let one = stage.begin(stage.new_thread(), "one", me).await;
    let other = stage.begin(stage.new_thread(), "two", me).await;
    stage.step(&one.fence, vec![intend("write")]).await;
    assert!(effects(&stage, &other).await.is_empty());
}

async fn effects(stage: &Stage, claim: &evenkeel_core::port::store::Claim) -> Vec<(String, bool)> {
    let of = RunRef { tenant: stage.tenant.clone(), run: claim.fence.run };
    let effects = good(stage.store.read_effects(of).await);
    effects.into_iter().map(|effect| (effect.intent.tool, effect.result.is_some())).collect()
}
