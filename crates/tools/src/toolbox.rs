//! The tools port: offers, judges and runs calls.
//!
//! `prepare` checks arguments, judges by policy, tells the effect class and, for file changes, the
//! hashes before and after; it changes nothing, and whatever fails inside it is a deny. `execute`
//! takes a slot of the component that does the work, then runs the call under its time limit; the
//! limit counts from the slot on, because waiting in line is not the tool's time.

mod connections;
mod prepare;
mod shell;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::agent::Agent;
use evenkeel_core::id::RunId;
use evenkeel_core::journal::{Guard, Verdict};
use evenkeel_core::message::ToolSpec;
use evenkeel_core::port::runner::{Command, Exit, Runner};
use evenkeel_core::port::tools::{GuardState, Prepared, ToolOutput, ToolRequest, Tools};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::agents::ALL_MCP_TOOLS;
use crate::beneath::Root;
use crate::blocking::Blocking;
use crate::builtin::files;
use crate::catalog::{self, Home};
use crate::config::ToolsConfig;
use crate::policy::{Judged, Policy, shell_script, watch};
use connections::Connections;

/// The longest that accepted work waits in line for a slot. Its run's own deadline ends it sooner;
/// work that was accepted is not failed because a component is full.
pub(crate) const SLOT_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Time beyond a call's limit in which its own tool ends it and returns what it has.
const GRACE: Duration = Duration::from_secs(2);

/// Threads for file work; more would only queue on the same disk.
const N_THREADS: usize = 4;

/// The slots of the three components that a call passes.
#[derive(Clone)]
pub struct ToolSlots {
    /// The policy engine.
    pub policy: Slots,
    /// The tool servers.
    pub tools: Slots,
    /// The sandboxes.
    pub sandbox: Slots,
}

/// Tools and policy of one process.
pub struct Toolbox {
    config: ToolsConfig,
    policy: Arc<Policy>,
    slots: ToolSlots,
    pool: Blocking,
    runner: Arc<dyn Runner>,
    connections: Connections,
}

impl Toolbox {
    /// Loads the policies and makes the tools ready. Foreign servers start when first used.
    ///
    /// # Errors
    /// `policy-invalid`, `config-invalid`.
    pub fn start(
        env: &Env,
        config: ToolsConfig,
        runner: Arc<dyn Runner>,
        slots: ToolSlots,
    ) -> BoxFuture<'static, Result<Arc<Self>, Error>> {
        let env = env.part("tools");
        Box::pin(async move {
            check_servers(&config)?;
            let policy = Arc::new(Policy::load(&config.policy)?);
            let pool = Blocking::start(&env, "tool-files", N_THREADS);
            watch::start(&env, &policy, &pool);
            let runner: Arc<dyn Runner> = Arc::new(Slotted { runner, slots: slots.sandbox.clone() });
            let connections = Connections::new(&env, &config.mcp);
            Ok(Arc::new(Self { config, policy, slots, pool, runner, connections }))
        })
    }

    /// Judges a call as [`Tools::prepare`] does, and says the verdict on each thing that it would do.
    /// A tool of a foreign server (`server__tool`) is judged without asking the server.
    pub fn examine(&self, request: ToolRequest) -> BoxFuture<'_, (Prepared, Vec<Judged>)> {
        Box::pin(self.judge_in_parts(request))
    }

    async fn specs_of(&self, agent: &Agent, name: &str) -> Result<Vec<ToolSpec>, Error> {
        if let Some(tool) = catalog::find(name) {
            let mut spec = tool.spec();
            let hosts = self.config.network.of(&agent.name);
            if tool.home == Home::Shell && !hosts.is_empty() {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                let reach =
                    format!("network only through the proxy that is set, and only to {}", hosts.join(", "));
                spec.description = spec.description.replace("no network", &reach);
            }
            return Ok(vec![spec]);
        }
        if name == ALL_MCP_TOOLS {
            return Ok(self.connections.specs(None).await);
        }
        if let Some(server) = name.strip_prefix("mcp:") {
            return Ok(self.connections.specs(Some(server)).await);
        }
        match self.connections.find(name).await {
            Some(found) => Ok(vec![found.spec()]),
            None => Err(Error::new(
                Code::ToolUnknown,
                Origin::Ours,
                format!("The agent {} lists a tool {name}, which does not exist.", agent.name),
                "Correct the agent's list of tools; tools of MCP servers are named mcp:SERVER or SERVER__TOOL.",
            )),
        }
    }

    async fn run(&self, prepared: Prepared) -> ToolOutput {
        if let Some(text) = refused(&prepared) {
            return text;
        }
        let request = &prepared.request;
        let limit = request.timeout + GRACE;
        match catalog::find(&request.call.name).map(|tool| tool.home) {
            Some(Home::Finish) => finished(&request.call.args),
            // The sandbox's slot is taken inside; the runner keeps the limit itself, so that what
            // was printed until then is returned.
            Some(Home::Shell) => {
                let reach = self.reach(request, &shell_script(prepare::command_of(request)));
                shell::run(&self.runner, &self.config.command, request, reach).await
            }
            Some(Home::Server(kind)) => {
                let Some(context) = self.context(request) else {
                    return failed("This run has no workspace.");
                };
                let Ok(_slot) = self.slots.tools.acquire(&request.tenant, SLOT_WAIT_MAX).await else {
                    return failed("All tool servers stayed busy; try again.");
                };
                self.connections.call_local(kind, context, &prepared, limit).await
            }
            None => {
                let Ok(_slot) = self.slots.tools.acquire(&request.tenant, SLOT_WAIT_MAX).await else {
                    return failed("All tool servers stayed busy; try again.");
                };
                self.connections.call_foreign(&prepared, request.timeout).await
            }
        }
    }
}

