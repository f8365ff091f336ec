use proptest::prelude::*;

use super::RetryBudget;
use crate::Mono;

#[test]
fn a_quiet_pool_has_its_grant_and_no_more() {
    let mut budget = RetryBudget::new(0.1, 3.0);
    let granted = (0..100).filter(|_| budget.take(Mono(5_000), 1.0)).count();
    assert_eq!(granted, 30);
    assert!(!budget.take(Mono(14_000), 1.0), "the ten seconds are not over");
    assert!(budget.take(Mono(15_000), 1.0));
}

#[test]
fn successes_earn_a_tenth() {
    let mut budget = RetryBudget::new(0.1, 0.0);
    (0..50).for_each(|_| budget.success(Mono(1_000)));
    assert_eq!((0..100).filter(|_| budget.take(Mono(2_000), 1.0)).count(), 5);
    assert!(budget.available(Mono(60_000)) < 1e-9);
}

proptest! {
    #[test]
    fn never_more_than_earned(events in prop::collection::vec((0u64..400, any::<bool>()), 1..400)) {
        let mut budget = RetryBudget::new(0.1, 3.0);
        let (mut now, mut successes, mut granted) = (0, vec![], vec![]);
        for (step, is_success) in events {
            now += step;
            if is_success {
                budget.success(Mono(now));
                successes.push(now);
            } else if budget.take(Mono(now), 1.0) {
                granted.push(now);
                // Whole seconds are forgotten at once, so the window is nine to ten seconds long.
                let within = |at: &&u64| **at / 1000 + 10 > now / 1000;
                let spent = granted.iter().filter(within).count() as f64;
                let earned = successes.iter().filter(within).count() as f64 * 0.1 + 30.0;
                prop_assert!(spent <= earned + 1e-6);
            }
        }
    }
}
