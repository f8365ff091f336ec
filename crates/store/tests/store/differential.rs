//! Any sequence of operations has the same replies in every engine, and leaves the same data.
//!
//! Actions name threads, runs, claims and replicas by small numbers, so that sequences meet the
//! same objects again and again; a claim that a later action uses may long be stale. The consistency
//! check of the suite runs on every thread: after each action on the engine in memory, after each
//! sequence on both.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::{ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::{EventBody, NewEvent};
use evenkeel_core::port::store::{
    Admit, Admitted, Cancel, Claim, ClaimReady, CommitStep, CommitTurn, CreateThread, Expire, Fence,
    Heartbeat, ListRuns, ListThreads, MergeWindow, Op, Park, ReadEvents, Release, Reply, RunRef, Steal,
    Store, TakeSteered, ThreadRef, ThreadSort, TurnCommitted, UpdateThread, Wake, WriteState,
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

/// The frequent ones first.
const POLICIES: [BusyPolicy; 9] = [
    BusyPolicy::Enqueue,
    BusyPolicy::Merge,
    BusyPolicy::Steer,
    BusyPolicy::Latest,
    BusyPolicy::Interrupt,
    BusyPolicy::Rollback,
    BusyPolicy::Reject,
    BusyPolicy::Merge,
    BusyPolicy::Steer,
];

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Admit {
        thread: usize,
        foreign: bool,
        key: Option<u8>,
        claim: bool,
        policy: u8,
        delay_s: u64,
        fork: bool,
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
        undo: bool,
        foreign: bool,
    },
    Expire {
        limit: u32,
    },
    Steer {
        claim: usize,
    },
    Write {
        thread: usize,
        to: u64,
    },
    DeleteRun {
        run: usize,
    },
    /// Changes the metadata of a thread, or deletes it.
    Tidy {
        thread: usize,
        keep: bool,
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
              0..9_u8, prop_oneof![4 => Just(0), 1 => 1..4_u64], prop::bool::weighted(0.1), any::<bool>(), 1..40_u64)
            .prop_map(|(thread, foreign, key, claim, policy, delay_s, fork, batch, deadline_s)| Action::Admit {
                thread, foreign, key, claim, policy, delay_s, fork, batch, deadline_s
            }),
        2 => idx().prop_map(|claim| Action::Steer { claim }),
        1 => (0..N_THREADS, 0..9_u64).prop_map(|(thread, to)| Action::Write { thread, to }),
        1 => idx().prop_map(|run| Action::DeleteRun { run }),
        1 => (0..N_THREADS, prop::bool::weighted(0.3)).prop_map(|(thread, keep)| Action::Tidy { thread, keep }),
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
        2 => (idx(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(run, force, undo, foreign)| Action::Cancel { run, force, undo, foreign }),
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
    fn new(env: Env, clock: Arc<ManualClock>, other: Arc<dyn Store>) -> Self {
        let engines: [Arc<dyn Store>; 2] = [MemoryStore::new(&env), other];
        let threads = (0..N_THREADS).map(|_| ThreadId::new(env.wall(), &env.generator)).collect();
        let replicas = (0..N_REPLICAS).map(|_| ReplicaId::new(env.wall(), &env.generator)).collect();
        Self { env, clock, engines, threads, replicas, runs: Vec::new(), claims: Vec::new() }
    }

    /// Applies an operation to both engines, whose replies must be equal, and keeps what it brought.
    async fn apply(&mut self, op: Op) {
        let [memory, other] = &self.engines;
        let expected = memory.apply(op.clone()).await;
        let found = other.apply(op.clone()).await;
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
                approvals: Vec::new(),
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
            Action::Cancel { run, force, undo, foreign } => {
                let run = *self.runs.iter().rev().nth(*run)?;
                Op::Cancel(Cancel { tenant: tenant(*foreign), run, force: *force, undo: *undo })
            }
            Action::Steer { claim } => {
                Op::TakeSteered(TakeSteered { fence: claim_at(*claim)?.fence.clone(), step: 2 })
            }
            Action::Write { thread, to } => {
                let thread = self.threads[*thread];
                let writer = RunId::new(self.env.wall(), &self.env.generator);
                let back = EventBody::Rewound { to: *to, cause: "fork".to_owned() };
                let messages = vec![samples::message("edited", &to.to_string())];
                let edit = EventBody::StateWritten { messages, values: json!({ "n": to }), as_node: None };
                let events = [back, edit].into_iter().map(|body| NewEvent { step: 0, body }).collect();
                Op::WriteState(WriteState { tenant: tenant(false), thread, writer, events })
            }
            Action::DeleteRun { run } => {
                Op::DeleteRun(RunRef { tenant: tenant(false), run: *self.runs.iter().rev().nth(*run)? })
            }
            Action::Tidy { thread, keep } => {
                let (tenant, thread) = (tenant(false), self.threads[*thread]);
                if *keep {
                    let metadata = json!({ "tidied": true });
                    Op::UpdateThread(UpdateThread { tenant, thread, metadata, busy_policy: None })
                } else {
                    Op::DeleteThread(ThreadRef { tenant, thread })
                }
            }
            Action::Expire { limit } => Op::Expire(Expire { limit: *limit }),
            Action::Beat { replica } => Op::Heartbeat(Heartbeat {
                replica: self.replicas[*replica],
                address: None,
                lease_ttl_ms: 4_000,
                draining: false,
                health: vec![],
            }),
            Action::Leave { replica } => Op::Leave(self.replicas[*replica]),
            Action::Advance { .. } => return None,
        })
    }

    async fn seq_last(&self, fence: &Fence) -> u64 {
        let of = ThreadRef { tenant: fence.tenant.clone(), thread: fence.thread };
        match self.engines[0].apply(Op::GetThread(of)).await {
            Ok(Reply::GetThread(thread)) => thread.map_or(0, |thread| thread.seq_last),
            other => panic!("the thread was not read: {other:?}"),
        }
    }

    fn admit(&self, action: &Action) -> Option<Admit> {
        let Action::Admit { thread, foreign, key, claim, policy, delay_s, fork, batch, deadline_s } = action
        else {
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
                busy_policy: POLICIES[usize::from(*policy)],
                from_seq: fork.then_some(*deadline_s),
                deadline: self.env.wall().after(Duration::from_secs(*deadline_s)),
                request: json!({ "n": deadline_s }),
                ..samples::spec(&body, &body)
            },
            key: key.map(|key| format!("key-{key}").into()),
            body_hash: body,
            claim_for: claim.then(|| self.replicas[0]),
            n_waiting_max: 3,
            delay_ms: delay_s * 1_000,
            merge: MergeWindow { quiet_ms: 1_000, cap_ms: 2_500 },
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
        self.apply(Op::CountParked(())).await;
        for replica in self.replicas.clone() {
            self.apply(Op::ListHeld(replica)).await;
        }
        for (sort, descending) in [(ThreadSort::CreatedAt, true), (ThreadSort::UpdatedAt, false)] {
            let threads = ListThreads {
                tenant: tenant(false),
                ids: Vec::new(),
                metadata: json!({}),
                busy: None,
                newest: Vec::new(),
                sort,
                descending,
                limit: 2,
                offset: 0,
            };
            let busy = ListThreads { busy: Some(descending), ..threads.clone() };
            self.apply(Op::ListThreads(busy)).await;
            self.apply(Op::CountThreads(threads.clone())).await;
            self.apply(Op::ListThreads(threads)).await;
        }
        for engine in self.engines.clone() {
            self.check(engine).await;
        }
    }

    /// What must hold in one engine at any time.
    async fn check(&self, engine: Arc<dyn Store>) {
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
    Outcome { state, reason: None, error: None, text: "done".to_owned(), diff: None, delivered: None }
}

/// A sequence of actions.
pub(crate) fn sequences() -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec(actions(), 1..60)
}

/// Carries a sequence out on the engine in memory and on another one made in the same world.
pub(crate) async fn agree(actions: &[Action], env: Env, clock: Arc<ManualClock>, other: Arc<dyn Store>) {
    let mut pair = Pair::new(env, clock, other);
    let made = CreateThread {
        tenant: tenant(false),
        thread: pair.threads[0],
        metadata: json!({ "a": 1 }),
        busy_policy: None,
    };
    pair.apply(Op::CreateThread(made)).await;
    for action in actions {
        if let Action::Advance { ms } = action {
            pair.clock.advance(Duration::from_millis(*ms));
        }
        if let Some(op) = pair.op(action).await {
            pair.apply(op).await;
            pair.check(pair.engines[0].clone()).await;
        }
    }
    pair.compare().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engines_agree(actions in sequences()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (env, clock) = world(3);
            let sqlite = Arc::new(Scratch::new(&env));
            agree(&actions, env, clock, sqlite).await;
        });
    }
}
