use std::time::Duration;

use evenkeel_core::Mono;
use expect_test::expect;
use proptest::prelude::*;

use super::choice::{Candidate, choose};
use super::standing::{Health, Seen, Standing};

const ALL: [Seen; 7] =
    [Seen::Ready, Seen::Draining, Seen::NotReady, Seen::Refused, Seen::Silent, Seen::Broken, Seen::Served];

/// The standings after each of the events, in words.
fn course(events: &[Seen]) -> String {
    let mut health = Health::new(Mono(0));
    let told = events.iter().map(|seen| {
        health.see(*seen, Mono(1));
        format!("{seen:?} -> {}\n", health.standing().as_str())
    });
    told.collect()
}

#[test]
fn a_refusal_is_proof_and_a_failure_needs_a_second_one() {
    use Seen::{Broken, Draining, NotReady, Ready, Refused, Served, Silent};
    let events = [
        Ready, Refused, Served, Ready, Silent, Served, Silent, Broken, Silent, Ready, Broken, Ready, Broken,
        Silent, NotReady, Ready, Draining, Silent, Served, Draining, Refused, Draining, Ready,
    ];
    expect![[r#"
        Ready -> up
        Refused -> down: refused
        Served -> down: refused
        Ready -> up
        Silent -> up
        Served -> up
        Silent -> up
        Broken -> down: broken
        Silent -> down: broken
        Ready -> up
        Broken -> up
        Ready -> up
        Broken -> up
        Silent -> down: silent
        NotReady -> down: not ready
        Ready -> up
        Draining -> draining
        Silent -> draining
        Served -> draining
        Draining -> draining
        Refused -> down: refused
        Draining -> draining
        Ready -> up
    "#]]
    .assert_eq(&course(&events));
}

#[test]
fn a_replica_that_is_not_well_is_probed_more_often() {
    let every = Duration::from_secs(1);
    let mut health = Health::new(Mono(0));
    assert_eq!(health.probe_after(every), Duration::from_millis(250), "nothing is known yet");
    health.see(Seen::Ready, Mono(1));
    assert_eq!(health.probe_after(every), every);
    health.see(Seen::Broken, Mono(2));
    assert_eq!(health.probe_after(every), Duration::from_millis(250), "a first failure");
    health.see(Seen::Refused, Mono(3));
    assert_eq!(health.probe_after(every), Duration::from_millis(250));
}

proptest! {
    #[test]
    fn only_a_probe_brings_a_replica_up_and_the_change_is_told(
        events in proptest::collection::vec(proptest::sample::select(&ALL[..]), 0..60),
    ) {
        let mut health = Health::new(Mono(0));
        for (at, seen) in events.into_iter().enumerate() {
            let before = health.standing();
            let changed = health.see(seen, Mono(at as u64 + 1));
            prop_assert_eq!(changed, before != health.standing());
            if changed {
                prop_assert_eq!(health.since(), Mono(at as u64 + 1));
            }
            if before != Standing::Up && health.standing() == Standing::Up {
                prop_assert_eq!(seen, Seen::Ready);
            }
            if seen == Seen::Refused {
                prop_assert!(matches!(health.standing(), Standing::Down(_)));
            }
        }
    }

    #[test]
    fn when_a_replica_leaves_only_its_own_threads_move(thread in "[0-9a-f]{8}", n in 2usize..8, gone in 0usize..8) {
        let names: Vec<String> = (0..n).map(|idx| format!("http://10.0.0.{idx}:7070")).collect();
        let all: Vec<Candidate<'_>> =
            names.iter().enumerate().map(|(idx, name)| Candidate { idx, name, in_flight: idx * 7 }).collect();
        let owner = choose(&all, Some(&thread), 0).unwrap();
        prop_assert_eq!(choose(&all, Some(&thread.to_uppercase()), 5), Some(owner));
        let left: Vec<Candidate<'_>> = all.iter().filter(|of| of.idx != gone % n).copied().collect();
        let now = choose(&left, Some(&thread), 1).unwrap();
        prop_assert!(now == owner || owner == gone % n);
        let mut backwards = all;
        backwards.reverse();
        prop_assert_eq!(choose(&backwards, Some(&thread), 2), Some(owner), "the order does not matter");
    }
}

#[test]
fn threads_are_spread_evenly() {
    let names = ["http://a:1", "http://b:1", "http://c:1"];
    let all: Vec<Candidate<'_>> =
        names.iter().enumerate().map(|(idx, name)| Candidate { idx, name, in_flight: 0 }).collect();
    let mut shares = [0; 3];
    for n in 0..3_000 {
        shares[choose(&all, Some(&format!("thread {n}")), n).unwrap()] += 1;
    }
    assert!(shares.iter().all(|share| (900..1_100).contains(share)), "{shares:?}");
}

#[test]
fn without_a_thread_the_least_loaded_gets_it_and_equals_take_turns() {
    let candidates = |loads: &[usize]| -> Vec<Candidate<'static>> {
        let of = |(idx, in_flight): (usize, &usize)| Candidate { idx, name: "x", in_flight: *in_flight };
        loads.iter().enumerate().map(of).collect()
    };
    let turns = |loads: &[usize]| -> Vec<usize> {
        (0..6).map(|turn| choose(&candidates(loads), None, turn).unwrap()).collect()
    };
    assert_eq!(turns(&[4, 2, 9]), [1, 1, 1, 1, 1, 1]);
    assert_eq!(turns(&[0, 0, 0]), [0, 1, 2, 0, 1, 2]);
    assert_eq!(choose(&[], None, 3), None);
}
