//! The configuration: what was typed, checked and given its meaning.
//!
//! One TOML file holds every section; an overlay of `EVENKEEL_SECTION__KEY` variables and of the
//! command line's own settings lies on top of it. Unknown keys, ill-typed values and impossible
//! combinations are refused with the place and the nearest key that would be valid, before anything
//! starts. Secrets are never in the file: a value such as `env:ACME_KEY` names the variable that
//! holds one, so the effective configuration can be printed as it is.

mod document;
mod limits;
mod overlay;
mod replicas;
mod sections;
mod store;

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_core::agent::Agent;
use evenkeel_core::control::Protect;
use evenkeel_core::{Code, Error, Origin};
use evenkeel_model::{ProviderKeys, RouterConfig};
use evenkeel_sandbox::SandboxConfig;
use evenkeel_tools::{GitConfig, ToolsConfig};

pub use document::nearest;
pub use limits::{ApiLimits, DurationText, GatewayLimits, HarnessLimits, Limits, SlotLimits, TracingLimits};
pub use overlay::{Environment, Overrides};
pub use replicas::{GatewaySection, ReplicaSection};
pub use sections::{
    ApprovalsSection, AssistantSection, AuthMode, AuthSection, KeySection, Role, ServerSection,
    TelemetrySection, WorkspacesSection,
};
pub use store::{StoreEngine, StoreUrl};

/// The whole configuration, with every default filled in.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// `[server]`.
    pub server: ServerSection,
    /// `[auth]`.
    pub auth: AuthSection,
    /// `[gateway]`.
    pub gateway: GatewaySection,
    /// `[replica]`.
    pub replica: ReplicaSection,
    /// `[limits]`: one table with the limit of every component.
    pub limits: Limits,
    /// `[router]`, `[providers.*]`, `[deployments.*]`, `[routes.*]`.
    pub router: RouterConfig,
    /// `[sandbox]`.
    pub sandbox: SandboxConfig,
    /// `[tools]`, `[mcp]`, `[policy]`.
    pub tools: ToolsConfig,
    /// `[workspaces]`.
    pub workspaces: WorkspacesSection,
    /// `[git]`: hosts that need a login.
    pub git: GitConfig,
    /// `[approvals]`.
    pub approvals: ApprovalsSection,
    /// `[assistants.NAME]`: changes a built-in assistant or declares a new one.
    pub assistants: BTreeMap<String, AssistantSection>,
    /// `[telemetry]`.
    pub telemetry: TelemetrySection,
    /// `protect`: `none` shows what an unprotected platform does; for comparison only.
    pub protect: Protect,
    /// The variables from which `env:NAME` values are resolved. Never printed.
    pub environment: Environment,
}

impl Config {
    /// Reads the file (none: defaults only), lays the overrides on top and checks the whole.
    ///
    /// # Errors
    /// `config-unreadable`, `config-invalid` with file, line, column and the nearest valid key,
    /// `address-refused`.
    pub fn load(path: Option<&Path>, overrides: &Overrides) -> Result<Self, Error> {
        let text = match path {
            Some(path) => std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?,
            None => String::new(),
        };
        let name = path.map_or_else(|| "(defaults)".to_owned(), |path| path.display().to_string());
        Self::parse(&name, &text, overrides)
    }

    /// The same from text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(name: &str, text: &str, overrides: &Overrides) -> Result<Self, Error> {
        let config = document::read(name, text, overrides)?;
        config.check()?;
        Ok(config)
    }

    /// Checks what no single value shows. Returns warnings for a person.
    ///
    /// # Errors
    /// `config-invalid`, `address-refused`, and what the router's own check finds.
    pub fn check(&self) -> Result<Vec<String>, Error> {
        self.check_address()?;
        self.server.check()?;
        if let StoreEngine::Postgres(url) = &self.server.store {
            url.resolve(&self.environment)?;
        }
        self.limits.check()?;
        self.sandbox.check()?;
        limits::check_commands("sandbox.limits", &self.sandbox.limits)?;
        limits::check_commands("tools.command", &self.tools.command)?;
        self.auth.check(&self.environment)?;
        self.gateway.check(self.server.role)?;
        self.replica.check(&self.server, &self.environment)?;
        self.router.check_shape()?;
        ProviderKeys::read_with(&self.router, |name| self.environment.get(name).map(str::to_owned))?;
        // The router's own check reads the process's variables; what they lack was judged above.
        let mut warnings = self.router.check().unwrap_or_default();
        warnings.extend(self.assistant_warnings());
        if self.protect == Protect::None {
            warnings.push("protect = \"none\": outages of a provider will fail runs.".to_owned());
        }
        Ok(warnings)
    }

    /// All assistants: the built-in ones as changed by `[assistants]`, and the declared ones.
    ///
    /// # Errors
    /// `config-invalid` for a declared assistant without a route.
    pub fn agents(&self) -> Result<BTreeMap<String, Agent>, Error> {
        let mut agents: BTreeMap<String, Agent> = evenkeel_tools::agents::builtin()
            .into_iter()
            .map(|mut agent| {
                agent.limits.steps_max = self.limits.harness.steps_max;
                (agent.name.clone(), agent)
            })
            .collect();
        for (name, section) in &self.assistants {
            let agent = section.apply(name, agents.remove(name), &self.limits)?;
            agents.insert(name.clone(), agent);
        }
        Ok(agents)
    }

    /// The effective values as TOML; secrets appear as the `env:` names that were configured.
    ///
    /// # Errors
    /// `internal` if a section cannot be written as TOML.
    pub fn effective(&self) -> Result<String, Error> {
        document::print(self)
    }

    fn assistant_warnings(&self) -> Vec<String> {
        let Ok(agents) = self.agents() else {
            return Vec::new();
        };
        let missing = agents.values().filter(|agent| !self.router.routes.contains_key(&agent.route));
        missing
            .map(|agent| {
                format!(
                    "Assistant {} uses route {}, which [routes] does not have; its runs will end with route-unknown.",
                    agent.name, agent.route
                )
            })
            .collect()
    }

    fn check_address(&self) -> Result<(), Error> {
        if self.server.listen.ip().is_loopback() || self.auth.mode == AuthMode::Keys {
            return Ok(());
        }
        Err(Error::new(
            Code::AddressRefused,
            Origin::Ours,
            format!(
                "server.listen = \"{}\" is reachable beyond this machine and auth.mode is \"open\".",
                self.server.listen
            ),
            "Set auth.mode = \"keys\" and make a key, or listen on 127.0.0.1.",
        ))
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(
        Code::ConfigUnreadable,
        Origin::Ours,
        format!("Cannot read {}: {error}.", path.display()),
        "Give the path of a readable TOML file.",
    )
}

/// A `config-invalid` error.
pub(crate) fn invalid(message: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::new(Code::ConfigInvalid, Origin::Ours, message.into(), remedy.into())
}
