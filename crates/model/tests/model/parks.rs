//! Calls that park over loopback: what they say, how they come back, and permits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::port::model::{Model, ModelOutcome, ModelRequest, Permit, Unwatched};
use evenkeel_env::Env;
use serde_json::json;

use crate::loopback::{Script, always, bench, done, hello, start};
use crate::scripted::{error, openai};

/// M16 (the router's part): a parked call says what it waits for.
#[tokio::test]
async fn m16_a_parked_call_says_why_and_until_when() {
    let bench =
        bench(vec![("openai", always(error(503, &json!({"error": {"message": "down"}}))))], json!({})).await;
    for _ in 0..6 {
        bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    }
    let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
    let ModelOutcome::Park { until_hint, reason, .. } = outcome else { panic!("{outcome:?}") };
    assert!(until_hint.is_some_and(|at| at >= bench.env.wall()));
    assert!(reason.contains("a is down (failures in a row), next probe in"), "{reason}");
    let snapshot = bench.router.snapshot();
    assert_eq!(snapshot.deployments["a"].state, "open");
    assert_eq!(snapshot.transitions.last().unwrap().reason, "failures in a row");
}

#[tokio::test]
async fn an_outage_end_to_end_parks_probes_and_comes_back() {
    let up = Arc::new(Mutex::new(false));
    let is_up = up.clone();
    let script: Script = Box::new(move |_, _| {
        if *is_up.lock().unwrap() {
            openai::answer("hello")
        } else {
            error(503, &json!({"error": {"message": "down"}}))
        }
    });
    let router = json!({"breaker": {"open_first": "40ms", "open_max_early": "80ms"}});
    let bench = bench(vec![("openai", script)], router).await;
    for _ in 0..8 {
        let outcome = bench.router.call(hello(&bench.env), Arc::new(Unwatched)).await;
        assert!(matches!(outcome, ModelOutcome::Park { .. }), "{outcome:?}");
    }
    bench.router.parked("coder", 8);
    let probe = bench.router.next_permit().await;
    assert_eq!((probe.0.route(), probe.0.deployment()), ("coder", "a"));
    let with = |permit: Permit| ModelRequest { permit: Some(permit), ..hello(&bench.env) };
    let outcome = bench.router.call(with(probe), Arc::new(Unwatched)).await;
    assert!(matches!(outcome, ModelOutcome::Park { .. }), "{outcome:?}");
    *up.lock().unwrap() = true;
    for n_left in (0..8).rev() {
        let permit = bench.router.next_permit().await;
        bench.router.parked("coder", n_left);
        done(&bench.router, with(permit)).await;
    }
    let snapshot = bench.router.snapshot();
    assert_eq!(snapshot.deployments["a"].state, "ramping");
    assert_eq!(snapshot.deployments["a"].n_opened, 1);
    assert!(snapshot.deployments["a"].seconds_to_recover.is_some());
    serde_json::to_value(snapshot).unwrap();
}

/// Permits that nobody takes run out; a waker that comes late gets one that is still good.
#[tokio::test(start_paused = true)]
async fn a_late_waker_gets_a_permit_that_is_still_good() {
    let env = Env::seeded(1);
    // Nothing listens there, and the paused clock runs ahead of any connection.
    let unreachable = json!({
        "providers": {"a": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        "deployments": {"a": {"provider": "a", "model": "large"}},
        "routes": {"coder": {"tiers": [["a"]]}},
    });
    let router = start(&env, serde_json::from_value(unreachable).unwrap());
    router.parked("coder", 1);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let permit = router.next_permit().await;
    let snapshot = router.snapshot();
    assert_eq!(snapshot.routes["coder"].permits_outstanding, 1);
    assert!(snapshot.deployments["a"].permits >= 9, "{:?}", snapshot.deployments["a"].permits);
    let more = tokio::time::timeout(Duration::from_millis(10), router.next_permit()).await;
    assert!(more.is_err(), "there is one parked run and one permit");
    router.parked("coder", 0);
    drop(permit);
    assert_eq!(router.snapshot().routes["coder"].permits_outstanding, 0);
}
