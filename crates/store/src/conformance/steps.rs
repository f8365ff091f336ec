//! Steps: what the store reads from the events it appends.

use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::message::Usage;
use evenkeel_core::port::store::{ReadEvents, Written};
use evenkeel_core::run::RunState;

use super::Stage;
use super::samples::{attempt, checkpoint, note, reply};
use super::stage::good;

super::cases! {
    a_step_tells_the_newest_sequence_number,
    a_step_sent_again_is_refused,
    a_step_behind_the_end_of_a_waiting_turn_is_refused,
    a_checkpoint_sets_the_step,
    attempts_add_to_the_usage,
    a_summary_moves_the_context,
    stubs_and_later_ranges_leave_the_context,
    events_are_read_from_a_cursor,
    a_body_of_any_size_comes_back,
    a_step_learns_of_a_cancel,
}

async fn a_step_tells_the_newest_sequence_number(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let written = stage.step(&claim.fence, vec![note("a"), note("b")]).await;
    assert_eq!(written, Written::Done { seq_last: 4, cancelling: false, steered: false });
    let written = stage.step(&claim.fence, Vec::new()).await;
    assert_eq!(written, Written::Done { seq_last: 4, cancelling: false, steered: false });
    stage.check_thread(claim.fence.thread).await;
}

async fn a_step_sent_again_is_refused(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let step = || stage.step_from(&claim.fence, 2, vec![note("a"), checkpoint(1)]);
    assert!(matches!(step().await, Written::Done { seq_last: 4, .. }));
    assert_eq!(step().await, Written::SeqConflict { seq_last: 4 });
    let ahead = stage.step_from(&claim.fence, 5, vec![note("b")]).await;
    assert_eq!(ahead, Written::SeqConflict { seq_last: 4 });
    assert_eq!(stage.log(claim.fence.thread).await.len(), 4);
    let usage = Usage { input_tokens: 10, cached_input_tokens: 0, output_tokens: 3, estimated: false };
    for _ in 0..2 {
        stage.step_from(&claim.fence, 4, vec![reply(2, "hi", usage)]).await;
    }
    assert_eq!(stage.run(claim.fence.run).await.usage, usage, "a refused step costs nothing");
}

async fn a_step_behind_the_end_of_a_waiting_turn_is_refused(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let waiting = stage.enqueue(claim.fence.thread, "more").await;
    stage.cancel(waiting.id).await;
    let written = stage.step_from(&claim.fence, 2, vec![note("a")]).await;
    let Written::SeqConflict { seq_last } = written else { panic!("{written:?}") };
    let written = stage.step_from(&claim.fence, seq_last, vec![note("a")]).await;
    assert!(matches!(written, Written::Done { cancelling: false, .. }));
    stage.check_thread(claim.fence.thread).await;
}

async fn a_checkpoint_sets_the_step(stage: Stage) {
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    stage.step(&claim.fence, vec![checkpoint(1)]).await;
    stage.step(&claim.fence, vec![note("in step 2")]).await;
    assert_eq!(stage.run(claim.fence.run).await.step, 1);
    stage.step(&claim.fence, vec![checkpoint(2)]).await;
    stage.release(&claim.fence).await;
    assert_eq!(stage.ready(me, 1).await.remove(0).run.step, 2, "a resumed run knows its step");
}

async fn attempts_add_to_the_usage(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let usage = Usage { input_tokens: 10, cached_input_tokens: 4, output_tokens: 3, estimated: false };
    let wasted = Usage { estimated: true, ..usage };
    let failed = EventBody::ModelAttempts { attempts: vec![attempt(wasted), attempt(usage)] };
    stage.step(&claim.fence, vec![NewEvent { step: 1, body: failed }, reply(1, "hi", usage)]).await;
    let total = Usage { input_tokens: 30, cached_input_tokens: 12, output_tokens: 9, estimated: true };
    assert_eq!(stage.run(claim.fence.run).await.usage, total);
}

async fn a_summary_moves_the_context(stage: Stage) {
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    let mut events: Vec<NewEvent> = (0..8).map(|idx| note(&format!("{idx}"))).collect();
    events.push(compacted(1, 6, Some("so far")));
    stage.step(&claim.fence, events).await;
    stage.release(&claim.fence).await;
    let resumed = stage.ready(me, 1).await.remove(0);
    assert_eq!(resumed.context_from, 7, "the context begins behind the summarised range");
    stage.step(&resumed.fence, vec![compacted(7, 100, Some("more"))]).await;
    stage.release(&resumed.fence).await;
    let again = stage.ready(me, 1).await.remove(0);
    let newest = stage
        .events(claim.fence.thread)
        .await
        .into_iter()
        .rfind(|event| matches!(event.body, EventBody::Compacted { .. }));
    assert_eq!(Some(again.context_from), newest.map(|event| event.seq), "the summary itself stays in it");
}

async fn stubs_and_later_ranges_leave_the_context(stage: Stage) {
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "hello", me).await;
    stage.step(&claim.fence, vec![note("a"), note("b"), compacted(1, 3, None)]).await;
    stage.step(&claim.fence, vec![compacted(3, 4, Some("a middle part"))]).await;
    stage.release(&claim.fence).await;
    assert_eq!(stage.ready(me, 1).await.remove(0).context_from, 1);
}

async fn events_are_read_from_a_cursor(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.step(&claim.fence, (0..10).map(|idx| note(&format!("{idx}"))).collect()).await;
    let read = |after_seq, limit| ReadEvents {
        tenant: stage.tenant.clone(),
        thread: claim.fence.thread,
        after_seq,
        limit,
    };
    let seqs = |events: Vec<evenkeel_core::journal::Event>| -> Vec<u64> {
        events.iter().map(|event| event.seq).collect()
    };
    assert_eq!(seqs(good(stage.store.read_events(read(4, 3)).await)), [5, 6, 7]);
    assert_eq!(seqs(good(stage.store.read_events(read(11, 3)).await)), [12]);
    assert!(good(stage.store.read_events(read(12, 3)).await).is_empty());
    assert!(good(stage.store.read_events(read(u64::MAX, 3)).await).is_empty());
    assert!(good(stage.store.read_events(read(0, 0)).await).is_empty());
}

async fn a_body_of_any_size_comes_back(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    for size in [0, 1, 8_000, 8_192, 9_000, 300_000] {
        let text = "ü".repeat(size);
        stage.step(&claim.fence, vec![note(&text)]).await;
        let newest = stage.log(claim.fence.thread).await.pop();
        assert_eq!(newest, Some(format!("note {text}")));
    }
    stage.check_thread(claim.fence.thread).await;
}

async fn a_step_learns_of_a_cancel(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.cancel(claim.fence.run).await;
    let written = stage.step(&claim.fence, vec![note("a")]).await;
    assert!(matches!(written, Written::Done { cancelling: true, .. }));
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Cancelling);
    stage.check_thread(claim.fence.thread).await;
}

fn compacted(from: u64, to: u64, summary: Option<&str>) -> NewEvent {
    let summary = summary.map(str::to_owned);
    let body = EventBody::Compacted { from, to, summary, tokens_before: 100, tokens_after: 10 };
    NewEvent { step: 1, body }
}
