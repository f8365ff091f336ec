//! `tidy`: facts about the tree that no compiler checks. It checks facts only, never lengths.
//!
//! - arrows between our crates point down (the table below is ARCHITECTURE.md's);
//! - every module opens with `//!` (a sibling `tests.rs` is its parent's);
//! - every error code has a page, every page has a code, and each page says what happened, why,
//!   and what to do;
//! - every test that `docs/guide/field-reports.md` names is there;
//! - every scenario file is TOML whose name is its file's, and the promised ones are there;
//! - no path of the machine on which somebody worked.
//!
//! That the configuration keys and their guide match, and that scenarios hold only known keys, are
//! tests of the crates that own those types.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::shell;

/// The parts. They do not know each other; their tests may (the harness is tested over the in-memory
/// store, and its histories against the validators of both wires).
const PARTS: &[&str] = &["store", "model", "sandbox", "tools", "harness"];

/// Each crate and what of ours it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("env", &["core"]),
    ("store", &["core", "env"]),
    ("model", &["core", "env"]),
    ("sandbox", &["core", "env"]),
    ("tools", &["core", "env"]),
    ("harness", &["core", "env"]),
    ("server", &["core", "env", "store", "model", "sandbox", "tools", "harness"]),
    ("lab", &["core", "env", "store", "model", "sandbox", "tools", "harness", "server"]),
    ("evenkeel", &["core", "env", "store", "model", "sandbox", "tools", "harness", "server", "lab"]),
];

/// The system 1 scenarios that must exist, without their prefix.
pub(crate) const SYSTEM1: &[&str] = &[
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
];

/// Prints every problem and fails if there is one.
pub(crate) fn tidy() -> Result<()> {
    let problems = examine(&shell::root());
    if !problems.is_empty() {
        bail!("{} problems:\n    {}", problems.len(), problems.join("\n    "));
    }
    println!("    tidy");
    Ok(())
}

