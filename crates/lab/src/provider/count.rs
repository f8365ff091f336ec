//! What a fake provider counts: calls by second and outcome, calls while it was down, requests
//! with their instants (the newest ones), and requests that broke the rules of their wire.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::WireKind;

const N_REQUESTS_KEPT: usize = 20_000;
const N_VIOLATIONS_KEPT: usize = 50;

/// One request as the provider saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestSeen {
    /// Milliseconds since the provider started.
    pub at_ms: u64,
    /// Which wire; none for a connection closed before a request was read.
    pub wire: Option<WireKind>,
    /// The model asked for.
    pub model: String,
    /// How it went (see [`Counters::by_outcome`]).
    pub outcome: &'static str,
    /// Milliseconds until its end.
    pub ms: u64,
    /// Estimated input tokens.
    pub input_tokens: u64,
}

/// Everything counted so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counters {
    /// Calls by how they went: `ok`, `client_gone`, `invalid`, or the name of the fault they met.
    pub by_outcome: BTreeMap<&'static str, u64>,
    /// The same by second since the provider started.
    pub by_second: BTreeMap<u64, BTreeMap<&'static str, u64>>,
    /// Calls that arrived while an outage lasted; connections closed at once included.
    pub calls_while_down: u64,
    /// Calls in all.
    pub calls: u64,
    /// Requests that broke the rules of their wire and were answered 400.
    pub validation_failures: u64,
    /// What was wrong with the first of them.
    pub violations: Vec<String>,
    /// Answers being sent now.
    pub streams: usize,
    /// The most at once.
    pub streams_peak: usize,
    /// Milliseconds for which answers were being sent, summed over all of them.
    pub stream_ms: u64,
    /// Input tokens of answered calls, estimated.
    pub input_tokens: u64,
    /// Output tokens sent, whole answers or not.
    pub output_tokens: u64,
}

#[derive(Default)]
pub(crate) struct Book {
    pub(crate) counters: Counters,
    pub(crate) requests: VecDeque<RequestSeen>,
    /// Up to when `stream_ms` counts.
    counted_ms: u64,
}

impl Book {
    /// Brings `stream_ms` up to now; before every change of `streams`.
    pub(crate) fn count_streams(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.counted_ms);
        self.counters.stream_ms += self.counters.streams as u64 * passed_ms;
        self.counted_ms = now_ms;
    }

    pub(crate) fn arrived(&mut self, while_down: bool) {
        self.counters.calls += 1;
        self.counters.calls_while_down += u64::from(while_down);
    }

    pub(crate) fn ended(&mut self, request: RequestSeen) {
        let counters = &mut self.counters;
        *counters.by_outcome.entry(request.outcome).or_default() += 1;
        let second = counters.by_second.entry(request.at_ms / 1_000).or_default();
        *second.entry(request.outcome).or_default() += 1;
        if request.outcome == "ok" {
            counters.input_tokens += request.input_tokens;
        }
        if self.requests.len() == N_REQUESTS_KEPT {
            self.requests.pop_front();
        }
        self.requests.push_back(request);
    }

    pub(crate) fn violated(&mut self, problems: &[String]) {
        self.counters.validation_failures += 1;
        let room = N_VIOLATIONS_KEPT.saturating_sub(self.counters.violations.len());
        self.counters.violations.extend(problems.iter().take(room).cloned());
    }
}
