//! The stage on which a case plays: a store, a clock, and short words for frequent actions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_core::id::{MessageId, ReplicaId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody, NewEvent};
use evenkeel_core::port::store::{
    Admit, Admitted, Beat, Cancel, Cancelled, Claim, ClaimReady, CommitStep, CommitTurn, Fence, Heartbeat,
    ListRuns, MergeWindow, Park, ReadEvents, Release, RunRef, Store, StoreClient, TakeSteered, ThreadRef,
    TurnCommitted, Wake, Written,
};
use evenkeel_core::run::{BusyPolicy, EndReason, Run, RunSpec, RunState, WaitReason};
use evenkeel_core::thread::Thread;
use evenkeel_core::{Mono, Wall};
use evenkeel_env::{Clock, Env};

use super::samples::{self, ended, note};

/// A clock that stands still until it is told to move.
pub struct ManualClock {
    ms: AtomicU64,
}

/// Where the manual clock's wall time begins.
const WALL_START: u64 = 1_800_000_000_000;

/// How long a lease lasts that a case takes.
pub(super) const LEASE_TTL_MS: u64 = 4_000;

impl ManualClock {
    /// Moves both times forward.
    pub fn advance(&self, by: Duration) {
        self.ms.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Wall {
        Wall(WALL_START + self.ms.load(Ordering::SeqCst))
    }

    fn mono(&self) -> Mono {
        Mono(self.ms.load(Ordering::SeqCst))
    }
}

/// An environment whose clock is manual and whose ids follow from `seed`.
#[must_use]
pub fn world(seed: u64) -> (Env, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock { ms: AtomicU64::new(1) });
    (Env { clock: clock.clone(), ..Env::seeded(seed) }, clock)
}

/// A store with a clock and a tenant.
pub struct Stage {
    /// The store under test.
    pub store: StoreClient,
    /// Its clock.
    pub clock: Arc<ManualClock>,
    /// Its world, for ids.
    pub env: Env,
    /// The tenant that acts unless a case says otherwise.
    pub tenant: TenantId,
}

