//! Outages in virtual time: how many calls are made, when they stop, and how traffic comes back.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_core::Mono;
use evenkeel_core::run::Class as CallClass;
use evenkeel_model::Operation;
use evenkeel_model::classify::{Class, Failure};
use evenkeel_model::router::event::Event;

use crate::simulation::{Behaviour, Ending, Mistake, World, config, down, p99, refused, single, tiered};

fn is_down(now: Mono) -> bool {
    (20_000..50_000).contains(&now.0)
}

/// System 1: two tasks a second for 45 s, the only provider down for 30 s.
fn system_one(n_steps: u32, first_ms: u64, total_ms: u64, broken: &Behaviour) -> Outcome {
    seeded_system_one(7, n_steps, (first_ms, total_ms), broken)
}

fn seeded_system_one(
    seed: u64,
    n_steps: u32,
    (first_ms, total_ms): (u64, u64),
    broken: &Behaviour,
) -> Outcome {
    let behave =
        |now: Mono, _, _| if is_down(now) { broken.clone() } else { Behaviour::Answers(first_ms, total_ms) };
    let mut world = World::new(&single(), seed, behave);
    for i in 0..90 {
        world.run_at(i * 500, n_steps);
    }
    world.until(600_000);
    let durations = world.durations();
    let recovered = world.successes.iter().find(|at| at.0 >= 50_000).unwrap().0 - 50_000;
    let snapshot = world.snapshot();
    let outcome = Outcome {
        calls_while_down: world.n_calls(0, 20_000, 50_000),
        detect_s: snapshot.deployments["acme-large"].seconds_to_detect.unwrap(),
        first_success_ms: recovered.saturating_sub(total_ms),
        p99_s: p99(&durations),
        n_opened: snapshot.deployments["acme-large"].n_opened,
    };
    // Shown with --nocapture: what the constants are tuned by.
    println!("{n_steps} steps of {total_ms} ms: {outcome:?}");
    outcome
}

#[derive(Debug)]
struct Outcome {
    calls_while_down: usize,
    detect_s: f64,
    /// From the recovery to the start of the first call that succeeds.
    first_success_ms: u64,
    p99_s: f64,
    n_opened: u64,
}

#[test]
fn short_tasks_survive_thirty_seconds_without_their_only_provider() {
    let outcome = system_one(8, 250, 600, &down());
    assert!(outcome.calls_while_down < 40, "{outcome:?}");
    assert!(outcome.detect_s <= 3.0 && outcome.first_success_ms <= 2_000, "{outcome:?}");
    assert!(outcome.p99_s <= 6.0 + 30.0 + 15.0, "{outcome:?}");
    assert_eq!(outcome.n_opened, 1, "{outcome:?}");
}

#[test]
fn long_tasks_survive_thirty_seconds_without_their_only_provider() {
    let outcome = system_one(8, 1_500, 11_000, &down());
    assert!(outcome.calls_while_down < 40, "{outcome:?}");
    assert!(outcome.detect_s <= 3.0 && outcome.first_success_ms <= 2_000, "{outcome:?}");
    assert!(outcome.p99_s <= 90.0 + 30.0 + 15.0, "{outcome:?}");
}

#[test]
fn a_refused_connection_is_as_good_as_an_error() {
    let outcome = system_one(8, 250, 600, &refused());
    assert!(outcome.calls_while_down < 40 && outcome.detect_s <= 3.0, "{outcome:?}");
    assert!(outcome.p99_s <= 51.0, "{outcome:?}");
}

/// A provider that takes connections and says nothing gives nobody an error to count.
#[test]
fn silence_on_all_streams_is_an_outage_within_seconds() {
    for seed in 0..20 {
        let outcome = seeded_system_one(seed, 8, (250, 600), &Behaviour::Silent);
        assert!(outcome.detect_s <= 3.01 && outcome.first_success_ms <= 2_000, "{outcome:?}");
        assert!(outcome.calls_while_down <= 40, "{outcome:?}");
        assert!(outcome.p99_s <= 51.0, "{outcome:?}");
    }
}

