//! The tree is tidy, and the checks find what they are for.

use super::{codes, examine};
use crate::shell;

#[test]
fn the_tree_is_tidy() {
    assert_eq!(examine(&shell::root()), Vec::<String>::new());
}

#[test]
fn codes_are_read_from_the_table() {
    let source = "macro_rules! codes { (\"no\") }\n\ncodes! {\n    A = \"a-b\", 422, \"First; still first.\";\n\n    C = \"c\", 500, \"Second.\";\n}\n\nfn f() { \"x\"; }\n";
    let expected =
        [("a-b", "First; still first."), ("c", "Second.")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(codes(source), expected);
}

#[test]
fn each_planted_problem_is_found() {
    let root = std::env::temp_dir().join(format!("tidy-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("the path has a folder")).expect("make a folder");
        std::fs::write(path, text).expect("write a file");
    };
    let manifest = "[dependencies]\nevenkeel-core.workspace = true\nevenkeel-tools.workspace = true\n[dev-dependencies]\nevenkeel-store.workspace = true\n";
    write("crates/harness/Cargo.toml", manifest);
    write("crates/harness/src/lib.rs", "fn undocumented() {}\n");
    write("crates/surprise/Cargo.toml", "");
    let table =
        "//! Codes.\ncodes! {\n    A = \"with-page\", 1, \"T.\";\n    B = \"without-page\", 1, \"T.\";\n}\n";
    write("crates/core/src/error.rs", table);
    write("crates/core/Cargo.toml", "");
    write("docs/errors/with-page.md", "# with-page\n\nT.\n\n## What happened\n\n## What to do\n");
    write("docs/errors/nobody.md", "# nobody\n");
    write("docs/guide/field-reports.md", "| T01 | lost | harness `undocumented`, `gone`; core `nowhere` |\n");
    write("scenarios/system1-peak.toml", "name = \"other\"\n");
    write("scenarios/broken.toml", "name = \n");
    write("README.md", &format!("see {}/x\n", root.display()));
    let problems = examine(&root).join("\n");
    std::fs::remove_dir_all(&root).expect("remove the folder");
    for part in [
        "crates/harness may not use evenkeel-tools",
        "crates/surprise is not in the table",
        "crates/harness/src/lib.rs does not open",
        "docs/errors/without-page.md is missing",
        "docs/errors/with-page.md has no `## Why`",
        "docs/errors/nobody.md is a page without a code",
        "docs/guide/field-reports.md: T01: crates/harness has no test gone",
        "docs/guide/field-reports.md: T01: crates/core has no test nowhere",
        "scenarios/system1-peak.toml must have `name = \"system1-peak\"`",
        "scenarios/broken.toml is not TOML",
        "scenarios/system1-long.toml is missing",
        "README.md names a path of this machine",
    ] {
        assert!(problems.contains(part), "not found: {part}\n{problems}");
    }
    assert!(!problems.contains("evenkeel-store") && !problems.contains("test undocumented"), "{problems}");
}
