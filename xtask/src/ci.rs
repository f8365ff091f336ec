//! `ci`: everything that must pass before a change lands, in the order in which it fails fastest.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{clients, licences, setup, shell};

/// The scenarios of the live smoke test: real processes, real sockets, a real outage and a real kill,
/// about a minute.
const SMOKES: [&str; 2] = ["scenarios/smoke-system1.toml", "scenarios/smoke-system2.toml"];

/// A part: its name, what it shows, and the function that does it.
type Part = (&'static str, &'static str, fn() -> Result<()>);

/// Runs every part, stops at the first that fails, and prints how long each took.
pub(crate) fn ci() -> Result<()> {
    let parts: [Part; 8] = [
        ("setup", "programs that the build and the tests need", setup::programs),
        ("format", "rustfmt would change nothing", format),
        ("licences", "licences, banned crates, duplicate versions", licences::licences),
        ("lint", "clippy over everything, warnings denied", lint),
        ("test", "all tests; tidy is one of them", test),
        ("docs", "rustdoc, warnings denied", docs),
        (
            "virtual",
            "every scenario is the same twice in virtual time; drawn seeds find nothing",
            virtual_time,
        ),
        ("smoke", "the release binary carries tasks through an outage, and turns through a kill", smoke),
    ];
    let mut took: Vec<(&str, Duration)> = Vec::new();
    for (name, about, part) in parts {
        eprintln!("==> {name}: {about}");
        let (done, time) = shell::timed(part);
        took.push((name, time));
        if let Err(error) = done {
            summary(&took);
            bail!("{name}: {error:#}");
        }
    }
    summary(&took);
    eprintln!("all of ci passed");
    Ok(())
}

fn summary(took: &[(&str, Duration)]) {
    eprintln!("==> time");
    for (name, time) in took {
        eprintln!("    {name:<10} {:>7.1} s", time.as_secs_f64());
    }
    let total: Duration = took.iter().map(|(_, time)| *time).sum();
    eprintln!("    {:<10} {:>7.1} s", "all", total.as_secs_f64());
}

fn format() -> Result<()> {
    shell::run(&shell::cargo(), &["fmt", "--all", "--check"], &[])
}

fn lint() -> Result<()> {
    let args = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    shell::run(&shell::cargo(), &args, &[])
}

fn test() -> Result<()> {
    let clients = clients::variables()?;
    let env: Vec<(&str, &str)> = clients.iter().map(|(name, value)| (*name, value.as_str())).collect();
    shell::run(&shell::cargo(), &["test", "--workspace", "--locked", "--no-fail-fast"], &env)
}

fn docs() -> Result<()> {
    let args = ["doc", "--workspace", "--no-deps", "--locked"];
    shell::run(&shell::cargo(), &args, &[("RUSTDOCFLAGS", "-D warnings")])
}

/// The release binary, built if need be.
fn release() -> Result<String> {
    shell::run(&shell::cargo(), &["build", "--release", "--locked", "--package", "evenkeel"], &[])?;
    Ok(shell::target_dir().join("release/evenkeel").to_string_lossy().into_owned())
}

/// One seed of every scenario that ships, twice and at both depths, then drawn seeds. Chats have a tenth
/// of their load here: at their full one `lab-full` runs them.
fn virtual_time() -> Result<()> {
    let binary = release()?;
    let smokes: Vec<&str> = SMOKES.to_vec();
    let listed = shell::capture(&binary, &["lab", "list", "--json"]).context("list the scenarios")?;
    let names = scenarios(&listed)?;
    let of = |system: &str| -> Vec<&str> {
        names.iter().map(String::as_str).filter(|name| name.starts_with(system)).collect()
    };
    for depth in ["direct", "http"] {
        for (names, load) in [(&smokes, "1"), (&of("system1-"), "1"), (&of("system2-"), "0.1")] {
            let seeds = names.len().to_string();
            let how = ["--seeds", &seeds, "--twice", "--depth", depth, "--load", load];
            shell::run(&binary, &[&["lab", "sweep"], names.as_slice(), &how].concat(), &[])?;
        }
    }
    for (depth, seeds) in [("direct", "200"), ("http", "30")] {
        shell::run(&binary, &["lab", "sweep", "--seeds", seeds, "--depth", depth], &[])?;
    }
    Ok(())
}

/// The names in what `lab list --json` prints.
fn scenarios(listed: &str) -> Result<Vec<String>> {
    let listed: Vec<Value> = serde_json::from_str(listed).context("read the list of scenarios")?;
    let names = listed.iter().filter_map(|scenario| scenario["name"].as_str());
    // It is long, and its kills are those of `system1-harness-killed`.
    Ok(names.filter(|name| *name != "system1-kill-loop").map(str::to_owned).collect())
}

fn smoke() -> Result<()> {
    let binary = release()?;
    shell::run(&binary, &["doctor"], &[])?;
    for scenario in SMOKES {
        shell::run(&binary, &["lab", "run", scenario, "--seed", "1"], &[])?;
    }
    Ok(())
}