/// All problems of the tree under `root`.
pub(crate) fn examine(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    problems.extend(arrows(root));
    problems.extend(module_docs(root));
    problems.extend(error_pages(root));
    problems.extend(field_reports(root));
    problems.extend(scenarios(root));
    problems.extend(machine_paths(root));
    problems
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Files under `folder` whose names end in one of `endings`, in order; build output is passed over.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            if !["target", ".git", "node_modules", "evenkeel-data"].contains(&name.as_str()) {
                found.extend(files(&path, endings));
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    found
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

fn arrows(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let Ok(entries) = fs::read_dir(root.join("crates")) else {
        return vec!["there is no crates/".to_owned()];
    };
    let mut folders: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    folders.sort();
    for folder in folders {
        let Some((_, may_use)) = ARROWS.iter().find(|(name, _)| *name == folder) else {
            problems.push(format!("crates/{folder} is not in the table of layers"));
            continue;
        };
        let manifest: toml::Table =
            read(&root.join("crates").join(&folder).join("Cargo.toml")).parse().unwrap_or_default();
        for (table, tests_only) in [("dependencies", false), ("dev-dependencies", true)] {
            let Some(uses) = manifest.get(table).and_then(toml::Value::as_table) else { continue };
            for used in uses.keys().filter_map(|name| name.strip_prefix("evenkeel-")) {
                let allowed = may_use.contains(&used)
                    || (tests_only && PARTS.contains(&folder.as_str()) && PARTS.contains(&used));
                if !allowed {
                    problems.push(format!("crates/{folder} may not use evenkeel-{used}: arrows point down"));
                }
            }
        }
    }
    problems
}

fn module_docs(root: &Path) -> Vec<String> {
    ["crates", "xtask", "bench"]
        .iter()
        .flat_map(|folder| files(&root.join(folder), &[".rs"]))
        .filter(|path| !path.ends_with("tests.rs") && !read(path).starts_with("//!"))
        .map(|path| format!("{} does not open with `//!`", shown(root, &path)))
        .collect()
}

/// The codes as written in the `codes!` table of the core crate: `Name = "code", 422, "Title";`.
pub(crate) fn codes(source: &str) -> Vec<(String, String)> {
    let table = source.split_once("\ncodes! {").map_or("", |(_, rest)| rest);
    let table = table.split_once("\n}").map_or("", |(table, _)| table);
    table
        .lines()
        .filter_map(|row| {
            let mut quoted = row.split('"').skip(1).step_by(2);
            Some((quoted.next()?.to_owned(), quoted.next()?.to_owned()))
        })
        .collect()
}

fn error_pages(root: &Path) -> Vec<String> {
    let codes = codes(&read(&root.join("crates/core/src/error.rs")));
    if codes.is_empty() {
        return vec!["no error codes found in crates/core/src/error.rs".to_owned()];
    }
    let folder = root.join("docs/errors");
    let mut problems = Vec::new();
    for (code, title) in &codes {
        let page = read(&folder.join(format!("{code}.md")));
        if page.is_empty() {
            problems.push(format!("docs/errors/{code}.md is missing"));
            continue;
        }
        if !page.starts_with(&format!("# {code}\n\n{title}\n")) {
            problems.push(format!("docs/errors/{code}.md must open with `# {code}` and `{title}`"));
        }
        for heading in ["\n## What happened\n", "\n## Why\n", "\n## What to do\n"] {
            if !page.contains(heading) {
                problems.push(format!("docs/errors/{code}.md has no `{}`", heading.trim()));
            }
        }
    }
    let known: BTreeSet<&str> = codes.iter().map(|(code, _)| code.as_str()).collect();
    for page in files(&folder, &[".md"]) {
        let code = page.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !known.contains(code.as_str()) {
            problems.push(format!("{} is a page without a code", shown(root, &page)));
        }
    }
    problems
}

/// A row names tests between backquotes, behind the crate that has them.
fn field_reports(root: &Path) -> Vec<String> {
    let page = root.join("docs/guide/field-reports.md");
    let mut problems = Vec::new();
    let mut sources: BTreeMap<String, String> = BTreeMap::new();
    for row in read(&page).lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (id, held_by) = (cells.first().unwrap_or(&""), cells.last().unwrap_or(&""));
        for of_crate in held_by.split(';').map(str::trim) {
            let (name, tests) = of_crate.split_once(' ').unwrap_or((of_crate, ""));
            let source = sources.entry(name.to_owned()).or_insert_with(|| {
                files(&root.join("crates").join(name), &[".rs"]).iter().map(|path| read(path)).collect()
            });
            for test in tests.split('`').skip(1).step_by(2) {
                if !source.contains(&format!("fn {test}(")) {
                    problems.push(format!("{}: {id}: crates/{name} has no test {test}", shown(root, &page)));
                }
            }
        }
    }
    problems
}

fn scenarios(root: &Path) -> Vec<String> {
    let folder = root.join("scenarios");
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for path in files(&folder, &[".toml"]) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match read(&path).parse::<toml::Table>() {
            Err(error) => problems.push(format!("{} is not TOML: {error}", shown(root, &path))),
            Ok(table) if table.get("name").and_then(toml::Value::as_str) != Some(stem.as_str()) => {
                problems.push(format!("{} must have `name = \"{stem}\"`", shown(root, &path)));
            }
            Ok(_) => {}
        }
        names.insert(stem);
    }
    for name in SYSTEM1.iter().map(|name| format!("system1-{name}")) {
        if !names.contains(&name) {
            problems.push(format!("scenarios/{name}.toml is missing"));
        }
    }
    problems
}

fn machine_paths(root: &Path) -> Vec<String> {
    let mut needles = vec![format!("{}/", root.display())];
    // `/root` is the same on every machine; a named user's home is not.
    let home =
        std::env::var("HOME").ok().filter(|home| home.starts_with("/home/") || home.starts_with("/Users/"));
    needles.extend(home.map(|home| format!("{home}/")));
    let endings = [".rs", ".toml", ".md", ".sh", ".sql", ".json", ".cedar", ".html", ".js", "run"];
    let mut problems = Vec::new();
    for path in files(root, &endings) {
        let text = read(&path);
        for needle in needles.iter().filter(|needle| text.contains(needle.as_str())) {
            problems.push(format!("{} names a path of this machine: {needle}", shown(root, &path)));
        }
    }
    problems
}

#[cfg(test)]
mod tests;
