use std::time::Duration;

use evenkeel_core::Mono;
use proptest::prelude::*;

use super::rate_limit::Bucket;

#[test]
fn a_bucket_holds_two_seconds_and_says_when_there_is_more() {
    let mut bucket = Bucket::per_minute(600);
    let now = Mono(1_000);
    let taken = (0..100).take_while(|_| bucket.take(now).is_ok()).count();
    assert_eq!(taken, 20);
    assert_eq!(bucket.take(now), Err(Duration::from_millis(100)));
    assert_eq!(bucket.take(Mono(1_099)).unwrap_err().as_millis(), 1);
    assert_eq!(bucket.take(Mono(1_100)), Ok(()));
    // A clock that seems to go back gives nothing and takes nothing.
    assert!(bucket.take(Mono(500)).is_err());
}

proptest! {
    #[test]
    fn over_any_time_a_bucket_gives_at_most_its_rate_and_one_burst(
        calls in 1u32..100_000,
        gaps in proptest::collection::vec(0u64..3_000, 1..200),
    ) {
        let mut bucket = Bucket::per_minute(calls);
        let mut now = 0;
        let mut given = 0u32;
        for gap in gaps {
            now += gap;
            while given < 1_000_000 && bucket.take(Mono(now)).is_ok() {
                given += 1;
            }
        }
        let rate = f64::from(calls) / 60.0;
        let most = (rate * 2.0).max(1.0) + rate * (now as f64 / 1000.0) + 1.0;
        prop_assert!(f64::from(given) <= most, "{given} of at most {most}");
    }

    #[test]
    fn a_wait_that_was_told_is_enough(calls in 1u32..10_000, at in 0u64..100_000) {
        let mut bucket = Bucket::per_minute(calls);
        while bucket.take(Mono(at)).is_ok() {}
        let wait = bucket.take(Mono(at)).unwrap_err();
        // The clock counts whole milliseconds.
        let later = at + u64::try_from(wait.as_millis()).unwrap() + 1;
        prop_assert_eq!(bucket.take(Mono(later)), Ok(()));
    }
}
