//! The loops of a replica and the set of runs that are driven here.
//!
//! ```text
//!   admit (edge) ---- adopt ---+
//!   claim loop --- queued -----+                       +-- ended -> the thread's next turn, same slot
//!   steal loop --- orphaned ---+--> a slot, a task ----+-- parked -> wake loop, when a permit comes
//!   wake loop ---- parked -----+    (run::drive)       +-- released, fenced -> gone
//! ```
//! Every loop is idempotent, has no input but the store and the clock, and alone makes progress:
//! hints (`nudge`, `cancel`, permits) only make it faster.
//!
//! # Identity
//! Claims are made for an incarnation. When the lease is lost, everything local is dropped and the
//! replica goes on as a *new* incarnation: it takes its own former runs over like anybody else's,
//! with new epochs, so that a write of a dropped run that is still on its way is refused.
//!
//! # What holds
//! - a run is driven by at most one task here, with the newest epoch seen;
//! - nothing is claimed without a lease, while draining, or without a reserved slot;
//! - a claim whose reply was lost is found again by the sweep and driven, and one that was lost
//!   without our hearing of it is stopped by the sweep within seconds.

mod claims;
mod heartbeat;
mod peers;
mod sweep;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use evenkeel_core::control::lease::Lease;
use evenkeel_core::id::{ReplicaId, RunId, TenantId};
use evenkeel_core::port::store::{Claim, Peer, RunRef};
use evenkeel_core::{Error, Wall};
use evenkeel_env::slots::{Slot, SlotGauges};
use evenkeel_env::{Env, Task, watch};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::HarnessConfig;
use crate::harness::{HarnessStats, Parts};
use crate::host::Host;
use crate::run::drive::{Left, Signal, Source, drive};

/// Slots that a loop reserves at once; the rest stay free for turns that the edge admits.
const RESERVED_MAX: usize = 64;
/// Tries to leave the store in order; after that the lease lapses.
const LEAVE_TRIES: u32 = 3;

pub(crate) struct Dispatch {
    host: Arc<Host>,
    me: Weak<Self>,
    state: Mutex<State>,
    /// Something is queued, or a slot came free while somebody wanted one.
    queued: Notify,
    /// Something may be orphaned.
    orphaned: Notify,
    /// A park or a deadline changed.
    swept: Notify,
    /// A task ended.
    left: Notify,
    /// Somebody says that the store holds news for this replica.
    beat_now: Notify,
}

struct State {
    replica: ReplicaId,
    /// Earlier incarnations of this process whose runs are not all taken over yet.
    former: Vec<ReplicaId>,
    /// The other replicas, as the store last told of them.
    peers: Vec<Peer>,
    /// Those of them that refuse connections.
    dead: BTreeSet<ReplicaId>,
    draining: bool,
    gone: bool,
    locals: BTreeMap<RunId, Local>,
    tasks: BTreeMap<u64, AbortHandle>,
    task_next: u64,
    /// Claims were wanted while no slot was free.
    hungry: bool,
    /// An operation that claims had no answer: look for claims of ours that nobody drives.
    look: bool,
    seen_undriven: BTreeSet<RunId>,
    /// Parked runs by route, as last known.
    parked: BTreeMap<String, usize>,
    /// When interactive turns that were parked here fail, with their routes.
    fails_at: BTreeMap<(Wall, RunId), String>,
}

struct Local {
    tenant: TenantId,
    epoch: u64,
    task: u64,
    signal: watch::Sender<Signal>,
}

impl Dispatch {
    pub(crate) fn new(env: Env, config: HarnessConfig, parts: Parts) -> Arc<Self> {
        let replica = ReplicaId::new(env.wall(), &env.generator);
        let host = Arc::new(Host::new(env, config, parts));
        Arc::new_cyclic(|me| Self {
            host,
            me: me.clone(),
            state: Mutex::new(State::of(replica)),
            queued: Notify::new(),
            orphaned: Notify::new(),
            swept: Notify::new(),
            left: Notify::new(),
            beat_now: Notify::new(),
        })
    }

