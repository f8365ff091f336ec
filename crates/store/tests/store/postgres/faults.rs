//! What happens to operations when the database, or the way to it, fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_core::port::store::{
    Admit, Admitted, CreateThread, Deleted, StoreClient, ThreadRef, TurnCommitted,
};
use evenkeel_core::{Code, Retry};
use evenkeel_env::Env;
use evenkeel_store::conformance::{Stage, world};
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres, Stop};
use evenkeel_store::postgres::{PostgresOptions, PostgresStore};
use futures_util::future::join_all;

use super::wire::{Lose, Wire};
use super::{Database, by_hand};

async fn stage_at(url: &str, options: PostgresOptions) -> (Stage, Arc<PostgresStore>) {
    let (env, clock) = world(1);
    let store = PostgresStore::open(&env, url, options).await.unwrap();
    (Stage::new(store.clone(), env, clock), store)
}

#[tokio::test]
async fn a_lost_answer_is_looked_up_and_a_lost_statement_is_sent_again() {
    let database = Database::new().await;
    let wire = Wire::start(&Env::real(), database.server.port()).await;
    let (stage, store) = stage_at(&database.server.url_at(wire.port, &database.name), by_hand()).await;
    let me = stage.replica().await;
    for (idx, lose) in [Lose::Answer, Lose::Statement].into_iter().enumerate() {
        let thread = stage.new_thread();
        wire.lose(lose);
        let claim = stage.begin(thread, "one", me).await;
        assert!(wire.has_lost(), "the first write of a new thread was disturbed");
        wire.lose(lose);
        assert!(
            matches!(stage.finish(&claim, false).await, TurnCommitted::Done { version: 1, .. }),
            "{lose:?}"
        );
        wire.lose(lose);
        let claim = stage.begin(thread, "two", me).await;
        assert_eq!((claim.version, claim.fence.epoch), (1, 2), "{lose:?}");
        wire.lose(lose);
        let written =
            stage.step(&claim.fence, vec![evenkeel_store::conformance::samples::note("kept once")]).await;
        assert!(matches!(written, evenkeel_core::port::store::Written::Done { .. }), "{lose:?}: {written:?}");
        wire.lose(lose);
        stage.finish(&claim, false).await;
        assert!(wire.has_lost());
        let notes = stage.log(thread).await.iter().filter(|line| *line == "note kept once").count();
        assert_eq!(notes, 1, "{lose:?}");
        assert_eq!(stage.thread(thread).await.version, 2);
        stage.check_thread(thread).await;
        wire.lose(lose);
        let gone = stage.store.delete_thread(ThreadRef { tenant: stage.tenant.clone(), thread }).await;
        match gone {
            Ok(reply) => assert_eq!(reply, Deleted::Done),
            // A removed thread bears no mark: that its removal was ours cannot be told.
            Err(error) => assert_eq!((error.code, lose), (Code::StoreUnavailable, Lose::Answer)),
        }
        assert_eq!(store.stats().n_lost, 6 * (idx as u64 + 1), "each write was disturbed once");
    }
}

