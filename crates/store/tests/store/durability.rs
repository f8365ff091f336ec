//! What was acknowledged is there after any end of the process, and nothing else is.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::port::store::{PutBlob, Steal, StoreClient, TurnCommitted};
use evenkeel_core::run::RunState;
use evenkeel_core::{Code, Error};
use evenkeel_store::conformance::{Stage, world};
use evenkeel_store::sqlite::{FILE, SqliteOptions, SqliteStore};

use crate::reopened;

#[tokio::test]
async fn reopening_after_a_drop_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, store) = reopened(dir.path());
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    let first = stage.begin(thread, "one", me).await;
    stage.finish(&first, false).await;
    let second = stage.begin(thread, "two", me).await;
    let third = stage.enqueue(thread, "three").await;
    let before = (stage.thread(thread).await, stage.events(thread).await, stage.run(third.id).await);
    drop((stage, store));

    let (stage, store) = reopened(dir.path());
    let after = (stage.thread(thread).await, stage.events(thread).await, stage.run(third.id).await);
    assert_eq!(after, before);
    stage.check_thread(thread).await;
    assert_eq!(store.earlier_replicas(), [me]);
    let heir = stage.replica().await;
    let stolen = stage.store.steal(Steal { me: heir, dead: vec![], limit: 9 }).await.unwrap();
    assert_eq!(stolen.len(), 1, "an earlier process holds no lease");
    assert_eq!((stolen[0].fence.run, stolen[0].fence.epoch), (second.fence.run, 3));
    assert_eq!(stage.finish(&second, false).await, TurnCommitted::Fenced);
    assert!(matches!(stage.finish(&stolen[0], true).await, TurnCommitted::Done { next: Some(_), .. }));
    stage.check_thread(thread).await;
}

#[tokio::test]
async fn a_copy_of_the_files_holds_all_that_was_acknowledged() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (stage, _store) = reopened(dir.path());
    let (thread, me) = (stage.new_thread(), stage.replica().await);
    for n in 1..=20 {
        let claim = stage.begin(thread, "again", me).await;
        stage.finish(&claim, false).await;
        // What a killed process leaves behind are the files as they are now.
        for file in [FILE, &format!("{FILE}-wal")] {
            std::fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let (left, store) = reopened(copy.path());
        assert_eq!(left.thread(thread).await.version, n);
        left.check_thread(thread).await;
        drop((left, store));
    }
}

#[tokio::test]
async fn the_count_of_fenced_writes_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, store) = reopened(dir.path());
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    stage.finish(&claim, false).await;
    stage.finish(&claim, false).await;
    assert_eq!(store.stats().n_fenced, 1);
    drop((stage, store));
    let (stage, _store) = reopened(dir.path());
    assert_eq!(stage.store.counts(()).await.unwrap().n_fenced, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, store) = reopened(dir.path());
    let (stage, me) = (Arc::new(stage), stage_replica(&store).await);
    let turns = (0..200).map(|_| {
        let stage = stage.clone();
        async move {
            let claim = stage.begin(stage.new_thread(), "hello", me).await;
            stage.finish(&claim, false).await
        }
    });
    let done = futures_util::future::join_all(turns).await;
    assert!(done.iter().all(|turn| matches!(turn, TurnCommitted::Done { version: 1, .. })));
    let stats = store.stats();
    assert!(stats.n_commits < 200, "400 operations took {} commits", stats.n_commits);
    assert_eq!(stats.operations["admit"].n, 200);
    assert_eq!((stats.operations["commit_turn"].n, stats.operations["commit_turn"].n_failed), (200, 0));
}

#[tokio::test]
async fn polls_that_find_nothing_cost_no_commit() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, store) = reopened(dir.path());
    let me = stage.replica().await;
    let before = store.stats().n_commits;
    for _ in 0..10 {
        assert!(stage.ready(me, 9).await.is_empty());
        assert!(stage.wake(me, "main", 9).await.is_empty());
        stage.beat(me).await;
    }
    assert_eq!(store.stats().n_commits, before);
}

/// Bytes stay linear in new content; a store of snapshots would grow with the square.
#[tokio::test]
async fn two_hundred_turns_grow_linearly() {
    let dir = tempfile::tempdir().unwrap();
    let (stage, store) = reopened(dir.path());
    let thread = stage.new_thread();
    drop((stage, store));
    let mut sizes = Vec::new();
    for _ in 0..2 {
        let (stage, store) = reopened(dir.path());
        let me = stage.replica().await;
        for turn in 1..=100 {
            let text = format!("{turn} {}", "two kilobytes of new content ".repeat(70));
            let claim = stage.begin(thread, &text, me).await;
            stage.finish(&claim, false).await;
        }
        drop((stage, store));
        sizes.push(std::fs::metadata(dir.path().join(FILE)).unwrap().len());
    }
    let (first, second) = (sizes[0], sizes[1] - sizes[0]);
    assert!(second < first * 5 / 4, "100 turns added {first} bytes, the next 100 added {second}");
    // A message is kept in its run's request and spec, and in the log; rows of 2 KB fill pages badly.
    assert!(sizes[1] < 4 << 20, "200 turns with 0.4 MB of content take {} bytes", sizes[1]);
}

