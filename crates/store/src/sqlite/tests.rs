//! A commit that fails: who is answered what, and what is there after the next start.

use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_core::Code;
use evenkeel_core::port::store::PutBlob;
use rusqlite::{Connection, ffi};

use super::{SqliteOptions, SqliteStore, writer};
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
