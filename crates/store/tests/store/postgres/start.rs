//! What a store says when it cannot be opened, and how the connection is secured.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::time::Duration;

use evenkeel_core::Code;
use evenkeel_env::Env;
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres, Stop};
use evenkeel_store::postgres::{PostgresOptions, PostgresStore};

use super::wire::Wire;
use super::{Database, shared_server};

fn hasty() -> PostgresOptions {
    PostgresOptions { start_patience: Duration::from_millis(200), ..PostgresOptions::default() }
}

async fn refusal(url: &str) -> (Code, String) {
    let error = PostgresStore::open(&Env::real(), url, hasty()).await.err().unwrap();
    (error.code, error.to_string())
}

#[tokio::test]
async fn each_mistake_has_its_code_and_keeps_the_password() {
    let server = shared_server().await;
    let right = server.url("postgres");
    let secret = "hunter2";
    let wrong_password = right.replace(server.password(), secret);
    let wrong_user = right.replace(&format!("{}:", server.role()), "nobody:");
    let free = evenkeel_env::Env::real().net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let free = free.local_address().unwrap().port();
    let table = [
        (wrong_password, Code::StoreLogin),
        (wrong_user, Code::StoreLogin),
        (server.url("no_such_database"), Code::StoreDatabaseMissing),
        (server.url_at(free, "postgres"), Code::StoreUnavailable),
        (format!("{right}?sslmode=require"), Code::StoreTls),
        (format!("{right}?sslmode=verify-full&sslrootcert=/no/such.pem"), Code::StoreTls),
        (format!("{right}?sslmode=perhaps"), Code::ConfigInvalid),
        ("mysql://root@localhost/x".to_owned(), Code::ConfigInvalid),
        (format!("postgres://u:{secret}@localhost"), Code::ConfigInvalid),
        (format!("postgres://u:{secret}@localhost:port/x"), Code::ConfigInvalid),
        (format!("postgres://u:{secret}@%2Fvar%2Frun/x"), Code::ConfigInvalid),
    ];
    for (url, expected) in table {
        let (code, text) = refusal(&url).await;
        assert_eq!(code, expected, "{url}: {text}");
        assert!(!text.contains(server.password()) && !text.contains(secret), "{text}");
    }
}

/// A server of version 12, as far as the wire tells.
#[tokio::test]
async fn a_server_that_is_too_old_is_named_and_nothing_is_written() {
    let database = Database::new().await;
    let number: i32 = database.sql("SHOW server_version_num").await.parse().unwrap();
    let name = database.sql("SHOW server_version").await;
    let major = (number / 10_000).to_string();
    let old_name = name.replacen(&major, "12", 1);
    let forgeries = vec![
        (number.to_be_bytes().to_vec(), 120_022_i32.to_be_bytes().to_vec()),
        (name.into_bytes(), old_name.clone().into_bytes()),
    ];
    let wire = Wire::forging(&Env::real(), database.server.port(), forgeries).await;
    let (code, text) = refusal(&database.server.url_at(wire.port, &database.name)).await;
    assert_eq!(code, Code::StoreTooOld, "{text}");
    assert!(text.contains(&format!("is PostgreSQL {old_name}; Evenkeel needs 13 or newer")), "{text}");
    assert!(text.contains(&database.name) && !text.contains(database.server.password()), "{text}");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'evenkeel'";
    assert_eq!(database.sql(schemas).await, "0", "nothing was made in it");
    // The same server without the lie is used.
    PostgresStore::open(&Env::real(), &database.url(), hasty()).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_left_alone_and_replicas_may_start_together() {
    let database = Database::new().await;
    let (env, url) = (Env::real(), database.url());
    let starts = (0..4).map(|_| PostgresStore::open(&env, &url, PostgresOptions::default()));
    for start in futures_util::future::join_all(starts).await {
        start.unwrap();
    }
    database.sql("INSERT INTO evenkeel.schema_version VALUES (99)").await;
    let (code, text) = refusal(&url).await;
    assert_eq!(code, Code::StoreNewer);
    assert!(text.contains("schema version 99"), "{text}");
}

#[tokio::test]
async fn a_user_that_may_not_make_tables_is_told_so() {
    let database = Database::new().await;
    database.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'").await;
    let url = database
        .url()
        .replace(&format!("{}:{}", database.server.role(), database.server.password()), "guest:guest");
    let (code, text) = refusal(&url).await;
    database.sql("DROP ROLE guest").await;
    assert_eq!(code, Code::StoreLogin);
    assert!(text.contains("permission denied") && text.contains("CREATE"), "{text}");
}

#[tokio::test]
async fn the_first_host_that_answers_is_used() {
    let database = Database::new().await;
    let free = Env::real().net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap().local_address().unwrap();
    let (here, both) = (
        format!("127.0.0.1:{}", database.server.port()),
        format!("{free},127.0.0.1:{}", database.server.port()),
    );
    let url = database.url().replace(&here, &both);
    PostgresStore::open(&Env::real(), &url, hasty()).await.unwrap();
}

#[tokio::test]
async fn tls_is_as_strict_as_the_url_says() {
    let mut server = LocalPostgres::start(&Env::real(), LocalOptions::default()).await.unwrap();
    let authority = server.folder().join("authority.pem");
    std::fs::write(&authority, include_str!("tls/ca.pem")).unwrap();
    for (name, text) in
        [("server.pem", include_str!("tls/server.pem")), ("server.key", include_str!("tls/server.key"))]
    {
        let file = server.folder().join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((uid, gid)) = server.runs_as() {
            chown(&file, Some(uid), Some(gid)).unwrap();
        }
        let setting = if name == "server.pem" { "ssl_cert_file" } else { "ssl_key_file" };
        server.sql("postgres", &format!("ALTER SYSTEM SET {setting} = '{}'", file.display())).await.unwrap();
    }
    server.sql("postgres", "ALTER SYSTEM SET ssl = on").await.unwrap();
    server.stop(Stop::Fast).await.unwrap();
    server.resume().await.unwrap();
    let (address, named) = (server.url("postgres"), server.url("postgres").replace("127.0.0.1", "localhost"));
    let verify = format!("sslmode=verify-full&sslrootcert={}", authority.display());
    let open = |url: String| async move { PostgresStore::open(&Env::real(), &url, hasty()).await };
    for (url, is_secure) in [
        (format!("{address}?sslmode=disable"), "f"),
        (format!("{address}?sslmode=prefer"), "t"),
        (format!("{address}?sslmode=require"), "t"),
        (format!("{named}?{verify}"), "t"),
    ] {
        let store = open(url.clone()).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let ask = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                   WHERE application_name = 'evenkeel'";
        assert_eq!(server.sql("postgres", ask).await.unwrap(), is_secure, "{url}");
        drop(store);
    }
    for url in [format!("{address}?{verify}"), format!("{named}?sslmode=verify-full")] {
        let error = open(url.clone()).await.err().unwrap();
        assert_eq!(error.code, Code::StoreTls, "{url}: {error}");
    }
}
