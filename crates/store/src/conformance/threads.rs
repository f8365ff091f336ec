//! Threads: changed, listed, written to by a client, and removed with all that is theirs.

use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::port::store::{
    Admit, Admitted, CreateThread, Deleted, GetBlob, ListRuns, ListThreads, PutBlob, RunRef, StateWrite,
    ThreadRef, ThreadSort, TurnCommitted, UpdateThread, WriteState,
};
use evenkeel_core::run::{BusyPolicy, RunState};
use evenkeel_core::thread::Thread;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::Stage;
use super::samples::{key, message, note, settle_with};
use super::stage::good;

super::cases! {
    metadata_is_merged_beside_a_turn,
    a_hundred_changes_at_once_are_all_there,
    a_thread_has_its_policy,
    threads_are_listed_by_what_they_are,
    a_list_has_its_order_and_its_pages,
    a_thread_knows_the_state_of_its_newest_run,
    a_busy_thread_is_not_deleted,
    a_deleted_thread_is_gone_with_everything,
    a_blob_stays_while_another_thread_names_it,
    an_open_run_is_not_deleted,
    a_deleted_run_is_in_no_list_and_stays_in_the_log,
    a_client_writes_state_between_turns,
    state_is_not_written_beside_a_run,
    a_client_writes_no_events_of_a_run,
}

fn all(stage: &Stage) -> ListThreads {
    ListThreads {
        tenant: stage.tenant.clone(),
        ids: Vec::new(),
        metadata: json!({}),
        busy: None,
        newest: Vec::new(),
        sort: ThreadSort::CreatedAt,
        descending: false,
        limit: 100,
        offset: 0,
    }
}

async fn made(stage: &Stage, metadata: Value) -> ThreadId {
    let thread = stage.new_thread();
    let tenant = stage.tenant.clone();
    let request = CreateThread { tenant, thread, metadata, busy_policy: None };
    good(stage.store.create_thread(request).await);
    stage.clock.advance(std::time::Duration::from_millis(5));
    thread
}

async fn listed(stage: &Stage, list: ListThreads) -> Vec<ThreadId> {
    let unpaged = ListThreads { limit: u32::MAX, offset: 0, ..list.clone() };
    let n_all = good(stage.store.list_threads(unpaged).await).len() as u64;
    assert_eq!(good(stage.store.count_threads(list.clone()).await), n_all, "the count is that of the list");
    good(stage.store.list_threads(list).await).into_iter().map(|thread| thread.id).collect()
}

async fn update(stage: &Stage, thread: ThreadId, metadata: Value) -> Option<Thread> {
    let tenant = stage.tenant.clone();
    good(stage.store.update_thread(UpdateThread { tenant, thread, metadata, busy_policy: None }).await)
}

async fn delete(stage: &Stage, thread: ThreadId) -> Deleted {
    good(stage.store.delete_thread(ThreadRef { tenant: stage.tenant.clone(), thread }).await)
}

async fn delete_run(stage: &Stage, run: RunId) -> Deleted {
    good(stage.store.delete_run(RunRef { tenant: stage.tenant.clone(), run }).await)
}

async fn metadata_is_merged_beside_a_turn(stage: Stage) {
    let thread = made(&stage, json!({ "a": 1, "b": { "c": 2 } })).await;
    let claim = stage.begin(thread, "hello", stage.replica().await).await;
    let changed = update(&stage, thread, json!({ "b": null, "d": "x".repeat(20_000) })).await;
    let changed = changed.expect("the thread is there");
    assert_eq!(changed.metadata, json!({ "a": 1, "b": null, "d": "x".repeat(20_000) }));
    assert_eq!((changed.version, changed.epoch), (0, 1));
    assert_eq!(stage.thread(thread).await, changed);
    assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { version: 1, .. }));
    assert_eq!(update(&stage, stage.new_thread(), json!({})).await, None);
    stage.check_thread(thread).await;
}

async fn a_hundred_changes_at_once_are_all_there(stage: Stage) {
    let thread = made(&stage, json!({})).await;
    let claim = stage.begin(thread, "hello", stage.replica().await).await;
    let changes = (0..100).map(|n| update(&stage, thread, json!({ format!("call {n}"): n })));
    join_all(changes).await;
    let stored = stage.thread(thread).await;
    let expected: serde_json::Map<String, Value> =
        (0..100).map(|n| (format!("call {n}"), json!(n))).collect();
    assert_eq!(stored.metadata, Value::Object(expected));
    assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { version: 1, .. }));
    stage.check_thread(thread).await;
}

