//! The mutation matrix, rows of the lab: a mistake in the store is found by the checker from the
//! outside, in simulated runs, or it is made up for by the product.

use std::collections::BTreeSet;

use super::{Plant, check, reduced, run};
use crate::scenario::Scenario;

/// The properties that are violated in any of these seeds with this mistake in the store.
fn violated(scenario: &Scenario, seeds: u64, plant: Plant) -> BTreeSet<&'static str> {
    let one = |seed| check::history(&run(scenario, seed, plant).0.history).violations;
    (1..=seeds).flat_map(one).map(|violation| violation.property).collect()
}

#[test]
fn idempotency_lost() {
    let duplicates = reduced("system2-duplicates", 0.02);
    assert_eq!(violated(&duplicates, 2, Plant::Nothing), BTreeSet::new());
    let found = violated(&duplicates, 1, Plant::KeyLost);
    assert!(found.contains("P2"), "a turn that is two runs: {found:?}");
}

#[test]
fn answer_before_commit() {
    let turns = reduced("system2-as-given", 0.02);
    let found = violated(&turns, 1, Plant::AnswerFirst);
    assert!(found.contains("P1") || found.contains("P3"), "an accepted turn that is not there: {found:?}");
}

/// Clients are told of an end from the store alone, and a run without one is found again.
#[test]
fn an_end_that_was_acknowledged_and_not_stored_is_made_up_for() {
    let turns = reduced("system2-as-given", 0.02);
    assert_eq!(violated(&turns, 1, Plant::EndLost), BTreeSet::new());
}
