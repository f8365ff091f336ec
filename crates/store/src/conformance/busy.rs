//! The busy policies: what a second message does, with the thread's run in each of its states.

use std::time::Duration;

use evenkeel_core::id::{ReplicaId, RunId, ThreadId};
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::port::store::{
    Admit, Admitted, Cancelled, Claim, MergeWindow, Steal, TurnCommitted, Written,
};
use evenkeel_core::run::{BusyPolicy, EndReason, RunSpec, RunState};

use super::Stage;
use super::samples::{checkpoint, ended, note};
use super::stage::good;

super::cases! {
    an_interrupted_run_keeps_what_it_did,
    a_rolled_back_run_is_undone,
    a_run_that_completes_before_it_is_interrupted_stays_completed,
    a_run_that_completes_before_it_is_rolled_back_is_undone,
    nobodys_runs_are_replaced_at_once,
    a_parked_run_is_replaced_at_once,
    a_released_run_is_replaced_at_once,
    the_first_reason_stays_unless_a_later_one_undoes,
    a_dead_owners_run_ends_as_it_was_told_to,
    a_replaced_thread_is_never_full,
    an_undone_cancel_takes_the_conversation_back,
    an_undone_run_takes_its_summary_with_it,
    latest_replaces_only_what_waits,
    latest_replaces_a_turn_that_never_began,
    a_steering_message_enters_the_active_run,
    a_steering_message_that_comes_too_late_runs_next,
    a_stopping_run_is_not_steered,
    another_assistants_message_does_not_steer,
    messages_that_merge_wait_for_quiet,
    merged_messages_are_one_turn,
    a_merging_message_waits_no_longer_than_its_cap,
    only_what_directly_follows_is_merged,
    a_merged_turn_is_handed_over,
    a_delayed_turn_keeps_its_place,
    a_fork_begins_with_its_rewind,
    an_undone_fork_is_undone,
}

/// A second turn of this policy.
async fn second(stage: &Stage, thread: ThreadId, policy: BusyPolicy) -> (RunId, Vec<RunId>) {
    accepted(stage, stage.ask_with(thread, "second", policy)).await
}

async fn accepted(stage: &Stage, admit: Admit) -> (RunId, Vec<RunId>) {
    match good(stage.store.admit(admit).await) {
        Admitted::Accepted { run, stopping, .. } => (run.id, stopping),
        other => panic!("the turn was not accepted: {other:?}"),
    }
}

async fn reason(stage: &Stage, run: RunId) -> Option<EndReason> {
    stage.run(run).await.outcome.and_then(|outcome| outcome.reason)
}

/// Ends a run as its owner does when it was told to stop.
async fn give_in(stage: &Stage, claim: &Claim) -> Option<Box<Claim>> {
    let turn = evenkeel_core::port::store::CommitTurn {
        fence: claim.fence.clone(),
        version: claim.version,
        events: vec![note("closed")],
        outcome: ended(RunState::Cancelled),
        take_next: true,
    };
    match good(stage.store.commit_turn(turn).await) {
        TurnCommitted::Done { next, .. } => next,
        other => panic!("the turn did not end: {other:?}"),
    }
}

async fn an_interrupted_run_keeps_what_it_did(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let first = stage.begin(thread, "first", me).await;
    let waiting = stage.enqueue(thread, "waiting").await;
    let (by, stopping) = second(&stage, thread, BusyPolicy::Interrupt).await;
    assert_eq!(stopping, [first.fence.run]);
    let run = stage.run(first.fence.run).await;
    assert_eq!((run.state, run.stop), (RunState::Cancelling, Some(EndReason::Interrupted { by })));
    assert_eq!(stage.beat(me).await.cancels, [first.fence.run]);
    assert_eq!(reason(&stage, waiting.id).await, Some(EndReason::Interrupted { by }));
    let written = stage.step(&first.fence, vec![note("kept")]).await;
    assert!(matches!(written, Written::Done { cancelling: true, .. }));
    let next = give_in(&stage, &first).await.expect("the message is next");
    assert_eq!((next.fence.run, next.version, next.context_from), (by, 1, 1));
    assert_eq!(reason(&stage, first.fence.run).await, Some(EndReason::Interrupted { by }));
    let log = stage.log(thread).await;
    let expected = [
        "claimed epoch 1 attempt 1",
        "user first",
        "cancel requested",
        "ended cancelled interrupted",
        "note kept",
        "note closed",
        "ended cancelled interrupted",
        "claimed epoch 2 attempt 1",
        "user second",
    ];
    assert_eq!(log, expected);
    stage.check_thread(thread).await;
}

