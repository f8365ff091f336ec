//! Things that must happen sometimes: a sweep in which one of them never happens proves less than it
//! says, because the code for it was never reached.

use std::collections::BTreeSet;

use crate::check::{Counts, Entry};
use crate::live::{Measured, Sample};

/// What happened in this run, by name.
pub(super) fn of(measured: &Measured, counts: &Counts) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut note = |name: &str, happened: bool| {
        if happened {
            found.insert(name.to_owned());
        }
    };
    note("run_resumed", counts.resumed > 0);
    note("run_parked", counts.parked > 0);
    note("run_expired", counts.expired > 0);
    note("write_fenced", counts.fenced > 0);
    note("call_retried", counts.retried_calls > 0);
    note("call_while_down", counts.calls_while_down > 0);
    for provider in measured.providers.values() {
        for (outcome, n) in &provider.by_outcome {
            note(&format!("provider_{outcome}"), *n > 0);
        }
    }
    measured.samples.iter().for_each(|sample| of_sample(sample, &mut note));
    measured.history.entries.iter().for_each(|entry| of_entry(entry, &mut note));
    found
}

fn of_sample(sample: &Sample, note: &mut impl FnMut(&str, bool)) {
    for state in sample.states.values().filter(|state| *state != "closed") {
        note(&format!("breaker_{state}"), true);
    }
    for look in sample.replicas.values() {
        note("claim_taken_over", look.stolen > 0);
        note("claim_lost", look.fenced > 0);
        note("lease_lost", look.answers && !look.lease);
        note("replica_silent", !look.answers);
        note("replica_draining", look.draining);
    }
    for (component, n) in &sample.waiting {
        note(&format!("waited_for_{component}"), *n > 0.0);
    }
}

fn of_entry(entry: &Entry, note: &mut impl FnMut(&str, bool)) {
    match entry {
        Entry::Invoke { attempt, .. } => note("client_asked_again", *attempt > 1),
        Entry::Fail { .. } => note("client_refused", true),
        Entry::Info { why, .. } => {
            note("stream_broke", why.contains("broke"));
            note("answer_silent", why.contains("silent"));
            note("client_overloaded", why.starts_with("429") || why.starts_with("503"));
        }
        Entry::Fault { target, kind, on: true, .. } => {
            let target = target.split([':', '-']).next().unwrap_or_default();
            note(&format!("fault_{target}_{kind}"), true);
        }
        _ => {}
    }
}
