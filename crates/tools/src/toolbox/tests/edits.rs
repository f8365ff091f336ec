//! What edits keep, and what they say when they do not fit.

use expect_test::expect;
use serde_json::json;

use super::check;
use super::support::{Bench, show};

/// File before, text to replace, its replacement, file after.
const KEPT: &[(&str, &str, &str, &str)] = &[
    // Windows line endings, asked for with plain ones.
    ("a\r\nb\r\nc\r\n", "b\n", "B\nB2\n", "a\r\nB\r\nB2\r\nc\r\n"),
    ("a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", "a\r\nx\r\nb\r\nc\r\n"),
    // Mixed endings stay with their lines.
    ("a\nb\r\nc\nd\r\n", "a\nb\nc", "a\nB\nc", "a\nB\r\nc\nd\r\n"),
    ("a\r\nb\nc\r\n", "b", "b\nb2", "a\r\nb\r\nb2\nc\r\n"),
    // A byte order mark stays.
    ("\u{feff}one\ntwo\n", "one", "1", "\u{feff}1\ntwo\n"),
    // The end of the file stays as it is.
    ("one\ntwo", "two", "2", "one\n2"),
    ("one\ntwo\n", "two\n", "2\n", "one\n2\n"),
    // Carriage returns alone are text.
    ("a\rb\n", "a\rb", "a\rc", "a\rc\n"),
    ("größe = 1\n", "größe", "Größe", "Größe = 1\n"),
];

#[tokio::test]
async fn an_edit_keeps_what_it_does_not_name() {
    let bench = Bench::new().await;
    for (before, old, new, after) in KEPT {
        bench.write("f", before);
        let output = bench.call("edit_file", json!({"path": "f", "old_text": old, "new_text": new})).await;
        assert_eq!(bench.read("f"), *after, "{before:?} {}", show(&output));
    }
}