async fn a_thread_has_its_policy(stage: Stage) {
    let thread = stage.new_thread();
    let tenant = stage.tenant.clone();
    let busy_policy = Some(BusyPolicy::Merge);
    let request = CreateThread { tenant: tenant.clone(), thread, metadata: json!({}), busy_policy };
    good(stage.store.create_thread(request).await);
    assert_eq!(stage.thread(thread).await.busy_policy, busy_policy);
    let change =
        |busy_policy| UpdateThread { tenant: tenant.clone(), thread, metadata: json!({}), busy_policy };
    good(stage.store.update_thread(change(None)).await);
    assert_eq!(stage.thread(thread).await.busy_policy, busy_policy, "unnamed, it stays");
    good(stage.store.update_thread(change(Some(BusyPolicy::Reject))).await);
    assert_eq!(stage.thread(thread).await.busy_policy, Some(BusyPolicy::Reject));
}

async fn threads_are_listed_by_what_they_are(stage: Stage) {
    let me = stage.replica().await;
    let long = "y".repeat(9_000);
    let idle = made(&stage, json!({ "topic": "boats", "long": long })).await;
    let busy = made(&stage, json!({ "topic": "boats", "n": 1 })).await;
    let done = made(&stage, json!({ "topic": { "deep": true } })).await;
    stage.begin(busy, "hello", me).await;
    let claim = stage.begin(done, "hello", me).await;
    stage.finish(&claim, false).await;
    let foreign = CreateThread {
        tenant: "other".into(),
        thread: stage.new_thread(),
        metadata: json!({ "topic": "boats" }),
        busy_policy: None,
    };
    good(stage.store.create_thread(foreign).await);
    let with = |metadata: Value| ListThreads { metadata, ..all(&stage) };
    assert_eq!(listed(&stage, all(&stage)).await, [idle, busy, done]);
    assert_eq!(listed(&stage, with(json!({ "topic": "boats" }))).await, [idle, busy]);
    assert_eq!(listed(&stage, with(json!({ "long": long }))).await, [idle]);
    assert_eq!(listed(&stage, with(json!({ "topic": "boats", "n": 2 }))).await, []);
    assert_eq!(listed(&stage, with(json!({ "topic": { "deep": true } }))).await, [done]);
    assert_eq!(listed(&stage, ListThreads { busy: Some(true), ..all(&stage) }).await, [busy]);
    assert_eq!(listed(&stage, ListThreads { busy: Some(false), ..all(&stage) }).await, [idle, done]);
    let newest = vec![RunState::Completed, RunState::Failed];
    assert_eq!(listed(&stage, ListThreads { newest, ..all(&stage) }).await, [done]);
    let ids = vec![done, stage.new_thread(), idle];
    assert_eq!(listed(&stage, ListThreads { ids, ..all(&stage) }).await, [idle, done]);
}

async fn a_list_has_its_order_and_its_pages(stage: Stage) {
    let mut threads = Vec::new();
    for n in 0..5 {
        threads.push(made(&stage, json!({ "n": n })).await);
    }
    update(&stage, threads[1], json!({ "touched": true })).await;
    let backwards: Vec<ThreadId> = threads.iter().rev().copied().collect();
    let page = |descending, offset| ListThreads { descending, offset, limit: 2, ..all(&stage) };
    assert_eq!(listed(&stage, page(false, 1)).await, threads[1..3]);
    assert_eq!(listed(&stage, page(true, 0)).await, backwards[..2]);
    assert_eq!(listed(&stage, page(true, 4)).await, backwards[4..]);
    assert_eq!(listed(&stage, page(true, 9)).await, []);
    assert_eq!(listed(&stage, ListThreads { limit: 0, ..all(&stage) }).await, []);
    let by_update = ListThreads { sort: ThreadSort::UpdatedAt, descending: true, limit: 1, ..all(&stage) };
    assert_eq!(listed(&stage, by_update).await, [threads[1]]);
    let mut by_id = threads.clone();
    by_id.sort();
    assert_eq!(listed(&stage, ListThreads { sort: ThreadSort::Id, ..all(&stage) }).await, by_id);
}

