//! When the next statement goes out: at once, or after more has gathered for it.
//!
//! What a statement costs the database is mostly its parse and its plan, however little it carries.
//! So while many clients are served, statements of one connection keep a distance, and each carries
//! what came meanwhile. A client that alone waits for each of its answers would only be slowed down
//! by that: the distance is kept only if what came last was about many threads.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// How many of the last operations are looked at.
const LAST: usize = 16;
/// So many threads among them are many.
const MANY: usize = 8;

/// The distance of the statements of one connection.
pub(super) struct Gather {
    distance: Duration,
    last: VecDeque<Uuid>,
    sent: Option<Instant>,
}

impl Gather {
    pub(super) fn new(distance: Duration) -> Self {
        Self { distance, last: VecDeque::with_capacity(LAST), sent: None }
    }

    /// An operation on this thread, or whatever else tells clients apart, came.
    pub(super) fn came(&mut self, whose: Uuid) {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(whose);
    }

    /// Until when the next statement waits for more; `None` if it goes out at once.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        let until = self.sent? + self.distance;
        (until > now && self.serves_many()).then_some(until)
    }

    /// A statement goes out.
    pub(super) fn goes(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    fn serves_many(&self) -> bool {
        let mut apart: Vec<&Uuid> = self.last.iter().collect();
        apart.sort_unstable();
        apart.dedup();
        apart.len() >= MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTANCE: Duration = Duration::from_millis(10);

    fn waits(threads: impl Iterator<Item = u128>, after_ms: u64) -> Option<u64> {
        let begun = Instant::now();
        let mut gather = Gather::new(DISTANCE);
        threads.for_each(|thread| gather.came(Uuid::from_u128(thread)));
        gather.goes(begun);
        let now = begun + Duration::from_millis(after_ms);
        gather.until(now).map(|until| u64::try_from((until - now).as_millis()).unwrap_or(u64::MAX))
    }

    #[test]
    fn the_distance_is_kept_only_while_many_are_served() {
        assert_eq!(waits(0..40, 3), Some(7), "many threads");
        assert_eq!(waits(0..40, 10), None, "the distance is kept already");
        assert_eq!(waits((0..40).map(|n| n % 4), 3), None, "few threads, however much they write");
        assert_eq!(waits((0..40).map(|n| n % 8), 3), Some(7), "enough of them");
        assert_eq!(waits((0..40).map(|n| n.min(20)), 3), None, "of the many only one is left");
    }

    #[test]
    fn the_first_statement_goes_out_at_once() {
        let mut gather = Gather::new(DISTANCE);
        (0..40).for_each(|thread| gather.came(Uuid::from_u128(thread)));
        assert_eq!(gather.until(Instant::now()), None);
    }
}
