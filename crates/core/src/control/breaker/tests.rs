use std::time::Duration;

use proptest::prelude::*;

use super::{Breaker, Failure, Gate, Phase, Reason, Settings, Started};
use crate::control::backoff::Backoff;
use crate::{Generator, Mono};

fn settings() -> Settings {
    Settings {
        consecutive: 5.0,
        failure_share: 0.5,
        failure_calls_min: 10,
        failure_window: Duration::from_secs(10),
        connect_failures: 3,
        backoff: Backoff {
            first: Duration::from_secs(1),
            factor: 1.5,
            max_early: Duration::from_secs(2),
            max: Duration::from_secs(8),
            max_late: Duration::from_secs(30),
        },
    }
}

const BAD: Failure = Failure { weight: 1.0, connect: false };
const REFUSED: Failure = Failure { weight: 1.0, connect: true };
const NOTHING: Failure = Failure { weight: 0.0, connect: false };

struct Bench {
    breaker: Breaker,
    generator: Generator,
}

impl Bench {
    fn new() -> Self {
        Self { breaker: Breaker::new(settings(), Mono(0)), generator: Generator::from_seed(1) }
    }

    fn started(&self, at: u64) -> Started {
        self.breaker.started(Mono(at))
    }

    fn fail(&mut self, at: u64, failure: Failure) -> Option<Reason> {
        let started = self.started(at);
        self.breaker.failed(Mono(at), started, failure, &self.generator).map(|t| t.reason)
    }

    fn succeed(&mut self, at: u64) -> Option<Reason> {
        let started = self.started(at);
        self.breaker.succeeded(Mono(at), started).map(|t| t.reason)
    }

    /// Opens by five failures at `at` and moves to the time of the first probe.
    fn open(&mut self, at: u64) -> u64 {
        for _ in 0..5 {
            self.fail(at, BAD);
        }
        let Phase::Open { until } = self.breaker.phase() else { panic!("it is open") };
        until.ms()
    }
}

#[test]
fn five_failures_in_a_row_open_it() {
    let mut bench = Bench::new();
    let reasons: Vec<_> = (0..5).map(|i| bench.fail(100 * i, BAD)).collect();
    assert_eq!(reasons, [None, Some(Reason::Failures), None, None, Some(Reason::Consecutive)]);
    assert_eq!(bench.breaker.detected_after(), Some(Duration::from_millis(400)));
}

#[test]
fn half_weight_needs_ten() {
    let mut bench = Bench::new();
    let half = Failure { weight: 0.5, connect: false };
    let opened = (1..=20).find(|i| bench.fail(i * 2_000, half) == Some(Reason::Consecutive));
    assert_eq!(opened, Some(10));
}

#[test]
fn half_of_ten_calls_open_it() {
    let mut bench = Bench::new();
    let mut opened = None;
    for i in 0..20 {
        bench.succeed(i * 100);
        if bench.fail(i * 100 + 50, BAD) == Some(Reason::Share) {
            opened = Some(i);
            break;
        }
    }
    assert_eq!(opened, Some(4));
}

#[test]
fn three_refused_connections_in_a_second_open_it() {
    let mut bench = Bench::new();
    assert_eq!(bench.fail(0, REFUSED), None);
    assert_eq!(bench.fail(1_200, REFUSED), Some(Reason::Failures));
    assert_eq!(bench.fail(1_300, REFUSED), None, "two within a second");
    assert_eq!(bench.fail(1_400, REFUSED), Some(Reason::Connect));
}

#[test]
fn a_warned_sibling_opens_at_its_first_refused_connection() {
    let mut bench = Bench::new();
    assert_eq!(bench.breaker.suspect(Mono(0), Reason::Sibling).map(|t| t.reason), Some(Reason::Sibling));
    assert_eq!(bench.fail(10, REFUSED), Some(Reason::Connect));
}

#[test]
fn an_old_stream_that_ends_well_does_not_end_a_streak() {
    let mut bench = Bench::new();
    let old = bench.started(0);
    for at in [1_000, 1_100, 1_200, 1_300] {
        bench.fail(at, BAD);
    }
    bench.breaker.succeeded(Mono(1_350), old);
    assert_eq!(bench.fail(1_400, BAD), Some(Reason::Consecutive));
}

#[test]
fn results_from_before_the_opening_are_ignored() {
    let mut bench = Bench::new();
    let old = bench.started(0);
    let probe_at = bench.open(100);
    assert!(bench.breaker.succeeded(Mono(200), old).is_none());
    assert!(bench.breaker.content(Mono(200), old).is_none());
    assert!(bench.breaker.begin_probe(Mono(probe_at)).is_some());
    assert!(bench.breaker.failed(Mono(probe_at), old, BAD, &bench.generator).is_none());
    assert_eq!(bench.breaker.phase(), Phase::HalfOpen);
}