async fn a_rolled_back_run_is_undone(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let before = stage.begin(thread, "before", me).await;
    stage.finish(&before, false).await;
    let first = stage.begin(thread, "first", me).await;
    stage.step(&first.fence, vec![note("undone"), checkpoint(1)]).await;
    let (by, stopping) = second(&stage, thread, BusyPolicy::Rollback).await;
    assert_eq!(stopping, [first.fence.run]);
    let next = give_in(&stage, &first).await.expect("the message is next");
    assert_eq!((next.fence.run, next.version), (by, 2));
    assert_eq!(reason(&stage, first.fence.run).await, Some(EndReason::RolledBack { by }));
    let log = stage.log(thread).await;
    let expected =
        ["cancel requested", "note closed", "rewound to 4 rollback", "ended cancelled rolled back"];
    assert_eq!(log[8..12], expected);
    assert_eq!(kept(&stage, thread).await, ["before", "second"]);
    stage.check_thread(thread).await;
}

/// The user's messages that count.
async fn kept(stage: &Stage, thread: ThreadId) -> Vec<String> {
    let events = stage.events(thread).await;
    let texts = evenkeel_core::journal::counting(&events).into_iter().filter_map(|event| match &event.body {
        EventBody::UserMessage { message } => Some(message.joined_text()),
        _ => None,
    });
    texts.collect()
}

async fn a_run_that_completes_before_it_is_interrupted_stays_completed(stage: Stage) {
    let first = stage.begin(stage.new_thread(), "first", stage.replica().await).await;
    let (by, _) = second(&stage, first.fence.thread, BusyPolicy::Interrupt).await;
    let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&first, true).await else {
        panic!("the message is next");
    };
    assert_eq!(next.fence.run, by);
    let outcome = stage.run(first.fence.run).await.outcome.expect("it has ended");
    assert_eq!(outcome, ended(RunState::Completed));
    stage.check_thread(first.fence.thread).await;
}

async fn a_run_that_completes_before_it_is_rolled_back_is_undone(stage: Stage) {
    let first = stage.begin(stage.new_thread(), "first", stage.replica().await).await;
    let (by, _) = second(&stage, first.fence.thread, BusyPolicy::Rollback).await;
    stage.finish(&first, true).await;
    let outcome = stage.run(first.fence.run).await.outcome.expect("it has ended");
    assert_eq!((outcome.state, outcome.reason), (RunState::Cancelled, Some(EndReason::RolledBack { by })));
    assert_eq!(outcome.text, "", "an answer that does not count is not shown as one");
    assert_eq!(kept(&stage, first.fence.thread).await, ["second"]);
    stage.check_thread(first.fence.thread).await;
}

async fn nobodys_runs_are_replaced_at_once(stage: Stage) {
    let me = stage.replica().await;
    for policy in [BusyPolicy::Interrupt, BusyPolicy::Rollback] {
        let thread = stage.new_thread();
        let queued = [stage.enqueue(thread, "one").await.id, stage.enqueue(thread, "two").await.id];
        let ask = Admit { claim_for: Some(me), ..stage.ask_with(thread, "second", policy) };
        let (run, claim) = stage.accept(ask).await;
        let claim = claim.expect("the thread is free");
        assert_eq!((run.state, claim.version), (RunState::Running, 0));
        for replaced in queued {
            let replaced = stage.run(replaced).await;
            assert_eq!((replaced.state, replaced.version), (RunState::Cancelled, None));
        }
        assert_eq!(kept(&stage, thread).await, ["second"]);
        stage.finish(&claim, false).await;
        stage.check_thread(thread).await;
    }
}

