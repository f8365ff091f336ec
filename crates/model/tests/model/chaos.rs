//! Everything at random: failures of every kind, callers that leave, operators that act, permits that
//! nobody takes. The machine checks its own invariants after every event; what is checked here is
//! what callers may rely on.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_core::run::Class as CallClass;
use evenkeel_core::{Generator, Mono};
use evenkeel_model::Operation;
use evenkeel_model::classify::{Class, Failure};
use evenkeel_model::router::event::Event;
use proptest::prelude::*;

use crate::simulation::{Behaviour, Ending, Mistake, World, single, tiered};

const HEALED: u64 = 60_000;

fn trouble(generator: &Generator) -> Behaviour {
    let failure = |class| Failure::new(class, "chaos");
    let ms = 1 + generator.below(2_000);
    match generator.below(12) {
        0 => Behaviour::Fails(ms, failure(Class::Transient)),
        1 => Behaviour::Fails(1, Failure { connect: true, ..failure(Class::Transient) }),
        2 => Behaviour::Fails(ms, failure(Class::Overloaded)),
        3 => Behaviour::Fails(ms, failure(Class::RateLimited)),
        4 => {
            let wait = Some(Duration::from_millis(generator.below(9_000)));
            Behaviour::Fails(ms, Failure { retry_after: wait, ..failure(Class::RateLimited) })
        }
        5 => Behaviour::Fails(ms, failure(Class::Slow)),
        6 => Behaviour::Breaks(ms, ms + 500, failure(Class::StreamBroken)),
        7 => Behaviour::Silent,
        8 => Behaviour::Fails(ms, failure(Class::ForeignItems)),
        _ => Behaviour::Answers(ms, ms + 400),
    }
}

/// A minute of chaos, and what does not hold after it.
pub(crate) fn wrong_after_chaos(
    seed: u64,
    has_second: bool,
    takes_permits: bool,
    mistake: Option<Mistake>,
) -> Option<String> {
    let config = if has_second { tiered() } else { single() };
    let chaos = Generator::from_seed(seed).part("provider");
    let behave = move |now: Mono, _, _| {
        if now.0 < HEALED { trouble(&chaos) } else { Behaviour::Answers(200, 500) }
    };
    let mut world = World::new(&config, seed, behave);
    world.mistake = mistake;
    let dice = Generator::from_seed(seed).part("dice");
    for _ in 0..150 {
        let interactive = dice.below(4) == 0;
        let fallback = dice.below(4) > 0;
        let steps = 1 + u32::try_from(dice.below(4)).unwrap();
        world.run_with(dice.below(HEALED), |run| {
            run.class = if interactive { CallClass::Interactive } else { CallClass::Batch };
            (run.fallback, run.steps_left) = (fallback, steps);
        });
    }
    for _ in 0..6 {
        let operations = [Operation::Drain, Operation::Enable, Operation::Probe];
        let operation = operations[usize::try_from(dice.below(3)).unwrap()];
        world.event_at(dice.below(HEALED), Event::Operate(0, operation));
    }
    world.event_at(HEALED, Event::Operate(0, Operation::Enable));
    for at in (0..HEALED).step_by(700) {
        world.takes_permits = takes_permits || at % 4_200 > 0;
        world.until(at);
        let run = usize::try_from(dice.below(150)).unwrap();
        if dice.below(5) == 0 {
            world.drop_call_of(run);
        }
    }
    world.takes_permits = true;
    world.until(HEALED + 400_000);
    wrong(&mut world)
}

fn wrong<F: FnMut(Mono, usize, usize) -> Behaviour>(world: &mut World<F>) -> Option<String> {
    let mut per_call = BTreeMap::new();
    for made in &world.made {
        *per_call.entry(made.call).or_insert(0) += 1;
    }
    if per_call.values().any(|n| *n > 4) {
        return Some("too many attempts of one call".to_owned());
    }
    for (idx, run) in world.runs.iter().enumerate() {
        match &run.ended {
            None => return Some(format!("run {idx} never ended, {} parks", run.n_parks)),
            Some((_, ending @ (Ending::Park(_) | Ending::TooLong))) => {
                return Some(format!("run {idx} ended {ending:?}"));
            }
            Some(_) => {}
        }
    }
    let snapshot = world.snapshot();
    for (name, deployment) in &snapshot.deployments {
        let taken = (deployment.in_flight, deployment.permits_outstanding);
        if taken != (0, 0) {
            return Some(format!("{name} has {} streams and {} permits left", taken.0, taken.1));
        }
        if !["closed", "suspect", "open"].contains(&deployment.state.as_str()) {
            return Some(format!("{name} is left {}", deployment.state));
        }
    }
    let n_waiting = snapshot.routes["coder"].waiting;
    (n_waiting > 0).then(|| format!("{n_waiting} calls are left waiting"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever happens for a minute: no call makes more than four attempts, every call ends, nothing
    /// stays taken, and once all is well every durable run is answered or was told why not.
    #[test]
    fn nothing_is_lost_and_nothing_leaks(seed: u64, has_second: bool, takes_permits in prop::bool::weighted(0.9)) {
        prop_assert_eq!(wrong_after_chaos(seed, has_second, takes_permits, None), None);
    }
}