async fn a_thread_knows_the_state_of_its_newest_run(stage: Stage) {
    let thread = made(&stage, json!({})).await;
    assert_eq!(stage.thread(thread).await.newest_state, None);
    let claim = stage.begin(thread, "one", stage.replica().await).await;
    assert_eq!(stage.thread(thread).await.newest_state, Some(RunState::Running));
    let second = stage.enqueue(thread, "two").await;
    assert_eq!(stage.thread(thread).await.newest_state, Some(RunState::Queued));
    stage.finish(&claim, true).await;
    assert_eq!(stage.thread(thread).await.newest_state, Some(RunState::Running));
    assert_eq!(stage.thread(thread).await.newest_run, Some(second.id));
}

async fn a_busy_thread_is_not_deleted(stage: Stage) {
    let waiting = stage.enqueue(stage.new_thread(), "one").await;
    assert_eq!(delete(&stage, waiting.thread).await, Deleted::Busy);
    stage.check_thread(waiting.thread).await;
    stage.cancel(waiting.id).await;
    assert_eq!(delete(&stage, waiting.thread).await, Deleted::Done);
    assert_eq!(delete(&stage, waiting.thread).await, Deleted::NotFound);
    assert_eq!(delete(&stage, stage.new_thread()).await, Deleted::NotFound);
}

async fn a_deleted_thread_is_gone_with_everything(stage: Stage) {
    let me = stage.replica().await;
    let other = stage.begin(stage.new_thread(), "untouched", me).await;
    let request = Admit { key: key("k"), claim_for: Some(me), ..stage.ask(stage.new_thread(), "one") };
    let thread = request.thread;
    let claim = stage.accept(request.clone()).await.1.expect("the thread is free");
    stage.step(&claim.fence, vec![super::samples::intend("write"), super::samples::settle("write")]).await;
    stage.finish(&claim, false).await;
    assert_eq!(delete(&stage, thread).await, Deleted::Done);
    assert_eq!(stage.log(thread).await, [""; 0]);
    let run = RunRef { tenant: stage.tenant.clone(), run: claim.fence.run };
    assert_eq!(good(stage.store.get_run(run.clone()).await), None);
    assert!(good(stage.store.read_effects(run).await).is_empty());
    assert_eq!(stage.finish(&claim, false).await, TurnCommitted::Fenced);
    // Its keys and ids are free: the same request makes it anew.
    let again = Admit { run: stage.new_run(), ..request };
    assert!(matches!(good(stage.store.admit(again).await), Admitted::Accepted { .. }));
    stage.check_thread(thread).await;
    stage.finish(&other, false).await;
    stage.check_thread(other.fence.thread).await;
}

async fn a_blob_stays_while_another_thread_names_it(stage: Stage) {
    let me = stage.replica().await;
    let bytes = b"the whole output".repeat(100);
    let blob = good(stage.store.put_blob(PutBlob { bytes: bytes.clone() }).await);
    let mut threads = Vec::new();
    for _ in 0..2 {
        let claim = stage.begin(stage.new_thread(), "hello", me).await;
        stage.step(&claim.fence, vec![settle_with("write", blob.clone()), note(&"z".repeat(9_000))]).await;
        stage.finish(&claim, false).await;
        threads.push(claim.fence.thread);
    }
    let read = || stage.store.get_blob(GetBlob { blob: blob.clone(), offset: 0, limit: u64::MAX });
    assert_eq!(delete(&stage, threads[0]).await, Deleted::Done);
    assert_eq!(good(read().await), Some(bytes));
    assert_eq!(stage.log(threads[1]).await[3], format!("note {}", "z".repeat(9_000)));
    assert_eq!(delete(&stage, threads[1]).await, Deleted::Done);
    assert_eq!(good(read().await), None);
}

async fn an_open_run_is_not_deleted(stage: Stage) {
    let claim = stage.begin(stage.new_thread(), "one", stage.replica().await).await;
    let waiting = stage.enqueue(claim.fence.thread, "two").await;
    for run in [claim.fence.run, waiting.id] {
        assert_eq!(delete_run(&stage, run).await, Deleted::Busy);
    }
    assert_eq!(delete_run(&stage, stage.new_run()).await, Deleted::NotFound);
    stage.check_thread(claim.fence.thread).await;
}

