//! `fuzz`: the fuzz targets for longer than a test may take.
//!
//! Targets are tests whose names begin with `fuzz_`, beside what they try. Two run at a time. A finding fails the command and prints the smallest input and its seed.

use anyhow::{Context, Result, bail};

use crate::shell;

/// The crates that have targets.
const PACKAGES: [&str; 3] = ["evenkeel-env", "evenkeel-sandbox", "evenkeel-tools"];

/// Seconds for each target when nothing is said.
const SECONDS: &str = "60";

/// Runs all targets.
pub(crate) fn fuzz(args: &[String]) -> Result<()> {
    match args {
        [] => run(SECONDS),
        [option, seconds] if option == "--seconds" => {
            seconds.parse::<u64>().with_context(|| format!("--seconds {seconds} is not a number"))?;
            run(seconds)
        }
        other => bail!("there is no {}; use: cargo xtask fuzz [--seconds N]", other.join(" ")),
    }
}

/// Runs all targets, each for this long.
pub(crate) fn run(seconds: &str) -> Result<()> {
    let mut words = vec!["test", "--locked", "--no-fail-fast", "--lib"];
    for package in PACKAGES {
        words.extend(["--package", package]);
    }
    words.extend(["--", "fuzz_", "--nocapture", "--test-threads=2"]);
    shell::run(&shell::cargo(), &words, &[("EVENKEEL_FUZZ_SECONDS", seconds)])
}
