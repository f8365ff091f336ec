//! The mutation matrix, rows of the harness: each planted mistake is found by the suite named for it.

use evenkeel_core::message::Role;
use evenkeel_core::port::model::ModelRequest;

use super::compaction::compacted_requests;
use super::crash::{crashing, repairable};
use super::valid;

/// Intents are acknowledged before they are stored, so that effects come first: found by the crashes.
#[test]
fn effect_before_intent() {
    let calm = crashing(|_| {}, true, repairable, &[]);
    assert_eq!(calm.differs(&crashing(|_| {}, false, repairable, &[])), None, "it hides without a crash");
    let differs = |point| crashing(|_| {}, true, repairable, &[point]).differs(&calm);
    let found = (0..calm.n_points).find_map(differs);
    assert!(found.is_some(), "no crash at any of {} points shows it", calm.n_points);
}

/// What is left of a prompt if the cut of a compaction lies between calls and their results.
fn split(request: &ModelRequest) -> Option<ModelRequest> {
    let at = request.messages.iter().position(|message| message.role == Role::Tool)?;
    let mut split = request.clone();
    split.messages.remove(at - 1);
    Some(split)
}

/// Found by what every request of every test of the harness is checked with. The wires would hide it:
/// what they write leaves a result without its call out.
#[test]
fn a_compaction_splits_a_pair() {
    let requests = compacted_requests();
    let split: Vec<ModelRequest> = requests.iter().filter_map(split).collect();
    assert!(split.len() > 3, "{} of {} requests hold results", split.len(), requests.len());
    for (bent, whole) in split.iter().zip(requests.iter().filter(|request| self::split(request).is_some())) {
        assert_eq!(valid::check(whole).and_then(|()| valid::check_on_wires(whole)), Ok(()));
        let found = valid::check(bent).unwrap_err();
        assert!(found.contains("results without calls"), "{found}");
    }
}
