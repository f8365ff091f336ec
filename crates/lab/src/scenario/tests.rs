use expect_test::{Expect, expect};

use super::*;

fn check_error(text: &str, expect: Expect) {
    let error = parse("mine.toml", text).unwrap_err();
    expect.assert_eq(&format!("{} [{}]", error.message, error.code));
}

const GOOD: &str = r#"
name = "mine"
about = "Mine"
[traffic]
shape = "task-short"
rate_per_s = 2.0
duration_s = 45
[goals]
success_min = 0.95
lost_max = 0
doubled_max = 0
"#;

#[test]
fn every_embedded_scenario_is_valid_and_bears_its_files_name() {
    let names: Vec<String> = list().into_iter().map(|listed| listed.name).collect();
    for name in &names {
        let scenario = find(name).unwrap();
        assert_eq!(&scenario.name, name);
        assert!(scenario.goals.lost_max == 0 && scenario.goals.doubled_max == 0, "{name}");
        // The traffic of System 2 is a fault in itself: second messages into running turns.
        assert!(scenario.is_chat() || !scenario.faults.is_empty(), "{name} breaks nothing");
        assert!(
            scenario.goals.p99_max_s.is_none_or(|limit| limit <= 180.0) || name.ends_with("kill-loop"),
            "{name}"
        );
    }
    let promised = [
        "as-given",
        "long",
        "peak",
        "slow-store",
        "slow-model",
        "harness-killed",
        "second-provider-down",
        "partial-outage",
        "brownout",
        "rate-limit-storm",
        "stream-cut",
        "stall",
        "outage-60s",
        "single-provider",
        "store-restart",
        "replica-killed",
    ];
    for name in promised {
        assert!(names.contains(&format!("system1-{name}")), "{name} is promised");
    }
    let promised = [
        "as-given",
        "peak",
        "slow-store",
        "slow-model",
        "server-dies",
        "zombie",
        "partition",
        "store-restart",
        "hot-thread",
        "burst",
        "duplicates",
        "disconnects",
        "rolling-deploy",
        "model-outage",
    ];
    for name in promised {
        let scenario = find(&format!("system2-{name}")).unwrap();
        assert!(scenario.traffic.rate_per_s >= 300.0 && scenario.traffic.duration_s >= 30.0, "{name}");
        assert!(scenario.goals.success_min >= 0.99 && scenario.topology.replicas == 3, "{name}");
    }
}

#[test]
fn every_file_in_the_folder_is_embedded() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let files =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = list().into_iter().map(|listed| format!("{}.toml", listed.name)).collect();
    for file in files {
        assert!(names.contains(&file), "{file} is not embedded");
    }
}

#[test]
fn the_load_is_that_of_the_system() {
    let scenario = find("system1-as-given").unwrap();
    assert_eq!(
        (scenario.traffic.n_tasks(), scenario.outage_s(), scenario.first_fault_s()),
        (90, 30.0, Some(20.0))
    );
    let peak = find("system1-peak").unwrap();
    assert_eq!(peak.traffic.n_tasks(), 113);
    assert_eq!(scenario.provider.len(), 2);
    assert_eq!(find("system1-single-provider").unwrap().provider.len(), 1);
}

#[test]
fn mistakes_are_named_with_their_place() {
    check_error(
        "name = 1",
        expect!["mine.toml:1: invalid type: integer `1`, expected a string. [scenario-invalid]"],
    );
    check_error(
        &GOOD.replace("rate_per_s", "rate"),
        expect![
            "mine.toml:6: unknown field `rate`, expected one of `shape`, `rate_per_s`, `duration_s`, `tasks`, `settle_s`. [scenario-invalid]"
        ],
    );
    check_error(
        &GOOD.replace("rate_per_s = 2.0", "rate_per_s = 0.0"),
        expect!["mine.toml: traffic: rate_per_s times duration_s gives no task. [scenario-invalid]"],
    );
    check_error(
        &format!("{GOOD}[[fault]]\nat_s = 1\nfor_s = 2\ntarget = \"provider:primary\"\nkind = \"broken\"\n"),
        expect![
            "mine.toml:12: fault 1: unknown variant `broken`, expected one of `down`, `down503`, `black_hole`, `errors`, `slow`, `slow_drip`, `rate_limit`, `cut`, `clean_end`, `error_event`, `stall`, `keep_alive`, `malformed_json`, `broken_arguments`, `wrong_tool_ids`, `out_of_credit`, `bad_key`, `context_too_long`, `acceleration` [scenario-invalid]"
        ],
    );
    check_error(
        &format!("{GOOD}[[fault]]\nat_s = 1\nfor_s = 2\ntarget = \"provider:third\"\nkind = \"down\"\n"),
        expect![
            "mine.toml: a fault is aimed at provider:third, but there is no such [[provider]]. [scenario-invalid]"
        ],
    );
    check_error(
        &format!(
            "{GOOD}[[fault]]\nat_s = 1\nfor_s = 2\ntarget = \"provider:primary\"\nkind = \"errors\"\np = 2.0\n"
        ),
        expect![
            "mine.toml:12: fault 1: p is 2, but it is a share of calls: more than 0, at most 1 [scenario-invalid]"
        ],
    );
    check_error(
        &format!("{GOOD}[[fault]]\nat_s = 1\ntarget = \"provider:primary\"\nkind = \"down\"\n"),
        expect!["mine.toml:12: fault 1: for_s is missing: say how long the fault lasts. [scenario-invalid]"],
    );
    check_error(
        &format!(
            "{GOOD}[[fault]]\nat_s = 1\nfor_s = 3\ntarget = \"provider:primary\"\nkind = \"down\"\np = 0.5\n"
        ),
        expect!["mine.toml:12: fault 1: kind 'down' takes no further keys. [scenario-invalid]"],
    );
    let error = find("nothing-of-that-name").unwrap_err();
    expect!["There is no scenario 'nothing-of-that-name'."].assert_eq(&error.message);
}

