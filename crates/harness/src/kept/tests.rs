//! What is kept is bounded, and is given only to the claim that follows.

use evenkeel_core::Wall;
use evenkeel_core::id::ThreadId;
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::message::{Message, Role, Usage};

use super::{BYTES_MAX, Kept, Left};
use crate::run::state::View;
use crate::run::tests::run_id;

fn thread(n: u64) -> ThreadId {
    format!("01890000-0000-7000-8000-{n:012x}").parse().unwrap()
}

fn left(bytes: usize) -> Left {
    let message = Message::text("m", Role::User, "x".repeat(bytes));
    let event = Event {
        thread: thread(0),
        seq: 1,
        run: run_id(),
        step: 0,
        at: Wall(0),
        body: EventBody::UserMessage { message },
    };
    let view = View::of(run_id(), 0, Usage::default(), &[event]);
    Left { version: 1, epoch: 1, thread_created_at: Wall(0), view }
}

#[test]
fn the_oldest_go_when_it_is_too_much() {
    let mut kept = Kept::default();
    for n in 0..40 {
        kept.put(thread(n % 20), left(1 << 20));
        assert!(kept.bytes <= BYTES_MAX);
        assert_eq!(kept.by_age.len(), kept.by_thread.len());
    }
    assert_eq!(kept.by_thread.len(), 15);
    assert!(kept.take(thread(19)).is_some() && kept.take(thread(4)).is_none());
    kept.put(thread(0), left(17 << 20));
    assert_eq!((kept.by_thread.len(), kept.bytes), (0, 0), "what is too large alone is not kept");
}
