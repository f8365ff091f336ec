//! The engines at their edge: the conformance suite, equality of the engines, durability, damage.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod damage;
mod differential;
mod durability;
mod engines;
mod mutation;
mod postgres;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_env::Env;
use evenkeel_store::conformance::{Stage, world};
use evenkeel_store::sqlite::{SqliteOptions, SqliteStore};

/// A SQLite store in a directory of its own, which goes with it.
pub(crate) struct Scratch {
    // Dropped in this order: the store is closed before its directory is removed.
    store: Arc<SqliteStore>,
    _dir: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new(env: &Env) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(env, dir.path(), SqliteOptions::default()).unwrap();
        Self { store, _dir: dir }
    }
}

impl Store for Scratch {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        self.store.apply(op)
    }
}

/// The store of a directory, opened in a fresh world: like a new process, it never makes an id that
/// an earlier one has made.
pub(crate) fn reopened(dir: &std::path::Path) -> (Stage, Arc<SqliteStore>) {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let (env, clock) = world(SEED.fetch_add(1, Ordering::Relaxed));
    let store = SqliteStore::open(&env, dir, SqliteOptions::default()).unwrap();
    (Stage::new(store.clone(), env, clock), store)
}