async fn a_parked_run_is_replaced_at_once(stage: Stage) {
    let me = stage.replica().await;
    for (policy, left) in
        [(BusyPolicy::Interrupt, vec!["first", "second"]), (BusyPolicy::Rollback, vec!["second"])]
    {
        let first = stage.begin(stage.new_thread(), "first", me).await;
        stage.park(&first.fence, "main").await;
        let ask = Admit { claim_for: Some(me), ..stage.ask_with(first.fence.thread, "second", policy) };
        let claim = stage.accept(ask).await.1.expect("the thread is free");
        assert_eq!((claim.version, stage.run(first.fence.run).await.version), (1, Some(1)));
        assert!(stage.wake(me, "main", 9).await.is_empty());
        assert_eq!(kept(&stage, first.fence.thread).await, left);
        stage.check_thread(first.fence.thread).await;
    }
}

async fn a_released_run_is_replaced_at_once(stage: Stage) {
    let me = stage.replica().await;
    let first = stage.begin(stage.new_thread(), "first", me).await;
    stage.release(&first.fence).await;
    let (by, stopping) = second(&stage, first.fence.thread, BusyPolicy::Rollback).await;
    assert_eq!(stopping, []);
    assert_eq!(reason(&stage, first.fence.run).await, Some(EndReason::RolledBack { by }));
    assert_eq!(stage.finish(&first, true).await, TurnCommitted::Fenced);
    assert_eq!(stage.ready(me, 9).await.remove(0).fence.run, by);
    assert_eq!(kept(&stage, first.fence.thread).await, ["second"]);
    stage.check_thread(first.fence.thread).await;
}

async fn the_first_reason_stays_unless_a_later_one_undoes(stage: Stage) {
    let first = stage.begin(stage.new_thread(), "first", stage.replica().await).await;
    let (thread, run) = (first.fence.thread, first.fence.run);
    stage.cancel(run).await;
    second(&stage, thread, BusyPolicy::Interrupt).await;
    assert_eq!(stage.run(run).await.stop, Some(EndReason::Requested));
    let (by, stopping) = second(&stage, thread, BusyPolicy::Rollback).await;
    assert_eq!(stopping, [run]);
    assert_eq!(stage.run(run).await.stop, Some(EndReason::RolledBack { by }));
    assert_eq!(stage.undo(run, false).await, Cancelled::Cancelling);
    stage.cancel(run).await;
    assert_eq!(stage.run(run).await.stop, Some(EndReason::RolledBack { by }));
    let n_asked = stage.log(thread).await.iter().filter(|word| *word == "cancel requested").count();
    assert_eq!(n_asked, 1);
    give_in(&stage, &first).await;
    stage.check_thread(thread).await;
}

async fn a_dead_owners_run_ends_as_it_was_told_to(stage: Stage) {
    let (dead, me) = (stage.replica().await, stage.replica().await);
    let first = stage.begin(stage.new_thread(), "first", dead).await;
    let (by, _) = second(&stage, first.fence.thread, BusyPolicy::Rollback).await;
    assert!(good(stage.store.steal(Steal { me, dead: vec![dead], limit: 9 }).await).is_empty());
    assert_eq!(reason(&stage, first.fence.run).await, Some(EndReason::RolledBack { by }));
    assert_eq!(stage.ready(me, 9).await.remove(0).fence.run, by);
    assert_eq!(kept(&stage, first.fence.thread).await, ["second"]);
    stage.check_thread(first.fence.thread).await;
}