    pub(crate) fn start_loops(self: &Arc<Self>) -> Vec<Task> {
        let spawner = &self.host.env.spawner;
        vec![
            spawner.spawn("harness-heartbeat", Box::pin(heartbeat::run(self.clone()))),
            spawner.spawn("harness-peers", Box::pin(peers::probe_loop(self.clone()))),
            spawner.spawn("harness-claim", Box::pin(claims::claim_loop(self.clone()))),
            spawner.spawn("harness-steal", Box::pin(claims::steal_loop(self.clone()))),
            spawner.spawn("harness-wake", Box::pin(wake::run(self.clone()))),
            spawner.spawn("harness-sweep", Box::pin(sweep::run(self.clone()))),
        ]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn replica(&self) -> ReplicaId {
        self.state().replica
    }

    /// Whether something may be claimed now.
    fn may_claim(&self) -> bool {
        !self.state().draining && self.host.holds_lease()
    }

    pub(crate) fn free_slots(&self) -> usize {
        if self.may_claim() { self.host.parts.slots.harness.free() } else { 0 }
    }

    pub(crate) fn nudge(&self) {
        self.queued.notify_one();
    }

    /// Asks the store for news of this replica, with a heartbeat out of turn.
    pub(crate) fn look(&self) {
        self.beat_now.notify_one();
    }

    pub(crate) fn cancel(&self, run: RunId) {
        if let Some(local) = self.state().locals.get(&run) {
            local.signal.send_modify(|signal| signal.cancel = true);
        }
    }

    /// A slot for one claim that the edge is about to ask for. Kept until it is adopted or dropped, so
    /// that no more is claimed than can be driven.
    pub(crate) fn slot(&self) -> Option<Slot> {
        if self.may_claim() { self.host.parts.slots.harness.try_acquire() } else { None }
    }

    /// Takes back a slot for which there was no claim. Whoever found none meanwhile looks again.
    pub(crate) fn unused(&self, slot: Slot) {
        drop(slot);
        let hungry = std::mem::take(&mut self.state().hungry);
        if hungry {
            self.nudge();
        }
    }

    /// Starts a claim that the edge obtained, in the slot that it had kept for it.
    pub(crate) fn adopt(&self, claim: Claim, slot: Slot) {
        self.begin(claim, slot, Source::Fresh);
    }

    /// Takes up to `n` slots that are free now.
    fn reserve(&self, n: usize) -> Vec<Slot> {
        let slots = &self.host.parts.slots.harness;
        let reserved: Vec<Slot> =
            std::iter::from_fn(|| slots.try_acquire()).take(n.min(RESERVED_MAX)).collect();
        if reserved.is_empty() && n > 0 {
            self.state().hungry = true;
        }
        reserved
    }

    /// Starts a task for the claim, unless the run is driven here with this claim or a newer one.
    fn begin(&self, claim: Claim, slot: Slot, source: Source) {
        let Some(me) = self.me.upgrade() else { return };
        let mut state = self.state();
        let is_former = claim.run.owner.is_some_and(|owner| owner != state.replica);
        let known = state.locals.get(&claim.fence.run).map(|local| (local.epoch, local.task));
        if is_former || known.is_some_and(|(epoch, _)| epoch >= claim.fence.epoch) {
            return;
        }
        if let Some(stale) = known.and_then(|(_, task)| state.tasks.remove(&task)) {
            stale.abort();
        }
        let task = state.task_next;
        state.task_next += 1;
        let signal = state.register(&claim, task);
        self.host.count(|counters| counters.n_claimed += 1);
        let leave = Leave { dispatch: me.clone(), task };
        let driven = me.drive_turns(leave, claim, source, signal, slot);
        // The lock is held: the task cannot look itself up before it is entered.
        let handle = self.host.env.spawner.spawn("harness-run", Box::pin(driven)).abort_handle();
        state.tasks.insert(task, handle);
    }

    /// Drives a claim, and then each next turn of its thread, in one slot.
    async fn drive_turns(
        self: Arc<Self>,
        leave: Leave,
        claim: Claim,
        source: Source,
        signal: watch::Receiver<Signal>,
        slot: Slot,
    ) {
        let mut turn = Some((claim, source, signal));
        while let Some((claim, source, signal)) = turn.take() {
            let run = claim.fence.run;
            let left = drive(self.host.clone(), claim, source, signal).await;
            turn = self.left(leave.task, run, left);
        }
        drop(slot);
        drop(leave);
    }

    /// Notes how a claim left. Replies with the thread's next turn, if it was handed over.
    fn left(&self, task: u64, run: RunId, left: Left) -> Option<(Claim, Source, watch::Receiver<Signal>)> {
        let mut state = self.state();
        if state.locals.get(&run).is_some_and(|local| local.task == task) {
            state.locals.remove(&run);
        }
        match left {
            Left::Ended { next, look } => {
                state.look |= look;
                let next = *next?;
                let signal = state.register(&next, task);
                drop(state);
                self.host.count(|counters| counters.n_claimed += 1);
                Some((next, Source::Fresh, signal))
            }
            Left::Parked { route, fails_at } => {
                state.fails_at.insert((fails_at, run), route.clone());
                let n = state.parked.get(&route).copied().unwrap_or(0) + 1;
                drop(state);
                self.parked(&route, n);
                self.swept.notify_one();
                None
            }
            Left::Asks | Left::Released | Left::Fenced => None,
        }
    }

    /// Tells the router how many wait on a route.
    fn parked(&self, route: &str, n: usize) {
        let before = self.state().parked.insert(route.to_owned(), n);
        if before != Some(n) {
            self.host.parts.model.parked(route, n);
        }
    }

    /// Stops everything that runs here, at once.
    pub(crate) fn drop_all_runs(&self) {
        let mut state = self.state();
        for handle in std::mem::take(&mut state.tasks).into_values() {
            handle.abort();
        }
        state.locals.clear();
    }

    /// The lease is lost: drop everything and go on as a new incarnation.
    fn fence(&self) {
        self.drop_all_runs();
        self.host.count(|counters| counters.n_self_fenced += 1);
        let env = &self.host.env;
        let replica = ReplicaId::new(env.wall(), &env.generator);
        let mut state = self.state();
        tracing::warn!(former = %state.replica, %replica, "lease lost: everything dropped, going on as a new incarnation");
        let former = std::mem::replace(&mut state.replica, replica);
        state.former.push(former);
        state.seen_undriven.clear();
        *self.host.lease() = Lease::new(self.host.config.lease_times(), env.mono());
    }

    pub(crate) async fn drain(&self) {
        self.begin_drain();
        loop {
            let left = self.left.notified();
            if self.state().tasks.is_empty() {
                break;
            }
            left.await;
        }
        self.state().gone = true;
        let replica = self.replica();
        for n_tries in 0..LEAVE_TRIES {
            if self.host.answer(self.host.parts.store.leave(replica)).await.is_ok() {
                return;
            }
            self.host.store_pause(n_tries).await;
        }
    }

    fn begin_drain(&self) {
        let mut state = self.state();
        state.draining = true;
        for local in state.locals.values() {
            local.signal.send_modify(|signal| signal.drain = true);
        }
    }

    pub(crate) fn stats(&self) -> HarnessStats {
        let counters = self.host.counters();
        let lease_held = self.host.holds_lease();
        let state = self.state();
        HarnessStats {
            n_running: state.locals.len(),
            n_claimed: counters.n_claimed,
            n_stolen: counters.n_stolen,
            n_parked: counters.n_parked,
            n_woken: counters.n_woken,
            n_asked: counters.n_asked,
            ended: counters.ended,
            n_fenced: counters.n_fenced,
            n_self_fenced: counters.n_self_fenced,
            n_panicked: counters.n_panicked,
            n_store_retries: counters.n_store_retries,
            n_compactions: counters.n_compactions,
            lease_held,
            draining: state.draining,
        }
    }

    pub(crate) fn slot_gauges(&self) -> [SlotGauges; 2] {
        let slots = &self.host.parts.slots;
        [slots.harness.gauges(), slots.compactor.gauges()]
    }

    /// A claim operation had no answer: it may have claimed something that nobody drives.
    async fn claim_failed(&self, operation: &'static str, error: &Error) {
        tracing::warn!(operation, code = %error.code, "store operation failed");
        self.state().look = true;
        self.host.store_pause(1).await;
    }
}

impl State {
    fn of(replica: ReplicaId) -> Self {
        Self {
            replica,
            former: Vec::new(),
            peers: Vec::new(),
            dead: BTreeSet::new(),
            draining: false,
            gone: false,
            locals: BTreeMap::new(),
            tasks: BTreeMap::new(),
            task_next: 0,
            hungry: false,
            look: false,
            seen_undriven: BTreeSet::new(),
            parked: BTreeMap::new(),
            fails_at: BTreeMap::new(),
        }
    }

