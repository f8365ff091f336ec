//! Full turns per second on PostgreSQL: a message is accepted and claimed, its reply is committed,
//! without any time to think, on 1 to 256 threads and by 16 clients on one thread.
//!
//! The server is started for it from this machine's programs, with `fsync` on. Beside it stands what
//! the machine does with the same writes in the plain way: `pgbench` with a transaction per turn half
//! (a row locked, a thread and a run changed, two events appended), on as many connections as the
//! store has lanes and on 16.
//!
//! `cargo run --release -p evenkeel-store --example turns -- [URL]`

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::id::{ReplicaId, RunId, ThreadId};
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::message::{Message, Role};
use evenkeel_core::port::store::{Admit, Admitted, Claim, CommitTurn, TurnCommitted};
use evenkeel_core::run::RunState;
use evenkeel_env::Env;
use evenkeel_store::conformance::{Stage, samples, world};
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres};
use evenkeel_store::postgres::{PostgresOptions, PostgresStats, PostgresStore};
use tokio::sync::oneshot;
use tokio::time::Instant;

const FOR: Duration = Duration::from_secs(5);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime starts");
    runtime.block_on(measure());
}

async fn measure() {
    let options = LocalOptions { max_connections: 200, ..LocalOptions::default() };
    let server = LocalPostgres::start(&Env::real(), options).await.expect("PostgreSQL starts");
    println!("PostgreSQL {}", server.sql("postgres", "SHOW server_version").await.expect("it answers"));
    println!(
        "threads  clients  turns/s  writes/s  ops/write  loads/turn  redone/turn  p50 ms  p99 ms  connections"
    );
    for n in [1, 16, 64, 256] {
        let report = turns(&server, n, n).await;
        println!("{n:7}  {n:7}  {report}");
    }
    println!("      1       16  {}", turns(&server, 1, 16).await);
    println!("{}", hot(&server).await);
    for clients in [5, 16] {
        println!("pgbench, {clients} connections: {} plain turns/s", plain(&server, clients).await);
    }
}

/// Turns on `n_threads` threads by `n_clients` clients in a database of their own.
async fn turns(server: &LocalPostgres, n_threads: usize, n_clients: usize) -> String {
    let database = format!("turns_{n_threads}_{n_clients}");
    server.create_database(&database).await.expect("the database is made");
    let (env, clock) = world(1);
    let url = server.url(&database);
    let store = PostgresStore::open(&env, &url, PostgresOptions::default()).await.expect("the store opens");
    let stage = Arc::new(Stage::new(store.clone(), env, clock));
    let me = stage.replica().await;
    let threads: Vec<ThreadId> = (0..n_threads).map(|_| stage.new_thread()).collect();
    let before = store.stats();
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    let waiting = Waiting::default();
    for idx in 0..n_clients {
        let (stage, thread, waiting) = (stage.clone(), threads[idx % n_threads], waiting.clone());
        tasks.spawn(async move { client(&stage, thread, me, &waiting, begun + FOR).await });
    }
    let mut took: Vec<Duration> = Vec::new();
    while let Some(done) = tasks.join_next().await {
        took.extend(done.expect("no client panics"));
    }
    let spent = begun.elapsed().as_secs_f64();
    took.sort_unstable();
    let versions: u64 = {
        let mut sum = 0;
        for thread in threads {
            sum += stage.thread(thread).await.version;
        }
        sum
    };
    assert_eq!(versions, took.len() as u64, "each turn counts once");
    report(&took, spent, &before, &store.stats())
}

fn report(took: &[Duration], spent: f64, before: &PostgresStats, after: &PostgresStats) -> String {
    let n = took.len() as f64;
    let writes = (after.n_writes - before.n_writes) as f64;
    let at = |share: f64| {
        let idx = ((took.len() as f64 - 1.0) * share) as usize;
        took.get(idx).copied().unwrap_or_default().as_secs_f64() * 1e3
    };
    format!(
        "{:7.0}  {:8.0}  {:9.1}  {:10.2}  {:11.2}  {:6.1}  {:6.1}  {:11}",
        n / spent,
        writes / spent,
        (after.n_written - before.n_written) as f64 / writes,
        (after.n_loads - before.n_loads) as f64 / n,
        (after.n_redone - before.n_redone) as f64 / n,
        at(0.5),
        at(0.99),
        after.connections
    )
}

/// Clients that wait for the holder of their thread to run their turn.
type Waiting = Arc<Mutex<HashMap<RunId, oneshot::Sender<()>>>>;