async fn a_replaced_thread_is_never_full(stage: Stage) {
    let first = stage.begin(stage.new_thread(), "first", stage.replica().await).await;
    let thread = first.fence.thread;
    let limited = |policy| Admit { n_waiting_max: 2, ..stage.ask_with(thread, "more", policy) };
    for _ in 0..2 {
        accepted(&stage, limited(BusyPolicy::Latest)).await;
        accepted(&stage, limited(BusyPolicy::Steer)).await;
        assert_eq!(good(stage.store.admit(limited(BusyPolicy::Enqueue)).await), Admitted::Full);
        assert_eq!(good(stage.store.admit(limited(BusyPolicy::Merge)).await), Admitted::Full);
        let before = stage.log(thread).await;
        assert_eq!(good(stage.store.admit(limited(BusyPolicy::Steer)).await), Admitted::Full);
        assert_eq!(stage.log(thread).await, before);
        accepted(&stage, limited(BusyPolicy::Latest)).await;
        accepted(&stage, limited(BusyPolicy::Interrupt)).await;
        assert_eq!(stage.thread(thread).await.n_waiting, 1);
        accepted(&stage, limited(BusyPolicy::Rollback)).await;
        assert_eq!(stage.thread(thread).await.n_waiting, 1);
        give_in(
            &stage,
            &Claim { version: stage.thread(thread).await.version, ..newest(&stage, thread).await },
        )
        .await;
    }
    stage.check_thread(thread).await;
}

/// The claim of the run that is active on the thread.
async fn newest(stage: &Stage, thread: ThreadId) -> Claim {
    let stored = stage.thread(thread).await;
    let run = stage.run(stored.active.expect("a run is active")).await;
    let fence = evenkeel_core::port::store::Fence {
        tenant: stored.tenant.clone(),
        thread,
        run: run.id,
        epoch: stored.epoch,
    };
    Claim {
        fence,
        version: stored.version,
        context_from: 1,
        seq_last: stored.seq_last,
        thread_created_at: stored.created_at,
        run,
    }
}

async fn an_undone_cancel_takes_the_conversation_back(stage: Stage) {
    let me = stage.replica().await;
    for (force, expected) in [(false, Cancelled::Cancelling), (true, Cancelled::Done)] {
        let first = stage.begin(stage.new_thread(), "first", me).await;
        stage.step(&first.fence, vec![checkpoint(1)]).await;
        assert_eq!(stage.undo(first.fence.run, force).await, expected);
        if !force {
            give_in(&stage, &first).await;
        }
        assert_eq!(reason(&stage, first.fence.run).await, Some(EndReason::Undone));
        assert!(kept(&stage, first.fence.thread).await.is_empty());
        stage.check_thread(first.fence.thread).await;
    }
    let queued = stage.enqueue(stage.new_thread(), "never begun").await;
    assert_eq!(stage.undo(queued.id, false).await, Cancelled::Done);
    assert_eq!(stage.log(queued.thread).await, ["cancel requested", "ended cancelled undone"]);
}

fn summary(to: u64) -> NewEvent {
    let summary = Some("so far".to_owned());
    NewEvent {
        step: 1,
        body: EventBody::Compacted { from: 1, to, summary, tokens_before: 9, tokens_after: 1 },
    }
}

async fn an_undone_run_takes_its_summary_with_it(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let one = stage.begin(thread, "one", me).await;
    stage.step(&one.fence, vec![summary(2)]).await;
    stage.finish(&one, false).await;
    let two = stage.begin(thread, "two", me).await;
    assert_eq!(two.context_from, 3);
    stage.step(&two.fence, vec![note("a"), summary(7)]).await;
    stage.undo(two.fence.run, true).await;
    let three = stage.begin(thread, "three", me).await;
    assert_eq!(three.context_from, 3, "the context is again what it was before the run");
    stage.finish(&three, false).await;
    let fork = |from_seq| {
        let ask = Admit { claim_for: Some(me), ..stage.ask(thread, "four") };
        Admit { spec: RunSpec { from_seq: Some(from_seq), ..ask.spec.clone() }, ..ask }
    };
    let four = stage.accept(fork(stage.thread(thread).await.seq_last)).await.1.expect("it is free");
    assert_eq!(four.context_from, 3);
    stage.finish(&four, false).await;
    let five = stage.accept(fork(4)).await.1.expect("it is free");
    assert_eq!(five.context_from, 1, "where it began then is not known");
    stage.check_thread(thread).await;
}

