//! Texts as people see them.

use evenkeel_core::{Code, Error, Origin};
use expect_test::expect;

use super::{Style, brief, duration, exit_code, safe, table};

#[test]
fn durations() {
    let shown: Vec<String> =
        [0, 999, 1_000, 59_949, 60_000, 3_599_000, 3_600_000, 90_061_000].map(duration).to_vec();
    expect!["0 ms | 999 ms | 1.0 s | 59.9 s | 1 min 00 s | 59 min 59 s | 1 h 00 min | 25 h 01 min"]
        .assert_eq(&shown.join(" | "));
}

#[test]
fn a_text_cannot_drive_the_terminal() {
    assert_eq!(safe("a\u{1b}[2Jb\tc\nd\u{7}\r"), "a\u{fffd}[2Jb\tc\nd\u{fffd}\u{fffd}");
    assert_eq!(brief("  first\nsecond", 80), "first…");
    assert_eq!(brief("ünïcödé", 3), "ünï…");
    assert_eq!(brief("short", 5), "short");
}

#[test]
fn columns_are_aligned_by_characters() {
    let rows = [vec!["ü".to_owned(), "x".to_owned()], vec!["long cell".to_owned(), String::new()]];
    expect![[r#"
        NAME       STATE
        ü          x
        long cell"#]]
    .assert_eq(&table(Style::plain(), &["NAME", "STATE"], &rows));
}

#[test]
fn exit_codes_tell_set_up_from_failure() {
    let table = [
        (Code::ConfigInvalid, Origin::Ours, 2),
        (Code::StoreInUse, Origin::Store, 2),
        (Code::ServerUnreachable, Origin::Ours, 2),
        (Code::RunNotFound, Origin::Client, 2),
        (Code::RunSteps, Origin::Ours, 1),
        (Code::ProviderAuth, Origin::Provider, 1),
        (Code::Internal, Origin::Ours, 1),
    ];
    for (code, origin, expected) in table {
        assert_eq!(exit_code(&Error::new(code, origin, "m", "r")), expected, "{code}");
    }
}
