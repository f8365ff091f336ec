//! The sweep: what must happen at some time although nobody asks for it.
//!
//! Ends what waits past its deadline; fails interactive turns whose park is over; tries a parked
//! run of each route now and then without a permit; goes on with runs whose question to a person
//! nobody answered in time; keeps the router's number of parked runs in step with the store; finds
//! claims of ours that nobody drives, and stops what is driven here and is ours no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Mono;
use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::port::store::{Claim, Expire, Fence, Held, ListRuns, RunRef, ThreadRef, Wake};
use evenkeel_core::run::{RunState, WaitReason};

use super::{Dispatch, hint_or};
use crate::run::drive::Source;

/// Between two sweeps.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks for claims that nobody drives, and at the counts while nothing is parked.
const SELDOM: Duration = Duration::from_secs(5);
/// Runs ended in one sweep.
const EXPIRE_MAX: u32 = 256;
/// Runs woken in one look for questions that expired.
const UNANSWERED_MAX: usize = 16;

/// When each seldom thing is due again.
#[derive(Default)]
struct Dues {
    counts: Mono,
    undriven: Mono,
    unanswered: Mono,
    park_poll: BTreeMap<String, Mono>,
}

pub(super) async fn run(dispatch: Arc<Dispatch>) {
    let mut dues = Dues::default();
    loop {
        hint_or(&dispatch.swept, dispatch.sweep_wait()).await;
        if dispatch.may_claim() {
            dispatch.sweep(&mut dues).await;
        }
    }
}

impl Dispatch {
    /// Until the next sweep: a second, or the next interactive turn that fails.
    fn sweep_wait(&self) -> Duration {
        let now = self.host.now();
        let first = self.state().fails_at.keys().next().map(|(at, _)| at.since(now));
        first.map_or(EVERY, |wait| wait.clamp(Duration::from_millis(1), EVERY))
    }

    async fn sweep(&self, dues: &mut Dues) {
        let now = self.host.env.mono();
        self.expire().await;
        self.fail_waiting().await;
        let is_any_parked = self.state().parked.values().any(|n| *n > 0);
        if now >= dues.counts || is_any_parked {
            dues.counts = now.after(SELDOM);
            self.count_parked().await;
        }
        self.poll_parked(now, dues).await;
        if now >= dues.unanswered {
            dues.unanswered = now.after(SELDOM);
            self.wake_unanswered().await;
        }
        let look = std::mem::take(&mut self.state().look);
        if now >= dues.undriven || look {
            // A second look decides, and after a failure it must not be long in coming.
            dues.undriven = now.after(if look { EVERY } else { SELDOM });
            self.compare_claims().await;
        }
    }

    async fn expire(&self) {
        let Ok(ended) = self.host.answer(self.host.parts.store.expire(Expire { limit: EXPIRE_MAX })).await
        else {
            return;
        };
        for (thread, run) in ended {
            self.host.count_ended(RunState::Expired);
            tracing::info!(%run, "run expired");
            self.announce(thread).await;
        }
    }

    /// Tells local listeners of an end that the store wrote by itself.
    async fn announce(&self, thread: ThreadId) {
        let request =
            ListRuns { tenant: None, thread: Some(thread), states: Vec::new(), limit: 1, offset: 0 };
        let Ok(runs) = self.host.answer(self.host.parts.store.list_runs(request)).await else { return };
        let Some(run) = runs.into_iter().next() else { return };
        let thread = ThreadRef { tenant: run.tenant, thread };
        if let Ok(Some(thread)) = self.host.answer(self.host.parts.store.get_thread(thread)).await {
            self.host.parts.feed.committed(thread.id, thread.seq_last);
        }
    }

    /// Wakes runs whose park is over; each then ends with the cause.
    async fn fail_waiting(&self) {
        for (route, n) in self.take_due() {
            self.wake_without_permit(&route, n).await;
        }
    }

    fn take_due(&self) -> BTreeMap<String, usize> {
        let now = self.host.now();
        let mut due = BTreeMap::new();
        let mut state = self.state();
        while let Some(entry) = state.fails_at.first_entry() {
            if entry.key().0 > now {
                break;
            }
            *due.entry(entry.remove()).or_insert(0) += 1;
        }
        due
    }

    /// A permit may be lost with the replica that held it; then this look finds the run.
    async fn poll_parked(&self, now: Mono, dues: &mut Dues) {
        let every = Duration::from_millis(self.host.config.park_poll_ms);
        let parked: Vec<String> = {
            let state = self.state();
            state.parked.iter().filter(|(_, n)| **n > 0).map(|(route, _)| route.clone()).collect()
        };
        dues.park_poll.retain(|route, _| parked.contains(route));
        for route in parked {
            let due = *dues.park_poll.entry(route.clone()).or_insert_with(|| now.after(every));
            if now >= due {
                dues.park_poll.insert(route.clone(), now.after(every));
                self.wake_without_permit(&route, 1).await;
            }
        }
    }

    /// Goes on with runs whose question to a person has expired.
    async fn wake_unanswered(&self) {
        let slots = self.reserve(UNANSWERED_MAX);
        if slots.is_empty() {
            return;
        }
        let limit = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let request = Wake { me: self.replica(), on: WaitReason::Approval, route: None, limit };
        match self.host.answer(self.host.parts.store.wake(request)).await {
            Ok(claims) => {
                let n = u64::try_from(claims.len()).unwrap_or(0);
                self.host.count(|counters| counters.n_woken += n);
                self.begin_all(claims, slots, &Source::Woken(None));
            }
            Err(error) => {
                drop(slots);
                self.claim_failed("wake", &error).await;
            }
        }
    }

