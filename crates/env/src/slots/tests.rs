//! Slots under load: fairness, limits, and waiters that leave.

use std::time::Duration;

use evenkeel_core::id::TenantId;

use super::Slots;

fn tenant(name: &str) -> TenantId {
    TenantId::from(name)
}

#[tokio::test(start_paused = true)]
async fn a_full_component_serves_tenants_in_turn() {
    let slots = Slots::new("model", 1, 100);
    let held = slots.acquire(&tenant("a"), Duration::from_secs(9)).await.unwrap();
    let (done, mut order) = tokio::sync::mpsc::channel(10);
    let mut waiting = Vec::new();
    for name in ["a", "a", "a", "b"] {
        let (slots, done) = (slots.clone(), done.clone());
        waiting.push(crate::spawn::Spawn::spawn(
            &crate::TokioSpawn,
            "test",
            Box::pin(async move {
                let slot = slots.acquire(&tenant(name), Duration::from_secs(9)).await.unwrap();
                done.send(name).await.unwrap();
                drop(slot);
            }),
        ));
        tokio::task::yield_now().await;
    }
    drop(held);
    let mut served = Vec::new();
    for _ in 0..4 {
        served.push(order.recv().await.unwrap());
    }
    assert_eq!(served, ["a", "b", "a", "a"]);
    for task in waiting {
        task.join().await.unwrap();
    }
    let gauges = slots.gauges();
    assert_eq!((gauges.in_use, gauges.waiting, gauges.n_waited), (0, 0, 4));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_is_refused_and_leaves_the_line() {
    let slots = Slots::new("sandbox", 1, 1);
    let held = slots.acquire(&tenant("a"), Duration::ZERO).await.unwrap();
    let refused = slots.acquire(&tenant("b"), Duration::from_secs(2)).await.err().unwrap();
    assert_eq!(refused.code.as_str(), "overloaded");
    assert_eq!(slots.gauges().waiting, 0);
    drop(held);
    assert_eq!(slots.free(), 1);
    assert!(slots.try_acquire().is_some());
}

/// Little's law from the counters alone: what is held over a span is the mean number in use times it.
#[tokio::test(start_paused = true)]
async fn slots_say_how_often_and_how_long_they_were_held() {
    let slots = Slots::new("store", 2, 10);
    let first = slots.acquire(&tenant("a"), Duration::ZERO).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let second = slots.acquire(&tenant("a"), Duration::ZERO).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let held = |slots: &Slots| (slots.gauges().n_taken, slots.gauges().held_total_s);
    assert_eq!(held(&slots), (2, 7.0));
    drop((first, second));
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(held(&slots), (2, 7.0));
}
