//! The engines at their edge: the conformance suite, equality of the engines, durability, damage.

mod engines;

use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_env::Env;
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