    async fn wake_without_permit(&self, route: &str, n: usize) {
        let slots = self.reserve(n);
        if slots.len() < n {
            self.defer(route, n - slots.len());
        }
        if slots.is_empty() {
            return;
        }
        let limit = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let request =
            Wake { me: self.replica(), on: WaitReason::Model, route: Some(route.to_owned()), limit };
        match self.host.answer(self.host.parts.store.wake(request)).await {
            Ok(claims) => {
                self.woken(route, claims.len(), slots.len());
                self.begin_all(claims, slots, &Source::Woken(None));
            }
            Err(error) => {
                self.defer(route, slots.len());
                drop(slots);
                self.claim_failed("wake", &error).await;
            }
        }
    }

    /// Not now; the next sweep tries again.
    fn defer(&self, route: &str, n: usize) {
        let at = self.host.now().after(EVERY);
        let env = &self.host.env;
        let mut state = self.state();
        for _ in 0..n {
            state.fails_at.insert((at, RunId::new(at, &env.generator)), route.to_owned());
        }
    }

    /// Brings the number of parked runs of each route in step with the store.
    async fn count_parked(&self) {
        let Ok(counted) = self.host.answer(self.host.parts.store.count_parked(())).await else { return };
        let known: Vec<String> = self.state().parked.keys().cloned().collect();
        let counted: BTreeMap<String, u64> = counted.into_iter().collect();
        let gone = known.into_iter().filter(|route| !counted.contains_key(route)).collect::<Vec<_>>();
        for route in gone {
            self.parked(&route, 0);
        }
        for (route, n) in &counted {
            self.parked(route, usize::try_from(*n).unwrap_or(usize::MAX));
        }
    }

    /// Compares what is driven here with what the store counts as ours.
    async fn compare_claims(&self) {
        // Before the list is read: what is claimed meanwhile may be missing in it.
        let driven = self.state().driven();
        let held = self.host.parts.store.list_held(self.replica());
        match self.host.answer(held).await {
            Ok(ours) => {
                self.stop_overtaken(driven, &ours).await;
                self.find_undriven(ours).await;
            }
            Err(_) => self.state().look = true,
        }
    }

    /// Stops runs that ended or were taken over without a word to us: a forced cancel, a suspicion
    /// that was wrong. Nothing that they write would count, but a call that hangs never writes, and
    /// would cost its slot and its price until its own limit.
    async fn stop_overtaken(&self, driven: Vec<(RunRef, u64)>, ours: &[Held]) {
        let ours: BTreeSet<RunId> = ours.iter().map(|held| held.run).collect();
        for (of, epoch) in driven.into_iter().filter(|(of, _)| !ours.contains(&of.run)) {
            let run = of.run;
            let Ok(stored) = self.host.answer(self.host.parts.store.get_run(of)).await else { continue };
            let owner = stored.and_then(|run| run.owner);
            let state = self.state();
            let local = state.locals.get(&run).filter(|local| local.epoch == epoch);
            if let Some(local) = local.filter(|_| owner != Some(state.replica)) {
                tracing::info!(%run, ?owner, "stopping a run that is not ours any more");
                local.signal.send_modify(|signal| signal.cancel = true);
            }
        }
    }

    /// Finds runs that the store counts as ours and nobody drives: a claim whose reply was lost.
    /// Only a second sighting counts, because a fresh claim may still be on its way here.
    async fn find_undriven(&self, ours: Vec<Held>) {
        let (again, seen) = {
            let mut state = self.state();
            let undriven = ours.iter().filter(|held| !state.locals.contains_key(&held.run));
            let now: BTreeSet<RunId> = undriven.map(|held| held.run).collect();
            let again: BTreeSet<RunId> = now.intersection(&state.seen_undriven).copied().collect();
            state.seen_undriven.clone_from(&now);
            (again, now)
        };
        if !seen.is_empty() {
            self.state().look = true;
        }
        for held in ours.into_iter().filter(|held| again.contains(&held.run)) {
            self.drive_undriven(held).await;
        }
    }

    /// Puts the claim together from what is stored: nobody else can have it under this owner.
    async fn drive_undriven(&self, held: Held) {
        let thread = ThreadRef { tenant: held.tenant.clone(), thread: held.thread };
        let newest = RunRef { tenant: held.tenant, run: held.run };
        let store = &self.host.parts.store;
        let Ok(Some(thread)) = self.host.answer(store.get_thread(thread)).await else { return };
        let Ok(Some(run)) = self.host.answer(store.get_run(newest)).await else { return };
        if thread.active != Some(run.id) || run.owner != Some(self.replica()) {
            return;
        }
        let Some(slot) = self.reserve(1).pop() else { return };
        tracing::info!(run = %run.id, "found a claim of ours that nobody drives");
        let fence = Fence { tenant: run.tenant.clone(), thread: thread.id, run: run.id, epoch: thread.epoch };
        let claim = Claim {
            fence,
            version: thread.version,
            context_from: 1,
            seq_last: thread.seq_last,
            thread_created_at: thread.created_at,
            run,
        };
        self.begin(claim, slot, Source::Fresh);
    }
}
