//! Writing to the journal: stage, commit, and find out what became of a commit without an answer.
//!
//! An operation whose answer is an error may have happened. It is never repeated blindly: the
//! journal is read again first. Under our fence nobody else writes a step's events of this run, so a
//! new one is our own commit. Others do append to the thread while the run is active: a request to
//! stop it, the ends of turns that wait behind it. A commit names the newest event that it knows, so
//! it happens at most once however often it is sent. Nothing here gives up
//! while the store is away: the lease does, and then the whole run is dropped and resumed
//! elsewhere.

use std::future::Future;
use std::sync::Arc;

use evenkeel_core::id::{BlobId, SnapshotId, TenantId};
use evenkeel_core::journal::{Event, EventBody, NewEvent, counting};
use evenkeel_core::port::store::{
    Claim, CommitStep, CommitTurn, Fence, Park, PutBlob, ReadEvents, Release, RunRef, TakeSteered,
    TurnCommitted, Written,
};
use evenkeel_core::run::{EndReason, Outcome, Run};
use evenkeel_core::{Error, Origin, Retry, Wall};

use super::state::View;
use crate::host::Host;
use crate::kept;

/// Events read in one round trip.
const PAGE: u32 = 500;
/// Tries of an operation that fails for a reason that is not the store's.
const TRIES_MAX: u32 = 5;

/// Why an action did not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A later claim took over, or the lease is gone: touch nothing more.
    Fenced,
    /// The view was read again; decide again.
    Again,
    /// The store refuses an operation for a reason that will not pass.
    Refused(Error),
}

/// What became of the end of a run.
pub(crate) enum TurnEnd {
    /// It ended; perhaps the next turn was handed over.
    Done(Option<Box<Claim>>),
    /// It ended, and whether a next turn was handed over is unknown.
    DoneUnknownNext,
}

/// Whether only the owner writes such an event.
fn is_committed_here(body: &EventBody) -> bool {
    !matches!(
        body,
        EventBody::CancelRequested
            | EventBody::RunClaimed { .. }
            | EventBody::UserMessage { .. }
            | EventBody::Rewound { .. }
    )
}

/// The journal of one claim, with the view over it.
pub(crate) struct Journal {
    pub(crate) host: Arc<Host>,
    pub(crate) fence: Fence,
    pub(crate) view: View,
    run: Run,
    version: u64,
    context_from: u64,
    thread_created_at: Wall,
    staged: Vec<NewEvent>,
    /// Messages wait to be taken into this run.
    steered: bool,
}

impl Journal {
    /// The journal of a claim that begins here: read, unless it is known.
    pub(crate) async fn begin(host: Arc<Host>, claim: &Claim) -> Result<Self, Stop> {
        let mut journal = Self::unread(host, claim);
        let known = journal.host.kept().view(claim);
        match known {
            Some(view) => journal.view = view,
            None => journal.reload().await?,
        }
        Ok(journal)
    }

    /// Reads the journal of a claim.
    pub(crate) async fn open(host: Arc<Host>, claim: &Claim) -> Result<Self, Stop> {
        let mut journal = Self::unread(host, claim);
        journal.reload().await?;
        Ok(journal)
    }

    fn unread(host: Arc<Host>, claim: &Claim) -> Self {
        Self {
            host,
            fence: claim.fence.clone(),
            view: View::of(claim.fence.run, 0, claim.run.usage, &[]),
            run: claim.run.clone(),
            version: claim.version,
            context_from: claim.context_from,
            thread_created_at: claim.thread_created_at,
            staged: Vec::new(),
            steered: false,
        }
    }

    /// Drops what is staged and folds the stored journal anew.
    pub(crate) async fn reload(&mut self) -> Result<(), Stop> {
        self.steered = false;
        let stored = self.stored_run().await?;
        let events = self.events_after(self.context_from.saturating_sub(1)).await?;
        self.staged.clear();
        let base = self.view.base.take();
        self.view = View::of(self.fence.run, stored.step, stored.usage, &events);
        self.view.base = self.view.base.take().or(base);
        Ok(())
    }