#[test]
fn repeated_faults_have_their_spans() {
    let text = format!(
        "{GOOD}[[fault]]\nat_s = 5\nfor_s = 3\nevery_s = 7\nrepeats = 3\ntarget = \"provider:primary\"\nkind = \"down\"\n"
    );
    let scenario = parse("mine.toml", &text).unwrap();
    assert_eq!(scenario.faults[0].spans(), [(5.0, 8.0), (12.0, 15.0), (19.0, 22.0)]);
}

/// A scenario with this fault from 5 s on, for 3 s.
fn with_fault(target: &str, keys: &str) -> String {
    format!("{GOOD}[[fault]]\nat_s = 5\nfor_s = 3\ntarget = \"{target}\"\n{keys}\n")
}

#[test]
fn a_store_in_trouble_and_wrong_clocks_are_read() {
    let read = |target: &str, keys: &str| {
        parse("mine.toml", &with_fault(target, keys)).unwrap().faults[0].action.clone()
    };
    assert_eq!(read("store", "kind = 'stall'"), Action::Trouble(Trouble::Stall));
    assert_eq!(read("store", "kind = 'read_only'"), Action::Trouble(Trouble::ReadOnly));
    let lost = Action::Trouble(Trouble::LoseAnswers { p: 0.25 });
    assert_eq!(read("store", "kind = 'lose_answers'\np = 0.25"), lost);
    assert_eq!(read("store", "kind = 'errors'"), Action::Trouble(Trouble::Errors { p: 1.0 }));
    let crowd = Action::Trouble(Trouble::Crowd { connections: 3 });
    assert_eq!(read("store", "kind = 'crowd'\nconnections = 3"), crowd);
    assert_eq!(read("store", "kind = 'clock'\nby_s = 10.0"), Action::Clock { by_s: 10.0 });
    assert_eq!(read("replica:1", "kind = 'clock'\nby_s = -600.0"), Action::Clock { by_s: -600.0 });
}

#[test]
fn mistakes_in_a_store_in_trouble_are_named_with_their_place() {
    check_error(
        &with_fault("store", "kind = 'lose_answers'\np = 1.5"),
        expect![
            "mine.toml:12: fault 1: p is 1.5, but it is a share of operations: more than 0, at most 1. [scenario-invalid]"
        ],
    );
    check_error(
        &with_fault("store", "kind = 'crowd'\nconnections = 0"),
        expect![
            "mine.toml:12: fault 1: connections is 0: that is the kind 'restart', or 'refuse' on the link. [scenario-invalid]"
        ],
    );
    check_error(
        &with_fault("store", "kind = 'crowd'"),
        expect!["mine.toml:12: fault 1: missing field `connections` [scenario-invalid]"],
    );
    check_error(
        &with_fault("store", "kind = 'broken'"),
        expect![
            "mine.toml:12: fault 1: unknown variant `broken`, expected one of `slow`, `restart`, `stall`, `lose_answers`, `errors`, `crowd`, `read_only`, `clock` [scenario-invalid]"
        ],
    );
    check_error(
        &with_fault("process", "kind = 'clock'\nby_s = 0.0"),
        expect![
            "mine.toml:12: fault 1: by_s is 0, but a clock that is wrong is off by something, and by at most 86400 s either way. [scenario-invalid]"
        ],
    );
    check_error(
        &with_fault("process", "kind = 'clock'\nby_s = 1e9"),
        expect![
            "mine.toml:12: fault 1: by_s is 1000000000, but a clock that is wrong is off by something, and by at most 86400 s either way. [scenario-invalid]"
        ],
    );
}