async fn latest_replaces_only_what_waits(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let ask = Admit { claim_for: Some(me), ..stage.ask_with(thread, "first", BusyPolicy::Latest) };
    let first = stage.accept(ask).await.1.expect("it is free");
    let queued = stage.enqueue(thread, "queued").await;
    let (old, _) = second(&stage, thread, BusyPolicy::Latest).await;
    let (new, stopping) = second(&stage, thread, BusyPolicy::Latest).await;
    assert_eq!(stopping, []);
    assert_eq!(reason(&stage, old).await, Some(EndReason::Superseded { by: new }));
    assert_eq!(stage.run(first.fence.run).await.state, RunState::Running);
    assert_eq!(stage.run(queued.id).await.state, RunState::Queued);
    assert_eq!((stage.run(queued.id).await.position, stage.run(new).await.position), (0, 1));
    stage.check_thread(thread).await;
}

async fn latest_replaces_a_turn_that_never_began(stage: Stage) {
    let thread = stage.new_thread();
    let (old, _) = second(&stage, thread, BusyPolicy::Latest).await;
    let queued = stage.enqueue(thread, "queued").await;
    let (new, _) = second(&stage, thread, BusyPolicy::Latest).await;
    assert_eq!(reason(&stage, old).await, Some(EndReason::Superseded { by: new }));
    let claim = stage.ready(stage.replica().await, 9).await.remove(0);
    assert_eq!(claim.fence.run, queued.id, "what waited before it comes before it");
    let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&claim, true).await else {
        panic!("the message is next");
    };
    assert_eq!(next.fence.run, new);
    stage.check_thread(thread).await;
}

async fn a_steering_message_enters_the_active_run(stage: Stage) {
    let first = stage.begin(stage.new_thread(), "first", stage.replica().await).await;
    let thread = first.fence.thread;
    let written = stage.step(&first.fence, vec![checkpoint(1)]).await;
    assert_eq!(written, Written::Done { seq_last: 3, cancelling: false, steered: false });
    let one = second(&stage, thread, BusyPolicy::Steer).await.0;
    let queued = stage.enqueue(thread, "queued").await;
    let two = second(&stage, thread, BusyPolicy::Steer).await.0;
    let written = stage.step(&first.fence, Vec::new()).await;
    assert_eq!(written, Written::Done { seq_last: 3, cancelling: false, steered: true });
    let taken = stage.take_steered(&first.fence).await;
    assert_eq!(taken, Written::Done { seq_last: 7, cancelling: false, steered: false });
    for run in [one, two] {
        assert_eq!(reason(&stage, run).await, Some(EndReason::Steered { into: first.fence.run }));
        assert_eq!(stage.run(run).await.version, None);
    }
    assert_eq!(stage.thread(thread).await.n_waiting, 1);
    assert_eq!(stage.run(queued.id).await.position, 0);
    let entered = stage.events(thread).await.remove(3);
    assert_eq!((entered.run, entered.step), (first.fence.run, 2));
    let again = stage.take_steered(&first.fence).await;
    assert_eq!(again, Written::Done { seq_last: 7, cancelling: false, steered: false });
    stage.finish(&first, true).await;
    stage.check_thread(thread).await;
}

async fn a_steering_message_that_comes_too_late_runs_next(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let ask = Admit { claim_for: Some(me), ..stage.ask_with(thread, "first", BusyPolicy::Steer) };
    let first = stage.accept(ask).await.1.expect("a free thread runs it");
    let late = second(&stage, thread, BusyPolicy::Steer).await.0;
    let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&first, true).await else {
        panic!("the message is next");
    };
    assert_eq!(next.fence.run, late);
    stage.check_thread(thread).await;
}

async fn a_stopping_run_is_not_steered(stage: Stage) {
    let first = stage.begin(stage.new_thread(), "first", stage.replica().await).await;
    stage.cancel(first.fence.run).await;
    let late = second(&stage, first.fence.thread, BusyPolicy::Steer).await.0;
    let written = stage.step(&first.fence, Vec::new()).await;
    assert!(matches!(written, Written::Done { cancelling: true, steered: false, .. }));
    let taken = stage.take_steered(&first.fence).await;
    assert!(matches!(taken, Written::Done { cancelling: true, steered: false, .. }));
    assert_eq!(give_in(&stage, &first).await.expect("it is next").fence.run, late);
    stage.check_thread(first.fence.thread).await;
}

