//! When the next statement goes out: at once, or after more has gathered for it.
//!
//! A good part of what a statement costs the database is its own, however little it carries: its
//! round trip, its parse, its commit. So statements of one connection keep a distance, and each carries what came meanwhile. Two kinds
//! of clients would only be slowed down by that and are not made to wait: one who alone waits for
//! each of its answers, so that nothing ever comes meanwhile; and a thread that goes on in the very
//! next statement, since all that stands in line on it waits for the answer. What only joins that line
//! hurries nobody: a statement sent for it would be in the way of the one that moves the line.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// After so many statements with a single operation there is nothing to gather.
const SINGLES: u32 = 4;

/// The distance of the statements of one connection.
pub(super) struct Gather {
    distance: Duration,
    sent: Option<Instant>,
    /// What is about to go out, and whether somebody in it came again at once.
    now: HashSet<Uuid>,
    n_now: usize,
    is_urgent: bool,
    /// What the last statement carried.
    before: HashSet<Uuid>,
    /// Statements in a row that carried one operation.
    n_singles: u32,
}

impl Gather {
    pub(super) fn new(distance: Duration) -> Self {
        Self {
            distance,
            sent: None,
            now: HashSet::new(),
            n_now: 0,
            is_urgent: false,
            before: HashSet::new(),
            n_singles: SINGLES,
        }
    }

    /// An operation on this thread, or whatever else tells clients apart, came; `is_link` if others
    /// of the same thread wait for its answer.
    pub(super) fn came(&mut self, whose: Uuid, is_link: bool) {
        self.n_now += 1;
        self.is_urgent |= is_link && self.before.contains(&whose);
        self.now.insert(whose);
    }

    /// Until when the next statement waits for more; `None` if it goes out at once.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        let until = self.sent? + self.distance;
        let is_alone = self.n_singles >= SINGLES && self.n_now <= 1;
        (until > now && !self.is_urgent && !is_alone).then_some(until)
    }

    /// A statement goes out.
    pub(super) fn goes(&mut self, now: Instant) {
        self.sent = Some(now);
        self.n_singles = if self.n_now <= 1 { self.n_singles.saturating_add(1) } else { 0 };
        self.before = std::mem::take(&mut self.now);
        self.n_now = 0;
        self.is_urgent = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTANCE: Duration = Duration::from_millis(10);

    /// Sends these batches one after the other; says how long the last waits if it comes 3 ms later.
    fn waits(batches: &[&[u128]]) -> Option<u64> {
        let begun = Instant::now();
        let mut gather = Gather::new(DISTANCE);
        let (last, before) = batches.split_last().expect("there is one");
        for batch in before {
            batch.iter().for_each(|thread| gather.came(Uuid::from_u128(*thread), true));
            gather.goes(begun);
        }
        last.iter().for_each(|thread| gather.came(Uuid::from_u128(*thread), true));
        let now = begun + Duration::from_millis(3);
        gather.until(now).map(|until| u64::try_from((until - now).as_millis()).unwrap_or(u64::MAX))
    }

    #[test]
    fn only_who_would_not_wait_in_vain_is_made_to_wait() {
        assert_eq!(waits(&[&[1]]), None, "the first goes out at once");
        assert_eq!(waits(&[&[1], &[2]]), None, "one after the other, each on a thread of its own");
        assert_eq!(waits(&[&[1, 2], &[3]]), Some(7), "something came meanwhile");
        assert_eq!(waits(&[&[1, 2], &[3], &[4], &[5], &[6]]), Some(7), "and may again");
        assert_eq!(waits(&[&[1, 2], &[3], &[4], &[5], &[6], &[7]]), None, "but did not, four times");
        assert_eq!(waits(&[&[1], &[2, 3]]), Some(7), "several at once");
        assert_eq!(waits(&[&[1, 2], &[3, 2]]), None, "a thread that comes again");
        assert_eq!(waits(&[&[1, 2], &[3, 4], &[5, 2]]), Some(7), "not at once");
    }

    #[test]
    fn who_joins_the_line_of_a_thread_does_not_hurry_it() {
        let begun = Instant::now();
        let mut gather = Gather::new(DISTANCE);
        [1, 2].map(Uuid::from_u128).into_iter().for_each(|thread| gather.came(thread, true));
        gather.goes(begun);
        gather.came(Uuid::from_u128(2), false);
        assert_eq!(gather.until(begun), Some(begun + DISTANCE));
        gather.came(Uuid::from_u128(2), true);
        assert_eq!(gather.until(begun), None, "the one that moves the line takes all along");
    }

    #[test]
    fn the_distance_is_kept_once() {
        let begun = Instant::now();
        let mut gather = Gather::new(DISTANCE);
        [1, 2].map(Uuid::from_u128).into_iter().for_each(|thread| gather.came(thread, true));
        gather.goes(begun);
        gather.came(Uuid::from_u128(3), true);
        assert_eq!(gather.until(begun + DISTANCE), None);
    }
}