impl Stage {
    /// A stage around a store that was made with this environment and clock.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, env: Env, clock: Arc<ManualClock>) -> Self {
        Self { store: StoreClient(store), clock, env, tenant: TenantId::from("acme") }
    }

    /// A fresh thread id.
    pub fn new_thread(&self) -> ThreadId {
        ThreadId::new(self.env.wall(), &self.env.generator)
    }

    /// A fresh run id.
    pub fn new_run(&self) -> RunId {
        RunId::new(self.env.wall(), &self.env.generator)
    }

    /// A replica with a lease.
    pub async fn replica(&self) -> ReplicaId {
        let replica = ReplicaId::new(self.env.wall(), &self.env.generator);
        self.beat(replica).await;
        replica
    }

    /// Renews a replica's lease.
    pub async fn beat(&self, replica: ReplicaId) -> Beat {
        let beat =
            Heartbeat { replica, address: None, lease_ttl_ms: LEASE_TTL_MS, draining: false, health: vec![] };
        good(self.store.heartbeat(beat).await)
    }

    /// A request for a turn with one message; makes the thread if it does not exist.
    pub fn ask(&self, thread: ThreadId, text: &str) -> Admit {
        let run = self.new_run();
        Admit {
            tenant: self.tenant.clone(),
            thread,
            create_thread: true,
            run,
            spec: self.spec(&format!("msg-{run}"), text),
            key: None,
            body_hash: format!("hash of {text}"),
            claim_for: None,
            n_waiting_max: 16,
            delay_ms: 0,
            merge: MergeWindow::default(),
        }
    }

    /// A request for a turn of this policy.
    pub fn ask_with(&self, thread: ThreadId, text: &str, busy_policy: BusyPolicy) -> Admit {
        let ask = self.ask(thread, text);
        Admit { spec: RunSpec { busy_policy, ..ask.spec.clone() }, ..ask }
    }

    fn spec(&self, message: &str, text: &str) -> RunSpec {
        let deadline = self.env.wall().after(Duration::from_secs(60));
        RunSpec { deadline, ..samples::spec(message, text) }
    }

    /// Admits a turn that must be accepted.
    pub async fn accept(&self, admit: Admit) -> (Run, Option<Claim>) {
        match good(self.store.admit(admit).await) {
            Admitted::Accepted { run, claim, .. } => (*run, claim.map(|claim| *claim)),
            other => panic!("the turn was not accepted: {other:?}"),
        }
    }

    /// Accepts a turn that waits for whoever claims it.
    pub async fn enqueue(&self, thread: ThreadId, text: &str) -> Run {
        self.accept(self.ask(thread, text)).await.0
    }

    /// Accepts a turn and claims it for `me` at once.
    pub async fn begin(&self, thread: ThreadId, text: &str, me: ReplicaId) -> Claim {
        let admit = Admit { claim_for: Some(me), ..self.ask(thread, text) };
        self.accept(admit).await.1.expect("a free thread is claimed at once")
    }

    /// Appends events under a fence.
    pub async fn step(&self, fence: &Fence, events: Vec<NewEvent>) -> Written {
        let of = ThreadRef { tenant: fence.tenant.clone(), thread: fence.thread };
        let seq_base = good(self.store.get_thread(of).await).map_or(0, |thread| thread.seq_last);
        self.step_from(fence, seq_base, events).await
    }

    /// Appends events under a fence and behind this sequence number.
    pub async fn step_from(&self, fence: &Fence, seq_base: u64, events: Vec<NewEvent>) -> Written {
        good(self.store.commit_step(CommitStep { fence: fence.clone(), seq_base, events }).await)
    }

    /// Ends a turn well.
    pub async fn finish(&self, claim: &Claim, take_next: bool) -> TurnCommitted {
        self.commit(&claim.fence, claim.version, take_next).await
    }

    /// Ends a turn well, on this version.
    pub async fn commit(&self, fence: &Fence, version: u64, take_next: bool) -> TurnCommitted {
        let outcome = ended(RunState::Completed);
        let turn =
            CommitTurn { fence: fence.clone(), version, events: vec![note("last")], outcome, take_next };
        good(self.store.commit_turn(turn).await)
    }

    /// Parks a run for a model on this route.
    pub async fn park(&self, fence: &Fence, route: &str) -> Written {
        let park = Park {
            fence: fence.clone(),
            on: WaitReason::Model,
            reason: "no deployment can answer".to_owned(),
            until_hint: None,
            route: Some(route.to_owned()),
            approvals: Vec::new(),
            events: Vec::new(),
        };
        good(self.store.park(park).await)
    }

    /// Claims parked runs of a route.
    pub async fn wake(&self, me: ReplicaId, route: &str, limit: u32) -> Vec<Claim> {
        let wake = Wake { me, on: WaitReason::Model, route: Some(route.to_owned()), limit };
        good(self.store.wake(wake).await)
    }

    /// Gives a claim back.
    pub async fn release(&self, fence: &Fence) -> Written {
        good(self.store.release(Release { fence: fence.clone() }).await)
    }

    /// Claims queued runs.
    pub async fn ready(&self, me: ReplicaId, limit: u32) -> Vec<Claim> {
        good(self.store.claim_ready(ClaimReady { me, limit }).await)
    }

    /// Takes what steers into the run.
    pub async fn take_steered(&self, fence: &Fence) -> Written {
        good(self.store.take_steered(TakeSteered { fence: fence.clone(), step: 2 }).await)
    }

    /// Asks for a cancel that undoes.
    pub async fn undo(&self, run: RunId, force: bool) -> Cancelled {
        good(self.store.cancel(Cancel { tenant: self.tenant.clone(), run, force, undo: true }).await)
    }

    /// Asks for a cancel.
    pub async fn cancel(&self, run: RunId) -> Cancelled {
        good(self.store.cancel(Cancel { tenant: self.tenant.clone(), run, force: false, undo: false }).await)
    }

    /// Ends a run whatever its owner does.
    pub async fn cancel_by_force(&self, run: RunId) -> Cancelled {
        good(self.store.cancel(Cancel { tenant: self.tenant.clone(), run, force: true, undo: false }).await)
    }

    /// A run that must be stored.
    pub async fn run(&self, run: RunId) -> Run {
        let found = good(self.store.get_run(RunRef { tenant: self.tenant.clone(), run }).await);
        found.expect("the run is stored")
    }

    /// A thread that must be stored.
    pub async fn thread(&self, thread: ThreadId) -> Thread {
        let found = good(self.store.get_thread(ThreadRef { tenant: self.tenant.clone(), thread }).await);
        found.expect("the thread is stored")
    }

    /// All events of a thread.
    pub async fn events(&self, thread: ThreadId) -> Vec<Event> {
        let range = ReadEvents { tenant: self.tenant.clone(), thread, after_seq: 0, limit: u32::MAX };
        good(self.store.read_events(range).await)
    }

    /// The thread's log in words, one for each event.
    pub async fn log(&self, thread: ThreadId) -> Vec<String> {
        self.events(thread).await.iter().map(words).collect()
    }

    pub(super) async fn n_fenced(&self) -> u64 {
        good(self.store.counts(()).await).n_fenced
    }

    /// What must hold of a thread's stored data at any time: dense sequence numbers, one holder, no
    /// lost wake-up, one end for each ended run and nothing after it, versions without a gap.
    pub async fn check_thread(&self, thread: ThreadId) {
        let stored = self.thread(thread).await;
        let events = self.events(thread).await;
        let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
        assert_eq!(seqs, (1..=stored.seq_last).collect::<Vec<u64>>(), "the sequence is dense");
        let list = ListRuns {
            tenant: Some(self.tenant.clone()),
            thread: Some(thread),
            states: Vec::new(),
            limit: u32::MAX,
            offset: 0,
        };
        let runs = good(self.store.list_runs(list).await);
        let open: Vec<&Run> = runs.iter().filter(|run| !run.state.is_terminal()).collect();
        assert_eq!(stored.active.is_some(), !open.is_empty(), "open runs have a holder of the thread");
        assert_eq!(stored.n_waiting as usize, open.len().saturating_sub(1), "the others wait");
        let holders = open.iter().filter(|run| run.state != RunState::Queued).count();
        assert!(holders <= 1, "at most one run is active");
        for run in &runs {
            let ends = events.iter().filter(|event| event.run == run.id).skip_while(|event| !is_end(event));
            let n_ends = usize::from(run.state.is_terminal());
            assert_eq!(ends.count(), n_ends, "run {} ({:?}) has its end last", run.id, run.state);
            assert_eq!(run.owner.is_some(), matches!(run.state, RunState::Running | RunState::Cancelling));
            assert_eq!(run.outcome.is_some(), run.state.is_terminal());
            assert_eq!(run.wait.is_some(), run.state == RunState::Waiting);
            assert!(
                run.asks().is_empty() || (stored.asks && stored.active == Some(run.id)),
                "the thread says that it asks"
            );
        }
        let newest = runs.first();
        assert_eq!(stored.newest_run, newest.map(|run| run.id));
        assert_eq!(stored.newest_state, newest.map(|run| run.state));
        let mut versions: Vec<u64> = runs.iter().filter_map(|run| run.version).collect();
        versions.sort_unstable();
        let all: Vec<u64> = (1..=stored.version).collect();
        if events.iter().all(|event| runs.iter().any(|run| run.id == event.run)) {
            assert_eq!(versions, all, "each version is one turn's");
        } else {
            // A deleted run, or a client's write, has a version that no run tells.
            versions.dedup();
            assert!(versions.iter().all(|version| all.contains(version)), "{versions:?} of {all:?}");
        }
        check_messages(&runs, &events);
    }
}