#[test]
fn a_second_provider_carries_the_outage_without_a_wait() {
    let behave = |now: Mono, lane: usize, _| {
        if lane == 0 && is_down(now) { down() } else { Behaviour::Answers(250, 600) }
    };
    let mut world = World::new(&tiered(), 3, behave);
    for i in 0..90 {
        world.run_at(i * 500, 8);
    }
    world.until(600_000);
    assert!(p99(&world.durations()) <= 6.0 + 5.0, "{}", p99(&world.durations()));
    assert!(world.n_calls(0, 20_000, 50_000) < 40);
    assert_eq!(world.runs.iter().map(|run| run.n_parks).sum::<u32>(), 0);
}

/// Fifteen runs on a single deployment that is down for a minute; the calls in that minute.
pub(crate) fn calls_in_a_minute_down(mistake: Option<Mistake>) -> (usize, u64) {
    let mut world =
        World::new(
            &single(),
            1,
            |now: Mono, _, _| {
                if now.0 < 60_000 { down() } else { Behaviour::Answers(250, 600) }
            },
        );
    world.mistake = mistake;
    for i in 0..15 {
        world.run_at(i * 4_000, 1);
    }
    world.until(120_000);
    // With a mistake in between nothing is promised to the runs.
    if mistake.is_none() {
        world.durations();
    }
    (world.n_calls(0, 0, 60_000), world.snapshot().deployments["acme-large"].n_opened)
}

/// More calls than one probe every one to two seconds makes of it.
pub(crate) fn are_too_many(n_calls: usize) -> bool {
    n_calls > 55
}

/// M01: a single deployment opens its breaker like any other.
#[test]
fn m01_single_deployment_opens_its_breaker() {
    let (n_calls, n_opened) = calls_in_a_minute_down(None);
    assert!(!are_too_many(n_calls), "one probe every one to two seconds at most: {n_calls}");
    assert_eq!(n_opened, 1);
}

/// M02: with everything down, calls wait for the earliest recovery within their deadline.
#[test]
fn m02_all_providers_down_waits_for_the_earliest() {
    let mut world = World::new(&tiered(), 2, |now: Mono, lane: usize, _| match lane {
        0 if now.0 < 40_000 => down(),
        1 if now.0 < 20_000 => refused(),
        _ => Behaviour::Answers(250, 600),
    });
    for i in 0..40 {
        world.run_at(i * 100, 1);
    }
    world.until(200_000);
    let durations = world.durations();
    assert!(durations.last().unwrap() < &30.0, "the second provider was back after 20 s: {durations:?}");
}

/// M03: what a restart forgets costs a few calls, not ten minutes.
#[test]
fn m03_a_restart_in_the_outage_costs_a_few_calls() {
    let behave = |now: Mono, _, _| if now.0 < 30_000 { down() } else { Behaviour::Answers(250, 600) };
    let mut first = World::new(&single(), 1, behave);
    for i in 0..20 {
        first.run_at(i * 10, 1);
    }
    first.until(10_000);
    assert_eq!(first.parked.len(), 20);
    let mut second = World::new(&single(), 2, behave);
    for _ in 0..20 {
        second.run_at(10_000, 1);
    }
    second.until(200_000);
    assert!(second.durations().last().unwrap() < &26.0);
    assert!(second.n_calls(0, 10_000, 30_000) < 40);
}

