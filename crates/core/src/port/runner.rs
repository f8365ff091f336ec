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
    /// What the workspace may hold in bytes, as the file system counts them.
    pub workspace_bytes: u64,
    /// Files and directories that the workspace may hold.
    pub workspace_files: u64,
    /// Processor time at most, in percent of one processor, where a cgroup can bound it.
    pub cpu_percent: u64,
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
            workspace_bytes: 8 << 30,
            workspace_files: 500_000,
            cpu_percent: 400,
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
    /// Hosts that it may reach; with none there is no network at all.
    pub hosts: Vec<HostRule>,
}

/// A host on an allow-list: `name`, `name:port`, `*.name` (every name below it), each also with
/// `private:` before it. Without a port it stands for 80 and 443.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostRule {
    /// The name, in lower case and without a final dot.
    pub name: String,
    /// Every name below `name` instead of itself.
    pub below: bool,
    /// The only port.
    pub port: Option<u16>,
    /// It may have an address in a private range.
    pub private: bool,
}

impl HostRule {
    /// Whether a name (in lower case, without a final dot) and a port are on it.
    #[must_use]
    pub fn covers(&self, name: &str, port: u16) -> bool {
        let is_named = match name.strip_suffix(self.name.as_str()) {
            Some("") => !self.below,
            Some(rest) => self.below && rest.len() > 1 && rest.ends_with('.'),
            None => false,
        };
        is_named && self.port.map_or(port == 80 || port == 443, |only| only == port)
    }
}

impl TryFrom<String> for HostRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let fault = || {
            format!(
                "{text:?} is not a host: write name, name:port or *.name, with private: before it if its addresses are"
            )
        };
        let (private, rest) =
            text.strip_prefix("private:").map_or((false, text.as_str()), |rest| (true, rest));
        let (below, rest) = rest.strip_prefix("*.").map_or((false, rest), |rest| (true, rest));
        let (name, port) = match rest.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(fault)?)),
            None => (rest, None),
        };
        let is_label = |label: &str| {
            !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        // A pattern below a single label would be a whole top-level domain.
        let n_labels = name.split('.').count();
        if name.len() > 253 || !name.split('.').all(is_label) || (below && n_labels < 2) {
            return Err(fault());
        }
        Ok(Self { name, below, port, private })
    }
}

impl From<HostRule> for String {
    fn from(rule: HostRule) -> Self {
        rule.to_string()
    }
}

impl std::fmt::Display for HostRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let private = if self.private { "private:" } else { "" };
        let below = if self.below { "*." } else { "" };
        write!(f, "{private}{below}{}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
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
    /// The size of the workspace, or the number of its files.
    Workspace,
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
    /// What was refused on the network, each once, the first few: `host:port: why`.
    pub refused: Vec<String>,
}

/// Runs commands in isolation.
pub trait Runner: Send + Sync {
    /// Runs one command to its end. Dropping the future kills everything in the sandbox.
    ///
    /// # Errors
    /// `sandbox-unavailable`, `sandbox-failed`, `overloaded`; a command that fails is not an error.
    fn run(&self, command: Command) -> BoxFuture<'_, Result<Exit, Error>>;
}