/// Every accepted message is in the log exactly once, or its run says why it is not there; and they
/// are there in order of arrival, those that steer among themselves.
fn check_messages(runs: &[Run], events: &[Event]) {
    let (mut newest, mut newest_steered) = (0, 0);
    for run in runs.iter().rev() {
        let reason = run.outcome.as_ref().and_then(|outcome| outcome.reason);
        let taken = reason.and_then(EndReason::answered_by);
        let author = if run.attempt > 0 { Some(run.id) } else { taken };
        for message in &run.spec.messages {
            let places: Vec<&Event> = events.iter().filter(|event| brings(event, &message.id)).collect();
            let authors: Vec<RunId> = places.iter().map(|event| event.run).collect();
            assert_eq!(authors, author.into_iter().collect::<Vec<_>>(), "{} of run {}", message.id, run.id);
            if let Some(place) = places.first() {
                let steered = matches!(reason, Some(EndReason::Steered { .. }));
                let before = if steered { &mut newest_steered } else { &mut newest };
                assert!(place.seq > *before, "{} came before its turn", message.id);
                *before = place.seq;
            }
        }
    }
}

fn brings(event: &Event, id: &MessageId) -> bool {
    matches!(&event.body, EventBody::UserMessage { message } if message.id == *id)
}

fn is_end(event: &Event) -> bool {
    matches!(event.body, EventBody::RunEnded { .. })
}

/// The reply of an operation that the store must answer.
pub(super) fn good<T>(reply: Result<T, evenkeel_core::Error>) -> T {
    reply.unwrap_or_else(|error| panic!("the store failed: {error}"))
}

fn reason_word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Requested => "requested",
        EndReason::Undone => "undone",
        EndReason::Interrupted { .. } => "interrupted",
        EndReason::RolledBack { .. } => "rolled back",
        EndReason::Superseded { .. } => "superseded",
        EndReason::Merged { .. } => "merged",
        EndReason::Steered { .. } => "steered",
    }
}

/// An event in a word or two.
fn words(event: &Event) -> String {
    match &event.body {
        EventBody::RunClaimed { epoch, attempt } => format!("claimed epoch {epoch} attempt {attempt}"),
        EventBody::UserMessage { message } => format!("user {}", message.joined_text()),
        EventBody::AssistantMessage { message, .. } => format!("assistant {}", message.joined_text()),
        EventBody::Noted { text, .. } => format!("note {text}"),
        EventBody::Parked { .. } => "parked".to_owned(),
        EventBody::ApprovalAnswered { answer, .. } => {
            format!("{} by {} {}", answer.decision.as_str(), answer.by, answer.note).trim_end().to_owned()
        }
        EventBody::CancelRequested => "cancel requested".to_owned(),
        EventBody::RunEnded { outcome } => match outcome.reason {
            Some(reason) => format!("ended {} {}", outcome.state.as_str(), reason_word(reason)),
            None => format!("ended {}", outcome.state.as_str()),
        },
        EventBody::Rewound { to, cause } => format!("rewound to {to} {cause}"),
        EventBody::Checkpoint { .. } => format!("checkpoint {}", event.step),
        EventBody::EffectIntended(intent) => format!("intended {}", intent.tool),
        EventBody::EffectSettled(result) => format!("settled {}", result.text),
        other => format!("{other:?}"),
    }
}
