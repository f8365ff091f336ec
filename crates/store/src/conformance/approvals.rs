//! Approvals: a run that waits for a person, and what becomes of answers.

use std::time::Duration;

use evenkeel_core::approval::{Approval, Decision};
use evenkeel_core::id::{ApprovalId, CallId, IdempotencyKey, ReplicaId, RunId, TenantId};
use evenkeel_core::port::store::{
    Admit, Answer, AnswerTaken, Cancelled, Claim, OneAnswer, Park, Wake, Written,
};
use evenkeel_core::run::{BusyPolicy, Run, RunState, WaitReason};

use super::Stage;
use super::stage::good;

super::cases! {
    a_question_waits_for_its_answer,
    an_answer_counts_once,
    answers_are_taken_all_or_none,
    an_answer_is_bound_to_its_run_and_tenant,
    a_question_that_expired_wakes_its_run,
    an_answer_with_a_known_key_changes_nothing,
    a_run_that_ended_asks_nobody,
    a_message_waits_behind_a_question,
    an_answered_run_runs_before_what_waits,
}

/// How long the questions of these cases are open.
const OPEN_FOR: Duration = Duration::from_secs(30);

fn asked(stage: &Stage, run: RunId, call_idx: u32) -> Approval {
    let now = stage.env.wall();
    Approval {
        id: ApprovalId::of(run, 1, call_idx, "0123456789abcdef"),
        step: 1,
        call_id: CallId::of(run, 1, call_idx),
        tool: "bash".to_owned(),
        digest: "0123456789abcdef".to_owned(),
        reason: "it reaches the network".to_owned(),
        args_shown: "{}".to_owned(),
        policies: vec!["ask-network".to_owned()],
        asked_at: now,
        expires_at: now.after(OPEN_FOR),
        answer: None,
    }
}

/// A run that asks about this many calls.
async fn asking(stage: &Stage, me: ReplicaId, n_calls: u32) -> (Claim, Vec<Approval>) {
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    let approvals: Vec<Approval> = (0..n_calls).map(|idx| asked(stage, claim.fence.run, idx)).collect();
    let park = Park {
        fence: claim.fence.clone(),
        on: WaitReason::Approval,
        reason: "bash waits for an approval".to_owned(),
        until_hint: Some(stage.env.wall().after(OPEN_FOR)),
        route: None,
        approvals: approvals.clone(),
        events: Vec::new(),
    };
    assert!(matches!(good(stage.store.park(park).await), Written::Done { .. }));
    (claim, approvals)
}

fn yes(of: &Approval) -> OneAnswer {
    OneAnswer { approval: of.id.clone(), decision: Decision::Approve, note: String::new() }
}

fn no(of: &Approval) -> OneAnswer {
    OneAnswer { decision: Decision::Deny, note: "not today".to_owned(), ..yes(of) }
}

fn with(stage: &Stage, run: RunId, answers: Vec<OneAnswer>) -> Answer {
    Answer { tenant: stage.tenant.clone(), run, answers, by: "ann".to_owned(), key: None }
}

async fn taken(stage: &Stage, request: Answer) -> Run {
    match good(stage.store.answer(request).await) {
        AnswerTaken::Done { run, seq_last } => {
            assert_eq!(stage.thread(run.thread).await.seq_last, seq_last);
            *run
        }
        other => panic!("the answer was not taken: {other:?}"),
    }
}

async fn is_closed(stage: &Stage, request: Answer) -> bool {
    matches!(good(stage.store.answer(request).await), AnswerTaken::Closed(_))
}

async fn wake(stage: &Stage, me: ReplicaId) -> Vec<Claim> {
    good(stage.store.wake(Wake { me, on: WaitReason::Approval, route: None, limit: 9 }).await)
}

async fn a_question_waits_for_its_answer(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 2).await;
    let run = claim.fence.run;
    assert_eq!(stage.run(run).await.asks(), approvals);
    assert!(wake(&stage, me).await.is_empty() && stage.ready(me, 9).await.is_empty());
    let one = taken(&stage, with(&stage, run, vec![yes(&approvals[0])])).await;
    let answer = one.asks()[0].answer.clone().expect("it is stored");
    assert_eq!(
        (answer.decision, answer.by.as_str(), answer.at),
        (Decision::Approve, "ann", stage.env.wall())
    );
    assert_eq!((one.state, one.asks()[1].answer.is_none()), (RunState::Waiting, true));
    assert!(stage.ready(me, 9).await.is_empty(), "one question is open still");
    stage.check_thread(claim.fence.thread).await;
    let two = taken(&stage, with(&stage, run, vec![no(&approvals[1])])).await;
    assert_eq!((two.state, two.position, &two.wait), (RunState::Queued, 0, &None));
    stage.check_thread(claim.fence.thread).await;
    let resumed = stage.ready(me, 9).await.remove(0);
    assert_eq!((resumed.fence.epoch, resumed.run.attempt, resumed.fence.run), (2, 2, run));
    let log = [
        "claimed epoch 1 attempt 1",
        "user hello",
        "parked",
        "approve by ann",
        "deny by ann not today",
        "claimed epoch 2 attempt 2",
    ];
    assert_eq!(stage.log(claim.fence.thread).await, log);
    stage.check_thread(claim.fence.thread).await;
}