/// M04: each attempt counts for its own deployment.
#[test]
fn m04_every_attempt_counts_for_its_deployment() {
    let three = config(serde_json::json!({
        "providers": {
            "a": {"kind": "openai", "base_url": "http://127.0.0.1:1"},
            "b": {"kind": "openai", "base_url": "http://127.0.0.1:2"},
            "c": {"kind": "openai", "base_url": "http://127.0.0.1:3"},
        },
        "deployments": {
            "a": {"provider": "a", "model": "m"}, "b": {"provider": "b", "model": "m"},
            "c": {"provider": "c", "model": "m"},
        },
        "routes": {"coder": {"tiers": [["a", "b", "c"]]}},
    }));
    let mut world = World::new(
        &three,
        1,
        |_, lane: usize, _| {
            if lane < 2 { down() } else { Behaviour::Answers(250, 600) }
        },
    );
    for i in 0..120 {
        world.run_at(i * 500, 1);
    }
    world.until(61_000);
    assert!(world.durations().last().unwrap() < &1.0, "somebody waited");
    let snapshot = world.snapshot();
    let opened = |name: &str| snapshot.deployments[name].n_opened;
    assert_eq!((opened("a"), opened("b"), opened("c")), (1, 1, 0));
}

/// M07: without fallback no later tier is asked, in no phase.
#[test]
fn m07_no_fallback_means_no_fallback() {
    let broken = Behaviour::Breaks(250, 400, Failure::new(Class::StreamBroken, "cut"));
    let mut world = World::new(&tiered(), 1, move |now: Mono, lane: usize, _| {
        if lane == 0 && now.0 < 10_000 { broken.clone() } else { Behaviour::Answers(250, 600) }
    });
    for i in 0..20 {
        world.run_with(i * 100, |run| run.fallback = false);
    }
    world.until(120_000);
    world.durations();
    assert_eq!(world.n_calls(1, 0, 120_000), 0);
}

/// A context that does not fit goes where the window is larger, and only there.
#[test]
fn a_long_context_fails_over_to_a_larger_window_only() {
    let long = Behaviour::Fails(20, Failure::new(Class::ContextTooLong, "400"));
    for (window, ending) in [(400_000, Ending::Done), (200_000, Ending::TooLong)] {
        let mut two = tiered();
        two.deployments.get_mut("backup-large").unwrap().context_tokens = window;
        let long = long.clone();
        let behave =
            move |_, lane: usize, _| if lane == 0 { long.clone() } else { Behaviour::Answers(250, 600) };
        let mut world = World::new(&two, 1, behave);
        let run = world.run_at(0, 1);
        world.until(2_000);
        assert_eq!(world.runs[run].ended.clone().unwrap().1, ending);
        assert_eq!(world.made.len(), if window > 200_000 { 2 } else { 1 });
    }
}

/// Calls to tier 2 stay within its own limits when tier 1 is down; the rest is parked.
#[test]
fn the_overflow_of_a_small_second_tier_is_parked() {
    let mut two = tiered();
    two.deployments.get_mut("backup-large").unwrap().limits.streams = 3;
    let mut world = World::new(&two, 1, |now: Mono, lane: usize, _| {
        if lane == 0 && now.0 < 30_000 { down() } else { Behaviour::Answers(250, 2_000) }
    });
    for i in 0..100 {
        world.run_at(i * 100, 1);
    }
    world.until(200_000);
    world.durations();
    let mut ends: Vec<(u64, i64)> = world
        .made
        .iter()
        .filter(|made| made.lane == 1)
        .flat_map(|made| [(made.at.0, 1), (made.at.0 + 2_000, -1)])
        .collect();
    ends.sort_unstable();
    let (mut now, mut peak) = (0, 0);
    for (_, step) in ends {
        now += step;
        peak = peak.max(now);
    }
    assert_eq!(peak, 3);
    assert!(world.runs.iter().map(|run| run.n_parks).sum::<u32>() > 30);
}

/// The same events give the same decisions.
#[test]
fn the_same_seed_gives_the_same_world() {
    let trace = || {
        let behave = |now: Mono, _, run: usize| {
            if is_down(now) && !run.is_multiple_of(3) { down() } else { Behaviour::Answers(250, 600) }
        };
        let mut world = World::new(&single(), 42, behave);
        for i in 0..90 {
            world.run_at(i * 500, 8);
        }
        world.until(300_000);
        format!("{:?}{:?}", world.made, world.endings)
    };
    assert_eq!(trace(), trace());
}