async fn another_assistants_message_does_not_steer(stage: Stage) {
    let first = stage.begin(stage.new_thread(), "first", stage.replica().await).await;
    let ask = stage.ask_with(first.fence.thread, "second", BusyPolicy::Steer);
    let spec = RunSpec { assistant: "coder".to_owned(), ..ask.spec.clone() };
    let other = accepted(&stage, Admit { spec, ..ask }).await.0;
    stage.take_steered(&first.fence).await;
    assert_eq!(stage.run(other).await.state, RunState::Queued);
    stage.check_thread(first.fence.thread).await;
}

const QUIET: Duration = Duration::from_millis(3_000);

async fn messages_that_merge_wait_for_quiet(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let ask = Admit { claim_for: Some(me), ..stage.ask_with(thread, "one", BusyPolicy::Merge) };
    let (one, claim) = stage.accept(ask).await;
    assert!(claim.is_none(), "more may come");
    assert_eq!(one.not_before, Some(stage.env.wall().after(QUIET)));
    stage.clock.advance(Duration::from_millis(2_999));
    assert!(stage.ready(me, 9).await.is_empty());
    let two = second(&stage, thread, BusyPolicy::Merge).await.0;
    assert_eq!(stage.run(one.id).await.not_before, Some(stage.env.wall().after(QUIET)));
    stage.clock.advance(Duration::from_millis(2_999));
    assert!(stage.ready(me, 9).await.is_empty());
    stage.check_thread(thread).await;
    stage.clock.advance(Duration::from_millis(1));
    let claim = stage.ready(me, 9).await.remove(0);
    assert_eq!((claim.fence.run, claim.run.not_before), (one.id, None));
    assert_eq!(reason(&stage, two).await, Some(EndReason::Merged { into: one.id }));
    stage.check_thread(thread).await;
}

async fn merged_messages_are_one_turn(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let one = second(&stage, thread, BusyPolicy::Merge).await.0;
    for text in ["two", "three"] {
        accepted(&stage, stage.ask_with(thread, text, BusyPolicy::Merge)).await;
    }
    stage.clock.advance(QUIET);
    let claim = stage.ready(me, 9).await.remove(0);
    let log = stage.log(thread).await;
    let expected = [
        "claimed epoch 1 attempt 1",
        "user second",
        "user two",
        "ended cancelled merged",
        "user three",
        "ended cancelled merged",
    ];
    assert_eq!(log, expected);
    assert_eq!(stage.thread(thread).await.n_waiting, 0);
    let done = stage.finish(&claim, true).await;
    assert!(matches!(done, TurnCommitted::Done { version: 1, next: None, .. }), "one turn, one version");
    assert_eq!(stage.run(one).await.state, RunState::Completed);
    stage.check_thread(thread).await;
}

async fn a_merging_message_waits_no_longer_than_its_cap(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let merge = MergeWindow { quiet_ms: 3_000, cap_ms: 5_000 };
    let ask = || Admit { merge, ..stage.ask_with(thread, "more", BusyPolicy::Merge) };
    accepted(&stage, ask()).await;
    for _ in 0..2 {
        stage.clock.advance(Duration::from_millis(2_000));
        accepted(&stage, ask()).await;
        assert!(stage.ready(me, 9).await.is_empty());
    }
    stage.clock.advance(Duration::from_millis(1_000));
    stage.ready(me, 9).await.remove(0);
    assert_eq!(kept(&stage, thread).await, ["more"; 3]);
    let at_once = MergeWindow { quiet_ms: 0, cap_ms: 0 };
    let ask = stage.ask_with(stage.new_thread(), "alone", BusyPolicy::Merge);
    let ask = Admit { merge: at_once, claim_for: Some(me), ..ask };
    assert!(stage.accept(ask).await.1.is_some(), "without a window nothing waits");
}

