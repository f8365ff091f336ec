//! Any sequence of operations has the same replies in every engine, and leaves the same data.
//!
//! Actions name threads, runs, claims and replicas by small numbers, so that sequences meet the
//! same objects again and again; a claim that a later action uses may long be stale. After each
//! sequence the consistency check of the suite runs on every thread of both stores.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::{ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::NewEvent;
use evenkeel_core::port::store::{
    Admit, Admitted, Cancel, Claim, ClaimReady, CommitStep, CommitTurn, CreateThread, Expire, Fence,
    Heartbeat, ListRuns, MergeWindow, Op, Park, ReadEvents, Release, Reply, RunRef, Steal, Store, ThreadRef,
    TurnCommitted, Wake,
};
use evenkeel_core::run::{BusyPolicy, Class, Outcome, RunSpec, RunState, WaitReason};
use evenkeel_env::Env;
use evenkeel_store::conformance::{ManualClock, Stage, samples, world};
use evenkeel_store::memory::MemoryStore;
use proptest::prelude::*;
use serde_json::json;

use crate::Scratch;

const N_THREADS: usize = 3;
const N_REPLICAS: usize = 2;

#[derive(Clone, Debug)]
enum Action {
    Admit {
        thread: usize,
        foreign: bool,
        key: Option<u8>,
        claim: bool,
        reject: bool,
        batch: bool,
        deadline_s: u64,
    },
    Step {
        claim: usize,
        behind: bool,
        events: Vec<u8>,
    },
    Finish {
        claim: usize,
        stale_version: bool,
        take_next: bool,
        state: u8,
    },
    Park {
        claim: usize,
        route: u8,
    },
    Release {
        claim: usize,
    },
    Wake {
        replica: usize,
        route: Option<u8>,
        limit: u32,
    },
    Ready {
        replica: usize,
        limit: u32,
    },
    Steal {
        replica: usize,
        dead: bool,
        limit: u32,
    },
    Cancel {
        run: usize,
        force: bool,
        foreign: bool,
    },
    Expire {
        limit: u32,
    },
    Beat {
        replica: usize,
    },
    Leave {
        replica: usize,
    },
    Advance {
        ms: u64,
    },
}

fn actions() -> impl Strategy<Value = Action> {
    let idx = || 0..12_usize;
    let replica = || 0..N_REPLICAS;
    prop_oneof![
        6 => (0..N_THREADS, prop::bool::weighted(0.1), prop::option::weighted(0.3, 0..3_u8), any::<bool>(),
              prop::bool::weighted(0.2), any::<bool>(), 1..40_u64)
            .prop_map(|(thread, foreign, key, claim, reject, batch, deadline_s)| Action::Admit {
                thread, foreign, key, claim, reject, batch, deadline_s
            }),
        6 => (idx(), prop::bool::weighted(0.1), prop::collection::vec(0..6_u8, 0..4))
            .prop_map(|(claim, behind, events)| Action::Step { claim, behind, events }),
        4 => (idx(), prop::bool::weighted(0.1), any::<bool>(), 0..3_u8)
            .prop_map(|(claim, stale_version, take_next, state)| Action::Finish { claim, stale_version, take_next, state }),
        3 => (idx(), 0..2_u8).prop_map(|(claim, route)| Action::Park { claim, route }),
        2 => idx().prop_map(|claim| Action::Release { claim }),
        2 => (replica(), prop::option::of(0..2_u8), 0..3_u32)
            .prop_map(|(replica, route, limit)| Action::Wake { replica, route, limit }),
        3 => (replica(), 0..3_u32).prop_map(|(replica, limit)| Action::Ready { replica, limit }),
        2 => (replica(), any::<bool>(), 0..3_u32).prop_map(|(replica, dead, limit)| Action::Steal { replica, dead, limit }),
        2 => (idx(), any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(run, force, foreign)| Action::Cancel { run, force, foreign }),
        1 => (0..3_u32).prop_map(|limit| Action::Expire { limit }),
        2 => replica().prop_map(|replica| Action::Beat { replica }),
        1 => replica().prop_map(|replica| Action::Leave { replica }),
        2 => (0..6_000_u64).prop_map(|ms| Action::Advance { ms }),
    ]
}

/// Both engines on one clock, and the objects that actions name by number.
struct Pair {
    env: Env,
    clock: Arc<ManualClock>,
    engines: [Arc<dyn Store>; 2],
    threads: Vec<ThreadId>,
    replicas: Vec<ReplicaId>,
    runs: Vec<RunId>,
    claims: Vec<Claim>,
}

