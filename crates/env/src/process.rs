//! The process seam: the only place where the product starts other programs.

use std::ffi::OsStr;

/// A command that starts `program` with an empty environment and is killed when its handle is
/// dropped. Callers add what the program needs.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
pub fn command(program: impl AsRef<OsStr>) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program);
    command.env_clear().kill_on_drop(true);
    command
}