async fn only_what_directly_follows_is_merged(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let first = second(&stage, thread, BusyPolicy::Merge).await.0;
    stage.enqueue(thread, "between").await;
    let other = second(&stage, thread, BusyPolicy::Merge).await.0;
    let ask = stage.ask_with(thread, "coder", BusyPolicy::Merge);
    let spec = RunSpec { assistant: "coder".to_owned(), ..ask.spec.clone() };
    let coder = accepted(&stage, Admit { spec, ..ask }).await.0;
    stage.clock.advance(QUIET);
    let mut claim = Some(Box::new(stage.ready(me, 9).await.remove(0)));
    let mut ran = Vec::new();
    while let Some(now) = claim.take() {
        stage.check_thread(thread).await;
        ran.push(now.fence.run);
        if let TurnCommitted::Done { next, .. } = stage.finish(&now, true).await {
            claim = next;
        }
    }
    assert_eq!(ran.len(), 4, "nothing was merged");
    assert_eq!((ran[0], ran[2], ran[3]), (first, other, coder));
}

async fn a_merged_turn_is_handed_over(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let first = stage.begin(thread, "first", me).await;
    let one = second(&stage, thread, BusyPolicy::Merge).await.0;
    let two = second(&stage, thread, BusyPolicy::Merge).await.0;
    let TurnCommitted::Done { next: None, .. } = stage.finish(&first, true).await else {
        panic!("the window is still open");
    };
    assert_eq!(stage.thread(thread).await.active, Some(one));
    stage.check_thread(thread).await;
    stage.clock.advance(QUIET);
    let claim = stage.ready(me, 9).await.remove(0);
    assert_eq!(claim.fence.run, one);
    assert_eq!(stage.run(two).await.state, RunState::Cancelled);
    let three = second(&stage, thread, BusyPolicy::Merge).await.0;
    stage.clock.advance(QUIET);
    let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&claim, true).await else {
        panic!("it has waited long enough");
    };
    assert_eq!(next.fence.run, three);
    stage.check_thread(thread).await;
}

async fn a_delayed_turn_keeps_its_place(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let ask = Admit { delay_ms: 10_000, claim_for: Some(me), ..stage.ask(thread, "later") };
    let (delayed, claim) = stage.accept(ask).await;
    assert!(claim.is_none());
    let waiting = stage.enqueue(thread, "behind").await;
    stage.clock.advance(Duration::from_millis(9_999));
    assert!(stage.ready(me, 9).await.is_empty());
    stage.check_thread(thread).await;
    stage.clock.advance(Duration::from_millis(1));
    let claim = stage.ready(me, 9).await.remove(0);
    assert_eq!(claim.fence.run, delayed.id);
    let TurnCommitted::Done { next: Some(next), .. } = stage.finish(&claim, true).await else {
        panic!("the next turn waits");
    };
    assert_eq!(next.fence.run, waiting.id);
    stage.check_thread(thread).await;
}

/// Two turns on a thread, and a claimed run that builds on the first.
async fn forked(stage: &Stage) -> (ThreadId, ReplicaId, Claim) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    for text in ["one", "two"] {
        let claim = stage.begin(thread, text, me).await;
        stage.finish(&claim, false).await;
    }
    let ask = Admit { claim_for: Some(me), ..stage.ask(thread, "fork") };
    let spec = RunSpec { from_seq: Some(4), ..ask.spec.clone() };
    let claim = stage.accept(Admit { spec, ..ask }).await.1.expect("it is free");
    (thread, me, claim)
}

async fn a_fork_begins_with_its_rewind(stage: Stage) {
    let (thread, me, claim) = forked(&stage).await;
    let log = stage.log(thread).await;
    assert_eq!(log[8..], ["rewound to 4 fork", "claimed epoch 3 attempt 1", "user fork"]);
    assert_eq!(kept(&stage, thread).await, ["one", "fork"]);
    stage.release(&claim.fence).await;
    stage.ready(me, 9).await;
    assert_eq!(stage.log(thread).await[11..], ["claimed epoch 4 attempt 2"], "it goes back once");
    stage.check_thread(thread).await;
}

async fn an_undone_fork_is_undone(stage: Stage) {
    let (thread, _, claim) = forked(&stage).await;
    stage.undo(claim.fence.run, true).await;
    assert_eq!(kept(&stage, thread).await, ["one", "two"]);
    stage.check_thread(thread).await;
}