/// Names become parts of tool names on the model's wire.
fn check_servers(config: &ToolsConfig) -> Result<(), Error> {
    let fits = |name: &str| {
        !name.is_empty()
            && name.len() <= 20
            && !name.contains("__")
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    let invalid = |name: &str, what: &str, remedy: &str| {
        Err(Error::new(
            Code::ConfigInvalid,
            Origin::Ours,
            format!("mcp.servers.{name}: {what}."),
            remedy.to_owned(),
        ))
    };
    for (name, server) in &config.mcp.servers {
        if !fits(name) {
            let what = "a server's name has at most 20 letters, digits, _ and -, and no __";
            return invalid(name, what, "Rename the server.");
        }
        if server.command.is_some() == server.url.is_some() {
            let what = "a server has either a command or a url";
            return invalid(
                name,
                what,
                "Write command for a program, url for a server that is reached by HTTP.",
            );
        }
        if server.token.as_deref().is_some_and(|token| !token.starts_with("env:")) {
            let what = "token names no variable";
            return invalid(name, what, "Put the token into a variable and write token = \"env:NAME\".");
        }
    }
    Ok(())
}

fn refused(prepared: &Prepared) -> Option<ToolOutput> {
    if let Some(text) = &prepared.refusal {
        return Some(failed(text));
    }
    match &prepared.verdict {
        Verdict::Allow => None,
        Verdict::Deny { reason } => Some(failed(reason)),
        Verdict::Ask { reason } => Some(failed(&format!("This call needs an approval: {reason}"))),
    }
}

pub(crate) fn failed(text: &str) -> ToolOutput {
    ToolOutput { text: text.to_owned(), is_error: true, facts: Value::Null, finish: None }
}

/// An error of a port as the model sees it, with its code for traces.
pub(crate) fn failed_with(error: &Error) -> ToolOutput {
    ToolOutput {
        facts: json!({"code": error.code}),
        ..failed(&format!("{} {}", error.message, error.remedy))
    }
}

fn finished(args: &Value) -> ToolOutput {
    let summary = args.get("summary").and_then(Value::as_str).unwrap_or_default().to_owned();
    ToolOutput { text: summary.clone(), is_error: false, facts: Value::Null, finish: Some(summary) }
}

impl Tools for Toolbox {
    fn offered(&self, agent: &Agent) -> BoxFuture<'_, Result<Vec<ToolSpec>, Error>> {
        let agent = agent.clone();
        Box::pin(async move {
            let mut specs: Vec<ToolSpec> = Vec::new();
            for name in &agent.tools {
                for spec in self.specs_of(&agent, name).await? {
                    if !specs.iter().any(|known| known.name == spec.name) {
                        specs.push(spec);
                    }
                }
            }
            Ok(specs)
        })
    }

    fn prepare(&self, request: ToolRequest) -> BoxFuture<'_, Prepared> {
        Box::pin(self.judge(request))
    }

    fn execute(&self, prepared: Prepared) -> BoxFuture<'_, ToolOutput> {
        Box::pin(self.run(prepared))
    }

    fn guards_now(&self, workspace: PathBuf, guards: Vec<Guard>) -> BoxFuture<'_, GuardState> {
        let work = self.pool.run(move || state_of(&workspace, &guards));
        Box::pin(async move { work.await.unwrap_or(GuardState::Other) })
    }

    fn release(&self, run: RunId) -> BoxFuture<'_, ()> {
        self.connections.release(run);
        Box::pin(std::future::ready(()))
    }
}

fn state_of(workspace: &std::path::Path, guards: &[Guard]) -> GuardState {
    let Ok(root) = Root::open(workspace) else {
        return GuardState::Other;
    };
    let (mut before, mut after) = (true, true);
    for guard in guards {
        let Ok(now) = files::hash_now(&root, &guard.path) else {
            return GuardState::Other;
        };
        before &= now == guard.before;
        after &= now == guard.after;
    }
    match (before, after) {
        // Nothing to change counts as done.
        (_, true) => GuardState::After,
        (true, false) => GuardState::Before,
        (false, false) => GuardState::Other,
    }
}

/// A runner behind the slots of the sandboxes.
struct Slotted {
    runner: Arc<dyn Runner>,
    slots: Slots,
}

impl Runner for Slotted {
    fn run(&self, command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        Box::pin(async move {
            let _slot = self.slots.acquire(&command.tenant, SLOT_WAIT_MAX).await?;
            self.runner.run(command).await
        })
    }
}

#[cfg(test)]
mod tests;
