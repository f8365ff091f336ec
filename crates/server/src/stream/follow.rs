//! One follower of one run: the run's events in order, its provisional pieces, and the silence
//! between them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::id::{TenantId, ThreadId};
use evenkeel_core::journal::Event;
use evenkeel_core::port::store::{ReadEvents, StoreClient};
use evenkeel_env::watch;
use futures_util::future::BoxFuture;
use tokio::sync::broadcast;
use tokio::time::{Interval, MissedTickBehavior};

use super::topic::Piece;
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

/// A follower. Cancel-safe: a read that is under way goes on with the next call.
pub(crate) struct Follow {
    subscription: Subscription,
    pieces: broadcast::Receiver<Arc<Piece>>,
    closing: watch::Receiver<bool>,
    beat: Interval,
    /// Every event up to here was given.
    given_to: u64,
    ready: VecDeque<Arc<Event>>,
    reading: Option<BoxFuture<'static, Result<Vec<Arc<Event>>, Error>>>,
}

impl Follow {
    /// Follows the thread from behind `after`.
    pub(crate) fn new(
        hub: &Arc<Hub>,
        tenant: &TenantId,
        thread: ThreadId,
        after: u64,
        heartbeat: Duration,
    ) -> Self {
        let subscription = hub.subscribe(tenant, thread);
        let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + heartbeat, heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            pieces: subscription.topic.pieces(),
            closing: subscription.closing(),
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
            let (topic, after) = (self.subscription.topic.clone(), self.given_to);
            let reading =
                self.reading.get_or_insert_with(|| Box::pin(async move { topic.events_after(after).await }));
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

    /// A store that cannot be read makes the stream late, never wrong.
    fn take(&mut self, read: Result<Vec<Arc<Event>>, Error>) {
        match read {
            Ok(events) => self.ready.extend(events),
            Err(error) => {
                tracing::warn!(code = %error.code, message = %error.message, "read events for a stream");
                let wait = Duration::from_millis(500);
                let topic = self.subscription.topic.clone();
                let after = self.given_to;
                self.reading = Some(Box::pin(async move {
                    tokio::time::sleep(wait).await;
                    topic.events_after(after).await
                }));
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
