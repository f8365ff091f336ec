//! The engine passes the suite, and agrees with the engine in memory; also behind a pooler that
//! gives each statement to another connection.

use std::sync::Arc;

use evenkeel_store::conformance::{self, world};
use proptest::test_runner::{Config, TestRunner};

use super::pooler::Pooler;
use super::{Database, Held};
use crate::differential;

async fn conforms(database: Arc<Database>, url: String) {
    conformance::all(|env| {
        let (database, url) = (database.clone(), url.clone());
        Box::pin(async move {
            let store = database.empty(&env, &url).await;
            Held::store(store, database)
        })
    })
    .await;
}

#[tokio::test]
async fn postgres_conforms() {
    let database = Arc::new(Database::new().await);
    conforms(database.clone(), database.url()).await;
}

#[tokio::test]
async fn postgres_conforms_behind_a_pooler_in_transaction_mode() {
    let database = Arc::new(Database::new().await);
    let pooler = Pooler::start(&database.server).await;
    conforms(database.clone(), pooler.url(&database.server, &database.name)).await;
}

#[test]
fn postgres_agrees_with_memory() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = Arc::new(runtime.block_on(Database::new()));
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let agrees = runner.run(&differential::sequences(), |actions| {
        runtime.block_on(async {
            let (env, clock) = world(3);
            let store = database.empty(&env, &database.url()).await;
            differential::agree(&actions, env, clock, Held::store(store, database.clone())).await;
        });
        Ok(())
    });
    agrees.unwrap_or_else(|failure| panic!("{failure}"));
}
