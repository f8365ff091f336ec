use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::{Backoff, no_earlier_than};
use crate::Generator;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    factor: 1.5,
    max_early: Duration::from_secs(2),
    max: Duration::from_secs(8),
    max_late: Duration::from_secs(30),
};

proptest! {
    #[test]
    fn every_wait_is_between_half_and_the_ceiling(seed: u64, n in 0u32..500, age_s in 0u64..2_000) {
        let delay = BACKOFF.delay(n, Duration::from_secs(age_s), &Generator::from_seed(seed));
        let ceiling = match age_s { 0..120 => 2.0, 120..600 => 8.0, _ => 30.0 };
        let full = (1.0 * 1.5f64.powi(n.min(64) as i32)).min(ceiling);
        prop_assert!(delay.as_secs_f64() >= full / 2.0 - 1e-6 && delay.as_secs_f64() <= full + 1e-6);
    }

    #[test]
    fn a_named_wait_is_never_shortened(seed: u64, floor_ms in 0u64..10_000_000) {
        let floor = Duration::from_millis(floor_ms);
        let wait = no_earlier_than(floor, &Generator::from_seed(seed));
        prop_assert!(wait >= floor && wait <= floor + (floor / 5).min(Duration::from_secs(30)));
    }
}

#[test]
fn twenty_callers_come_back_at_twenty_instants() {
    let generator = Generator::from_seed(7);
    let waits: BTreeSet<_> =
        (0..20).map(|_| no_earlier_than(Duration::from_secs(600), &generator).as_millis()).collect();
    assert_eq!(waits.len(), 20);
}