#[tokio::test]
async fn the_log_is_moved_into_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (env, clock) = world(7);
    let options = SqliteOptions { checkpoint_bytes: 256 << 10, ..SqliteOptions::default() };
    let store = SqliteStore::open(&env, dir.path(), options).unwrap();
    let stage = Stage::new(store.clone(), env, clock);
    for idx in 0..64_u8 {
        let noise: Vec<u8> = blake3_noise(idx);
        stage.store.put_blob(PutBlob { bytes: noise }).await.unwrap();
    }
    let wal = std::fs::metadata(dir.path().join(format!("{FILE}-wal"))).unwrap().len();
    assert!(store.stats().n_checkpoints > 0);
    assert!(wal < 2 << 20, "4 MB were written and the log has {wal} bytes");
}

#[tokio::test]
async fn a_full_store_refuses_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (env, clock) = world(7);
    let options = SqliteOptions { file_bytes_max: Some(1 << 20), ..SqliteOptions::default() };
    let store = SqliteStore::open(&env, dir.path(), options).unwrap();
    let stage = Stage::new(store.clone(), env, clock);
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let full: Error = loop {
        let idx = u8::try_from(store.stats().operations.get("put_blob").map_or(0, |op| op.n)).unwrap();
        if let Err(error) = stage.store.put_blob(PutBlob { bytes: blake3_noise(idx) }).await {
            break error;
        }
    };
    assert_eq!(full.code, Code::StoreFull);
    assert!(!store.is_poisoned());
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Running, "reads go on");
    drop((stage, store));

    // More room: the same store goes on, and nothing of the refused write is in it.
    let (stage, store) = reopened(dir.path());
    stage.check_thread(claim.fence.thread).await;
    stage.store.put_blob(PutBlob { bytes: blake3_noise(0) }).await.unwrap();
    let again = stage.begin(stage.new_thread(), "more", stage.replica().await).await;
    assert!(matches!(stage.finish(&again, false).await, TurnCommitted::Done { .. }));
    drop(store);
}

#[tokio::test]
async fn a_slow_store_answers_late() {
    use evenkeel_store::slow::{SlowStore, Slowness};
    tokio::time::pause();
    let (env, _clock) = world(7);
    let slow = SlowStore::new(evenkeel_store::memory::MemoryStore::new(&env));
    let client = StoreClient(slow.clone());
    slow.set(Slowness { factor: 3.0, base: Duration::from_millis(5) });
    let begun = tokio::time::Instant::now();
    client.counts(()).await.unwrap();
    let late = begun.elapsed();
    assert!(late >= Duration::from_millis(10), "5 ms at a third of the speed took {late:?}");
    slow.set(Slowness::NONE);
    client.counts(()).await.unwrap();
    assert_eq!(begun.elapsed(), late, "at full speed nothing is held back");
}

#[tokio::test]
async fn what_a_slow_store_holds_back_answers_when_it_is_fast_again() {
    use evenkeel_store::slow::{SlowStore, Slowness};
    tokio::time::pause();
    let (env, _clock) = world(7);
    let slow = SlowStore::new(evenkeel_store::memory::MemoryStore::new(&env));
    let client = StoreClient(slow.clone());
    slow.set(Slowness { factor: 40.0, base: Duration::from_secs(10) });
    let begun = tokio::time::Instant::now();
    let healed = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        slow.set(Slowness { factor: 1.5, base: Duration::from_secs(10) });
        tokio::time::sleep(Duration::from_secs(1)).await;
        slow.set(Slowness::NONE);
    };
    let (answer, ()) = tokio::join!(client.counts(()), healed);
    assert!(answer.is_ok());
    assert_eq!(begun.elapsed().as_secs(), 3, "the answer came with the end of the slowness");
}

async fn stage_replica(store: &Arc<SqliteStore>) -> evenkeel_core::id::ReplicaId {
    let (env, clock) = world(7);
    Stage::new(store.clone(), env, clock).replica().await
}

/// 64 KiB that do not compress.
fn blake3_noise(seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; 64 << 10];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

/// A file system of 3 MB that is really full for a while. Needs the right to mount; without it the
/// limit of the file's own size (`a_full_store_refuses_and_goes_on`) stands for it.
#[tokio::test]
async fn a_full_file_system_refuses_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::new(dir.path()) else {
        return;
    };
    let (stage, store) = reopened(dir.path());
    let claim = stage.begin(stage.new_thread(), "hello", stage.replica().await).await;
    let ballast = dir.path().join("ballast");
    let room = 3 << 20;
    let mut filled = room;
    // Somebody else fills the disk to the last page.
    while std::fs::write(&ballast, vec![0_u8; filled]).is_err() {
        filled -= 4096;
    }
    let mut acknowledged = Vec::new();
    let error = loop {
        let bytes = blake3_noise(u8::try_from(acknowledged.len()).unwrap());
        match stage.store.put_blob(PutBlob { bytes }).await {
            Ok(blob) => acknowledged.push(blob),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code, Code::StoreFull, "{error}");
    assert!(!store.is_poisoned());
    assert_eq!(stage.run(claim.fence.run).await.state, RunState::Running, "reads go on");
    std::fs::remove_file(&ballast).unwrap();
    assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { .. }), "the store goes on");
    drop((stage, store));
    let (stage, store) = reopened(dir.path());
    stage.check_thread(claim.fence.thread).await;
    for blob in acknowledged {
        let all = evenkeel_core::port::store::GetBlob { blob, offset: 0, limit: u64::MAX };
        assert!(stage.store.get_blob(all).await.unwrap().is_some(), "what was acknowledged is there");
    }
    drop((stage, store));
}

/// A small file system at a directory, for as long as the value lives.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(at: &std::path::Path) -> Option<Self> {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", at, "tmpfs", flags, c"size=3m").ok()?;
        Some(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}
