//! One thread and its followers in this process: announcements, the newest events, provisional
//! pieces.
//!
//! The window holds the newest events that were read, so that all followers at the end of the log
//! share one read. A follower that is behind the window reads its own pages. What holds: the window
//! is a gapless piece of the log; it is only filled while its lock is held, from its own end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};

use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::Event;
use evenkeel_core::port::feed::Provisional;
use evenkeel_core::port::store::{ReadEvents, StoreClient, ThreadRef};
use evenkeel_env::watch;
use tokio::sync::{Mutex, broadcast};
use tokio::time::Instant;

use super::poll::Look;

/// Events kept for the followers at the end of the log.
const WINDOW_EVENTS: usize = 256;
/// Events read at once.
const PAGE_EVENTS: u32 = 256;
/// Provisional pieces that a follower may be behind before it loses some.
const PIECES: usize = 512;

/// A provisional piece with its place.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its run.
    pub(crate) run: RunId,
    /// Its step.
    pub(crate) step: u32,
    /// Its attempt.
    pub(crate) attempt: u32,
    /// The piece.
    pub(crate) piece: Provisional,
}

/// One followed thread.
pub(crate) struct Topic {
    store: StoreClient,
    tenant: TenantId,
    thread: ThreadId,
    announced: watch::Sender<Announced>,
    /// How often something was announced that may be of any run.
    of_any_run: watch::Sender<u64>,
    /// Runs that have not begun and that somebody waits for.
    queued: Lock<BTreeMap<RunId, Queued>>,
    pieces: broadcast::Sender<Arc<Piece>>,
    window: Mutex<Window>,
    look: Lock<Look>,
}

/// A run that has not begun, and those who wait for it.
#[derive(Default)]
struct Queued {
    /// At which event it begins.
    begins: watch::Sender<Option<u64>>,
    n_waiting: usize,
}

/// A place among those who wait for a run to begin; dropping it gives it up.
pub(crate) struct Waiting {
    topic: Arc<Topic>,
    run: RunId,
    /// Resolves to the event at which the run begins.
    pub(super) begins: watch::Receiver<Option<u64>>,
    /// Changes when the run may have begun, or ended, without anybody saying so.
    pub(super) of_any_run: watch::Receiver<u64>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queued = self.topic.queued();
        let Some(of) = queued.get_mut(&self.run) else { return };
        of.n_waiting -= 1;
        if of.n_waiting == 0 {
            queued.remove(&self.run);
        }
    }
}

/// What was announced: the newest known sequence number, and how often something that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Announced {
    seq: u64,
    touches: u64,
}

#[derive(Default)]
struct Window {
    events: VecDeque<Arc<Event>>,
    /// The log was read up to here; the window's end, also when the window is empty.
    end: u64,
    /// The announcement that the last read had seen.
    seen: Option<Announced>,
}

impl Topic {
    pub(super) fn new(store: StoreClient, tenant: TenantId, thread: ThreadId) -> Arc<Self> {
        Arc::new(Self {
            store,
            tenant,
            thread,
            announced: watch::Sender::default(),
            of_any_run: watch::Sender::default(),
            queued: Lock::default(),
            pieces: broadcast::Sender::new(PIECES),
            window: Mutex::default(),
            look: Lock::new(Look::beginning(Instant::now())),
        })
    }

    /// Whose thread it is.
    pub(super) fn thread(&self) -> ThreadRef {
        ThreadRef { tenant: self.tenant.clone(), thread: self.thread }
    }