#[test]
fn a_probe_is_judged_at_its_first_content() {
    let mut bench = Bench::new();
    let at = bench.open(0);
    assert_eq!(bench.breaker.gate(Mono(at - 1)), Gate::Shut(Mono(at)));
    bench.breaker.begin_probe(Mono(at));
    assert_eq!(bench.breaker.gate(Mono(at)), Gate::Probing);
    let probe = bench.started(at);
    assert_eq!(bench.breaker.content(Mono(at + 300), probe).map(|t| t.reason), Some(Reason::ProbeSucceeded));
    assert_eq!(bench.breaker.phase(), Phase::Ramping);
    assert_eq!(bench.breaker.recovered_after(), Some(Duration::from_millis(at + 300)));
    bench.breaker.ramped(Mono(at + 9_000));
    assert_eq!(bench.breaker.phase(), Phase::Closed);
}

#[test]
fn a_dropped_probe_gives_its_place_back() {
    let mut bench = Bench::new();
    let at = bench.open(0);
    bench.breaker.begin_probe(Mono(at));
    let term = bench.breaker.term();
    assert!(bench.breaker.return_probe(Mono(at + 5), term).is_some());
    assert_eq!(bench.breaker.gate(Mono(at + 5)), Gate::Probe);
    assert!(bench.breaker.return_probe(Mono(at + 6), term).is_none(), "only once");
}

#[test]
fn a_probe_that_is_answered_with_a_refusal_proves_life() {
    let mut bench = Bench::new();
    let at = bench.open(0);
    bench.breaker.begin_probe(Mono(at));
    assert_eq!(bench.fail(at + 10, NOTHING), Some(Reason::ProbeSucceeded));
}

#[test]
fn content_refutes_silence_but_not_failures() {
    let mut bench = Bench::new();
    let old = bench.started(0);
    bench.breaker.silent(Mono(3_000), Mono(0), &bench.generator);
    assert_eq!(bench.breaker.content(Mono(3_200), old).map(|t| t.reason), Some(Reason::SilenceRefuted));
}

#[test]
fn an_outage_of_thirty_seconds_costs_fewer_than_thirty_probes() {
    let mut bench = Bench::new();
    let mut at = bench.open(0);
    let mut n_probes = 0;
    while at < 30_000 {
        bench.breaker.begin_probe(Mono(at));
        bench.fail(at + 10, BAD);
        n_probes += 1;
        let Phase::Open { until } = bench.breaker.phase() else { panic!("it is open") };
        assert!(until.ms() - at <= 2_010);
        at = until.ms();
    }
    assert!((14..30).contains(&n_probes), "{n_probes}");
}

#[derive(Clone, Debug)]
enum Event {
    Start,
    End(usize, u8),
    Content(usize),
    Silence,
    Suspect,
    Defer(u16),
    Probe,
    Return,
    Ramped,
    Trip,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Start),
        4 => (any::<usize>(), 0u8..4).prop_map(|(i, kind)| Event::End(i, kind)),
        2 => any::<usize>().prop_map(Event::Content),
        1 => Just(Event::Silence),
        1 => Just(Event::Suspect),
        1 => (0u16..3_000).prop_map(Event::Defer),
        2 => Just(Event::Probe),
        1 => Just(Event::Return),
        1 => Just(Event::Ramped),
        1 => Just(Event::Trip),
    ]
}

proptest! {
    /// Whatever happens in whatever order: at most one probe is out, the term never falls, traffic
    /// flows only in the phases that allow it, and an open breaker always offers a probe in time.
    #[test]
    fn holds_under_any_order(seed: u64, events in prop::collection::vec((0u64..3_000, event()), 1..300)) {
        let generator = Generator::from_seed(seed);
        let mut breaker = Breaker::new(settings(), Mono(0));
        let mut out: Vec<Started> = Vec::new();
        let mut probe: Option<Started> = None;
        let mut now = 0;
        for (step, event) in events {
            now += step;
            let at = Mono(now);
            let term = breaker.term();
            match event {
                Event::Start => if breaker.gate(at) == Gate::Flow {
                    out.push(breaker.started(at));
                },
                Event::Probe => if breaker.begin_probe(at).is_some() {
                    prop_assert!(probe.is_none_or(|p| p.term < breaker.term()));
                    probe = Some(breaker.started(at));
                    out.push(breaker.started(at));
                },
                Event::Return => if let Some(p) = probe.take() {
                    breaker.return_probe(at, p.term);
                },
                Event::Content(i) => if let Some(a) = out.get(i % out.len().max(1)) {
                    breaker.content(at, *a);
                },
                Event::End(i, kind) => if !out.is_empty() {
                    let a = out.swap_remove(i % out.len());
                    match kind {
                        0 => breaker.succeeded(at, a),
                        1 => breaker.failed(at, a, BAD, &generator),
                        2 => breaker.failed(at, a, REFUSED, &generator),
                        _ => breaker.failed(at, a, NOTHING, &generator),
                    };
                },
                Event::Silence => { breaker.silent(at, Mono(now.saturating_sub(3_000)), &generator); },
                Event::Suspect => { breaker.suspect(at, Reason::Peer); },
                Event::Defer(ms) => breaker.defer(at.after(Duration::from_millis(ms.into()))),
                Event::Ramped => { breaker.ramped(at); },
                Event::Trip => { breaker.trip(at, Reason::Dead, &generator); },
            }
            prop_assert!(breaker.term() >= term);
            if let Phase::Open { until } = breaker.phase() {
                prop_assert!(until.ms() <= now + 30_000);
                prop_assert!(matches!(breaker.gate(at), Gate::Shut(_) | Gate::Probe));
            }
        }
    }
}
