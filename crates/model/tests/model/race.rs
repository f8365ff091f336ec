//! A second provider beside one that stalls or slows down: how little it costs the tasks, and how
//! little it costs the second provider.

use evenkeel_core::{Generator, Mono};
use evenkeel_model::classify::{Class, Failure};
use evenkeel_model::config::RouterConfig;

use crate::simulation::{Behaviour, World, down, p99, tiered};

const FAULT: std::ops::Range<u64> = 20_000..50_000;
const USUAL: Behaviour = Behaviour::Answers(250, 600);

/// What the same traffic looks like from outside.
#[derive(Debug)]
struct Outcome {
    p99_s: f64,
    /// Attempts of lane 0 while the fault lasts.
    n_first: usize,
    n_hedges: u64,
    n_overtaken: usize,
    n_made: usize,
    detect_s: Option<f64>,
    /// From the end of the fault until the first provider carries calls alone again.
    back_s: f64,
}

/// System 1 with two providers: two tasks of eight steps a second for 45 s; the first misbehaves.
fn two_providers(
    config: &RouterConfig,
    seed: u64,
    mut misbehave: impl FnMut(&Generator) -> Behaviour,
) -> Outcome {
    let dice = Generator::from_seed(seed).part("fault");
    let mut world =
        World::new(
            config,
            seed,
            |now: Mono, lane, _| {
                if lane == 0 && FAULT.contains(&now.0) { misbehave(&dice) } else { USUAL }
            },
        );
    for i in 0..120 {
        world.run_at(i * 500, 8);
    }
    world.until(600_000);
    let durations = world.durations();
    let snapshot = world.snapshot();
    let last_elsewhere = world.made.iter().rfind(|made| made.lane == 1).map_or(0, |made| made.at.0);
    let outcome = Outcome {
        p99_s: p99(&durations),
        n_first: world.n_calls(0, FAULT.start, FAULT.end),
        n_hedges: snapshot.deployments.values().map(|deployment| deployment.hedges).sum(),
        n_overtaken: world.cancelled.len(),
        n_made: world.made.len(),
        detect_s: snapshot.deployments["acme-large"].seconds_to_detect,
        back_s: last_elsewhere.saturating_sub(FAULT.end) as f64 / 1_000.0,
    };
    // Shown with --nocapture: what the constants are tuned by.
    println!("seed {seed}: {outcome:?}");
    outcome
}

/// Without any fault, a task of eight steps takes 5.85 s.
const BASE_S: f64 = 5.85;

#[test]
fn three_streams_in_four_stalling_cost_a_task_little() {
    for seed in 0..20 {
        let outcome =
            two_providers(&tiered(), seed, |dice| if dice.below(4) > 0 { Behaviour::Silent } else { USUAL });
        assert!(outcome.p99_s <= BASE_S + 3.0, "{outcome:?}");
        assert!(outcome.n_first <= 120 && outcome.back_s <= 12.0, "{outcome:?}");
    }
}

#[test]
fn a_black_hole_beside_a_sound_provider_costs_a_task_little() {
    for seed in 0..5 {
        let outcome = two_providers(&tiered(), seed, |_| Behaviour::Silent);
        assert!(outcome.p99_s <= BASE_S + 3.0 && outcome.n_first <= 60, "{outcome:?}");
        assert!(outcome.detect_s.unwrap() <= 3.0, "{outcome:?}");
    }
}

#[test]
fn a_brownout_beside_a_sound_provider_costs_a_task_little() {
    for seed in 0..5 {
        let outcome = two_providers(&tiered(), seed, |_| Behaviour::Answers(2_500, 6_000));
        assert!(outcome.p99_s <= BASE_S + 3.0, "{outcome:?}");
        assert!(outcome.n_made <= 120 * 8 * 11 / 10, "no more than a tenth more calls: {outcome:?}");
    }
}

#[test]
fn half_of_the_calls_failing_or_cut_cost_a_task_little() {
    let cut = Behaviour::Breaks(250, 400, Failure::new(Class::StreamBroken, "cut"));
    for broken in [down(), cut] {
        for seed in 0..5 {
            let outcome =
                two_providers(
                    &tiered(),
                    seed,
                    |dice| {
                        if dice.below(2) == 0 { broken.clone() } else { USUAL }
                    },
                );
            assert!(outcome.p99_s <= BASE_S + 3.0, "{outcome:?}");
        }
    }
}

/// When everything is slow, second attempts help nobody, and their budget keeps them few.
#[test]
fn a_brownout_of_everything_does_not_double_the_load() {
    let mut world = World::new(&tiered(), 1, |now: Mono, _, _| {
        if FAULT.contains(&now.0) { Behaviour::Answers(2_500, 6_000) } else { USUAL }
    });
    for i in 0..450 {
        world.run_at(i * 100, 8);
    }
    world.until(900_000);
    world.durations();
    let n_steps = 450 * 8;
    let n_made = world.made.len();
    assert!(n_made <= n_steps * 115 / 100, "{n_made} attempts of {n_steps} steps");
}

#[test]
fn nothing_is_raced_where_the_route_forbids_it() {
    let mut alone = tiered();
    alone.routes.get_mut("coder").unwrap().hedge = false;
    let outcome = two_providers(&alone, 1, |_| Behaviour::Answers(2_500, 6_000));
    assert_eq!((outcome.n_hedges, outcome.n_overtaken), (0, 0), "{outcome:?}");
}

/// A stream that has begun is never raced, however slowly it goes on.
#[test]
fn nothing_is_raced_after_content() {
    let mut world = World::new(&tiered(), 1, |_, _, _| Behaviour::Answers(200, 9_000));
    for i in 0..40 {
        world.run_at(i * 1_000, 1);
    }
    world.until(100_000);
    world.durations();
    assert_eq!((world.made.len(), world.cancelled.len()), (40, 0));
}

/// A recovering provider gets one trial at a time and carries calls again after some good answers.
#[test]
fn a_recovering_provider_proves_itself_first() {
    let mut world = World::new(
        &tiered(),
        1,
        |now: Mono, lane, _| {
            if lane == 0 && now.0 < 10_000 { down() } else { USUAL }
        },
    );
    for i in 0..400 {
        world.run_at(i * 50, 1);
    }
    world.until(60_000);
    world.durations();
    let back: Vec<u64> = world
        .made
        .iter()
        .filter(|made| made.lane == 0 && made.at.0 >= 10_000)
        .map(|made| made.at.0)
        .collect();
    let first = back[0];
    let within = |ms: u64| back.iter().filter(|at| **at < first + ms).count();
    assert!(within(600) <= 2, "the probe, and from its content on one trial: {back:?}");
    assert!(within(1_250) <= 4, "one more at a time: {back:?}");
    assert!(within(4_000) > 30, "and then it is relied on: {back:?}");
}
