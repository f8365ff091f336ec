//! The sections that are the server's own.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use evenkeel_core::Error;
use evenkeel_core::agent::{Agent, RunLimits};
use evenkeel_core::run::{BusyPolicy, Class};
use evenkeel_harness::OnTimeout;
use evenkeel_tools::workspace::AllowedSources;
use serde::{Deserialize, Serialize};

use super::store::{StoreEngine, check_connections};
use super::{DurationText, Environment, Limits, invalid};

/// `[server]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSection {
    /// The address to listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// What this process does.
    pub role: Role,
    /// Where the store, workspaces and snapshots are kept.
    pub data_dir: PathBuf,
    /// Which store engine.
    pub store: StoreEngine,
    /// Connections to the database at most, if the store is PostgreSQL.
    pub store_connections: usize,
    /// Worker threads of the runtime; read by the binary. Default: one for each core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Opens `/v1/lab`, with which the lab makes the store slow. Not for production.
    pub lab: bool,
    /// How long a shutdown waits for runs to reach the end of their step.
    pub drain_timeout: DurationText,
    /// How often a stream that is silent sends a comment.
    pub heartbeat: DurationText,
    /// How long the thread of a run that was created without one stays after its end.
    pub stateless_keep: DurationText,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070),
            role: Role::All,
            data_dir: PathBuf::from("evenkeel-data"),
            store: StoreEngine::Sqlite,
            store_connections: 10,
            workers: None,
            lab: false,
            drain_timeout: DurationText(std::time::Duration::from_secs(20)),
            heartbeat: DurationText(std::time::Duration::from_secs(5)),
            stateless_keep: DurationText(std::time::Duration::from_secs(600)),
        }
    }
}

/// `[approvals]`: calls of which policy says `ask`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalsSection {
    /// How long a person may take to answer; never beyond the run's own time.
    pub timeout: DurationText,
    /// What becomes of a call that nobody answered.
    pub on_timeout: OnTimeout,
}

impl Default for ApprovalsSection {
    fn default() -> Self {
        let timeout = DurationText(std::time::Duration::from_secs(24 * 60 * 60));
        Self { timeout, on_timeout: OnTimeout::default() }
    }
}

/// More threads than any machine has cores for; a number beyond it is a slip of the pen.
const WORKERS_MAX: usize = 1024;

impl ServerSection {
    /// Refuses what would end the process, or each of its streams, later.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.data_dir.as_os_str().is_empty() {
            return Err(invalid(
                "server.data_dir is empty.",
                "Name a directory, or remove the key for the default.",
            ));
        }
        if let Some(workers) = self.workers.filter(|n| !(1..=WORKERS_MAX).contains(n)) {
            return Err(invalid(
                format!("server.workers is {workers}; possible are 1 to {WORKERS_MAX}."),
                "Give the number of threads, or remove the key for one on each core.",
            ));
        }
        check_connections(self.store_connections)?;
        if self.heartbeat.0.is_zero() {
            return Err(invalid(
                "server.heartbeat is 0, so a silent stream would never rest.",
                "Write a duration such as \"5s\", or remove the key for the default.",
            ));
        }
        Ok(())
    }
}

/// What a process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything: it takes requests and drives runs.
    #[default]
    All,
    /// Passes requests on to the replicas in `gateway.peers`; stores and drives nothing.
    Gateway,
    /// A replica: takes requests, from a gateway or from clients, and drives runs.
    Api,
    /// A replica that only drives runs which others accepted.
    Worker,
}

/// `[auth]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSection {
    /// Who may call.
    pub mode: AuthMode,
    /// `[auth.keys.NAME]`: keys from the environment, valid beside the stored ones.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<String, KeySection>,
}

/// Who may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMode {
    /// Whoever holds a key.
    Keys,
    /// Everybody on this machine, as tenant `default`.
    #[default]
    Open,
}