/// M12: of thirty callers with the same Retry-After none comes early and no two together.
#[test]
fn m12_retry_after_is_a_floor_and_callers_spread() {
    let limited =
        Failure { retry_after: Some(Duration::from_secs(600)), ..Failure::new(Class::RateLimited, "429") };
    let mut world = World::new(&single(), 1, move |now: Mono, _, _| {
        if now.0 < 600_000 { Behaviour::Fails(20, limited.clone()) } else { Behaviour::Answers(250, 600) }
    });
    for _ in 0..30 {
        world.run_at(0, 1);
    }
    world.until(2_000_000);
    world.durations();
    assert_eq!(world.n_calls(0, 1_000, 600_020), 0, "nobody is early");
    let back: Vec<u64> = world.made.iter().map(|made| made.at.0).filter(|at| *at > 1_000).collect();
    assert_eq!(back.len(), 30);
    assert_eq!(back.iter().collect::<BTreeSet<_>>().len(), 30, "no two in the same instant: {back:?}");
    let hint = |ending: &Ending| if let Ending::Park(until) = ending { *until } else { None };
    let hints: BTreeSet<_> = world.endings.iter().filter_map(|(_, _, ending)| hint(ending)).collect();
    assert!(hints.len() >= 29, "hints are spread too: {}", hints.len());
}

/// M13: five hundred parked runs come back in a ramp, not as a herd.
#[test]
fn m13_recovery_is_a_ramp_and_no_herd() {
    let behave = |now: Mono, _, _| {
        if (10_000..70_000).contains(&now.0) { down() } else { Behaviour::Answers(500, 3_000) }
    };
    let mut world = World::new(&single(), 1, behave);
    for i in 0..1_000 {
        world.run_at(i * 60, 1);
    }
    world.until(600_000);
    world.durations();
    let first = world.made.iter().find(|made| made.at.0 >= 70_000).unwrap().at.0;
    let second = world.n_calls(0, first, first + 1_000);
    assert!(second <= 60, "at most a tenth of the limit in the first second: {second}");
    assert_eq!(world.snapshot().deployments["acme-large"].n_opened, 1, "no second opening");
    let n_failed_after = world.made.iter().filter(|made| made.at.0 >= 70_000 && !made.was_good).count();
    assert_eq!(n_failed_after, 0);
}

/// M14: down from the first second; runs wait up to their deadline.
#[test]
fn m14_down_from_the_start_waits_up_to_the_deadline() {
    let mut world =
        World::new(
            &single(),
            1,
            |now: Mono, _, _| {
                if now.0 < 60_000 { refused() } else { Behaviour::Answers(250, 600) }
            },
        );
    for i in 0..10 {
        world.run_at(i, 3);
    }
    world.until(300_000);
    assert!(world.durations().last().unwrap() < &75.0);
}

/// M17: a rate limit is left by itself when its window is over.
#[test]
fn m17_a_rate_limit_ends_by_itself() {
    let limited =
        Failure { retry_after: Some(Duration::from_secs(10)), ..Failure::new(Class::RateLimited, "429") };
    let mut world = World::new(&single(), 1, move |now: Mono, _, _| {
        if now.0 < 10_000 { Behaviour::Fails(20, limited.clone()) } else { Behaviour::Answers(250, 600) }
    });
    for i in 0..50 {
        world.run_at(i * 10, 2);
    }
    world.until(120_000);
    assert!(world.durations().last().unwrap() < &20.0);
    assert_eq!(world.n_calls(0, 1_000, 10_000), 0);
    let snapshot = world.snapshot();
    assert_eq!(snapshot.deployments["acme-large"].n_opened, 0, "a rate limit is no outage");
    assert_eq!(snapshot.deployments["acme-large"].throttled_until, None);
}

