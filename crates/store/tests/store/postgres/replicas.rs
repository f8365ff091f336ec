//! Several replicas over one database: nobody gets what another one has, nobody waits in a circle.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_core::id::{IdempotencyKey, ReplicaId};
use evenkeel_core::port::store::{
    Admit, Admitted, ClaimReady, CommitTurn, Heartbeat, Steal, StoreClient, TurnCommitted, UpdateThread,
};
use evenkeel_core::run::RunState;
use evenkeel_env::Env;
use evenkeel_store::conformance::{Stage, samples, world};
use evenkeel_store::postgres::{PostgresOptions, PostgresStore};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::{Database, by_hand};

/// Two replicas' stores on one database, each with a world of its own.
async fn two(database: &Database) -> [Stage; 2] {
    let (env, clock) = world(1);
    let first = Stage::new(database.empty(&env, &database.url()).await, env, clock);
    let (env, clock) = world(2);
    let store = PostgresStore::open(&env, &database.url(), by_hand()).await.unwrap();
    [first, Stage::new(store, env, clock)]
}

#[tokio::test]
async fn a_thousand_claims_by_two_replicas_never_overlap() {
    const N: usize = 1_000;
    let database = Database::new().await;
    let stages = two(&database).await;
    let replicas = [stages[0].replica().await, stages[1].replica().await];
    let admits = (0..N).map(|_| stages[0].enqueue(stages[0].new_thread(), "work"));
    join_all(admits).await;
    let claimers = stages.iter().zip(replicas).map(|(stage, me)| claim_all(stage, me));
    let claimed: Vec<Vec<_>> = join_all(claimers).await;
    let all: Vec<_> = claimed.iter().flatten().collect();
    let distinct: BTreeSet<_> = all.iter().copied().collect();
    assert_eq!((all.len(), distinct.len()), (N, N), "each run is claimed once, and none is left");
    assert!(claimed.iter().all(|of| !of.is_empty()), "both have claimed");
    let epochs =
        database.sql("SELECT count(*) FROM evenkeel.threads WHERE row::jsonb ->> 'epoch' <> '1'").await;
    assert_eq!(epochs, "0", "no thread was claimed twice");
}

/// Changes by two replicas in one moment are all there, whoever wrote first.
#[tokio::test]
async fn a_hundred_changes_at_once_by_two_replicas_are_all_there() {
    let database = Database::new().await;
    let stages = two(&database).await;
    let thread = stages[0].new_thread();
    stages[0].enqueue(thread, "hello").await;
    let changes = (0..100).map(|n| {
        let stage = &stages[n % 2];
        let metadata = serde_json::json!({ format!("call {n}"): n });
        let tenant = stage.tenant.clone();
        stage.store.update_thread(UpdateThread { tenant, thread, metadata, busy_policy: None })
    });
    for changed in join_all(changes).await {
        changed.unwrap().expect("the thread is there");
    }
    let stored = stages[0].thread(thread).await.metadata;
    assert_eq!(stored.as_object().unwrap().len(), 100, "{stored}");
    stages[1].check_thread(thread).await;
}

/// Claims until nothing is left for anybody.
async fn claim_all(stage: &Stage, me: ReplicaId) -> Vec<evenkeel_core::id::RunId> {
    let mut claimed = Vec::new();
    loop {
        let claims = stage.store.claim_ready(ClaimReady { me, limit: 20 }).await.unwrap();
        claimed.extend(claims.into_iter().map(|claim| claim.fence.run));
        let queued = stage.store.counts(()).await.unwrap().runs;
        let n_queued: u64 =
            queued.iter().filter(|(state, _)| *state == RunState::Queued).map(|(_, n)| n).sum();
        if n_queued == 0 {
            return claimed;
        }
    }
}