fn tenant(foreign: bool) -> TenantId {
    TenantId::from(if foreign { "other" } else { "acme" })
}

impl Pair {
    fn new() -> Self {
        let (env, clock) = world(3);
        let engines: [Arc<dyn Store>; 2] = [MemoryStore::new(&env), Arc::new(Scratch::new(&env))];
        let threads = (0..N_THREADS).map(|_| ThreadId::new(env.wall(), &env.generator)).collect();
        let replicas = (0..N_REPLICAS).map(|_| ReplicaId::new(env.wall(), &env.generator)).collect();
        Self { env, clock, engines, threads, replicas, runs: Vec::new(), claims: Vec::new() }
    }

    /// Applies an operation to both engines, whose replies must be equal, and keeps what it brought.
    async fn apply(&mut self, op: Op) {
        let [memory, sqlite] = &self.engines;
        let expected = memory.apply(op.clone()).await;
        let found = sqlite.apply(op.clone()).await;
        assert_eq!(found, expected, "to {op:?}");
        match expected {
            Ok(Reply::Admit(Admitted::Accepted { run, claim, .. })) => {
                self.runs.push(run.id);
                self.claims.extend(claim.map(|claim| *claim));
            }
            Ok(Reply::CommitTurn(TurnCommitted::Done { next, .. })) => {
                self.claims.extend(next.map(|next| *next))
            }
            Ok(Reply::Wake(claims) | Reply::ClaimReady(claims) | Reply::Steal(claims)) => {
                self.claims.extend(claims)
            }
            _ => {}
        }
    }

    /// The operation that an action stands for; `None` if it needs an object that is not there yet.
    async fn op(&self, action: &Action) -> Option<Op> {
        // The newest claims come first: most of them still hold.
        let claim_at = |idx: usize| self.claims.iter().rev().nth(idx);
        Some(match action {
            Action::Admit { .. } => Op::Admit(self.admit(action)?),
            Action::Step { claim, behind, events } => {
                let fence = claim_at(*claim)?.fence.clone();
                let known = self.seq_last(&fence).await;
                let seq_base = if *behind { known.saturating_sub(1) } else { known };
                Op::CommitStep(CommitStep { fence, seq_base, events: events.iter().map(event).collect() })
            }
            Action::Finish { claim, stale_version, take_next, state } => {
                let claim = claim_at(*claim)?;
                Op::CommitTurn(CommitTurn {
                    fence: claim.fence.clone(),
                    version: claim.version + u64::from(*stale_version),
                    events: vec![samples::note("last")],
                    outcome: outcome(*state),
                    take_next: *take_next,
                })
            }
            Action::Park { claim, route } => Op::Park(Park {
                fence: claim_at(*claim)?.fence.clone(),
                on: WaitReason::Model,
                reason: "no deployment".to_owned(),
                until_hint: None,
                route: Some(format!("route-{route}")),
                events: vec![samples::checkpoint(2)],
            }),
            Action::Release { claim } => Op::Release(Release { fence: claim_at(*claim)?.fence.clone() }),
            Action::Wake { replica, route, limit } => Op::Wake(Wake {
                me: self.replicas[*replica],
                on: WaitReason::Model,
                route: route.map(|route| format!("route-{route}")),
                limit: *limit,
            }),
            Action::Ready { replica, limit } => {
                Op::ClaimReady(ClaimReady { me: self.replicas[*replica], limit: *limit })
            }
            Action::Steal { replica, dead, limit } => {
                let others = self.replicas.iter().filter(|other| **other != self.replicas[*replica]);
                let dead = if *dead { others.copied().collect() } else { Vec::new() };
                Op::Steal(Steal { me: self.replicas[*replica], dead, limit: *limit })
            }
            Action::Cancel { run, force, foreign } => {
                let run = *self.runs.iter().rev().nth(*run)?;
                Op::Cancel(Cancel { tenant: tenant(*foreign), run, force: *force, undo: false })
            }
            Action::Expire { limit } => Op::Expire(Expire { limit: *limit }),
            Action::Beat { replica } => Op::Heartbeat(Heartbeat {
                replica: self.replicas[*replica],
                address: None,
                lease_ttl_ms: 4_000,
                draining: false,
            }),
            Action::Leave { replica } => Op::Leave(self.replicas[*replica]),
            Action::Advance { .. } => return None,
        })
    }

