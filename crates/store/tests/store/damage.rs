//! Files that cannot be opened: each is refused with its own code, and left as it was.

use std::path::Path;

use evenkeel_core::{Code, Error};
use evenkeel_store::conformance::world;
use evenkeel_store::sqlite::{FILE, SqliteOptions, SqliteStore};

use crate::reopened;

#[tokio::test]
async fn a_second_process_is_told_who_holds_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (_stage, store) = reopened(dir.path());
    let error = refused(dir.path());
    assert_eq!(error.code, Code::StoreInUse);
    assert!(error.message.contains(&format!("pid {}", std::process::id())), "{}", error.message);
    assert!(error.message.contains("since 2027-"), "{}", error.message);
    drop((_stage, store));
    drop(reopened(dir.path()));
}

#[tokio::test]
async fn a_store_of_a_later_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(reopened(dir.path()));
    let file = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
    file.pragma_update(None, "user_version", 7).unwrap();
    drop(file);
    let before = std::fs::read(dir.path().join(FILE)).unwrap();
    let error = refused(dir.path());
    assert_eq!(error.code, Code::StoreNewer);
    assert!(error.message.contains("schema version 7"), "{}", error.message);
    assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), before);
}

#[tokio::test]
async fn a_file_of_somebody_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
    file.execute_batch("CREATE TABLE theirs (x)").unwrap();
    drop(file);
    assert_eq!(refused(dir.path()).code, Code::StoreCorrupt);

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE), "a text of somebody, not a database; ".repeat(200)).unwrap();
    assert_eq!(refused(dir.path()).code, Code::StoreCorrupt);
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_named() {
    for damage in ["cut", "overwritten"] {
        let dir = tempfile::tempdir().unwrap();
        let (stage, store) = reopened(dir.path());
        let me = stage.replica().await;
        for _ in 0..50 {
            let claim = stage.begin(stage.new_thread(), &"words ".repeat(500), me).await;
            stage.finish(&claim, false).await;
        }
        drop((stage, store));
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        let half = bytes.len() / 2;
        match damage {
            "cut" => bytes.truncate(half),
            _ => bytes.iter_mut().skip(4096).for_each(|byte| *byte = 0xa5),
        }
        std::fs::write(&path, &bytes).unwrap();
        let error = refused(dir.path());
        assert_eq!(error.code, Code::StoreCorrupt, "{damage}");
        assert!(error.message.contains(FILE), "{}", error.message);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing is changed");
    }
}

#[tokio::test]
async fn a_torn_end_of_the_log_loses_only_what_was_not_acknowledged() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (stage, _store) = reopened(dir.path());
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let mut acknowledged = Vec::new();
    for _ in 0..5 {
        let claim = stage.begin(thread, "again", me).await;
        stage.finish(&claim, false).await;
        acknowledged.push((wal_len(dir.path()), stage.thread(thread).await.version));
    }
    let wal = std::fs::read(wal_path(dir.path())).unwrap();
    std::fs::copy(dir.path().join(FILE), copy.path().join(FILE)).unwrap();
    for (len, version) in &acknowledged[..4] {
        // The crash came while the bytes after the acknowledged commit were written.
        for torn in [0, 1, 24, 4000] {
            std::fs::write(wal_path(copy.path()), &wal[..len + torn]).unwrap();
            let (left, store) = reopened(copy.path());
            assert!(left.thread(thread).await.version >= *version);
            left.check_thread(thread).await;
            drop((left, store));
            std::fs::copy(dir.path().join(FILE), copy.path().join(FILE)).unwrap();
        }
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a file");
    std::fs::write(&file, "x").unwrap();
    let error = refused(&file.join("data"));
    assert_eq!(error.code, Code::StoreUnavailable);
    assert!(error.message.contains("a file/data"), "{}", error.message);
}

fn wal_path(dir: &Path) -> std::path::PathBuf {
    dir.join(format!("{FILE}-wal"))
}

fn wal_len(dir: &Path) -> usize {
    usize::try_from(std::fs::metadata(wal_path(dir)).unwrap().len()).unwrap()
}

fn refused(dir: &Path) -> Error {
    let (env, _clock) = world(7);
    match SqliteStore::open(&env, dir, SqliteOptions::default()) {
        Ok(_) => panic!("the store was opened"),
        Err(error) => error,
    }
}
