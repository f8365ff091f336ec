//! The runner port: one command in isolation, with limits, and everything about how it ended.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::id::{RunId, TenantId};

/// What a command may use. A limit that the host cannot enforce is said so by `evenkeel doctor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunnerLimits {
    /// Wall time in milliseconds; then everything in the sandbox is killed.
    pub wall_ms: u64,
    /// CPU time in seconds.
    pub cpu_s: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Largest file in bytes.
    pub file_bytes: u64,
    /// Open files per process.
    pub open_files: u64,
    /// Bytes kept of stdout and stderr together; beyond the hard cap the command is killed.
    pub output_bytes: usize,
    /// Size of the private `/tmp` in bytes.
    pub tmp_bytes: u64,
}

impl Default for RunnerLimits {
    fn default() -> Self {
        Self {
            wall_ms: 120_000,
            cpu_s: 120,
            memory_bytes: 2 << 30,
            processes: 256,
            file_bytes: 1 << 30,
            open_files: 1024,
            output_bytes: 8 << 20,
            tmp_bytes: 256 << 20,
        }
    }
}

/// One command to run in a fresh sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Whose.
    pub tenant: TenantId,
    /// For which run, for labels and reconciliation.
    pub run: RunId,
    /// Program and arguments; the program is looked up on the sandbox's own fixed path.
    pub argv: Vec<String>,
    /// The only writable directory of the host that is visible, mounted at [`WORKSPACE`].
    pub workspace: PathBuf,
    /// Mount the workspace read-only.
    pub read_only: bool,
    /// Directory to start in, relative to the workspace; empty for its root.
    pub cwd: String,
    /// Environment besides the fixed base (`PATH HOME TMPDIR LANG TERM`).
    pub env: Vec<(String, String)>,
    /// Fed to stdin, which is then closed.
    pub stdin: Vec<u8>,
    /// Limits.
    pub limits: RunnerLimits,
}

/// Where the workspace is mounted inside every sandbox.
pub const WORKSPACE: &str = "/workspace";

/// Which limit ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitHit {
    /// Wall time.
    Time,
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Output.
    Output,
    /// The size of a file.
    FileSize,
}

/// How a command ended. What was read before a limit is always there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if it was killed by one.
    pub signal: Option<i32>,
    /// The limit that ended it, if one did.
    pub limit: Option<LimitHit>,
    /// Bytes of stdout, at most the limit.
    pub stdout: Vec<u8>,
    /// Bytes of stderr, at most the limit.
    pub stderr: Vec<u8>,
    /// Bytes that were read and thrown away.
    pub bytes_dropped: u64,
    /// Milliseconds from start to end.
    pub ms: u64,
}

/// Runs commands in isolation.
pub trait Runner: Send + Sync {
    /// Runs one command to its end. Dropping the future kills everything in the sandbox.
    ///
    /// # Errors
    /// `sandbox-unavailable`, `sandbox-failed`, `overloaded`; a command that fails is not an error.
    fn run(&self, command: Command) -> BoxFuture<'_, Result<Exit, Error>>;
}