/// `[auth.keys.NAME]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySection {
    /// The variable that holds the key, as `env:NAME`.
    pub key: String,
    /// Whose requests it makes.
    pub tenant: String,
    /// Requests per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_per_min: Option<u32>,
}

impl AuthSection {
    /// Every key's variable must be set.
    pub(super) fn check(&self, environment: &Environment) -> Result<(), Error> {
        for (name, section) in &self.keys {
            environment.secret(&format!("auth.keys.{name}.key"), &section.key)?;
            if section.tenant.is_empty() {
                return Err(invalid(
                    format!("auth.keys.{name}.tenant is empty."),
                    "Name the tenant of this key.",
                ));
            }
        }
        Ok(())
    }
}

/// `[workspaces]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkspacesSection {
    /// Directories below which a run may name its repository. Empty: none.
    pub sources: Vec<PathBuf>,
    /// Schemes of URLs that may be cloned.
    pub url_schemes: Vec<String>,
    /// Largest repository in bytes.
    pub bytes_max: u64,
    /// Most files and directories in a repository.
    pub files_max: u64,
    /// Seconds that a clone may take.
    pub clone_s_max: u64,
}

impl Default for WorkspacesSection {
    fn default() -> Self {
        let AllowedSources { directories, url_schemes, bytes_max, files_max, clone_s_max } =
            AllowedSources::default();
        Self { sources: directories, url_schemes, bytes_max, files_max, clone_s_max }
    }
}

impl WorkspacesSection {
    /// The same in the words of the workspaces.
    pub(crate) fn allowed(&self) -> AllowedSources {
        AllowedSources {
            directories: self.sources.clone(),
            url_schemes: self.url_schemes.clone(),
            bytes_max: self.bytes_max,
            files_max: self.files_max,
            clone_s_max: self.clone_s_max,
        }
    }
}

/// `[assistants.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AssistantSection {
    /// One sentence for lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The model route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Names of the tools offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Whether runs get a workspace of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<bool>,
    /// Limits of its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<RunLimits>,
    /// What a busy thread does with a message, where neither the request nor the thread says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_policy: Option<BusyPolicy>,
    /// `interactive` (somebody waits: parks a few seconds at most) or `batch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
}

impl AssistantSection {
    /// The assistant that this section makes of the built-in one, or of nothing.
    pub(super) fn apply(&self, name: &str, builtin: Option<Agent>, limits: &Limits) -> Result<Agent, Error> {
        let mut agent = match (builtin, &self.route) {
            (Some(agent), _) => agent,
            (None, Some(route)) => Agent {
                name: name.to_owned(),
                description: String::new(),
                system_prompt: String::new(),
                route: route.clone(),
                tools: Vec::new(),
                workspace: false,
                limits: RunLimits { steps_max: limits.harness.steps_max, ..RunLimits::default() },
            },
            (None, None) => {
                return Err(invalid(
                    format!("assistants.{name} is not built in and names no route."),
                    format!("Set assistants.{name}.route to one of [routes]."),
                ));
            }
        };
        set(&mut agent.description, self.description.as_ref());
        set(&mut agent.system_prompt, self.system_prompt.as_ref());
        set(&mut agent.route, self.route.as_ref());
        set(&mut agent.tools, self.tools.as_ref());
        set(&mut agent.workspace, self.workspace.as_ref());
        set(&mut agent.limits, self.limits.as_ref());
        Ok(agent)
    }
}

fn set<T: Clone>(place: &mut T, value: Option<&T>) {
    if let Some(value) = value {
        *place = value.clone();
    }
}

/// `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySection {
    /// Base URL of an OTLP collector (HTTP, protobuf); spans go to `/v1/traces` below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<String>,
    /// What is logged, in the filter language of `tracing`, such as `info` or `evenkeel_model=debug`.
    pub log: String,
}

impl Default for TelemetrySection {
    fn default() -> Self {
        Self { otlp_endpoint: None, log: "info".to_owned() }
    }
}