#[tokio::test]
async fn an_edit_keeps_the_mode_and_leaves_nothing_behind() {
    let bench = Bench::new().await;
    bench.write("run.sh", "echo one\n");
    bench.set_mode("run.sh", 0o751);
    bench.call("edit_file", json!({"path": "run.sh", "old_text": "one", "new_text": "two"})).await;
    bench.call("write_file", json!({"path": "run.sh", "content": "echo three\n"})).await;
    assert_eq!((bench.mode("run.sh"), bench.read("run.sh").as_str()), (0o751, "echo three\n"));
    bench.call("write_file", json!({"path": "new/deep/file", "content": ""})).await;
    assert_eq!((bench.mode("new/deep/file"), bench.read("new/deep/file").as_str()), (0o644, ""));
    check(
        &bench,
        "list_dir",
        json!({}),
        expect![[r#"
        new/
        run.sh (11 bytes)
    "#]],
    )
    .await;
}

#[tokio::test]
async fn an_edit_through_a_link_changes_what_it_points_to() {
    let bench = Bench::new().await;
    bench.write("real", "one\n");
    bench.link("link", std::path::Path::new("real"));
    bench.call("edit_file", json!({"path": "link", "old_text": "one", "new_text": "two"})).await;
    assert_eq!(bench.read("real"), "two\n");
    assert!(bench.path().join("link").is_symlink());
}

#[tokio::test]
async fn an_edit_that_does_not_fit_says_what_is_near() {
    let bench = Bench::new().await;
    bench.write("f.rs", "fn one() {\n    let x = 1;\n}\n\nfn two() {\n    let x = 1;\n}\n");
    let edit = |old: &str| json!({"path": "f.rs", "old_text": old, "new_text": "y"});
    check(&bench, "edit_file", edit("    let x = 1;"), expect![[
        r#"refused: old_text occurs 2 times in f.rs (lines 2, 6). Add lines around it until it occurs once, or set replace_all."#
    ]])
    .await;
    check(&bench, "edit_file", edit("fn two() {\n  let x = 1;\n}"), expect![[r#"
        refused: old_text is not in f.rs. It is there with other white space. The nearest match begins at line 5:
        fn two() {
            let x = 1;
        }
        Copy the text exactly as it stands in the file, without line numbers."#]])
    .await;
    check(
        &bench,
        "edit_file",
        edit("completely different"),
        expect![[r#"refused: old_text is not in f.rs, and nothing like it. Read the file again."#]],
    )
    .await;
    let stale =
        json!({"path": "f.rs", "old_text": "fn one", "new_text": "y", "expected_hash": "0123456789abcdef"});
    check(&bench, "edit_file", stale, expect!["refused: f.rs is not as expected: its hash is 0ce744ac32b3693a, not 0123456789abcdef. It changed since it was read; read it again."])
    .await;
    let all = json!({"path": "f.rs", "old_text": "let x", "new_text": "let y", "replace_all": true});
    bench.call("edit_file", all).await;
    assert_eq!(bench.read("f.rs").matches("let y = 1").count(), 2);
}

#[tokio::test]
async fn a_patch_in_either_form_is_applied() {
    let bench = Bench::new().await;
    bench.write("a.txt", "1\r\n2\r\n3\r\n4\r\n");
    bench.write("b.txt", "old\n");
    bench.write("c.txt", "gone\n");
    // The line numbers and counts are wrong; the content decides.
    let unified = "--- a/a.txt\n+++ b/a.txt\n@@ -9,9 +9,9 @@\n 2\n-3\n+drei\n+3b\n 4\n--- a/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
        --- /dev/null\n+++ b/dir/new.txt\n@@ -0,0 +1,2 @@\n+hello\n+world\n\\ No newline at end of file\n";
    check(
        &bench,
        "apply_patch",
        json!({"patch": unified}),
        expect![[r#"
        Changed a.txt (4 lines before, 5 now).
        Deleted c.txt.
        Created dir/new.txt (11 bytes, 1 lines)."#]],
    )
    .await;
    assert_eq!(bench.read("a.txt"), "1\r\n2\r\ndrei\r\n3b\r\n4\r\n");
    assert_eq!(bench.read("dir/new.txt"), "hello\nworld");
    let begun = "*** Begin Patch\n*** Update File: a.txt\n@@ drei\n 3b\n-4\n+vier\n*** Update File: b.txt\n*** Move to: e.txt\n-old\n+new\n\
        *** Add File: f.txt\n+f\n*** End Patch";
    check(
        &bench,
        "apply_patch",
        json!({"patch": begun}),
        expect![[r#"
        Changed a.txt (5 lines before, 5 now).
        Deleted b.txt.
        Created e.txt (4 bytes, 1 lines).
        Created f.txt (2 bytes, 1 lines)."#]],
    )
    .await;
    assert_eq!(
        (bench.read("a.txt").as_str(), bench.read("e.txt").as_str()),
        ("1\r\n2\r\ndrei\r\n3b\r\nvier\r\n", "new\n")
    );
}

#[tokio::test]
async fn a_patch_is_applied_whole_or_not_at_all() {
    let bench = Bench::new().await;
    bench.write("a.txt", "a\n");
    bench.write("b.txt", "b\n");
    let patch =
        "*** Begin Patch\n*** Update File: a.txt\n-a\n+A\n*** Update File: b.txt\n-x\n+B\n*** End Patch";
    check(&bench, "apply_patch", json!({"patch": patch}), expect![[
        r#"refused: Hunk 1 for b.txt does not fit: its kept and removed lines are not in the file in this order. Nothing was changed."#
    ]])
    .await;
    let cut_off = "*** Begin Patch\n*** Update File: a.txt\n-a\n+A\n";
    check(
        &bench,
        "apply_patch",
        json!({"patch": cut_off}),
        expect![[
            r#"refused: The patch has no `*** End Patch`: it may have been cut off. Nothing was changed."#
        ]],
    )
    .await;
    assert_eq!((bench.read("a.txt").as_str(), bench.read("b.txt").as_str()), ("a\n", "b\n"));
}

/// A rename that fails in the middle takes back what was done.
#[tokio::test]
async fn a_patch_that_fails_half_way_is_taken_back() {
    let bench = Bench::new().await;
    bench.write("a.txt", "a\n");
    let patch = "*** Begin Patch\n*** Update File: a.txt\n-a\n+A\n*** Add File: d/new.txt\n+x\n*** End Patch";
    let prepared = bench.prepare("apply_patch", json!({"patch": patch})).await;
    // `d/new.txt` becomes a directory between the plan and the change.
    let root = crate::beneath::Root::open(&bench.path()).unwrap();
    let args = prepared.request.call.args.as_object().unwrap().clone();
    let changes = crate::builtin::files::plan(&root, "apply_patch", &crate::builtin::Args(&args)).unwrap();
    bench.write("d/new.txt/inside", "");
    let refused = crate::builtin::files::apply(&root, &changes, &crate::blocking::Cancel::default());
    assert!(refused.unwrap_err().0.ends_with("Nothing was changed."));
    assert_eq!(bench.read("a.txt"), "a\n");
    assert_eq!(std::fs::read_dir(bench.path().join("d")).unwrap().count(), 1);
}

#[tokio::test]
async fn patches_name_every_file_they_change() {
    let bench = Bench::new().await;
    bench.write("a.txt", "a\n");
    let patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: b.txt\n-a\n+A\n*** End Patch";
    let prepared = bench.prepare("apply_patch", json!({"patch": patch})).await;
    let guards: Vec<(String, bool, bool)> =
        prepared.guards.iter().map(|g| (g.path.clone(), g.before.is_some(), g.after.is_some())).collect();
    assert_eq!(guards, [("a.txt".to_owned(), true, false), ("b.txt".to_owned(), false, true)]);
}
