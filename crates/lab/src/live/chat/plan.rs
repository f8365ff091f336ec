//! The load of a chat, drawn before it begins: which turn is asked for when, and on which thread.
//!
//! It follows from the scenario and the seed alone and does not wait for the product. A thread rests
//! for a while after its last message before it is used again, so that a second message comes into
//! a running turn where the scenario wants that, and seldom elsewhere.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use evenkeel_core::Generator;

use crate::scenario::{Chat, Traffic};

/// A thread is used again when it has rested this long, and this much longer for each message that
/// comes at once: its turns run one after the other.
const REST_MS: u64 = 6_000;
const REST_MS_PER_MESSAGE: u64 = 4_000;
/// Share of first messages that go to a rested thread, if there is one.
const AGAIN_SHARE: f64 = 0.7;
/// A client that leaves early does so within this time.
const LEAVE_WITHIN_MS: f64 = 2_500.0;

/// One turn of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// Milliseconds after the load began.
    pub(super) at_ms: u64,
    /// Which thread of the load.
    pub(super) thread: usize,
    /// It is sent twice at once, with the same key.
    pub(super) doubled: bool,
    /// Its client leaves after so many milliseconds, and comes back.
    pub(super) leaves_after_ms: Option<u64>,
}

/// All turns, in order of time.
pub(super) fn draw(traffic: &Traffic, chat: &Chat, generator: &Generator) -> Vec<Planned> {
    let mut drawing = Drawing {
        chat,
        generator: generator.clone(),
        n_threads: usize::from(chat.hot_share > 0.0),
        seconds: BinaryHeap::new(),
        rested: VecDeque::new(),
    };
    let n_turns = traffic.n_tasks();
    let mut turns = Vec::with_capacity(n_turns);
    while turns.len() < n_turns {
        let at_ms = (turns.len() as f64 * 1_000.0 / traffic.rate_per_s) as u64;
        let n_left = n_turns - turns.len();
        let (thread, n_messages) = drawing.next(at_ms, n_left);
        turns.extend((0..n_messages).map(|_| drawing.turn(at_ms, thread)));
    }
    turns
}

struct Drawing<'a> {
    chat: &'a Chat,
    generator: Generator,
    n_threads: usize,
    /// Second messages that are to come: when, and on which thread.
    seconds: BinaryHeap<Reverse<(u64, usize)>>,
    /// Threads by the time of their last message.
    rested: VecDeque<(u64, usize)>,
}

/// The thread that everybody uses, where there is one.
const HOT: usize = 0;

impl Drawing<'_> {
    /// The thread of the next message, and how many come at once.
    fn next(&mut self, at_ms: u64, n_left: usize) -> (usize, usize) {
        if self.generator.unit() < self.chat.hot_share {
            return (HOT, 1);
        }
        let due = self.seconds.peek().is_some_and(|Reverse((due_ms, _))| *due_ms <= at_ms);
        if let (true, Some(Reverse((_, thread)))) = (due, due.then(|| self.seconds.pop()).flatten()) {
            self.rested.push_back((at_ms, thread));
            return (thread, 1);
        }
        let thread = self.first(at_ms);
        if self.generator.unit() < self.chat.second_share {
            let wait_ms =
                100.0 + self.generator.unit() * (self.chat.second_within_s * 1_000.0 - 100.0).max(0.0);
            self.seconds.push(Reverse((at_ms + wait_ms as u64, thread)));
        } else {
            self.rested.push_back((at_ms, thread));
        }
        (thread, self.chat.burst.min(n_left))
    }

    /// A thread on which nothing runs: one that has rested, or a new one.
    fn first(&mut self, at_ms: u64) -> usize {
        let rest_ms = REST_MS + REST_MS_PER_MESSAGE * self.chat.burst as u64;
        let has_rested = self.rested.front().is_some_and(|(last_ms, _)| last_ms + rest_ms <= at_ms);
        if has_rested
            && self.generator.unit() < AGAIN_SHARE
            && let Some((_, thread)) = self.rested.pop_front()
        {
            return thread;
        }
        self.n_threads += 1;
        self.n_threads - 1
    }

    fn turn(&self, at_ms: u64, thread: usize) -> Planned {
        let leaves = self.generator.unit() < self.chat.disconnect_share;
        Planned {
            at_ms,
            thread,
            doubled: self.generator.unit() < self.chat.duplicate_share,
            leaves_after_ms: leaves.then(|| (self.generator.unit() * LEAVE_WITHIN_MS) as u64),
        }
    }
}
