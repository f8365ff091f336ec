//! Lists, counts, blobs and API keys.

use evenkeel_core::id::BlobId;
use evenkeel_core::port::store::{ApiKey, GetBlob, ListRuns, PutBlob};
use evenkeel_core::run::{Run, RunState};

use super::Stage;
use super::stage::good;

super::cases! {
    runs_are_listed_newest_first,
    counts_tell_every_state,
    blobs_are_named_by_their_content,
    blobs_are_read_in_ranges,
    an_unknown_blob_is_none,
    api_keys_are_kept,
    unknown_things_are_none,
}

async fn runs_are_listed_newest_first(stage: Stage) {
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let first = stage.begin(thread, "one", me).await.fence.run;
    let second = stage.enqueue(thread, "two").await.id;
    let third = stage.enqueue(stage.new_thread(), "three").await.id;
    let all =
        ListRuns { tenant: Some(stage.tenant.clone()), thread: None, states: vec![], limit: 9, offset: 0 };
    let ids = |runs: Vec<Run>| runs.iter().map(|run| run.id).collect::<Vec<_>>();
    let list = |list: ListRuns| async { ids(good(stage.store.list_runs(list).await)) };
    assert_eq!(list(all.clone()).await, [third, second, first]);
    assert_eq!(list(ListRuns { limit: 1, offset: 1, ..all.clone() }).await, [second]);
    assert_eq!(list(ListRuns { thread: Some(thread), ..all.clone() }).await, [second, first]);
    assert_eq!(list(ListRuns { states: vec![RunState::Running], ..all.clone() }).await, [first]);
    let open = vec![RunState::Running, RunState::Queued];
    assert_eq!(list(ListRuns { states: open, ..all.clone() }).await, [third, second, first]);
    assert!(list(ListRuns { states: vec![RunState::Failed], ..all }).await.is_empty());
}

async fn counts_tell_every_state(stage: Stage) {
    let me = stage.replica().await;
    let claim = stage.begin(stage.new_thread(), "done", me).await;
    stage.finish(&claim, false).await;
    stage.enqueue(stage.new_thread(), "queued").await;
    let counts = good(stage.store.counts(()).await);
    let words: Vec<String> = counts.runs.iter().map(|(state, n)| format!("{} {n}", state.as_str())).collect();
    let expected = [
        "queued 1",
        "running 0",
        "waiting 0",
        "cancelling 0",
        "completed 1",
        "failed 0",
        "cancelled 0",
        "expired 0",
    ];
    assert_eq!(words, expected);
    assert!(counts.parked.is_empty());
}

async fn blobs_are_named_by_their_content(stage: Stage) {
    for bytes in [Vec::new(), b"short".to_vec(), vec![7; 1 << 20], (0..=255).cycle().take(5000).collect()] {
        let blob = good(stage.store.put_blob(PutBlob { bytes: bytes.clone() }).await);
        assert_eq!(blob, BlobId::of(&bytes));
        let again = good(stage.store.put_blob(PutBlob { bytes: bytes.clone() }).await);
        assert_eq!(again, blob);
        let all = GetBlob { blob, offset: 0, limit: u64::MAX };
        assert_eq!(good(stage.store.get_blob(all).await), Some(bytes));
    }
}

async fn blobs_are_read_in_ranges(stage: Stage) {
    let bytes: Vec<u8> = (0..100).collect();
    let blob = good(stage.store.put_blob(PutBlob { bytes }).await);
    // Offset, limit, and what comes back.
    let rows: [(u64, u64, Vec<u8>); 5] = [
        (0, 3, vec![0, 1, 2]),
        (98, 10, vec![98, 99]),
        (100, 10, vec![]),
        (u64::MAX, u64::MAX, vec![]),
        (5, 0, vec![]),
    ];
    for (offset, limit, expected) in rows {
        let range = GetBlob { blob: blob.clone(), offset, limit };
        assert_eq!(good(stage.store.get_blob(range).await), Some(expected), "{offset} + {limit}");
    }
}

async fn an_unknown_blob_is_none(stage: Stage) {
    let known = good(stage.store.put_blob(PutBlob { bytes: b"x".to_vec() }).await);
    let upper = known.as_str().to_uppercase();
    for id in ["", "nonsense", upper.as_str(), BlobId::of(b"y").as_str()] {
        let range = GetBlob { blob: BlobId::from(id), offset: 0, limit: 9 };
        assert_eq!(good(stage.store.get_blob(range).await), None, "{id}");
    }
}

async fn api_keys_are_kept(stage: Stage) {
    let key = |hash: &str, name: &str| ApiKey {
        hash: hash.to_owned(),
        tenant: stage.tenant.clone(),
        name: name.to_owned(),
        calls_per_min: Some(60),
        expires_at: Some(stage.env.wall()),
        created_at: stage.env.wall(),
    };
    for (hash, name) in [("b", "first"), ("a", "second"), ("b", "replaced")] {
        good(stage.store.put_key(key(hash, name)).await);
    }
    assert_eq!(good(stage.store.find_key("b".to_owned()).await), Some(key("b", "replaced")));
    assert_eq!(good(stage.store.list_keys(()).await), [key("a", "second"), key("b", "replaced")]);
    assert!(good(stage.store.remove_key("b".to_owned()).await));
    assert!(!good(stage.store.remove_key("b".to_owned()).await));
    assert_eq!(good(stage.store.find_key("b".to_owned()).await), None);
}

async fn unknown_things_are_none(stage: Stage) {
    let tenant = stage.tenant.clone();
    let run = evenkeel_core::port::store::RunRef { tenant: tenant.clone(), run: stage.new_run() };
    assert_eq!(good(stage.store.get_run(run.clone()).await), None);
    assert!(good(stage.store.read_effects(run).await).is_empty());
    let thread = evenkeel_core::port::store::ThreadRef { tenant, thread: stage.new_thread() };
    assert_eq!(good(stage.store.get_thread(thread).await), None);
}