/// A rate limit without a time is answered with growing pauses.
#[test]
fn a_rate_limit_without_a_time_is_paced() {
    let mut world = World::new(&single(), 1, |now: Mono, _, _| {
        if now.0 < 20_000 {
            Behaviour::Fails(20, Failure::new(Class::RateLimited, "429"))
        } else {
            Behaviour::Answers(250, 600)
        }
    });
    for i in 0..100 {
        world.run_at(i * 10, 1);
    }
    world.until(200_000);
    world.durations();
    assert!(world.n_calls(0, 2_000, 20_000) < 250, "{}", world.n_calls(0, 2_000, 20_000));
}

#[test]
fn half_of_all_calls_failing_costs_about_two_attempts_each() {
    let mut n = 0u64;
    let mut world = World::new(&single(), 1, move |now: Mono, _, _| {
        n += 1;
        let fails = is_down(now) && (n * 2_654_435_761) % 100 < 50;
        if fails {
            Behaviour::Fails(50, Failure::new(Class::Transient, "500"))
        } else {
            Behaviour::Answers(250, 600)
        }
    });
    for i in 0..90 {
        world.run_at(i * 500, 8);
    }
    world.until(600_000);
    let durations = world.durations();
    let per_step = world.made.len() as f64 / (90.0 * 8.0);
    assert!(per_step <= 2.2, "{per_step}");
    assert!(p99(&durations) < 60.0, "{}", p99(&durations));
}

#[test]
fn flapping_does_not_multiply_attempts() {
    let mut world = World::new(&single(), 1, |now: Mono, _, _| {
        let flaps = (10_000..70_000).contains(&now.0) && (now.0 / 5_000).is_multiple_of(2);
        if flaps { down() } else { Behaviour::Answers(250, 600) }
    });
    for i in 0..120 {
        world.run_at(i * 500, 8);
    }
    world.until(600_000);
    world.durations();
    assert!(world.made.len() as f64 / (120.0 * 8.0) <= 3.0);
}

#[test]
fn ten_times_slower_is_no_outage() {
    let mut world = World::new(&single(), 1, |now: Mono, _, _| {
        if is_down(now) { Behaviour::Answers(2_500, 6_000) } else { Behaviour::Answers(250, 600) }
    });
    for i in 0..90 {
        world.run_at(i * 500, 8);
    }
    world.until(600_000);
    assert!(p99(&world.durations()) < 80.0, "{}", p99(&world.durations()));
}

#[test]
fn a_dropped_probe_gives_its_place_back() {
    let mut world =
        World::new(&single(), 1, |now: Mono, _, _| if now.0 < 5_000 { down() } else { Behaviour::Silent });
    for i in 0..8 {
        world.run_at(i, 1);
    }
    world.until(5_000);
    // A silent probe keeps its place for a second; this is just after one has begun.
    while world.made.last().unwrap().at.0 < 5_000 {
        world.until(world.now.0 + 50);
    }
    let prober = world.made.last().unwrap().clone();
    assert_eq!(world.snapshot().deployments["acme-large"].state, "half_open");
    let before = world.made.len();
    world.drop_call_of(prober.run);
    world.until(world.now.0 + 100);
    assert_eq!(world.made.len(), before + 1, "the next probe starts at once");
}

#[test]
fn unused_permits_come_back() {
    let mut world =
        World::new(
            &single(),
            1,
            |now: Mono, _, _| {
                if now.0 < 5_000 { down() } else { Behaviour::Answers(250, 600) }
            },
        );
    world.takes_permits = false;
    for i in 0..8 {
        world.run_at(i, 1);
    }
    world.until(4_500);
    let n_granted = world.grants.len();
    assert_eq!(world.snapshot().deployments["acme-large"].state, "half_open");
    assert_eq!(world.snapshot().routes["coder"].permits_outstanding, 1, "the probe, and no other");
    world.until(9_000);
    assert_eq!(world.grants.len(), n_granted + 1, "the lease is over and the place is given again");
    assert_eq!(world.snapshot().routes["coder"].permits_outstanding, 1);
}