    fn register(&mut self, claim: &Claim, task: u64) -> watch::Receiver<Signal> {
        let (signal, signalled) = watch::channel(Signal { cancel: false, drain: self.draining });
        let (tenant, epoch) = (claim.fence.tenant.clone(), claim.fence.epoch);
        self.locals.insert(claim.fence.run, Local { tenant, epoch, task, signal });
        signalled
    }

    /// What is driven here, each with the epoch of its claim.
    fn driven(&self) -> Vec<(RunRef, u64)> {
        let of = |(run, local): (&RunId, &Local)| {
            (RunRef { tenant: local.tenant.clone(), run: *run }, local.epoch)
        };
        self.locals.iter().map(of).collect()
    }
}

/// Takes a task off the list when it ends, however it ends.
struct Leave {
    dispatch: Arc<Dispatch>,
    task: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut state = self.dispatch.state();
        state.tasks.remove(&self.task);
        state.locals.retain(|_, local| local.task != self.task);
        let hungry = std::mem::take(&mut state.hungry);
        drop(state);
        self.dispatch.left.notify_waiters();
        if hungry {
            self.dispatch.queued.notify_one();
        }
    }
}

/// Waits for a hint, at most this long.
async fn hint_or(hint: &Notify, wait: Duration) {
    tokio::select! {
        biased;
        () = hint.notified() => {}
        () = tokio::time::sleep(wait) => {}
    }
}
