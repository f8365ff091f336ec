//! Things that must happen sometimes: a sweep in which one of them never happens proves less than it
//! says, because the code for it was never reached.

use std::collections::BTreeSet;

use crate::check::{Counts, Entry};
use crate::live::{Measured, Sample};

/// What must happen in a sweep of a thousand drawn seeds. The end of a run by its deadline is not among
/// them: it is an hour away, and nothing that is drawn leads there.
pub(crate) const SOMETIMES: [&str; 69] = [
    "answer_silent",
    "breaker_half_open",
    "breaker_open",
    "breaker_ramping",
    "breaker_suspect",
    "breaker_throttled",
    "call_retried",
    "call_while_down",
    "claim_taken_over",
    "client_asked_again",
    "client_overloaded",
    "client_refused",
    "fault_link_cut",
    "fault_link_delay",
    "fault_link_hold",
    "fault_link_hold_answers",
    "fault_link_refuse",
    "fault_link_throttle",
    "fault_process_clock",
    "fault_process_kill",
    "fault_process_stop",
    "fault_provider_acceleration",
    "fault_provider_black_hole",
    "fault_provider_broken_arguments",
    "fault_provider_clean_end",
    "fault_provider_context_too_long",
    "fault_provider_cut",
    "fault_provider_down",
    "fault_provider_down503",
    "fault_provider_error_event",
    "fault_provider_errors",
    "fault_provider_keep_alive",
    "fault_provider_malformed_json",
    "fault_provider_rate_limit",
    "fault_provider_slow",
    "fault_provider_slow_drip",
    "fault_provider_stall",
    "fault_provider_wrong_tool_ids",
    "fault_replica_clock",
    "fault_replica_kill",
    "fault_replica_stop",
    "fault_replicas_rolling_restart",
    "fault_store_clock",
    "fault_store_crowd",
    "fault_store_errors",
    "fault_store_lose_answers",
    "fault_store_read_only",
    "fault_store_restart",
    "fault_store_slow",
    "fault_store_stall",
    "lease_lost",
    "provider_black_hole",
    "provider_clean_end",
    "provider_client_gone",
    "provider_cut",
    "provider_down",
    "provider_error_event",
    "provider_malformed_json",
    "provider_ok",
    "provider_rate_limit",
    "provider_stall",
    "replica_draining",
    "replica_silent",
    "run_parked",
    "run_resumed",
    "stream_broke",
    "waited_for_sandbox",
    "waited_for_store",
    "write_fenced",
];

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