#[test]
fn without_parked_runs_the_next_call_is_the_probe() {
    let mut world =
        World::new(
            &single(),
            1,
            |now: Mono, _, _| {
                if now.0 < 3_000 { down() } else { Behaviour::Answers(250, 600) }
            },
        );
    let interactive = |run: &mut crate::simulation::Run| run.class = CallClass::Interactive;
    for i in 0..6 {
        world.run_with(i, interactive);
    }
    world.until(20_000);
    let late = world.run_with(20_000, interactive);
    world.until(30_000);
    assert_eq!(
        world.runs[late].ended.as_ref().map(|(at, e)| (at.0, e.clone())),
        Some((20_600, Ending::Done))
    );
}

#[test]
fn interactive_calls_wait_five_seconds_and_then_fail_honestly() {
    let mut world =
        World::new(
            &single(),
            1,
            |now: Mono, _, _| {
                if now.0 < 60_000 { down() } else { Behaviour::Answers(250, 600) }
            },
        );
    for i in 0..10 {
        world.run_with(i * 10, |run| run.class = CallClass::Interactive);
    }
    world.until(30_000);
    for run in &world.runs {
        let (at, ending) = run.ended.clone().unwrap();
        assert!(at.since(run.begun) <= Duration::from_millis(5_100), "{at:?}");
        assert_eq!(ending, Ending::Fatal("provider-unavailable".to_owned()));
    }
}

#[test]
fn a_short_outage_is_invisible_to_interactive_calls() {
    let mut world = World::new(&single(), 1, |now: Mono, _, _| {
        if (1_000..3_000).contains(&now.0) { down() } else { Behaviour::Answers(250, 600) }
    });
    for i in 0..50 {
        world.run_with(i * 100, |run| run.class = CallClass::Interactive);
    }
    world.until(60_000);
    world.durations();
}

#[test]
fn a_batch_call_does_not_hold_its_slot_while_the_provider_is_down() {
    let mut world = World::new(&single(), 1, |_, _, _| down());
    for i in 0..10 {
        world.run_at(i, 1);
    }
    world.takes_permits = false;
    world.until(500);
    let run = world.run_at(500, 1);
    world.until(501);
    assert!(world.parked.contains(&run), "it parks at once");
}

#[test]
fn the_stream_limit_holds_and_the_queue_drains_in_order() {
    let mut small = single();
    small.deployments.get_mut("acme-large").unwrap().limits.streams = 4;
    let mut world = World::new(&small, 1, |_, _, _| Behaviour::Answers(100, 400));
    for i in 0..40 {
        world.run_at(i, 1);
    }
    world.until(60_000);
    let durations = world.durations();
    assert!(durations.last().unwrap() < &8.0, "{durations:?}");
    let mut ends: Vec<(u64, i64)> =
        world.made.iter().flat_map(|m| [(m.at.0, 1), (m.at.0 + 400, -1)]).collect();
    ends.sort_unstable();
    let (mut now, mut peak) = (0, 0);
    for (_, step) in ends {
        now += step;
        peak = peak.max(now);
    }
    assert!(peak <= 4, "{peak}");
}

#[test]
fn a_key_that_is_refused_is_not_tried_again() {
    let mut world = World::new(&tiered(), 1, |_, lane: usize, _| {
        if lane == 0 {
            Behaviour::Fails(20, Failure::new(Class::AuthDead, "401"))
        } else {
            Behaviour::Answers(250, 600)
        }
    });
    for i in 0..50 {
        world.run_at(i * 100, 1);
    }
    world.until(100_000);
    world.durations();
    assert_eq!(world.n_calls(0, 0, 100_000), 1);
}

#[test]
fn a_refused_key_alone_is_an_error_and_no_wait() {
    let mut world =
        World::new(&single(), 1, |_, _, _| Behaviour::Fails(20, Failure::new(Class::AuthDead, "401")));
    let run = world.run_at(0, 1);
    world.until(1_000);
    assert_eq!(world.runs[run].ended.clone().unwrap().1, Ending::Fatal("provider-auth".to_owned()));
}

