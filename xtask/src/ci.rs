//! `ci`: everything that must pass before a change lands, in the order in which it fails fastest.

use std::time::Duration;

use anyhow::{Result, bail};

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
        ("virtual", "the short scenarios hold in virtual time and are the same twice", virtual_time),
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

fn virtual_time() -> Result<()> {
    let binary = release()?;
    shell::run(&binary, &["lab", "sweep", "smoke-system1", "smoke-system2", "--seeds", "2", "--twice"], &[])
}

fn smoke() -> Result<()> {
    let binary = release()?;
    shell::run(&binary, &["doctor"], &[])?;
    for scenario in SMOKES {
        shell::run(&binary, &["lab", "run", scenario, "--seed", "1"], &[])?;
    }
    Ok(())
}