#[tokio::test]
async fn replicas_that_write_to_the_same_threads_agree_and_never_wait_in_a_circle() {
    let database = Database::new().await;
    let stages = two(&database).await;
    let threads: Vec<_> = (0..6).map(|_| stages[0].new_thread()).collect();
    let mut asked = Vec::new();
    for round in 0..8 {
        for (idx, stage) in stages.iter().enumerate() {
            // Opposite orders, and every key is used by both.
            let order: Vec<_> =
                if idx == 0 { threads.clone() } else { threads.iter().rev().copied().collect() };
            for thread in order {
                let key = Some(IdempotencyKey(format!("{thread}-{round}")));
                let text = format!("message {round}");
                asked.push(stage.store.admit(Admit { key, n_waiting_max: 100, ..stage.ask(thread, &text) }));
            }
        }
    }
    let (mut n_accepted, mut n_replayed) = (0, 0);
    for answer in join_all(asked).await {
        match answer.unwrap() {
            Admitted::Accepted { .. } => n_accepted += 1,
            Admitted::Replayed(_) => n_replayed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((n_accepted, n_replayed), (48, 48), "each key has one run, whoever brought it");
    for thread in threads {
        let stored = stages[1].thread(thread).await;
        assert_eq!((stored.active.is_some(), stored.n_waiting), (true, 7));
        stages[0].check_thread(thread).await;
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(database.sql(deadlocks).await, "0");
}

#[tokio::test]
async fn leases_lapse_by_the_clock_of_the_database() {
    let database = Database::new().await;
    let (url, real) = (database.url(), Env::real());
    let open = || PostgresStore::open(&real, &url, PostgresOptions::default());
    let stores = [StoreClient(open().await.unwrap()), StoreClient(open().await.unwrap())];
    // The clocks of these two worlds stand still, and one of them is a year ahead.
    let (env, clock) = world(5);
    clock.advance(Duration::from_secs(365 * 86_400));
    let stage = Stage::new(stores[0].0.clone(), env.clone(), clock);
    let (owner, heir) =
        (ReplicaId::new(env.wall(), &env.generator), ReplicaId::new(env.wall(), &env.generator));
    let beat = |replica, lease_ttl_ms| Heartbeat {
        replica,
        address: None,
        lease_ttl_ms,
        draining: false,
        health: vec![],
    };
    // Before the renewal, so that a machine that is slow here does not make a lapsed lease a live one.
    let begun = Instant::now();
    assert!(stores[0].heartbeat(beat(owner, 700)).await.unwrap().held);
    assert!(stores[1].heartbeat(beat(heir, 60_000)).await.unwrap().held);
    let claim = stage.begin(stage.new_thread(), "work", owner).await;
    let steal = || stores[1].steal(Steal { me: heir, dead: Vec::new(), limit: 9 });
    let mut stolen = steal().await.unwrap();
    assert!(stolen.is_empty() || begun.elapsed() > Duration::from_millis(700), "a live lease is respected");
    while stolen.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the lease never lapses");
        sleep(Duration::from_millis(50)).await;
        stolen = steal().await.unwrap();
    }
    assert_eq!((stolen[0].fence.run, stolen[0].fence.epoch), (claim.fence.run, claim.fence.epoch + 1));
    let late = CommitTurn {
        fence: claim.fence.clone(),
        version: claim.version,
        events: Vec::new(),
        outcome: samples::ended(RunState::Completed),
        take_next: false,
    };
    assert_eq!(
        stores[0].commit_turn(late).await.unwrap(),
        TurnCommitted::Fenced,
        "from its cache it owns the run"
    );
    assert!(!stores[0].heartbeat(beat(owner, 700)).await.unwrap().held, "it is told that it had lapsed");
    stores[0].leave(owner).await.unwrap();
    let peers = stores[1].heartbeat(beat(heir, 60_000)).await.unwrap().peers;
    assert!(peers.is_empty(), "who has left is nobody's peer: {peers:?}");
    assert_eq!(stores[1].counts(()).await.unwrap().n_fenced, 1, "the refused write is counted for everybody");
}
