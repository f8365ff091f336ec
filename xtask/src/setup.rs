//! `setup`: what the build and the tests need, and the git hooks.
//!
//! The build needs `cc` (SQLite and ring are compiled from source); the tests need `git`, PostgreSQL
//! and its pooler PgBouncer, which they start and stop themselves; bubblewrap is the sandbox's second
//! backend, whose tests say that they are skipped without it. The other programs are used by
//! coding tasks of the lab; a task whose program is missing is left out with a message. Nothing is
//! downloaded when everything is there, and a machine without apt is told what to install instead.

use anyhow::{Result, bail};

use crate::shell;

/// A program, the Debian package that brings it, and whether nothing works without it.
const PROGRAMS: &[(&str, &str, bool)] = &[
    ("cc", "gcc libc6-dev", true),
    ("git", "git", true),
    ("sh", "dash", true),
    ("python3", "python3", false),
    ("perl", "perl", false),
    ("postgres", "postgresql", true),
    ("pgbouncer", "pgbouncer", true),
    ("bwrap", "bubblewrap", false),
];

/// Programs and hooks.
pub(crate) fn setup() -> Result<()> {
    programs()?;
    hooks()
}

/// Only the programs: what `ci` needs, which must not touch a developer's git configuration.
pub(crate) fn programs() -> Result<()> {
    let missing = || PROGRAMS.iter().filter(|(program, ..)| !shell::present(program));
    if missing().next().is_none() {
        println!("    all programs are there: {}", names(PROGRAMS.iter()));
        return Ok(());
    }
    let packages: Vec<&str> = missing().flat_map(|(_, package, _)| package.split(' ')).collect();
    install(&packages);
    for (program, package, _) in missing() {
        println!("    missing: {program} (Debian package {package}); what needs it is left out");
    }
    let needed = names(missing().filter(|(.., needed)| *needed));
    if !needed.is_empty() {
        bail!("{needed} is needed and could not be installed; install it and try again");
    }
    Ok(())
}

fn names<'a>(programs: impl Iterator<Item = &'a (&'a str, &'a str, bool)>) -> String {
    programs.map(|(program, ..)| *program).collect::<Vec<_>>().join(", ")
}

/// Tries apt as root; whatever goes wrong is seen by looking for the programs again.
pub(crate) fn install(packages: &[&str]) {
    let root = shell::capture("id", &["-u"]).is_some_and(|id| id.trim() == "0");
    if !root || !shell::present("apt-get") {
        println!("    not root or no apt-get: nothing is installed");
        return;
    }
    let quiet = [("DEBIAN_FRONTEND", "noninteractive")];
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(packages);
    let done = shell::run("apt-get", &["update"], &quiet).and_then(|()| shell::run("apt-get", &args, &quiet));
    if let Err(error) = done {
        println!("    apt-get did not help: {error:#}");
    }
}

/// Points git at `xtask/hooks`, unless the developer has hooks of their own.
fn hooks() -> Result<()> {
    if shell::capture("git", &["rev-parse", "--git-dir"]).is_none() {
        println!("    not a git checkout: no hooks");
        return Ok(());
    }
    match shell::capture("git", &["config", "core.hooksPath"]) {
        Some(path) if path.trim() != "xtask/hooks" => {
            println!("    git hooks are set to {} already; left alone", path.trim());
            Ok(())
        }
        _ => shell::run("git", &["config", "core.hooksPath", "xtask/hooks"], &[]),
    }
}
