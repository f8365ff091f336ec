//! Starting other programs, and how long they took.
//!
//! xtask is a tool for people, not the product: it may use the ambient clock and processes that
//! clippy bans elsewhere, and does so only here.
#![expect(clippy::disallowed_methods, reason = "a build tool has no injected seams")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// The cargo that started us.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs a program in the root of the checkout, its output shown, and fails unless it succeeds.
pub(crate) fn run(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    eprintln!("    $ {program} {}", args.join(" "));
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("start {program}"))?;
    if !status.success() {
        bail!("`{program} {}` failed: {status}", args.join(" "));
    }
    Ok(())
}

/// Runs a program quietly and gives its output; `None` if it cannot start or fails.
pub(crate) fn capture(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(root())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()
}

/// Whether a program is on PATH, or where Debian puts servers: `/usr/sbin`, PostgreSQL's own folder.
pub(crate) fn present(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let servers = versions.map(|version| version.path().join("bin")).chain([PathBuf::from("/usr/sbin")]);
    std::env::split_paths(&path).chain(servers).any(|folder| folder.join(program).is_file())
}

/// Does something and says how long it took.
pub(crate) fn timed(body: impl FnOnce() -> Result<()>) -> (Result<()>, Duration) {
    let begun = Instant::now();
    let done = body();
    (done, begun.elapsed())
}
