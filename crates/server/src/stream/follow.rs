//! One follower of one run: the run's events in order, its provisional pieces, and the silence
//! between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::Event;
use evenkeel_core::port::store::{ReadEvents, StoreClient};
use evenkeel_env::watch;
use futures_util::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::time::{Interval, MissedTickBehavior};

use super::topic::{Piece, Waiting};
use super::{Hub, Subscription};
use crate::wire::state::ThreadView;

/// What a follower sees next.
#[derive(Debug)]
pub(crate) enum Seen {
    /// The next stored event of the thread.
    Event(Arc<Event>),
    /// A provisional piece.
    Piece(Arc<Piece>),
    /// Pieces were lost: what was shown of the reply in the making has a hole from here on.
    PiecesLost,
    /// It is time for a sign of life.
    Beat,
    /// The process ends its streams.
    Closed,
}

/// What is followed has not begun. Until it does, what happens on its thread is none of its
/// follower's business: of a thread with a thousand turns in line each follower would look at all.
struct Queued {
    run: RunId,
    waiting: Waiting,
    /// Everything that was there is read.
    is_caught_up: bool,
}

/// What ends the wait for a run that has not begun.
enum Began {
    /// It begins at this event.
    At(u64),
    /// It may have; the log says.
    Perhaps,
}

impl Queued {
    async fn began(&mut self) -> Began {
        let Waiting { begins, of_any_run, .. } = &mut self.waiting;
        if begins.borrow().is_none() {
            tokio::select! {
                biased;
                // The topic is held by the subscription: its senders are there.
                Ok(()) = begins.changed() => {}
                Ok(()) = of_any_run.changed() => {}
                else => std::future::pending().await,
            }
        }
        let begins = *begins.borrow();
        begins.map_or(Began::Perhaps, Began::At)
    }
}

/// A follower. Cancel-safe: a read that is under way goes on with the next call.
pub(crate) struct Follow {
    subscription: Subscription,
    pieces: broadcast::Receiver<Arc<Piece>>,
    closing: watch::Receiver<bool>,
    queued: Option<Queued>,
    beat: Interval,
    /// Every event up to here was given.
    given_to: u64,
    ready: VecDeque<Arc<Event>>,
    reading: Option<BoxFuture<'static, Result<Vec<Arc<Event>>, Error>>>,
}

impl Follow {
    /// Follows the thread from behind `after`, for the sake of a run that has not begun, if one is
    /// named: of the rest nothing is given from then until it begins.
    pub(crate) fn new(
        hub: &Arc<Hub>,
        (tenant, thread): (&TenantId, ThreadId),
        after: u64,
        queued: Option<RunId>,
        heartbeat: Duration,
    ) -> Self {
        let subscription = hub.subscribe(tenant, thread);
        let queued = queued.map(|run| {
            let waiting = subscription.topic.wait_for(run);
            Queued { run, waiting, is_caught_up: false }
        });
        let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + heartbeat, heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            pieces: subscription.topic.pieces(),
            closing: subscription.closing(),
            queued,
            subscription,
            beat,
            given_to: after,
            ready: VecDeque::new(),
            reading: None,
        }
    }

    /// Whether the next event is there already.
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
    }

    /// What is next. Stored events go before pieces: a committed message makes its pieces void.
    pub(crate) async fn next(&mut self) -> Seen {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.given_to = event.seq;
                return Seen::Event(event);
            }
            if let Some(queued) = self.queued.as_mut().filter(|queued| queued.is_caught_up) {
                let began = tokio::select! {
                    biased;
                    _ = self.closing.wait_for(|closing| *closing) => return Seen::Closed,
                    began = queued.began() => began,
                    _ = self.beat.tick() => return Seen::Beat,
                };
                self.begin(&began);
                continue;
            }
            if self.reading.is_none() {
                self.reading = Some(self.read(Duration::ZERO));
            }
            let Some(reading) = &mut self.reading else { continue };
            let read = tokio::select! {
                biased;
                _ = self.closing.wait_for(|closing| *closing) => return Seen::Closed,
                read = reading => read,
                piece = self.pieces.recv() => return match piece {
                    Ok(piece) => Seen::Piece(piece),
                    Err(broadcast::error::RecvError::Lagged(_)) => Seen::PiecesLost,
                    Err(broadcast::error::RecvError::Closed) => Seen::Closed,
                },
                _ = self.beat.tick() => return Seen::Beat,
            };
            self.reading = None;
            self.take(read);
        }
    }

    /// Reads what is next: of a run that has not begun what is there, else what will be.
    fn read(&self, delay: Duration) -> BoxFuture<'static, Result<Vec<Arc<Event>>, Error>> {
        let (topic, after, waits) = (self.subscription.topic.clone(), self.given_to, self.queued.is_none());
        Box::pin(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if waits { topic.events_after(after).await } else { topic.events_now(after).await }
        })
    }

    /// The wait for the run is over, or the log has to say whether it is.
    fn begin(&mut self, began: &Began) {
        match began {
            Began::Perhaps => {
                if let Some(queued) = &mut self.queued {
                    queued.is_caught_up = false;
                }
            }
            Began::At(first) => {
                self.queued = None;
                self.given_to = self.given_to.max(first.saturating_sub(1));
                self.pieces = self.subscription.topic.pieces();
            }
        }
    }

    /// A store that cannot be read makes the stream late, never wrong.
    fn take(&mut self, read: Result<Vec<Arc<Event>>, Error>) {
        match read {
            Ok(events) => {
                if let Some(queued) = &mut self.queued {
                    queued.is_caught_up = events.is_empty();
                }
                if self.queued.as_ref().is_some_and(|of| events.iter().any(|event| event.run == of.run)) {
                    self.queued = None;
                }
                self.ready.extend(events);
            }
            Err(error) => {
                tracing::warn!(code = %error.code, message = %error.message, "read events for a stream");
                self.reading = Some(self.read(Duration::from_millis(500)));
            }
        }
    }
}

/// Folds a thread's whole log up to `to`.
pub(crate) async fn view_of(
    store: &StoreClient,
    tenant: &TenantId,
    thread: ThreadId,
    to: u64,
) -> Result<ThreadView, Error> {
    let mut view = ThreadView::new(thread);
    while view.seq < to {
        let request = ReadEvents { tenant: tenant.clone(), thread, after_seq: view.seq, limit: 512 };
        let events = store.read_events(request).await?;
        let Some(last) = events.last().map(|event| event.seq) else {
            return Ok(view);
        };
        events.iter().filter(|event| event.seq <= to).for_each(|event| view.fold(event));
        if last >= to {
            return Ok(view);
        }
    }
    Ok(view)
}