async fn an_answer_counts_once(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 2).await;
    let run = claim.fence.run;
    taken(&stage, with(&stage, run, vec![no(&approvals[0])])).await;
    assert!(is_closed(&stage, with(&stage, run, vec![yes(&approvals[0])])).await, "answered");
    taken(&stage, with(&stage, run, vec![yes(&approvals[1])])).await;
    assert!(is_closed(&stage, with(&stage, run, vec![yes(&approvals[0])])).await, "queued");
    let resumed = stage.ready(me, 9).await.remove(0);
    assert!(is_closed(&stage, with(&stage, run, vec![yes(&approvals[0])])).await, "running");
    stage.finish(&resumed, true).await;
    assert!(is_closed(&stage, with(&stage, run, vec![yes(&approvals[0])])).await, "ended");
    stage.check_thread(claim.fence.thread).await;
}

async fn answers_are_taken_all_or_none(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 2).await;
    let run = claim.fence.run;
    let unknown = OneAnswer { approval: ApprovalId::of(run, 1, 7, "else"), ..yes(&approvals[0]) };
    for answers in
        [Vec::new(), vec![yes(&approvals[0]), unknown], vec![yes(&approvals[0]), no(&approvals[0])]]
    {
        assert!(is_closed(&stage, with(&stage, run, answers)).await);
    }
    assert_eq!(stage.run(run).await.asks(), approvals, "nothing was stored");
    let both = taken(&stage, with(&stage, run, approvals.iter().map(yes).collect())).await;
    assert_eq!(both.state, RunState::Queued);
    stage.check_thread(claim.fence.thread).await;
}

async fn an_answer_is_bound_to_its_run_and_tenant(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 1).await;
    let (other, _) = asking(&stage, me, 1).await;
    let foreign =
        Answer { tenant: TenantId::from("other"), ..with(&stage, claim.fence.run, vec![yes(&approvals[0])]) };
    assert_eq!(good(stage.store.answer(foreign).await), AnswerTaken::NotFound);
    assert!(is_closed(&stage, with(&stage, other.fence.run, vec![yes(&approvals[0])])).await);
    for run in [claim.fence.run, other.fence.run] {
        assert_eq!(stage.run(run).await.state, RunState::Waiting);
    }
}

async fn a_question_that_expired_wakes_its_run(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 1).await;
    stage.clock.advance(OPEN_FOR);
    assert!(is_closed(&stage, with(&stage, claim.fence.run, vec![yes(&approvals[0])])).await, "too late");
    let woken = wake(&stage, me).await.remove(0);
    assert_eq!((woken.fence.run, woken.run.attempt), (claim.fence.run, 2));
    assert!(wake(&stage, me).await.is_empty());
    stage.check_thread(claim.fence.thread).await;
}

async fn an_answer_with_a_known_key_changes_nothing(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 1).await;
    let run = claim.fence.run;
    let keyed =
        Answer { key: Some(IdempotencyKey::from("answer-1")), ..with(&stage, run, vec![yes(&approvals[0])]) };
    assert_eq!(taken(&stage, keyed.clone()).await.id, run);
    let before = stage.log(claim.fence.thread).await;
    match good(stage.store.answer(keyed.clone()).await) {
        AnswerTaken::Replayed(again) => assert_eq!(again.id, run),
        other => panic!("the request is known: {other:?}"),
    }
    assert_eq!(stage.log(claim.fence.thread).await, before);
    // A key that made a run answers nothing.
    let admit = stage.ask(claim.fence.thread, "next");
    let key = IdempotencyKey::from("made");
    stage.accept(Admit { key: Some(key.clone()), create_thread: false, ..admit }).await;
    let request = Answer { key: Some(key), ..keyed };
    assert_eq!(good(stage.store.answer(request).await), AnswerTaken::KeyConflict);
    stage.check_thread(claim.fence.thread).await;
}

async fn a_run_that_ended_asks_nobody(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 1).await;
    let run = claim.fence.run;
    assert_eq!(stage.cancel(run).await, Cancelled::Done);
    assert!(stage.run(run).await.asks().is_empty());
    assert!(is_closed(&stage, with(&stage, run, vec![yes(&approvals[0])])).await);
    stage.check_thread(claim.fence.thread).await;
}

async fn a_message_waits_behind_a_question(stage: Stage) {
    let me = stage.replica().await;
    let (claim, _) = asking(&stage, me, 1).await;
    let behind = stage.enqueue(claim.fence.thread, "behind").await;
    assert_eq!(behind.position, 0);
    assert!(stage.ready(me, 9).await.is_empty(), "the next turn waits for the answer");
    let instead = stage.ask_with(claim.fence.thread, "instead", BusyPolicy::Interrupt);
    let (instead, _) = stage.accept(instead).await;
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Cancelled);
    assert_eq!(stage.ready(me, 9).await.remove(0).fence.run, instead.id);
    stage.check_thread(claim.fence.thread).await;
}

async fn an_answered_run_runs_before_what_waits(stage: Stage) {
    let me = stage.replica().await;
    let (claim, approvals) = asking(&stage, me, 1).await;
    stage.enqueue(claim.fence.thread, "behind").await;
    taken(&stage, with(&stage, claim.fence.run, vec![yes(&approvals[0])])).await;
    let resumed = stage.ready(me, 9).await;
    assert_eq!(resumed.iter().map(|claim| claim.fence.run).collect::<Vec<_>>(), [claim.fence.run]);
    stage.check_thread(claim.fence.thread).await;
}