/// One client: a message, and its turn by whoever holds the thread, until the time is up.
async fn client(
    stage: &Stage,
    thread: ThreadId,
    me: ReplicaId,
    waiting: &Waiting,
    until: Instant,
) -> Vec<Duration> {
    let mut took = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        let admit = Admit { claim_for: Some(me), ..stage.ask(thread, "What is new?") };
        let (done, my_turn) = oneshot::channel();
        waiting.lock().expect("no client panics").insert(admit.run, done);
        let admitted = stage.store.admit(admit).await.expect("the store answers");
        let Admitted::Accepted { claim, .. } = admitted else { panic!("it is accepted: {admitted:?}") };
        // Whoever holds the thread also runs the turns that came meanwhile.
        let mut next = claim.map(|claim| *claim);
        while let Some(claim) = next.take() {
            next = commit(stage, &claim).await;
            let done = waiting.lock().expect("no client panics").remove(&claim.fence.run);
            let _ = done.expect("its client waits").send(());
        }
        my_turn.await.expect("each turn is run");
        took.push(begun.elapsed());
    }
    took
}

async fn commit(stage: &Stage, claim: &Claim) -> Option<Claim> {
    let reply =
        Message::text(format!("reply-{}", claim.fence.run), Role::Assistant, "Nothing new. ".repeat(20));
    let reply =
        EventBody::AssistantMessage { message: reply, attempts: Vec::new(), finish: "stop".to_owned() };
    let turn = CommitTurn {
        fence: claim.fence.clone(),
        version: claim.version,
        events: vec![NewEvent { step: 1, body: reply }],
        outcome: samples::ended(RunState::Completed),
        take_next: true,
    };
    match stage.store.commit_turn(turn).await.expect("the store answers") {
        TurnCommitted::Done { next, .. } => next.map(|next| *next),
        other => panic!("the fence holds: {other:?}"),
    }
}

/// How many updates of the hot tables touched no index.
async fn hot(server: &LocalPostgres) -> String {
    let sql = "SELECT string_agg(format('%s %s of %s', relname, n_tup_hot_upd, n_tup_upd), ', ' ORDER BY relname) \
               FROM pg_stat_user_tables WHERE n_tup_upd > 0";
    let found = server.sql("turns_256_256", sql).await.expect("it answers");
    format!("HOT updates at 256 threads: {found}")
}

/// The same writes as plain transactions of `pgbench`.
async fn plain(server: &LocalPostgres, clients: usize) -> String {
    let database = format!("plain_{clients}");
    server.create_database(&database).await.expect("the database is made");
    server
        .sql(
            &database,
            "CREATE TABLE threads (id int PRIMARY KEY, row text) WITH (fillfactor = 70);
             CREATE TABLE runs (id bigserial PRIMARY KEY, thread int, state text, row text) WITH (fillfactor = 70);
             CREATE TABLE events (thread int, seq bigserial, body text, PRIMARY KEY (thread, seq));
             INSERT INTO threads SELECT n, repeat('x', 400) FROM generate_series(1, 10000) n;",
        )
        .await
        .expect("the tables are made");
    let script = server.folder().join("turn.sql");
    std::fs::write(&script, SCRIPT).expect("the script is written");
    let program = ["/usr/lib/postgresql/15/bin/pgbench", "/usr/bin/pgbench", "/usr/local/bin/pgbench"];
    let program = program.into_iter().find(|program| Path::new(program).is_file());
    let Some(program) = program else { return "(pgbench is not installed)".to_owned() };
    let mut command = evenkeel_env::process::command(program);
    command.args(["-n", "-T", "5", "-j", "2", "-c", &clients.to_string(), "-f"]).arg(&script);
    command.args(["-h", "127.0.0.1", "-U", server.role(), "-p", &server.port().to_string(), &database]);
    command.env("PGPASSWORD", server.password()).stdin(Stdio::null());
    let output = command.output().await.expect("pgbench runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let tps =
        text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    tps.map_or(text, |tps| format!("{tps:.0}"))
}

/// Both halves of a turn: a run and two events, then its end and two more.
const SCRIPT: &str = "\
\\set id random(1, 10000)
BEGIN;
SELECT id FROM threads WHERE id = :id FOR NO KEY UPDATE;
UPDATE threads SET row = repeat('y', 400) WHERE id = :id;
INSERT INTO runs (thread, state, row) VALUES (:id, 'running', repeat('r', 600)) RETURNING id AS run \\gset
INSERT INTO events (thread, body) VALUES (:id, repeat('e', 100)), (:id, repeat('e', 300));
COMMIT;
BEGIN;
SELECT id FROM threads WHERE id = :id FOR NO KEY UPDATE;
UPDATE threads SET row = repeat('z', 400) WHERE id = :id;
UPDATE runs SET state = 'completed', row = repeat('q', 600) WHERE id = :run;
INSERT INTO events (thread, body) VALUES (:id, repeat('e', 400)), (:id, repeat('e', 100));
COMMIT;
";
