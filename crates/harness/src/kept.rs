//! Conversations kept from one turn to the next, so that a turn need not read what this process has
//! just written.
//!
//! A chat turn is two round trips to the store: the admission, which claims, and the commit. Reading
//! the conversation between them would be a third, and the largest. What the last turn here left is
//! good for the next claim if nothing was written between: the version, the epoch and the thread
//! itself say so. It is never more than a copy: whoever finds none reads.

use std::collections::BTreeMap;

use evenkeel_core::Wall;
use evenkeel_core::id::ThreadId;
use evenkeel_core::port::store::Claim;
use evenkeel_core::run::BusyPolicy;

use crate::run::state::View;

/// Bytes of messages that are kept; the oldest go first.
const BYTES_MAX: u64 = 16 << 20;

/// What a turn left behind.
pub(crate) struct Left {
    pub(crate) version: u64,
    pub(crate) epoch: u64,
    pub(crate) thread_created_at: Wall,
    pub(crate) view: View,
}

/// Conversations by their thread.
#[derive(Default)]
pub(crate) struct Kept {
    by_thread: BTreeMap<ThreadId, (u64, Left)>,
    by_age: BTreeMap<u64, ThreadId>,
    newest: u64,
    bytes: u64,
}

impl Kept {
    /// Keeps what a turn left, and forgets the oldest if that is too much.
    pub(crate) fn put(&mut self, thread: ThreadId, left: Left) {
        drop(self.take(thread));
        self.newest += 1;
        self.bytes += left.view.bytes();
        self.by_age.insert(self.newest, thread);
        self.by_thread.insert(thread, (self.newest, left));
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.by_age.values().next().copied()
        {
            drop(self.take(oldest));
        }
    }

    fn take(&mut self, thread: ThreadId) -> Option<Left> {
        let (age, left) = self.by_thread.remove(&thread)?;
        self.by_age.remove(&age);
        self.bytes -= left.view.bytes();
        Some(left)
    }

    /// The view that a claim begins with, if it is known without reading: of a thread that had no
    /// turn before, or of one whose last turn was driven here.
    pub(crate) fn view(&mut self, claim: &Claim) -> Option<View> {
        let left = self.take(claim.fence.thread);
        let spec = &claim.run.spec;
        let n_messages = u64::try_from(spec.messages.len()).unwrap_or(u64::MAX);
        let alone =
            claim.run.attempt == 1 && spec.from_seq.is_none() && spec.busy_policy != BusyPolicy::Merge;
        let before = left.filter(|left| {
            left.version == claim.version
                && left.epoch + 1 == claim.fence.epoch
                && left.view.seq_last + n_messages + 1 == claim.seq_last
                && left.thread_created_at == claim.thread_created_at
        });
        let is_first = claim.version == 0 && claim.seq_last == n_messages + 1;
        (alone && (before.is_some() || is_first)).then(|| View::begun(before.map(|left| left.view), claim))
    }
}

#[cfg(test)]
mod tests;
