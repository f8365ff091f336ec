//! The mutation matrix, rows of the router: each planted mistake is found by the suite named for it.

use crate::chaos::wrong_after_chaos;
use crate::outage::{are_too_many, calls_in_a_minute_down};
use crate::scripted::{anthropic, openai};
use crate::simulation::Mistake;
use crate::streams::taken_for_an_answer;

/// Found by the count of calls to a provider that is down.
#[test]
fn a_probe_is_not_single() {
    let (n_calls, _) = calls_in_a_minute_down(Some(Mistake::ProbeIsForgotten));
    assert!(are_too_many(n_calls), "{n_calls} calls are taken for single probes");
}

/// Found by what must be free after a minute of chaos.
#[test]
fn permits_leak() {
    let seeds = || 1..=20;
    assert_eq!(seeds().find_map(|seed| wrong_after_chaos(seed, false, true, None)), None);
    // Few callers leave while their call is under way, so it takes some seeds.
    let found = seeds().find_map(|seed| wrong_after_chaos(seed, false, true, Some(Mistake::PlacesLeak)));
    let found = found.expect("places that were never given back are missed");
    assert!(found.contains("left"), "{found}");
}

/// A decoder that takes the end of the connection for the end of the answer is one for which every
/// stream has its terminator: found by the streams that are cut.
#[tokio::test]
async fn an_end_without_its_terminator_is_accepted() {
    for (kind, half, whole) in [
        ("openai", openai::answer("half of"), openai::answer("whole")),
        ("anthropic", anthropic::answer("half of"), anthropic::answer("whole")),
    ] {
        let found = taken_for_an_answer(kind, half, whole).await.expect("half an answer is taken for whole");
        assert!(found.contains("half of"), "{found}");
    }
}
