use std::time::Duration;

use proptest::prelude::*;

use super::{Ramp, Settings};
use crate::Mono;

fn settings() -> Settings {
    Settings {
        streams: 600,
        start_streams: 8,
        start_share: 0.05,
        growth: 1.10,
        step: Duration::from_millis(250),
        shrink: 0.7,
        hold: Duration::from_secs(1),
        failures: 3,
        rate_factor: 1.5,
        rate_min: 16.0,
        stable_after: Duration::from_secs(30),
    }
}

#[test]
fn the_limit_grows_from_a_twentieth_to_all_in_eight_seconds() {
    let mut ramp = Ramp::new(settings(), Mono(0));
    ramp.restart(Mono(30_000), 0, Mono(0));
    assert_eq!(ramp.limit(Mono(30_000)), 30);
    assert_eq!(ramp.limit(Mono(30_250)), 34);
    let full = (0..).find(|i| ramp.is_full(Mono(30_000 + i * 250))).unwrap();
    assert_eq!(full, 29, "steps of a quarter second");
}

#[test]
fn a_rejection_shrinks_and_holds() {
    let mut ramp = Ramp::new(settings(), Mono(0));
    ramp.rejected(Mono(1_000));
    ramp.rejected(Mono(1_100));
    assert_eq!(ramp.limit(Mono(1_999)), 420, "one wave counts once, and the limit is held");
    assert!(ramp.limit(Mono(2_250)) > 420);
}

#[test]
fn the_first_second_is_no_herd_and_the_rate_follows_what_works() {
    let mut ramp = Ramp::new(settings(), Mono(0));
    for at in 0..200 {
        ramp.succeeded(Mono(at * 50));
    }
    ramp.restart(Mono(40_000), 0, Mono(10_000));
    let start = |ramp: &mut Ramp, from: u64, to: u64, good: bool| {
        let mut n = 0;
        for at in from..to {
            while ramp.ready_at(Mono(at)) <= Mono(at) {
                ramp.take(Mono(at));
                n += 1;
                if good {
                    ramp.succeeded(Mono(at));
                }
            }
        }
        n
    };
    let first = start(&mut ramp, 40_000, 41_000, true);
    assert!((28..=32).contains(&first), "1.5 x 20/s, {first}");
    start(&mut ramp, 41_000, 46_000, true);
    let later = start(&mut ramp, 46_000, 47_000, true);
    assert!(later > 40, "what works now allows more: {later}");
    assert_eq!(ramp.ready_at(Mono(70_000)), Mono(70_000), "stable: no bound any more");
}

#[test]
fn three_failures_in_a_second_mean_that_it_is_not_back() {
    let mut ramp = Ramp::new(settings(), Mono(0));
    assert!(!ramp.failed(Mono(0)));
    assert!(!ramp.failed(Mono(900)));
    assert!(!ramp.failed(Mono(1_100)), "the first is a second old");
    assert!(ramp.failed(Mono(1_200)));
}

proptest! {
    #[test]
    fn the_limit_stays_in_its_bounds(events in prop::collection::vec((0u64..2_000, 0u8..4), 1..200)) {
        let mut ramp = Ramp::new(settings(), Mono(0));
        let mut now = 0;
        let mut last = ramp.limit(Mono(0));
        for (step, kind) in events {
            now += step;
            let grown = ramp.limit(Mono(now));
            prop_assert!(grown >= last, "time alone never shrinks");
            match kind {
                0 => ramp.rejected(Mono(now)),
                1 => ramp.restart(Mono(now), 0, Mono(now)),
                2 => ramp.succeeded(Mono(now)),
                _ => { ramp.take(Mono(now)); }
            }
            last = ramp.limit(Mono(now));
            prop_assert!((1..=600).contains(&last));
            prop_assert!(ramp.ready_at(Mono(now)) <= Mono(now + 300_000));
        }
    }
}