async fn a_deleted_run_is_in_no_list_and_stays_in_the_log(stage: Stage) {
    let me = stage.replica().await;
    let first = stage.begin(stage.new_thread(), "one", me).await;
    let thread = first.fence.thread;
    stage.finish(&first, false).await;
    let request = Admit { key: key("k"), claim_for: Some(me), ..stage.ask(thread, "two") };
    let second = stage.accept(request.clone()).await.1.expect("the thread is free");
    stage.finish(&second, false).await;
    let log = stage.log(thread).await;
    assert_eq!(delete_run(&stage, second.fence.run).await, Deleted::Done);
    assert_eq!(delete_run(&stage, second.fence.run).await, Deleted::NotFound);
    let run = RunRef { tenant: stage.tenant.clone(), run: second.fence.run };
    assert_eq!(good(stage.store.get_run(run).await), None);
    let list = ListRuns { tenant: None, thread: Some(thread), states: Vec::new(), limit: 10, offset: 0 };
    let left: Vec<RunId> = good(stage.store.list_runs(list).await).iter().map(|run| run.id).collect();
    assert_eq!(left, [first.fence.run]);
    let completed = good(stage.store.counts(()).await).runs.contains(&(RunState::Completed, 1));
    assert!(completed, "it is not counted");
    assert_eq!(stage.log(thread).await, log);
    let stored = stage.thread(thread).await;
    assert_eq!((stored.newest_run, stored.newest_state), (Some(first.fence.run), Some(RunState::Completed)));
    // Sent again it is not run again.
    let again = Admit { run: stage.new_run(), ..request };
    assert!(matches!(good(stage.store.admit(again).await), Admitted::Replayed(_)));
}

async fn write(stage: &Stage, thread: ThreadId, bodies: Vec<EventBody>) -> StateWrite {
    let (tenant, writer) = (stage.tenant.clone(), stage.new_run());
    let events = bodies.into_iter().map(|body| NewEvent { step: 0, body }).collect();
    good(stage.store.write_state(WriteState { tenant, thread, writer, events }).await)
}

fn edit(text: &str) -> EventBody {
    let messages = vec![message("m1", text)];
    EventBody::StateWritten { messages, values: json!({ "mood": text }), as_node: None }
}

async fn a_client_writes_state_between_turns(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let claim = stage.begin(thread, "one", me).await;
    stage.finish(&claim, false).await;
    let back = EventBody::Rewound { to: 2, cause: "fork".to_owned() };
    assert_eq!(
        write(&stage, thread, vec![back, edit("a")]).await,
        StateWrite::Done { version: 2, seq_last: 6 }
    );
    let stored = stage.thread(thread).await;
    assert_eq!((stored.version, stored.epoch, stored.seq_last), (2, 2, 6));
    assert_eq!((stored.active, stored.newest_run), (None, Some(claim.fence.run)));
    let next = stage.begin(thread, "two", me).await;
    assert_eq!((next.version, next.fence.epoch), (2, 3));
    assert!(matches!(stage.finish(&next, false).await, TurnCommitted::Done { version: 3, .. }));
    let writer = stage.events(thread).await[5].run;
    let run = RunRef { tenant: stage.tenant.clone(), run: writer };
    assert_eq!(good(stage.store.get_run(run).await), None, "a writer is no run");
    assert_eq!(write(&stage, stage.new_thread(), vec![edit("a")]).await, StateWrite::NotFound);
    assert_eq!(delete(&stage, thread).await, Deleted::Done);
}

async fn state_is_not_written_beside_a_run(stage: Stage) {
    let waiting = stage.enqueue(stage.new_thread(), "one").await;
    let busy = StateWrite::Busy(waiting.id);
    assert_eq!(write(&stage, waiting.thread, vec![edit("a")]).await, busy);
    let claim = stage.ready(stage.replica().await, 1).await.remove(0);
    assert_eq!(write(&stage, waiting.thread, vec![edit("a")]).await, busy);
    stage.park(&claim.fence, "main").await;
    assert_eq!(write(&stage, waiting.thread, vec![edit("a")]).await, busy);
    stage.cancel(waiting.id).await;
    assert!(matches!(write(&stage, waiting.thread, vec![edit("a")]).await, StateWrite::Done { .. }));
}

async fn a_client_writes_no_events_of_a_run(stage: Stage) {
    let thread = made(&stage, json!({})).await;
    let (tenant, writer) = (stage.tenant.clone(), stage.new_run());
    let foul = WriteState { tenant, thread, writer, events: vec![note("a")] };
    assert!(stage.store.write_state(foul.clone()).await.is_err());
    let claim = stage.begin(thread, "one", stage.replica().await).await;
    stage.finish(&claim, false).await;
    let events = vec![NewEvent { step: 0, body: edit("a") }];
    let as_a_run = WriteState { writer: claim.fence.run, events, ..foul };
    assert!(stage.store.write_state(as_a_run).await.is_err());
    stage.check_thread(thread).await;
}
