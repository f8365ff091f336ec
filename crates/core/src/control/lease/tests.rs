//! What a lease promises, sentence by sentence.

use super::*;
use proptest::prelude::*;

fn at(ms: u64) -> Mono {
    Mono(ms)
}

fn held_at_zero() -> Lease {
    let mut lease = Lease::new(LeaseTimes::default(), at(0));
    let sent = lease.begin_beat(at(0));
    lease.confirm(sent, false, at(10));
    lease
}

#[test]
fn nothing_may_be_done_before_the_first_answer() {
    let mut lease = Lease::new(LeaseTimes::default(), at(0));
    assert_eq!(lease.check(at(0)), Due::Beat);
    lease.begin_beat(at(0));
    assert!(!lease.holds(at(1)));
    assert_eq!(lease.check(at(1)), Due::Wait(at(1000)));
    assert_eq!(lease.check(at(60_000)), Due::Beat, "it keeps asking");
}

#[test]
fn the_lease_counts_from_the_sending_of_the_beat_not_from_its_answer() {
    let mut lease = Lease::new(LeaseTimes::default(), at(0));
    let sent = lease.begin_beat(at(0));
    lease.confirm(sent, false, at(2_000));
    assert!(lease.holds(at(2_999)));
    assert!(!lease.holds(at(3_000)));
}

#[test]
fn beats_follow_every_second() {
    let mut lease = held_at_zero();
    assert_eq!(lease.check(at(500)), Due::Wait(at(1_000)));
    assert_eq!(lease.check(at(1_000)), Due::Beat);
    lease.begin_beat(at(1_000));
    assert_eq!(lease.check(at(1_001)), Due::Wait(at(2_000)));
}

#[test]
fn three_seconds_without_an_answer_fence_for_ever() {
    let mut lease = held_at_zero();
    let late = lease.begin_beat(at(1_000));
    lease.begin_beat(at(2_000));
    assert_eq!(lease.check(at(2_999)), Due::Wait(at(3_000)));
    assert_eq!(lease.check(at(3_000)), Due::Fence);
    lease.confirm(late, true, at(3_001));
    assert_eq!(lease.check(at(3_001)), Due::Fence);
    assert!(!lease.holds(at(3_001)));
}

#[test]
fn an_answer_that_arrives_too_late_does_not_revive_an_unchecked_lease() {
    let mut lease = held_at_zero();
    let sent = lease.begin_beat(at(2_900));
    // The process was stopped from 2.9 s to 10 s and reads the answer before the clock.
    lease.confirm(sent, true, at(10_000));
    assert_eq!(lease.standing(), Standing::Lost);
}

#[test]
fn a_store_that_says_not_held_ends_it_at_once() {
    let mut lease = held_at_zero();
    let sent = lease.begin_beat(at(1_000));
    lease.confirm(sent, false, at(1_005));
    assert_eq!(lease.check(at(1_005)), Due::Fence);
}

#[test]
fn an_older_answer_never_shortens_it() {
    let mut lease = held_at_zero();
    let older = lease.begin_beat(at(1_000));
    let newer = lease.begin_beat(at(2_000));
    lease.confirm(newer, true, at(2_010));
    lease.confirm(older, true, at(2_020));
    assert_eq!(lease.fence_at(), Some(at(5_000)));
}

proptest! {
    /// Whatever is sent, lost, delayed and answered: whenever the replica believes that it holds
    /// the lease, the store believes so too.
    #[test]
    fn the_replica_never_trusts_longer_than_the_store(
        steps in proptest::collection::vec((0u64..1_500, 0u64..5_000, any::<bool>()), 1..60),
    ) {
        let times = LeaseTimes::default();
        let mut lease = Lease::new(times, at(0));
        let mut now = 0;
        let mut store_until = None::<u64>;
        for (pause, delay, lost) in steps {
            now += pause;
            if lease.check(at(now)) == Due::Fence {
                break;
            }
            let sent = lease.begin_beat(at(now));
            if lost {
                continue;
            }
            // It arrives half way, is judged there, and the answer comes after the whole delay.
            let arrives = now + delay / 2;
            let held = store_until.is_some_and(|until| arrives < until);
            store_until = Some(arrives + u64::try_from(times.ttl.as_millis()).unwrap_or(0));
            now += delay;
            lease.confirm(sent, held, at(now));
            if lease.holds(at(now)) {
                prop_assert!(store_until.is_some_and(|until| now < until));
                let stop = lease.fence_at().map_or(0, Mono::ms);
                prop_assert!(store_until.is_some_and(|until| stop < until));
            }
        }
    }
}
