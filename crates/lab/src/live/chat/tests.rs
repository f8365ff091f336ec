use std::collections::BTreeMap;

use evenkeel_core::Generator;

use super::plan::{Planned, draw};
use crate::scenario::{Chat, Traffic};
use crate::task::Shape;

fn traffic(rate_per_s: f64, duration_s: f64) -> Traffic {
    Traffic { shape: Shape::Chat, rate_per_s, duration_s, tasks: Vec::new(), settle_s: 60.0 }
}

fn drawn(chat: &Chat) -> Vec<Planned> {
    draw(&traffic(300.0, 30.0), chat, &Generator::from_seed(7))
}

/// Share of messages that come within `within_ms` after one on the same thread.
fn share_of_seconds(turns: &[Planned], within_ms: u64) -> f64 {
    let mut last: BTreeMap<usize, u64> = BTreeMap::new();
    let seconds = turns.iter().filter(|turn| {
        last.insert(turn.thread, turn.at_ms).is_some_and(|before| turn.at_ms - before <= within_ms)
    });
    seconds.count() as f64 / turns.len() as f64
}

#[test]
fn the_load_has_its_rate_its_threads_and_its_second_messages() {
    let turns = drawn(&Chat::default());
    assert_eq!(turns.len(), 9_000);
    assert_eq!((turns[0].at_ms, turns[8_999].at_ms), (0, 29_996));
    assert!(turns.is_sorted_by_key(|turn| turn.at_ms));
    let n_threads = turns.iter().map(|turn| turn.thread).max().unwrap() + 1;
    assert!((2_000..7_000).contains(&n_threads), "{n_threads} threads");
    let seconds = share_of_seconds(&turns, 2_600);
    assert!((0.24..0.32).contains(&seconds), "{seconds} second messages");
    assert_eq!(drawn(&Chat::default()), turns);
}

#[test]
fn bursts_and_a_hot_thread_come_as_asked() {
    let turns = drawn(&Chat { burst: 5, second_share: 0.0, ..Chat::default() });
    assert_eq!(turns.len(), 9_000);
    let whole = turns.chunks(5).filter(|five| five.iter().all(|turn| turn.thread == five[0].thread));
    assert_eq!(whole.count(), 1_800);
    let turns = drawn(&Chat { hot_share: 0.3, ..Chat::default() });
    let hot = turns.iter().filter(|turn| turn.thread == 0).count();
    assert!((2_500..2_900).contains(&hot), "{hot} messages on the hot thread");
}

#[test]
fn doubled_requests_and_clients_that_leave_have_their_shares() {
    let turns = drawn(&Chat { duplicate_share: 1.0, disconnect_share: 0.5, ..Chat::default() });
    assert!(turns.iter().all(|turn| turn.doubled));
    let leave = turns.iter().filter(|turn| turn.leaves_after_ms.is_some()).count();
    assert!((4_200..4_800).contains(&leave), "{leave} clients leave");
}
