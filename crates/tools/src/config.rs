//! What the configuration says about tools: limits, policy and foreign tool servers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_core::port::runner::{HostRule, RunnerLimits};
use serde::{Deserialize, Serialize};

use crate::builtin::OUTPUT_BYTES_MAX;

/// Everything this part is configured by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// Limits of one command in the sandbox; its wall time is also bounded by the call's own.
    pub command: RunnerLimits,
    /// Hosts that commands may reach.
    pub network: NetworkConfig,
    /// Tool policy.
    pub policy: PolicyConfig,
    /// Foreign tool servers.
    pub mcp: McpConfig,
}

/// Hosts that commands may reach. Without any the sandbox has no network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// For every agent without a list of its own.
    pub hosts: Vec<HostRule>,
    /// The list of single agents, by name, instead of `hosts`.
    pub agents: BTreeMap<String, Vec<HostRule>>,
}

impl NetworkConfig {
    /// The list of an agent.
    #[must_use]
    pub fn of(&self, agent: &str) -> &[HostRule] {
        self.agents.get(agent).unwrap_or(&self.hosts)
    }
}

/// What becomes of a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyMode {
    /// A denied call does not run.
    #[default]
    Enforce,
    /// Every call runs; what would have been denied is logged.
    LogOnly,
}

/// Tool policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// Enforce, or only log.
    pub mode: PolicyMode,
    /// Whether the policies that ship are in force beside the operator's.
    pub defaults: bool,
    /// Cedar files of the operator.
    pub files: Vec<PathBuf>,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self { mode: PolicyMode::Enforce, defaults: true, files: Vec::new() }
    }
}

/// Foreign tool servers by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// The servers.
    pub servers: BTreeMap<String, McpServerConfig>,
}

/// A foreign tool server: a child process that speaks MCP on its stdin and stdout (`command`), or
/// one that is reached by streamable HTTP (`url`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServerConfig {
    /// The program; not with `url`.
    #[serde(default)]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its whole environment besides `PATH` and `HOME`; `env:NAME` takes a value from our own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it listens; not with `command`.
    #[serde(default)]
    pub url: Option<String>,
    /// The variable that holds the bearer token for it: `env:NAME`.
    #[serde(default)]
    pub token: Option<String>,
    /// The tools offered from it; all of them if absent.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// How far its own hints are believed.
    #[serde(default)]
    pub hints: McpHints,
    /// The effect class of single tools, by name, whatever the server says of them.
    #[serde(default)]
    pub effects: BTreeMap<String, McpEffect>,
    /// Milliseconds it may take to start and answer `initialize`.
    #[serde(default = "start_ms_max")]
    pub start_ms_max: u64,
    /// Milliseconds that a call may take at most; the limit of the call itself holds too.
    #[serde(default)]
    pub call_ms_max: Option<u64>,
    /// Bytes of text that an answer may have; the rest is cut.
    #[serde(default = "output_bytes_max")]
    pub output_bytes_max: usize,
}

/// How a call of a foreign tool is settled after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum McpEffect {
    /// It changes nothing: it may be repeated, and run beside other calls.
    Pure,
    /// Repeating it with the same effect id does no harm.
    Idempotent,
    /// It is never repeated.
    Unsafe,
}

fn start_ms_max() -> u64 {
    10_000
}

fn output_bytes_max() -> usize {
    OUTPUT_BYTES_MAX
}

/// Whether a server's hints about its tools decide how a call is settled after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum McpHints {
    /// A tool that says it is read-only is not believed; one that says it is idempotent is.
    #[default]
    Untrusted,
    /// Both hints are believed.
    Trusted,
    /// Neither hint is believed: no call is ever repeated.
    Ignored,
}
