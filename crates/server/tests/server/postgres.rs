//! The store that the configuration names is the one that is opened, and its figures are shown.

use std::time::Duration;

use evenkeel_core::Wall;
use evenkeel_core::id::TenantId;
use evenkeel_core::port::store::{ApiKey, StoreClient};
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use evenkeel_sandbox::{HelperProgram, Isolation};
use evenkeel_server::app::store;
use evenkeel_server::config::{Config, Environment, Overrides};
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres};
use http::Method;

use crate::world::Door;

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
    let first = store::open(&env, &first).await.unwrap().store;
    let second = store::open(&env, &second).await.unwrap().store;
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

/// Operators see what the engine does, under names that the guide explains.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_of_the_engine_are_shown_and_explained() {
    let (env, dir) = (Env::real(), tempfile::tempdir().unwrap());
    let server = LocalPostgres::start(&env, LocalOptions::default()).await.unwrap();
    let url = server.url("postgres");
    let environment = Environment::from_pairs([("STORE", url.as_str())]);
    let overrides = Overrides { environment, set: Vec::new() };
    let toml = "[server]\nlisten = \"127.0.0.1:0\"\nstore = \"env:STORE\"\nstore_connections = 6\n";
    let mut config = Config::parse("evenkeel.toml", toml, &overrides).unwrap();
    config.server.data_dir = dir.path().join("data");
    config.sandbox.isolation = Isolation::None;
    config.sandbox.warm = 0;
    config.sandbox.helper = HelperProgram::Path("/nonexistent".into());
    let running = evenkeel_server::start(env.clone(), config).await.unwrap();
    let address = running.address().to_string();
    let door = Door { address, client: Client::new(&env, Duration::from_secs(2)) };
    for _ in 0..5 {
        assert_eq!(door.ask(Method::POST, "/threads", &[], "{}").await.status, 200);
    }
    let page = String::from_utf8(door.ask(Method::GET, "/metrics", &[], "").await.body.to_vec()).unwrap();
    let figure = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("evenkeel_postgres_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
    };
    assert_eq!(figure("connections_limit"), 6.0);
    assert!((1.0..=6.0).contains(&figure("connections")), "{page}");
    assert!(figure("batches_total") >= 1.0 && figure("batched_operations_total") >= 5.0, "{page}");
    for name in ["redone_total", "lost_answers_total", "fenced_total"] {
        assert_eq!(figure(name), 0.0, "{name}");
    }
    let guide = include_str!("../../../../docs/guide/operations.md");
    for line in page.lines().filter(|line| line.starts_with("evenkeel_postgres_")) {
        let name = line.split_once(' ').unwrap().0;
        assert!(guide.contains(&format!("`{name}`")), "{name} is not in the guide");
    }
    running.shutdown().await;
}
