//! `dev`, `bench` and `lab`: the product's own commands, built and started.

use anyhow::Result;

use crate::shell;

const RUN: [&str; 6] = ["run", "--release", "--locked", "--package", "evenkeel", "--"];

fn evenkeel(args: &[&str]) -> Result<()> {
    shell::run(&shell::cargo(), &[&RUN, args].concat(), &[])
}

fn borrowed(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// The server with the fake provider beside it; with `--replicas 3` three of them over a PostgreSQL of
/// their own, behind a gateway. Further arguments go to `evenkeel demo --serve`.
pub(crate) fn dev(args: &[String]) -> Result<()> {
    evenkeel(&[&["demo", "--serve"], borrowed(args).as_slice()].concat())
}

/// Measurements of the store: examples of its crate, since they stand beside what they measure.
const STORE: [(&str, &str); 2] = [("store", "steps"), ("postgres", "turns")];

/// The measurements of `bench/README.md`: all, or those that are named.
pub(crate) fn bench(args: &[String]) -> Result<()> {
    let names = borrowed(args);
    for (_, example) in STORE.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let store = ["run", "--release", "--locked", "--package", "evenkeel-store", "--example", example];
        shell::run(&shell::cargo(), &store, &[])?;
    }
    let is_store = |name: &&str| STORE.iter().any(|(of, _)| of == name);
    let others: Vec<&str> = names.iter().copied().filter(|name| !is_store(name)).collect();
    if names.is_empty() || !others.is_empty() {
        let run = ["run", "--release", "--locked", "--package", "evenkeel-bench", "--"];
        shell::run(&shell::cargo(), &[&run, others.as_slice()].concat(), &[])?;
    }
    Ok(())
}

/// One scenario.
pub(crate) fn lab(args: &[String]) -> Result<()> {
    evenkeel(&[&["lab", "run"], borrowed(args).as_slice()].concat())
}