    async fn seq_last(&self, fence: &Fence) -> u64 {
        let of = ThreadRef { tenant: fence.tenant.clone(), thread: fence.thread };
        match self.engines[0].apply(Op::GetThread(of)).await {
            Ok(Reply::GetThread(Some(thread))) => thread.seq_last,
            other => panic!("no thread: {other:?}"),
        }
    }

    fn admit(&self, action: &Action) -> Option<Admit> {
        let Action::Admit { thread, foreign, key, claim, reject, batch, deadline_s } = action else {
            return None;
        };
        let run = RunId::new(self.env.wall(), &self.env.generator);
        // A keyed request repeats its message and body; some keys then meet another body.
        let body = key.map_or_else(|| run.to_string(), |key| format!("key {key} on {}", thread % 2));
        Some(Admit {
            tenant: tenant(*foreign),
            thread: self.threads[*thread],
            create_thread: deadline_s % 4 != 0,
            run,
            spec: RunSpec {
                class: if *batch { Class::Batch } else { Class::Interactive },
                busy_policy: if *reject { BusyPolicy::Reject } else { BusyPolicy::Enqueue },
                deadline: self.env.wall().after(Duration::from_secs(*deadline_s)),
                request: json!({ "n": deadline_s }),
                ..samples::spec(&body, &body)
            },
            key: key.map(|key| format!("key-{key}").into()),
            body_hash: body,
            claim_for: claim.then(|| self.replicas[0]),
            n_waiting_max: 3,
            delay_ms: 0,
            merge: MergeWindow::default(),
        })
    }

    /// All that can be read, compared; and the consistency of each store by itself.
    async fn compare(&mut self) {
        for foreign in [false, true] {
            for thread in self.threads.clone() {
                let tenant = tenant(foreign);
                let of = ThreadRef { tenant: tenant.clone(), thread };
                self.apply(Op::GetThread(of.clone())).await;
                self.apply(Op::ReadTails(vec![of])).await;
                self.apply(Op::ReadEvents(ReadEvents { tenant, thread, after_seq: 0, limit: u32::MAX }))
                    .await;
            }
            for run in self.runs.clone() {
                self.apply(Op::GetRun(RunRef { tenant: tenant(foreign), run })).await;
                self.apply(Op::ReadEffects(RunRef { tenant: tenant(foreign), run })).await;
            }
        }
        let list = |states, limit, offset| {
            Op::ListRuns(ListRuns { tenant: None, thread: None, states, limit, offset })
        };
        self.apply(list(Vec::new(), u32::MAX, 0)).await;
        self.apply(list(vec![RunState::Queued, RunState::Completed], 3, 1)).await;
        self.apply(Op::Counts(())).await;
        for engine in self.engines.clone() {
            for foreign in [false, true] {
                let stage = Stage::new(engine.clone(), self.env.clone(), self.clock.clone());
                let stage = Stage { tenant: tenant(foreign), ..stage };
                for thread in &self.threads {
                    let of = ThreadRef { tenant: stage.tenant.clone(), thread: *thread };
                    if stage.store.get_thread(of).await.unwrap().is_some() {
                        stage.check_thread(*thread).await;
                    }
                }
            }
        }
    }
}

fn event(kind: &u8) -> NewEvent {
    match kind {
        0 => samples::note("a note"),
        1 => samples::checkpoint(1),
        2 => samples::intend("write"),
        3 => samples::settle("write"),
        4 => samples::reply(1, "hello", samples::usage()),
        _ => samples::note(&"long ".repeat(3_000)),
    }
}

fn outcome(state: u8) -> Outcome {
    let state = [RunState::Completed, RunState::Failed, RunState::Cancelled][usize::from(state)];
    Outcome { state, reason: None, error: None, text: "done".to_owned(), diff: None }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engines_agree(actions in prop::collection::vec(actions(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut pair = Pair::new();
            let made = CreateThread { tenant: tenant(false), thread: pair.threads[0], metadata: json!({ "a": 1 }), busy_policy: None };
            pair.apply(Op::CreateThread(made)).await;
            for action in &actions {
                if let Action::Advance { ms } = action {
                    pair.clock.advance(Duration::from_millis(*ms));
                }
                if let Some(op) = pair.op(action).await {
                    pair.apply(op).await;
                }
            }
            pair.compare().await;
        });
    }
}