#[test]
fn a_bad_request_is_never_failed_over() {
    let mut world =
        World::new(&tiered(), 1, |_, _, _| Behaviour::Fails(20, Failure::new(Class::BadRequest, "400")));
    let run = world.run_at(0, 1);
    world.until(1_000);
    assert_eq!(world.runs[run].ended.clone().unwrap().1, Ending::Fatal("provider-rejected".to_owned()));
    assert_eq!(world.made.len(), 1);
}

#[test]
fn a_step_that_always_breaks_ends_after_its_attempts() {
    let broken = Behaviour::Breaks(50, 100, Failure::new(Class::StreamBroken, "cut"));
    let mut world =
        World::new(
            &single(),
            1,
            move |_, _, run: usize| {
                if run == 0 { broken.clone() } else { Behaviour::Answers(50, 100) }
            },
        );
    world.run_at(0, 1);
    for i in 0..2_000 {
        world.run_at(i * 20, 1);
    }
    world.until(120_000);
    let ending = world.runs[0].ended.clone().unwrap().1;
    assert_eq!(ending, Ending::Fatal("provider-unavailable".to_owned()));
    let n = world.made.iter().filter(|made| made.run == 0).count();
    assert!(n <= 13, "{n}");
    assert_eq!(world.snapshot().deployments["acme-large"].n_opened, 0, "one bad step is no outage");
}

#[test]
fn drained_deployments_get_nothing_until_enabled() {
    let mut world = World::new(&single(), 1, |_, _, _| Behaviour::Answers(250, 600));
    world.event_at(0, Event::Operate(0, Operation::Drain));
    world.run_at(10, 1);
    world.event_at(10_000, Event::Operate(0, Operation::Enable));
    world.until(30_000);
    assert_eq!(world.n_calls(0, 0, 10_000), 0);
    world.durations();
}

/// What the configuration has drained stays so over every start; an operator can still enable it.
#[test]
fn a_deployment_drained_by_the_configuration_starts_drained() {
    let mut config = single();
    config.deployments.values_mut().for_each(|deployment| deployment.drained = true);
    let mut world = World::new(&config, 1, |_, _, _| Behaviour::Answers(250, 600));
    world.run_at(10, 1);
    world.event_at(10_000, Event::Operate(0, Operation::Enable));
    world.until(9_999);
    assert!(world.snapshot().deployments["acme-large"].drained);
    world.until(30_000);
    assert_eq!(world.n_calls(0, 0, 10_000), 0);
    world.durations();
}

#[test]
fn without_protection_most_tasks_are_lost() {
    let mut plain = single();
    plain.router.protect = evenkeel_core::control::Protect::None;
    let mut world = World::new(
        &plain,
        1,
        |now: Mono, _, _| {
            if is_down(now) { down() } else { Behaviour::Answers(250, 600) }
        },
    );
    for i in 0..90 {
        world.run_at(i * 500, 8);
    }
    world.until(600_000);
    let lost = world.runs.iter().filter(|run| matches!(run.ended, Some((_, Ending::Fatal(_))))).count();
    assert!((50..=70).contains(&lost), "about two in three: {lost}");
}

/// A probe that runs into its caller's deadline gives its place back and is no failure.
#[test]
fn a_deadline_is_not_the_deployments_fault() {
    let mut world = World::new(&single(), 1, |_, _, _| Behaviour::Silent);
    for i in 0..7 {
        world.run_with(i, |run| run.deadline = Mono(5_000));
    }
    world.until(6_000);
    for run in &world.runs {
        assert_eq!(run.ended.clone().unwrap().1, Ending::Fatal("run-deadline".to_owned()));
    }
    assert_eq!(world.snapshot().deployments["acme-large"].state, "closed");
}