    /// The run's row; the claim's copy is current until something was written.
    async fn stored_run(&self) -> Result<Run, Stop> {
        if self.view.seq_last == 0 {
            return Ok(self.run.clone());
        }
        self.read_run().await?.ok_or(Stop::Fenced)
    }

    async fn read_run(&self) -> Result<Option<Run>, Stop> {
        let run = RunRef { tenant: self.fence.tenant.clone(), run: self.fence.run };
        self.persist(|| self.host.parts.store.get_run(run.clone())).await
    }

    async fn events_after(&self, after: u64) -> Result<Vec<Event>, Stop> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after_seq = events.last().map_or(after, |event| event.seq);
            let tenant: TenantId = self.fence.tenant.clone();
            let request = ReadEvents { tenant, thread: self.fence.thread, after_seq, limit: PAGE };
            let page = self.persist(|| self.host.parts.store.read_events(request.clone())).await?;
            let full = page.len() >= PAGE as usize;
            events.extend(page);
            if !full {
                return Ok(events);
            }
        }
    }

    /// Repeats an operation that changes nothing, or nothing twice, until the store answers.
    async fn persist<T, F>(&self, mut operation: impl FnMut() -> F) -> Result<T, Stop>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut n_tries = 0;
        loop {
            match self.host.answer(operation()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.pause(error, &mut n_tries).await?,
            }
        }
    }

    async fn pause(&self, error: Error, n_tries: &mut u32) -> Result<(), Stop> {
        *n_tries += 1;
        let passes = error.origin == Origin::Store || error.retry != Retry::No;
        if !passes && *n_tries >= TRIES_MAX {
            return Err(Stop::Refused(error));
        }
        tracing::warn!(run = %self.fence.run, code = %error.code, n_tries = *n_tries, "store operation failed, trying again");
        self.host.store_pause(*n_tries).await;
        Ok(())
    }

    /// Stages an event of the step that is under way.
    pub(crate) fn stage(&mut self, body: EventBody) {
        self.stage_at(self.view.step, body);
    }

    /// Stages an event of a step.
    pub(crate) fn stage_at(&mut self, step: u32, body: EventBody) {
        let event = NewEvent { step, body };
        self.view.stage(&event, self.host.now());
        self.staged.push(event);
    }

    /// Whether everything the view knows is durable.
    pub(crate) fn is_clean(&self) -> bool {
        self.staged.is_empty()
    }

    /// Makes everything staged durable, in one commit.
    pub(crate) async fn flush(&mut self) -> Result<(), Stop> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let mut n_tries = 0;
        loop {
            let request = CommitStep {
                fence: self.fence.clone(),
                seq_base: self.view.seq_last,
                events: self.staged.clone(),
            };
            match self.host.answer(self.host.parts.store.commit_step(request)).await {
                Ok(Written::Done { seq_last, cancelling, steered }) => {
                    self.committed(seq_last);
                    self.view.cancelling |= cancelling;
                    self.steered = steered;
                    return Ok(());
                }
                Ok(Written::SeqConflict { .. }) => {
                    if self.settle_commit().await? {
                        return Ok(());
                    }
                }
                Ok(Written::Fenced) => return Err(Stop::Fenced),
                Ok(Written::EffectExists(effect)) => {
                    tracing::warn!(run = %self.fence.run, %effect, "effect is recorded already, reading the journal again");
                    self.reload().await?;
                    return Err(Stop::Again);
                }
                Err(error) => {
                    self.pause(error, &mut n_tries).await?;
                    if self.settle_commit().await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes waiting messages into the run, if the last commit told of any. Done again it takes only
    /// what is new, so a try without an answer is simply repeated.
    pub(crate) async fn take_steered(&mut self) -> Result<(), Stop> {
        if !std::mem::take(&mut self.steered) {
            return Ok(());
        }
        let request = TakeSteered { fence: self.fence.clone(), step: self.view.step };
        match self.persist(|| self.host.parts.store.take_steered(request.clone())).await? {
            Written::Done { seq_last, cancelling, .. } => {
                let events = self.events_after(self.view.seq_last).await?;
                self.view.follow(&events);
                self.view.cancelling |= cancelling;
                self.host.parts.feed.committed(self.fence.thread, seq_last);
                Ok(())
            }
            _ => Err(Stop::Fenced),
        }
    }

    /// Why the run is to stop, if it is.
    pub(crate) async fn stop_reason(&self) -> Result<Option<EndReason>, Stop> {
        Ok(self.read_run().await?.ok_or(Stop::Fenced)?.stop)
    }

    /// The workspace as the newest checkpoint that counts has it, wherever the context begins.
    pub(crate) async fn newest_workspace(&self) -> Result<Option<SnapshotId>, Stop> {
        if self.view.workspace.is_some() || self.context_from <= 1 {
            return Ok(self.view.workspace.clone());
        }
        let events = self.events_after(0).await?;
        Ok(counting(&events).into_iter().rev().find_map(|event| match &event.body {
            EventBody::Checkpoint { snapshot } => snapshot.clone(),
            _ => None,
        }))
    }

    /// What was staged is durable, up to `seq_last`.
    fn committed(&mut self, seq_last: u64) {
        let n_events = self.staged.len();
        self.staged.clear();
        self.view.committed(seq_last);
        self.announce(n_events, seq_last);
    }

    /// Tells of a commit of ours: the last events of the log.
    fn announce(&self, n_events: usize, seq_last: u64) {
        let n_events = u64::try_from(n_events).unwrap_or(u64::MAX);
        let first = (seq_last + 1).saturating_sub(n_events);
        self.host.parts.feed.committed_by(self.fence.thread, self.fence.run, first..=seq_last);
    }

    /// Reads what the log says behind what is known: whether our commit is there. If it is not, the
    /// view knows the log as it is now, and the commit can be sent again behind that; a copy of it
    /// that is still on its way is then refused by its older base.
    async fn settle_commit(&mut self) -> Result<bool, Stop> {
        let events = self.events_after(self.view.seq_last).await?;
        let own = || events.iter().filter(|event| event.run == self.fence.run);
        let cancelled = own().any(|event| matches!(event.body, EventBody::CancelRequested));
        let steered = own().any(|event| matches!(event.body, EventBody::UserMessage { .. }));
        let ours = own().find(|event| is_committed_here(&event.body)).map(|event| event.seq);
        let newest = events.last().map(|event| event.seq);
        self.view.cancelling |= cancelled;
        if let Some(first) = ours {
            let n = u64::try_from(self.staged.len()).unwrap_or(0);
            self.committed(first + n - 1);
        }
        if steered {
            // Messages entered the run without our knowing.
            self.reload().await?;
            return Err(Stop::Again);
        }
        self.view.seq_last = newest.unwrap_or(self.view.seq_last).max(self.view.seq_last);
        Ok(ours.is_some())
    }

    /// Ends the run.
    pub(crate) async fn commit_turn(&mut self, outcome: Outcome, take_next: bool) -> Result<TurnEnd, Stop> {
        let request = CommitTurn {
            fence: self.fence.clone(),
            version: self.version,
            events: std::mem::take(&mut self.staged),
            outcome,
            take_next,
        };
        let mut n_tries = 0;
        loop {
            match self.host.answer(self.host.parts.store.commit_turn(request.clone())).await {
                Ok(TurnCommitted::Done { version, seq_last, next }) => {
                    self.leave(version, seq_last, request.events.len());
                    // The store adds the end.
                    self.announce(request.events.len() + 1, seq_last);
                    return Ok(TurnEnd::Done(next));
                }
                Ok(TurnCommitted::Fenced) => return self.fenced_or_ended(n_tries).await,
                Ok(TurnCommitted::VersionConflict) => {
                    tracing::error!(run = %self.fence.run, version = self.version, "the thread's version moved under a valid fence");
                    return Err(Stop::Fenced);
                }
                Err(error) => self.pause(error, &mut n_tries).await?,
            }
        }
    }

    /// Leaves the conversation for the thread's next turn, if nobody wrote between what is known and
    /// the end: else a stop may have come in, and the turn may have been undone.
    fn leave(&mut self, version: u64, seq_last: u64, n_events: usize) {
        let n_events = u64::try_from(n_events).unwrap_or(u64::MAX);
        if seq_last != self.view.seq_last.saturating_add(n_events).saturating_add(1) {
            return;
        }
        let mut view = std::mem::replace(&mut self.view, View::of(self.fence.run, 0, self.run.usage, &[]));
        view.committed(seq_last - 1);
        view.seq_last = seq_last;
        let (epoch, thread_created_at) = (self.fence.epoch, self.thread_created_at);
        self.host.kept().put(self.fence.thread, kept::Left { version, epoch, thread_created_at, view });
    }

    /// After a try without an answer, a refusal may mean that the try had happened.
    async fn fenced_or_ended(&self, n_tries: u32) -> Result<TurnEnd, Stop> {
        if n_tries == 0 {
            return Err(Stop::Fenced);
        }
        match self.read_run().await? {
            Some(run) if run.state.is_terminal() => {
                let events = self.events_after(self.view.seq_last).await?;
                let seq_last = events.last().map_or(self.view.seq_last, |event| event.seq);
                self.host.parts.feed.committed(self.fence.thread, seq_last);
                Ok(TurnEnd::DoneUnknownNext)
            }
            _ => Err(Stop::Fenced),
        }
    }

    /// Stores the run as waiting. `Ok` also when a stored cancel ended it instead.
    pub(crate) async fn park(&mut self, park: impl Fn(Fence, Vec<NewEvent>) -> Park) -> Result<(), Stop> {
        let request = park(self.fence.clone(), std::mem::take(&mut self.staged));
        let mut n_tries = 0;
        loop {
            match self.host.answer(self.host.parts.store.park(request.clone())).await {
                Ok(written) => return self.given_up(written, n_tries),
                Err(error) => self.pause(error, &mut n_tries).await?,
            }
        }
    }

    /// Gives the claim back.
    pub(crate) async fn release(&mut self) -> Result<(), Stop> {
        let request = Release { fence: self.fence.clone() };
        let mut n_tries = 0;
        loop {
            match self.host.answer(self.host.parts.store.release(request.clone())).await {
                Ok(written) => return self.given_up(written, n_tries),
                Err(error) => self.pause(error, &mut n_tries).await?,
            }
        }
    }

    /// Parking and releasing give the claim up, so a second try of one that had happened is
    /// refused: then the claim is gone as it should be.
    fn given_up(&self, written: Written, n_tries: u32) -> Result<(), Stop> {
        match written {
            Written::Done { seq_last, .. } => {
                self.host.parts.feed.committed(self.fence.thread, seq_last);
                Ok(())
            }
            _ if n_tries > 0 => Ok(()),
            _ => Err(Stop::Fenced),
        }
    }

    /// Keeps a whole output.
    pub(crate) async fn keep(&self, bytes: &[u8]) -> Result<BlobId, Stop> {
        let request = PutBlob { bytes: bytes.to_vec() };
        self.persist(|| self.host.parts.store.put_blob(request.clone())).await
    }

    /// Before anything outside is touched.
    pub(crate) fn check_lease(&self) -> Result<(), Stop> {
        if self.host.holds_lease() { Ok(()) } else { Err(Stop::Fenced) }
    }
}
