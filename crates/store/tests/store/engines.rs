//! Every engine passes the suite.

use std::sync::Arc;

use evenkeel_core::port::store::Store;
use evenkeel_store::conformance;
use evenkeel_store::memory::MemoryStore;
use evenkeel_store::slow::SlowStore;

use crate::Scratch;

#[tokio::test]
async fn memory_conforms() {
    conformance::all(|env| Box::pin(async move { MemoryStore::new(&env) as Arc<dyn Store> })).await;
}

#[tokio::test]
async fn sqlite_conforms() {
    conformance::all(|env| Box::pin(async move { Arc::new(Scratch::new(&env)) as Arc<dyn Store> })).await;
}

#[tokio::test]
async fn a_slowed_store_conforms() {
    conformance::all(|env| Box::pin(async move { SlowStore::new(MemoryStore::new(&env)) as Arc<dyn Store> }))
        .await;
}
