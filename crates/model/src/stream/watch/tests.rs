use std::time::Duration;

use evenkeel_core::Mono;

use super::{Limits, Passed, Watch};

fn limits() -> Limits {
    Limits {
        headers: Duration::from_secs(10),
        first_content: Duration::from_secs(10),
        idle: Duration::from_secs(10),
        idle_with_pings: Duration::from_secs(30),
        attempt: Duration::from_secs(120),
        tokens_per_s_min: Some(2.0),
        slow_after: Duration::from_secs(15),
    }
}

#[test]
fn each_phase_has_its_limit() {
    let mut watch = Watch::new(limits(), Mono(0));
    assert_eq!(watch.deadline(), (Mono(10_000), Passed::Headers));
    watch.headers(Mono(4_000));
    watch.ping(Mono(13_000));
    assert_eq!(watch.deadline(), (Mono(14_000), Passed::FirstContent), "pings are no content");
    assert!(watch.content(Mono(5_000), 50.0));
    assert_eq!(watch.deadline(), (Mono(15_000), Passed::Idle));
    assert!(!watch.content(Mono(119_000), 500.0));
    assert_eq!(watch.deadline(), (Mono(120_000), Passed::Attempt));
}

#[test]
fn pings_extend_patience_to_a_bound() {
    let mut watch = Watch::new(limits(), Mono(0));
    watch.headers(Mono(0));
    watch.content(Mono(0), 1e6);
    for at in 1..40 {
        watch.ping(Mono(at * 1_000));
    }
    assert_eq!(watch.deadline(), (Mono(30_000), Passed::Idle));
}

#[test]
fn a_drip_is_slow_after_a_stretch() {
    let mut watch = Watch::new(limits(), Mono(0));
    watch.headers(Mono(0));
    for at in 0..15 {
        watch.content(Mono(at * 1_000), 1.2);
    }
    assert_eq!(watch.deadline(), (Mono(15_000), Passed::Slow));

    let nowhere_to_go = Limits { tokens_per_s_min: None, ..limits() };
    let mut watch = Watch::new(nowhere_to_go, Mono(0));
    watch.content(Mono(0), 1.0);
    assert_eq!(watch.deadline().1, Passed::Idle);
}
