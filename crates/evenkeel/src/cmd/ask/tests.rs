use expect_test::expect;
use serde_json::json;

use super::{Question, Said};

#[test]
fn only_a_plain_yes_is_one() {
    let no = |because: &str| Said::No(because.to_owned());
    let table = [
        ("y", Said::Yes),
        (" Yes \n", Said::Yes),
        ("n", no("")),
        ("no use the staging host", no("use the staging host")),
        ("N  not now", no("not now")),
        ("", Said::Unclear),
        ("yes but", Said::Unclear),
        ("yep", Said::Unclear),
        ("maybe", Said::Unclear),
        ("/cancel", Said::Unclear),
    ];
    for (line, expected) in table {
        assert_eq!(Said::parse(line), expected, "{line:?}");
    }
}

#[test]
fn a_question_shows_the_whole_arguments_and_drives_no_terminal() {
    let question = Question::read(&json!({
        "id": "apr_1", "tool": "write_file", "reason": "This changes a release.\u{1b}[2J (release/a)",
        "args": { "path": "release/a", "content": "one\ntwo\u{7}\n", "mode": 7 },
    }));
    expect![[r#"
        write_file asks: This changes a release.�[2J (release/a)
          path: release/a
          content: one
            two�
          mode: 7
        Allow it, once? y / n / n BECAUSE"#]]
    .assert_eq(&question.lines().join("\n"));
}