    /// When it is looked at next.
    pub(super) fn look(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process has committed up to `seq`, or something else happened here (0).
    pub(super) fn announce(&self, seq: u64) {
        self.look().sign(Instant::now());
        self.of_any_run.send_modify(|times| *times += 1);
        self.tell(seq);
    }

    /// This process has committed up to `seq`; a run that had not begun begins at `first`.
    pub(super) fn announce_of(&self, run: RunId, first: u64, seq: u64) {
        self.look().sign(Instant::now());
        if let Some(queued) = self.queued().get(&run) {
            queued.begins.send_if_modified(|begins| begins.replace(begins.unwrap_or(first)).is_none());
        }
        self.tell(seq);
    }

    /// Waits for a run that has not begun.
    pub(super) fn wait_for(self: &Arc<Self>, run: RunId) -> Waiting {
        let mut queued = self.queued();
        let of = queued.entry(run).or_default();
        of.n_waiting += 1;
        let (begins, of_any_run) = (of.begins.subscribe(), self.of_any_run.subscribe());
        Waiting { topic: self.clone(), run, begins, of_any_run }
    }

    fn queued(&self) -> MutexGuard<'_, BTreeMap<RunId, Queued>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store was found to hold events up to `seq`.
    pub(super) fn found(&self, seq: u64) {
        let is_news = self.look().found(seq, Instant::now());
        if is_news {
            self.of_any_run.send_modify(|times| *times += 1);
            self.tell(seq);
        }
    }

    /// Nobody is told what was told before.
    fn tell(&self, seq: u64) {
        self.announced.send_if_modified(|now| {
            let is_news = seq == 0 || seq > now.seq;
            now.seq = now.seq.max(seq);
            now.touches += u64::from(seq == 0);
            is_news
        });
    }

    /// Passes a piece to all followers; nobody waits.
    pub(super) fn pass_on(&self, piece: Piece) {
        self.look().sign(Instant::now());
        // Without a follower there is nobody to tell.
        let _ = self.pieces.send(Arc::new(piece));
    }

    /// The pieces from now on.
    pub(crate) fn pieces(&self) -> broadcast::Receiver<Arc<Piece>> {
        self.pieces.subscribe()
    }

    /// Waits for events behind `after` and gives the next of them.
    pub(crate) async fn events_after(&self, after: u64) -> Result<Vec<Arc<Event>>, Error> {
        let mut announced = self.announced.subscribe();
        loop {
            let now = *announced.borrow_and_update();
            let events = self.read(after, now).await?;
            if !events.is_empty() || announced.changed().await.is_err() {
                return Ok(events);
            }
        }
    }

    /// The next events behind `after` that are there.
    pub(crate) async fn events_now(&self, after: u64) -> Result<Vec<Arc<Event>>, Error> {
        let now = *self.announced.borrow();
        self.read(after, now).await
    }

    /// The next events behind `after`; from the store only if there may be any.
    async fn read(&self, after: u64, announced: Announced) -> Result<Vec<Arc<Event>>, Error> {
        let mut window = self.window.lock().await;
        let first = window.events.front().map_or(window.end, |event| event.seq.saturating_sub(1));
        if after < first {
            drop(window);
            return self.page(after).await;
        }
        if after < window.end {
            return Ok(window.events.iter().filter(|event| event.seq > after).cloned().collect());
        }
        if after > window.end {
            // A follower that begins further on than anybody read: the window begins anew there.
            window.events.clear();
            window.end = after;
            window.seen = None;
        }
        // What was announced may have been read before it was.
        let has_news = |seen: Announced| seen.touches != announced.touches || announced.seq > window.end;
        if window.seen.is_some_and(|seen| !has_news(seen)) {
            return Ok(Vec::new());
        }
        let events = self.page(after).await?;
        // A full page may have more behind it, which nobody will announce.
        window.seen = (events.len() < PAGE_EVENTS as usize).then_some(announced);
        window.end = events.last().map_or(after, |event| event.seq);
        self.look().read_to(window.end);
        window.events.extend(events.iter().cloned());
        let surplus = window.events.len().saturating_sub(WINDOW_EVENTS);
        window.events.drain(..surplus);
        Ok(events)
    }

    async fn page(&self, after_seq: u64) -> Result<Vec<Arc<Event>>, Error> {
        let (tenant, thread) = (self.tenant.clone(), self.thread);
        let request = ReadEvents { tenant, thread, after_seq, limit: PAGE_EVENTS };
        Ok(self.store.read_events(request).await?.into_iter().map(Arc::new).collect())
    }
}
