//! The store that the configuration names is the one that is opened.

use evenkeel_core::Wall;
use evenkeel_core::id::TenantId;
use evenkeel_core::port::store::{ApiKey, StoreClient};
use evenkeel_env::Env;
use evenkeel_server::app::store;
use evenkeel_server::config::{Config, Environment, Overrides};
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres};

#[tokio::test]
async fn two_processes_share_the_database_of_a_variable() {
    let env = Env::real();
    let server = LocalPostgres::start(&env, LocalOptions::default()).await.unwrap();
    let (url, wrong) = (server.url("postgres"), server.url("nowhere"));
    let variables = [("STORE", url.as_str()), ("WRONG", wrong.as_str())];
    let config = |name: &str| {
        let overrides = Overrides { environment: Environment::from_pairs(variables), set: Vec::new() };
        Config::parse("evenkeel.toml", &format!("[server]\nstore = \"env:{name}\"\n"), &overrides).unwrap()
    };
    let (first, second) = (config("STORE"), config("STORE"));
    let (first, _) = store::open(&env, &first).await.unwrap();
    let (second, _) = store::open(&env, &second).await.unwrap();
    let key = ApiKey {
        hash: "0".repeat(64),
        tenant: TenantId::from("acme"),
        name: "ci".to_owned(),
        calls_per_min: None,
        expires_at: None,
        created_at: Wall(1),
    };
    StoreClient(first).put_key(key.clone()).await.unwrap();
    assert_eq!(StoreClient(second).list_keys(()).await.unwrap(), [key]);

    let error = store::open(&env, &config("WRONG")).await.err().unwrap();
    assert_eq!(error.code, evenkeel_core::Code::StoreDatabaseMissing);
    assert!(!error.message.contains(server.password()), "{error}");
}
