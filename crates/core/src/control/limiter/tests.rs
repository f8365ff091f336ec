use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Claim, FairQueue, Limiter, TokenBucket};
use crate::Mono;
use crate::run::Class;

fn claim(class: Class, begun: bool, tenant: &str) -> Claim {
    Claim { class, begun, tenant: tenant.into() }
}

#[test]
fn people_first_then_begun_runs_then_first_come() {
    let mut queue = FairQueue::new(BTreeMap::new());
    let waiting = [
        (claim(Class::Batch, false, "a"), "new batch"),
        (claim(Class::Batch, true, "a"), "begun batch"),
        (claim(Class::Interactive, false, "a"), "new turn"),
        (claim(Class::Interactive, true, "a"), "begun turn"),
    ];
    for (claim, item) in &waiting {
        queue.push(claim, *item);
    }
    assert_eq!(queue.next(9), ["begun turn", "new turn", "begun batch", "new batch"]);
}

#[test]
fn a_flood_waits_behind_itself_and_weights_count() {
    let mut queue = FairQueue::new(BTreeMap::from([("big".to_owned(), 3)]));
    for i in 0..400 {
        queue.push(&claim(Class::Batch, true, "flood"), format!("flood{i}"));
        queue.push(&claim(Class::Batch, true, "big"), format!("big{i}"));
    }
    let mut n_big = 0;
    for _ in 0..400 {
        let item = queue.next(1).remove(0);
        let tenant = item.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        n_big += usize::from(tenant == "big");
        queue.serve(&claim(Class::Batch, true, &tenant), &item);
    }
    assert!((298..=302).contains(&n_big), "{n_big}");
    queue.push(&claim(Class::Batch, true, "small"), "small".to_owned());
    assert!(queue.next(2).contains(&"small".to_owned()), "a newcomer is served among the next two");
}

#[test]
fn reserved_tokens_bound_calls_at_once_and_are_settled() {
    let mut limiter = Limiter::new(60_000, 60_000, Mono(0));
    let mut n = 0;
    while limiter.ready_at(Mono(0), 500) <= Mono(0) {
        limiter.reserve(Mono(0), 500);
        n += 1;
    }
    assert_eq!(n, 4, "two seconds hold 2,000 tokens");
    limiter.settle(Mono(0), 500, 0);
    assert_eq!(limiter.ready_at(Mono(0), 500), Mono(0));
    limiter.settle(Mono(0), 0, 1_000);
    assert!(limiter.ready_at(Mono(0), 500) >= Mono(1_000), "a debt is paid first");
}

#[test]
fn a_call_larger_than_the_bucket_starts_when_it_is_full() {
    let bucket = TokenBucket::per_minute(600, Mono(0));
    assert_eq!(bucket.ready_at(Mono(0), 1e9), Mono(0));
}

#[test]
fn headers_lower_and_never_raise() {
    let mut bucket = TokenBucket::per_minute(600, Mono(0));
    bucket.lower_to(Mono(0), 1_000.0);
    bucket.lower_rate(Mono(0), 6_000);
    assert!((bucket.level(Mono(0)) - 20.0).abs() < 1e-9);
    bucket.lower_rate(Mono(0), 60);
    bucket.take(Mono(0), 2.0);
    assert_eq!(bucket.ready_at(Mono(0), 1.0), Mono(1_001));
}

proptest! {
    #[test]
    fn a_bucket_never_gives_more_than_its_rate(takes in prop::collection::vec(0u64..500, 1..300)) {
        let mut bucket = TokenBucket::new(10.0, 20.0, Mono(0));
        let (mut now, mut taken) = (0, 0.0);
        for wait in takes {
            now += wait;
            if bucket.ready_at(Mono(now), 1.0) <= Mono(now) {
                bucket.take(Mono(now), 1.0);
                taken += 1.0;
            }
            prop_assert!(taken <= 20.0 + now as f64 / 100.0 + 1e-6);
            let ready = bucket.ready_at(Mono(now), 1.0);
            prop_assert!(bucket.ready_at(ready, 1.0) <= ready, "what is announced is ready");
        }
    }

    /// Two tenants that always wait are served alike, whatever a third one does.
    #[test]
    fn service_is_fair(order in prop::collection::vec(0u8..3, 50..300)) {
        let mut queue: FairQueue<(u8, usize)> = FairQueue::new(BTreeMap::new());
        let of = |tenant: u8| claim(Class::Batch, true, &tenant.to_string());
        for i in 0..600 {
            queue.push(&of(0), (0, i));
            queue.push(&of(1), (1, i));
        }
        let mut served = [0i64; 3];
        for (i, tenant) in order.iter().enumerate() {
            if *tenant == 2 {
                queue.push(&of(2), (2, i));
            }
            let item = queue.next(1).remove(0);
            queue.serve(&of(item.0), &item);
            served[item.0 as usize] += 1;
        }
        prop_assert!((served[0] - served[1]).abs() <= 1, "{served:?}");
    }
}
