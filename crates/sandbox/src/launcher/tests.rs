//! How the way of ending is told as a limit.

use evenkeel_core::port::runner::{LimitHit, RunnerLimits};

use super::limit_hit;

#[test]
fn the_way_of_ending_names_the_limit() {
    let limits = RunnerLimits { cpu_s: 2, ..RunnerLimits::default() };
    let table = [
        (Some(0), None, false, 0, None),
        (Some(1), None, false, 0, None),
        (Some(0), None, true, 0, None),
        (Some(137), None, true, 0, Some(LimitHit::Memory)),
        (None, Some(9), true, 5_000, Some(LimitHit::Memory)),
        (None, Some(9), false, 100, None),
        (None, Some(9), false, 2_000, Some(LimitHit::Cpu)),
        (None, Some(24), false, 0, Some(LimitHit::Cpu)),
        (Some(152), None, false, 0, Some(LimitHit::Cpu)),
        (None, Some(25), false, 0, Some(LimitHit::FileSize)),
        (Some(153), None, false, 0, Some(LimitHit::FileSize)),
    ];
    for (code, signal, oom, cpu_ms, expected) in table {
        assert_eq!(limit_hit(code, signal, oom, cpu_ms, &limits), expected, "{code:?} {signal:?} {oom}");
    }
}
