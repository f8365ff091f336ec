//! A commit that fails: who is answered what, and what is there after the next start. And a file of an
//! earlier schema.

use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_core::Code;
use evenkeel_core::port::store::PutBlob;
use rusqlite::{Connection, ffi};

use super::{FILE, SqliteOptions, SqliteStore, writer};
use crate::conformance::{Stage, world};

fn stage(dir: &std::path::Path, seed: u64, commit: super::Commit) -> (Stage, std::sync::Arc<SqliteStore>) {
    let (env, clock) = world(seed);
    let store = SqliteStore::open_with(&env, dir, SqliteOptions::default(), commit).unwrap();
    (Stage::new(store.clone(), env, clock), store)
}

fn failure(code: std::ffi::c_int) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
}

/// The third commit fails as when fsync does.
fn failing_third(conn: &Connection) -> rusqlite::Result<()> {
    static N: AtomicU32 = AtomicU32::new(0);
    match N.fetch_add(1, Ordering::SeqCst) {
        2 => Err(failure(ffi::SQLITE_IOERR_FSYNC)),
        _ => writer::commit(conn),
    }
}

#[tokio::test]
async fn a_failed_commit_poisons_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (first, store) = stage(dir.path(), 1, failing_third);
    let (thread, me) = (first.new_thread(), first.replica().await);
    // The heartbeat was the first commit, this admission is the second.
    let claim = first.begin(thread, "one", me).await;
    let poisoned = store.poisoned();
    assert!(!store.is_poisoned());
    let blob = PutBlob { bytes: b"never acknowledged".to_vec() };
    for _ in 0..2 {
        let error = first.store.put_blob(blob.clone()).await.unwrap_err();
        assert_eq!(error.code, Code::StoreUnavailable, "{error}");
    }
    assert!(first.store.counts(()).await.is_err(), "reads are refused too");
    assert!(store.is_poisoned());
    assert_eq!(poisoned.await.code, Code::StoreUnavailable);
    drop((first, store));

    let (again, _store) = stage(dir.path(), 2, writer::commit);
    assert_eq!(again.run(claim.fence.run).await, claim.run, "what was acknowledged is there");
    again.check_thread(thread).await;
}

/// From the third to the sixth commit the disk is full.
fn full_for_a_while(conn: &Connection) -> rusqlite::Result<()> {
    static N: AtomicU32 = AtomicU32::new(0);
    match N.fetch_add(1, Ordering::SeqCst) {
        2..6 => Err(failure(ffi::SQLITE_FULL)),
        _ => writer::commit(conn),
    }
}

#[tokio::test]
async fn a_full_disk_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, store) = stage(dir.path(), 1, full_for_a_while);
    let claim = stage.begin(stage.new_thread(), "one", stage.replica().await).await;
    let before = stage.log(claim.fence.thread).await;
    let mut n_full = 0;
    while let Err(error) = stage.store.commit_step(step(&claim)).await {
        assert_eq!(error.code, Code::StoreFull);
        assert_eq!(stage.log(claim.fence.thread).await, before, "a refused step is not there");
        n_full += 1;
    }
    assert_eq!((n_full, store.is_poisoned()), (2, false), "each was tried again alone");
    assert_eq!(stage.log(claim.fence.thread).await.len(), before.len() + 1);
    stage.check_thread(claim.fence.thread).await;
}

fn step(claim: &evenkeel_core::port::store::Claim) -> evenkeel_core::port::store::CommitStep {
    use evenkeel_core::journal::{EventBody, NewEvent};
    let body = EventBody::Noted { kind: "note".to_owned(), text: "a".to_owned() };
    evenkeel_core::port::store::CommitStep {
        fence: claim.fence.clone(),
        seq_base: 2,
        events: vec![NewEvent { step: 1, body }],
    }
}

/// What the first schema held of a thread with an ended and a running run.
const FIRST: &str = r#"
    INSERT INTO threads VALUES (1, x'01900000000070008000000000000001', 'acme', '{"a":1}', 5, 6, 1, 2, 5, 1,
        x'01900000000070008000000000000003', 0, x'01900000000070008000000000000003');
    INSERT INTO runs VALUES
        (1, x'01900000000070008000000000000002', 1, 'acme', 'completed', 0, NULL, NULL, NULL, NULL, NULL, 1, 1,
         NULL, 1, NULL, 'h', 0, 'enqueue', 9999999999999, 5, 6, 0, 0, 0, 0),
        (2, x'01900000000070008000000000000003', 1, 'acme', 'running', 0, NULL, NULL, NULL, NULL, NULL, 0, 1,
         x'01900000000070008000000000000009', NULL, NULL, 'h', 0, 'enqueue', 9999999999999, 5, 6, 0, 0, 0, 0);
    INSERT INTO run_outcomes VALUES (1, '{"state":"completed","error":null,"text":"","diff":null}');
    INSERT INTO events (thread, seq, run, step, at, body) VALUES
        (1, 1, 1, 0, 5, '{"type":"run_claimed","epoch":1,"attempt":1}'),
        (1, 2, 1, 1, 5, '{"type":"noted","kind":"note","text":"a"}'),
        (1, 3, 1, 1, 5, '{"type":"run_ended","outcome":{"state":"completed","error":null,"text":"","diff":null}}'),
        (1, 4, 2, 0, 5, '{"type":"run_claimed","epoch":2,"attempt":1}'),
        (1, 5, 2, 1, 5, '{"type":"noted","kind":"note","text":"b"}');
"#;

/// The spec of both runs, as the first version wrote it.
fn first_spec() -> String {
    let mut spec = serde_json::to_value(crate::conformance::samples::spec("m", "hello")).unwrap();
    spec.as_object_mut().unwrap().remove("from_seq");
    spec["messages"] = serde_json::json!([]);
    spec.to_string()
}

#[tokio::test]
async fn a_file_of_the_first_schema_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let conn = Connection::open(dir.path().join(FILE)).unwrap();
    conn.execute_batch(include_str!("../migrations/0001_first.sql")).unwrap();
    conn.execute_batch(FIRST).unwrap();
    for run in [1, 2] {
        conn.execute("INSERT INTO run_specs VALUES (?1, ?2)", rusqlite::params![run, first_spec()]).unwrap();
    }
    conn.execute_batch("PRAGMA user_version = 1; PRAGMA application_id = 1163283276;").unwrap();
    drop(conn);
    let (stage, store) = stage(dir.path(), 1, writer::commit);
    let me = stage.replica().await;
    let steal = evenkeel_core::port::store::Steal { me, dead: store.earlier_replicas().to_vec(), limit: 9 };
    let claim = stage.store.steal(steal).await.unwrap().remove(0);
    assert_eq!((claim.fence.epoch, claim.context_from, claim.run.attempt), (3, 1, 2));
    stage.check_thread(claim.fence.thread).await;
    stage.undo(claim.fence.run, true).await;
    let log = stage.log(claim.fence.thread).await;
    assert_eq!(log[7], "rewound to 3 rollback", "where it began is known of an older run too");
    stage.check_thread(claim.fence.thread).await;
}
