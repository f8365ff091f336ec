//! What the configuration says about tools: limits, policy and foreign tool servers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_core::port::runner::{HostRule, RunnerLimits};
use serde::{Deserialize, Serialize};

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

/// A foreign tool server, started as a child process that speaks MCP on its stdin and stdout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServerConfig {
    /// The program.
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its whole environment besides `PATH` and `HOME`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The tools offered from it; all of them if absent.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// How far its own hints are believed.
    #[serde(default)]
    pub hints: McpHints,
    /// Milliseconds it may take to start and answer `initialize`.
    #[serde(default = "start_ms_max")]
    pub start_ms_max: u64,
}

fn start_ms_max() -> u64 {
    10_000
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
