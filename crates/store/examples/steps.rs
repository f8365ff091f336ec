//! Durable steps per second of the SQLite engine, beside the raw limit of its group commit.
//!
//! A step is what the harness stores in one round: the reply with its call and the intent, the
//! result, the checkpoint, in three operations. Raw is one thread that inserts rows of the same
//! bytes, as many in one transaction as there are callers, with the same settings of SQLite.
//!
//! `cargo run --release -p evenkeel-store --example steps -- [DIR]`

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::{CallId, EffectId, RunId};
use evenkeel_core::journal::{EffectClass, EffectIntent, EffectResult, EventBody, NewEvent};
use evenkeel_core::message::{Message, Role, Usage};
use evenkeel_core::port::store::{Claim, CommitStep, Written};
use evenkeel_core::run::Attempt;
use evenkeel_store::conformance::{Stage, world};
use evenkeel_store::sqlite::{SqliteOptions, SqliteStore};
use tokio::time::Instant;

const FOR: Duration = Duration::from_secs(3);

fn main() {
    let base = std::env::args().nth(1).unwrap_or_else(|| "target".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime starts");
    println!("callers  ops/s   steps/s  batch  commit ms  raw ops/s  ratio  at least 0.60 of raw");
    for callers in [1, 16, 64, 256] {
        let dir = Path::new(&base).join(format!("steps-{callers}"));
        drop(std::fs::remove_dir_all(&dir));
        let (ops, batch, commit_ms) = runtime.block_on(measure(&dir, callers));
        let raw = raw(&dir, callers);
        let ratio = ops / raw;
        println!(
            "{callers:7}  {ops:6.0}  {:7.0}  {batch:5.1}  {commit_ms:9.2}  {raw:9.0}  {ratio:5.2}  {}",
            ops / 3.0,
            if ratio >= 0.6 { "met" } else { "MISSED" }
        );
        drop(std::fs::remove_dir_all(&dir));
    }
}

async fn measure(dir: &Path, callers: usize) -> (f64, f64, f64) {
    let (env, clock) = world(1);
    let store = SqliteStore::open(&env, dir, SqliteOptions::default()).expect("the store opens");
    let stage = Arc::new(Stage::new(store.clone(), env, clock));
    let me = stage.replica().await;
    let mut claims = Vec::new();
    for _ in 0..callers {
        claims.push(stage.begin(stage.new_thread(), "fix the failing test", me).await);
    }
    let before = store.stats();
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for claim in claims {
        let stage = stage.clone();
        tasks.spawn(async move { steps(&stage, &claim, begun + FOR).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no caller panics");
    }
    let (took, after) = (begun.elapsed().as_secs_f64(), store.stats());
    let n = (after.n_committed - before.n_committed) as f64;
    let commits = (after.n_commits - before.n_commits) as f64;
    (n / took, n / commits, (after.commit_total_s - before.commit_total_s) / commits * 1e3)
}

async fn steps(stage: &Stage, claim: &Claim, until: Instant) {
    let mut step = 0;
    // The claim and the message.
    let mut seq_base = 2;
    while Instant::now() < until {
        step += 1;
        for events in operations(claim.fence.run, step) {
            let commit = CommitStep { fence: claim.fence.clone(), seq_base, events };
            let written = stage.store.commit_step(commit).await.expect("the store answers");
            let Written::Done { seq_last, .. } = written else { panic!("the fence holds") };
            seq_base = seq_last;
        }
    }
}

fn operations(run: RunId, step: u32) -> [Vec<NewEvent>; 3] {
    let (effect, call_id) = (EffectId::of(run, step, 0), CallId::of(run, step, 0));
    let event = |body| NewEvent { step, body };
    let message = Message::text(format!("m{step}"), Role::Assistant, "I read the file first. ".repeat(20));
    let usage = Usage { input_tokens: 900, cached_input_tokens: 0, output_tokens: 120, estimated: false };
    let attempt = Attempt {
        attempt: 1,
        deployment: "primary".to_owned(),
        provider: "fake".to_owned(),
        model: "solver".to_owned(),
        started_at: evenkeel_core::Wall(0),
        first_content_ms: Some(300),
        ms: 900,
        outcome: "ok".to_owned(),
        cause: None,
        usage,
        cost_micro_usd: None,
    };
    let reply =
        EventBody::AssistantMessage { message, attempts: vec![attempt], finish: "tool_calls".to_owned() };
    let intent = EventBody::EffectIntended(EffectIntent {
        effect: effect.clone(),
        call_id: call_id.clone(),
        tool: "read_file".to_owned(),
        args_hash: "0".repeat(64),
        class: EffectClass::Pure,
        guards: Vec::new(),
        snapshot: None,
        policies: vec!["default".to_owned()],
        approval: None,
    });
    let result = EventBody::EffectSettled(EffectResult {
        effect,
        call_id,
        text: "fn main() { println!(\"hello\"); }\n".repeat(30),
        is_error: false,
        blob: None,
        ms: 3,
        settled: "ran".to_owned(),
        facts: serde_json::Value::Null,
    });
    let end = EventBody::Checkpoint { snapshot: None };
    [vec![event(reply), event(intent)], vec![event(result)], vec![event(end)]]
}

/// Operations per second of bare inserts, `batch` in one transaction.
fn raw(dir: &Path, batch: usize) -> f64 {
    let conn = rusqlite::Connection::open(dir.join("raw.db")).expect("the file opens");
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE events (n INTEGER PRIMARY KEY, thread INTEGER, seq INTEGER, body TEXT);
         CREATE UNIQUE INDEX by_seq ON events (thread, seq);",
    )
    .expect("the schema is made");
    let (_, run) = (0, RunId(Default::default()));
    let bodies: Vec<String> = operations(run, 1)
        .iter()
        .flatten()
        .map(|event| serde_json::to_string(&event.body).expect("an event is JSON"))
        .collect();
    let mut insert =
        conn.prepare("INSERT INTO events (thread, seq, body) VALUES (?1, ?2, ?3)").expect("it prepares");
    let (begun, mut n, mut seq) = (Instant::now(), 0_u32, 0_i64);
    while begun.elapsed() < FOR {
        conn.execute_batch("BEGIN").expect("it begins");
        for thread in 0..batch {
            // Three operations write four events; the third of them is carried along.
            let bodies = if n % 3 == 0 { &bodies[..2] } else { &bodies[2..3] };
            for body in bodies {
                seq += 1;
                let thread = i64::try_from(thread).expect("it is small");
                insert.execute(rusqlite::params![thread, seq, body]).expect("it inserts");
            }
            n += 1;
        }
        conn.execute_batch("COMMIT").expect("it commits");
    }
    f64::from(n) / begun.elapsed().as_secs_f64()
}
