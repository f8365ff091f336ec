//! SPDX expressions and the rules on small graphs.

use super::{Package, Rules, examine, permitted};

#[test]
fn expressions() {
    let table = [
        ("MIT", true),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND Apache-2.0", true),
        ("(GPL-3.0 OR MIT) AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("(MIT", false),
        ("MIT Apache-2.0", false),
        ("", false),
    ];
    for (expression, expected) in table {
        let found = permitted(expression, &|word| word == "MIT" || word == "Apache-2.0");
        assert_eq!(found, expected, "{expression:?}");
    }
}

fn package(name: &str, version: &str, licence: &str) -> Package {
    Package { name: name.to_owned(), version: version.to_owned(), licence: licence.to_owned(), source: None }
}

fn rules() -> Rules {
    let deny = r#"
        [licenses]
        allow = ["MIT"]
        exceptions = [{ crate = "odd", allow = ["Zlib"] }]
        [bans]
        deny = [{ crate = "cmake", reason = "no cmake" }]
        skip = [{ crate = "old@1.2", reason = "tree wants it" }]
        [sources]
        allow-registry = ["https://index"]
    "#;
    Rules::read(&deny.parse().expect("the table above is TOML"))
}

#[test]
fn a_graph_in_order_has_no_problems() {
    let graph = [
        package("a", "1.0.0", "MIT"),
        package("odd", "1.0.0", "Zlib"),
        package("old", "1.2.3", "MIT"),
        package("old", "2.0.0", "MIT"),
    ];
    assert_eq!(examine(&graph, &rules()), Vec::<String>::new());
}

#[test]
fn each_problem_is_named() {
    let mut far = package("far", "1.0.0", "MIT");
    far.source = Some("git+https://elsewhere".to_owned());
    let graph = [
        package("a", "1.0.0", "Zlib"),
        package("cmake", "0.1.0", "MIT"),
        far,
        package("old", "1.20.0", "MIT"),
        package("old", "2.0.0", "MIT"),
    ];
    let problems = examine(&graph, &rules());
    let heads: Vec<&str> = problems.iter().filter_map(|problem| problem.split(' ').next()).collect();
    assert_eq!(heads, ["a", "cmake", "far", "old"], "{problems:?}");
}
