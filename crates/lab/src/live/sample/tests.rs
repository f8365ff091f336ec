use super::*;

fn read(metrics: &str) -> Sample {
    let mut one = Sample::default();
    one.add_metrics(metrics);
    one
}

/// Three replicas over one store: what belongs to each is added up, what they share is not.
#[test]
fn what_replicas_share_is_counted_once() {
    let page = |running: u32, lost: u32, store: u32| {
        read(&format!(
            "# TYPE evenkeel_store_fenced counter\nevenkeel_harness_running {running}\n\
             evenkeel_harness_fenced_total {lost}\nevenkeel_store_fenced_total {store}\n\
             evenkeel_postgres_fenced_total {lost}\nevenkeel_slots_in_use{{component=\"harness\"}} {running}\n"
        ))
    };
    let mut all = Sample::default();
    // The middle one was asked a moment later, when one more write had been refused.
    for (name, one) in [("a", page(4, 2, 5)), ("b", page(5, 1, 6)), ("c", page(6, 3, 5))] {
        all.merge(name, &one, true);
    }
    assert_eq!(all.fenced, 6);
    assert_eq!(all.slots["harness"], 15.0);
    let lost: u64 = all.replicas.values().map(|look| look.fenced).sum();
    assert_eq!(lost, 6, "each replica's own");
}