#[tokio::test]
async fn turns_go_on_over_a_restart_of_the_database() {
    let env = Env::real();
    let mut server = LocalPostgres::start(&env, LocalOptions::default()).await.unwrap();
    let patience = Duration::from_secs(90);
    let options = PostgresOptions { patience, ..PostgresOptions::default() };
    let (stage, store) = stage_at(&server.url("postgres"), options).await;
    let me = stage.replica().await;
    let stage = Arc::new(stage);
    let threads: Vec<_> = (0..8).map(|_| stage.new_thread()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let turns = threads.iter().map(|thread| turns(stage.clone(), *thread, me, stop.clone()));
    let disturb = async {
        for how in [Stop::Immediate, Stop::Fast] {
            let before = store.stats().n_writes;
            server.stop(how).await.unwrap();
            server.resume().await.unwrap();
            while store.stats().n_writes < before + 40 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        stop.store(true, Ordering::SeqCst);
    };
    let (acknowledged, ()) = futures_util::future::join(join_all(turns), disturb).await;
    for (thread, n) in threads.into_iter().zip(acknowledged) {
        assert!(n > 0);
        assert_eq!(stage.thread(thread).await.version, n, "each acknowledged turn counts once");
        stage.check_thread(thread).await;
    }
}

/// Turns on one thread until told to stop; returns how many were acknowledged.
async fn turns(
    stage: Arc<Stage>,
    thread: evenkeel_core::id::ThreadId,
    me: evenkeel_core::id::ReplicaId,
    stop: Arc<AtomicBool>,
) -> u64 {
    let mut n = 0;
    while !stop.load(Ordering::SeqCst) {
        let admit = Admit { claim_for: Some(me), ..stage.ask(thread, "again") };
        let claim = match stage.store.admit(admit).await.unwrap() {
            Admitted::Accepted { claim, .. } => *claim.expect("the thread is free"),
            other => panic!("{other:?}"),
        };
        assert!(matches!(stage.finish(&claim, false).await, TurnCommitted::Done { .. }));
        n += 1;
    }
    n
}

#[tokio::test]
async fn a_database_that_became_read_only_is_named_and_used_again_when_it_is_not() {
    let env = Env::real();
    let mut server = LocalPostgres::start(&env, LocalOptions::default()).await.unwrap();
    let options = PostgresOptions { patience: Duration::from_millis(300), ..by_hand() };
    let (stage, _store) = stage_at(&server.url("postgres"), options.clone()).await;
    let thread = stage.new_thread();
    stage.enqueue(thread, "before").await;
    let set = "ALTER SYSTEM SET default_transaction_read_only = on";
    server.sql("postgres", set).await.unwrap();
    server.stop(Stop::Fast).await.unwrap();
    server.resume().await.unwrap();
    let refused = stage.store.admit(stage.ask(thread, "during")).await.unwrap_err();
    assert_eq!(refused.code, Code::StoreReadOnly, "{refused}");
    let at_start = PostgresStore::open(&env, &server.url("postgres"), options).await.err().unwrap();
    assert_eq!(at_start.code, Code::StoreReadOnly, "{at_start}");
    // Its own settings cannot be changed by SQL now.
    std::fs::write(server.folder().join("data/postgresql.auto.conf"), "").unwrap();
    server.stop(Stop::Fast).await.unwrap();
    server.resume().await.unwrap();
    stage.enqueue(thread, "after").await;
    assert_eq!(stage.thread(thread).await.n_waiting, 1);
    stage.check_thread(thread).await;
}

#[tokio::test]
async fn a_store_opens_no_more_connections_than_it_may_and_waits_when_the_server_has_none() {
    let env = Env::real();
    // Of these three are kept for superusers, as which tests connect: five are there for everybody.
    let options = LocalOptions { max_connections: 5, ..LocalOptions::default() };
    let server = LocalPostgres::start(&env, options).await.unwrap();
    for connections_max in [2, 4] {
        let database = format!("with_{connections_max}");
        server.create_database(&database).await.unwrap();
        let options = PostgresOptions { connections_max, ..by_hand() };
        let (stage, store) = stage_at(&server.url(&database), options).await;
        let turns = (0..100).map(|_| stage.enqueue(stage.new_thread(), "work"));
        join_all(turns).await;
        assert!(store.stats().connections <= connections_max, "{:?}", store.stats());
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'evenkeel' \
                     AND datname = current_database()";
        let open: usize = server.sql(&database, count).await.unwrap().parse().unwrap();
        assert!(open <= connections_max, "{open} of {connections_max}");
    }
    // The others have all that there are: whoever finds none waits for one.
    let options = PostgresOptions { connections_max: 4, ..by_hand() };
    let (holder, held) = stage_at(&server.url("postgres"), options).await;
    join_all((0..20).map(|_| holder.enqueue(holder.new_thread(), "work"))).await;
    join_all((0..20).map(|_| async { assert!(holder.store.counts(()).await.is_ok()) })).await;
    // Reads by key have a connection of their own.
    let unknown = ThreadRef { tenant: holder.tenant.clone(), thread: holder.new_thread() };
    assert_eq!(holder.store.get_thread(unknown).await.unwrap(), None);
    assert_eq!(held.stats().connections, 4);
    let options = PostgresOptions { connections_max: 4, patience: Duration::from_secs(60), ..by_hand() };
    let (late, _store) = stage_at(&server.url("with_2"), options).await;
    let late_thread = late.new_thread();
    let make_room = async {
        while !std::fs::read_to_string(server.folder().join("log")).unwrap().contains("too many clients") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop((holder, held));
    };
    let create = CreateThread {
        tenant: late.tenant.clone(),
        thread: late_thread,
        metadata: serde_json::json!({}),
        busy_policy: None,
    };
    let (created, ()) = futures_util::future::join(late.store.create_thread(create), make_room).await;
    assert!(created.is_ok(), "{created:?}");
}

/// The database has no connection left, for a start or for a store that lost its own: both say so,
/// and both go on when there is room.
#[tokio::test]
async fn a_database_without_a_free_connection_is_named_at_start_and_later() {
    let (env, database) = (Env::real(), Database::new().await);
    let guest = format!("guest_{}", database.name);
    database.sql(&format!("CREATE ROLE {guest} LOGIN PASSWORD 'guest' CONNECTION LIMIT 0")).await;
    database.sql(&format!("GRANT CREATE ON DATABASE {} TO {guest}", database.name)).await;
    let login = format!("{}:{}", database.server.role(), database.server.password());
    let url = database.url().replace(&login, &format!("{guest}:guest"));
    let patience = Duration::from_millis(300);
    let options = PostgresOptions { patience, start_patience: patience, ..by_hand() };
    let no_room = |error: evenkeel_core::Error| {
        assert_eq!(error.code, Code::StoreUnavailable, "{error}");
        assert!(error.to_string().contains("too many connections"), "{error}");
        assert!(matches!(error.retry, Retry::AfterMs(_)), "{error}");
    };
    no_room(PostgresStore::open(&env, &url, options.clone()).await.err().expect("there is no room"));
    let allow = async |n: i32| database.sql(&format!("ALTER ROLE {guest} CONNECTION LIMIT {n}")).await;
    allow(-1).await;
    let (stage, _store) = stage_at(&url, options).await;
    let thread = stage.new_thread();
    stage.enqueue(thread, "before").await;
    allow(0).await;
    let end =
        format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{guest}'");
    database.sql(&end).await;
    let of = ThreadRef { tenant: stage.tenant.clone(), thread };
    // The first answers may tell of the connections that were ended.
    let named = loop {
        let error = stage.store.get_thread(of.clone()).await.unwrap_err();
        if error.to_string().contains("too many connections") {
            break error;
        }
        assert_eq!(error.code, Code::StoreUnavailable, "{error}");
    };
    no_room(named);
    let refused = stage.store.admit(stage.ask(thread, "during")).await.unwrap_err();
    assert_eq!(refused.code, Code::StoreUnavailable, "{refused}");
    no_room(stage.store.admit(stage.ask(thread, "again")).await.unwrap_err());
    allow(-1).await;
    stage.enqueue(thread, "after").await;
    assert_eq!(stage.thread(thread).await.n_waiting, 1, "what was refused is not there");
    stage.check_thread(thread).await;
}

#[tokio::test]
async fn an_operation_is_given_up_when_the_database_stays_away() {
    let env = Env::real();
    let mut server = LocalPostgres::start(&env, LocalOptions::default()).await.unwrap();
    let options = PostgresOptions { patience: Duration::from_millis(400), ..by_hand() };
    let (stage, store) = stage_at(&server.url("postgres"), options).await;
    let thread = stage.new_thread();
    stage.enqueue(thread, "one").await;
    server.stop(Stop::Fast).await.unwrap();
    let answers = [
        stage.store.admit(stage.ask(thread, "two")).await.err(),
        stage.store.get_thread(ThreadRef { tenant: stage.tenant.clone(), thread }).await.err(),
    ];
    for error in answers.map(|error| error.expect("nobody is there to answer")) {
        assert_eq!(error.code, Code::StoreUnavailable, "{error}");
        assert!(!error.message.contains(server.password()), "{error}");
    }
    server.resume().await.unwrap();
    let client = StoreClient(store);
    let found = client.get_thread(ThreadRef { tenant: stage.tenant.clone(), thread }).await.unwrap();
    assert_eq!(found.unwrap().n_waiting, 0, "what was given up was not stored");
}
