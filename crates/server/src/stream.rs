//! How what a run does reaches its clients.
//!
//! [`Hub`] implements the feed port. The harness announces that a thread's log grew; whoever
//! follows the thread then reads the new events from the store, once for all of them. Nothing is
//! pushed from memory before it is durable, except provisional pieces of a reply, which carry no id
//! and are replaced by the committed message.
//!
//! A client is served by pulling: its next bytes are made when its connection can take them. A slow
//! reader therefore costs one small buffer, however much its run does, and reads on from the log.
//! The `poll` alone would be enough to see every event, of runs that any process drives;
//! announcements only make it faster for those that are driven here.
//!
//! Read in this order: `cursor` (what a client may resume after), `topic` (one thread's followers),
//! `poll` (the look for what nobody announces),
//! `follow` (one follower), `project` (events to server-sent events), `run_stream` and `wait` (the
//! two bodies that clients get), `sse` (bytes).

pub(crate) mod cursor;
pub(crate) mod follow;
mod poll;
mod project;
pub(crate) mod run_stream;
pub(crate) mod sse;
mod topic;
pub(crate) mod wait;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::port::feed::{Feed, Provisional};
use evenkeel_core::port::store::{StoreClient, ThreadRef};
use evenkeel_env::watch;
use tokio::sync::Notify;
use tokio::time::Instant;

use topic::{Piece, Topic};

/// All threads that somebody follows in this process.
pub struct Hub {
    store: StoreClient,
    topics: Mutex<BTreeMap<ThreadId, Followed>>,
    closing: watch::Sender<bool>,
    /// Somebody follows a thread while nobody followed any.
    followed: Notify,
}

struct Followed {
    topic: Arc<Topic>,
    n_followers: usize,
}

/// One follower's hold on a topic; dropping it lets go.
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    thread: ThreadId,
    /// The thread's topic.
    pub(crate) topic: Arc<Topic>,
}

impl Hub {
    /// A hub that reads events from `store`.
    #[must_use]
    pub fn new(store: StoreClient) -> Arc<Self> {
        Arc::new(Self {
            store,
            topics: Mutex::default(),
            closing: watch::Sender::new(false),
            followed: Notify::new(),
        })
    }

    /// Looks for what is committed elsewhere, for as long as it is awaited.
    pub(crate) async fn poll(self: Arc<Self>) {
        poll::run(self).await;
    }

    /// Ready when some thread is followed.
    async fn wait_for_followers(&self) {
        while self.lock().is_empty() {
            self.followed.notified().await;
        }
    }

    /// Threads that should be looked at now; they are not due again at once.
    fn take_due(&self, now: Instant) -> Vec<ThreadRef> {
        let topics = self.lock();
        let due = topics.values().filter(|followed| {
            let mut look = followed.topic.look();
            let is_due = look.is_due(now);
            if is_due {
                look.asked(now);
            }
            is_due
        });
        due.map(|followed| followed.topic.thread()).collect()
    }

    /// The store holds events of this thread up to `seq`.
    fn found(&self, thread: ThreadId, seq: u64) {
        if let Some(topic) = self.topic(thread) {
            topic.found(seq);
        }
    }

    /// Streams that are open now.
    #[must_use]
    pub fn n_followers(&self) -> usize {
        self.lock().values().map(|followed| followed.n_followers).sum()
    }

    /// Ends every stream where it is, without an `end`: clients resume on another replica.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Whether every stream has ended, or is about to.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closing.borrow()
    }

    /// Something about this thread changed here (a cancel, a new turn): look at once.
    pub fn touch(&self, thread: ThreadId) {
        if let Some(topic) = self.topic(thread) {
            topic.announce(0);
        }
    }

    /// Follows a thread. The caller has checked that the thread is the tenant's.
    pub(crate) fn subscribe(self: &Arc<Self>, tenant: &TenantId, thread: ThreadId) -> Subscription {
        let mut topics = self.lock();
        let followed = topics.entry(thread).or_insert_with(|| Followed {
            topic: Topic::new(self.store.clone(), tenant.clone(), thread),
            n_followers: 0,
        });
        followed.n_followers += 1;
        self.followed.notify_one();
        Subscription { hub: self.clone(), thread, topic: followed.topic.clone() }
    }

    fn topic(&self, thread: ThreadId) -> Option<Arc<Topic>> {
        self.lock().get(&thread).map(|followed| followed.topic.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ThreadId, Followed>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Whether the process ends its streams.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.hub.closing.subscribe()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut topics = self.hub.lock();
        let Some(followed) = topics.get_mut(&self.thread) else {
            return;
        };
        followed.n_followers -= 1;
        if followed.n_followers == 0 {
            topics.remove(&self.thread);
        }
    }
}

impl Feed for Hub {
    fn committed_by(&self, thread: ThreadId, run: RunId, seqs: RangeInclusive<u64>) {
        if let Some(topic) = self.topic(thread) {
            topic.announce_of(run, *seqs.start(), *seqs.end());
        }
    }

    fn committed(&self, thread: ThreadId, seq_last: u64) {
        if let Some(topic) = self.topic(thread) {
            topic.announce(seq_last);
        }
    }

    fn provisional(&self, thread: ThreadId, run: RunId, step: u32, attempt: u32, piece: Provisional) {
        if let Some(topic) = self.topic(thread) {
            topic.pass_on(Piece { run, step, attempt, piece });
        }
    }
}

#[cfg(test)]
mod tests;
