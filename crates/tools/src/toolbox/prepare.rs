//! Judging a call: arguments, facts, verdict, effect class, guards. Changes nothing.

use std::path::Path;
use std::sync::Arc;

use evenkeel_core::journal::{EffectClass, Guard, Verdict};
use evenkeel_core::port::runner::{HostRule, WORKSPACE};
use evenkeel_core::port::tools::{Prepared, ToolRequest};
use serde_json::{Map, Value};

use super::connections::ForeignTool;
use super::{SLOT_WAIT_MAX, Toolbox};
use crate::arguments;
use crate::beneath::{Refusal, Root};
use crate::builtin::{Args, Context, files};
use crate::catalog::{self, BuiltinTool, Home};
use crate::mcp::ServerKind;
use crate::policy::{Fact, Judged, Judgement, Network, Policy, Redirect, Script, Who, shell_script};

/// What was found out about a call.
struct Found {
    judgement: Judgement,
    guards: Vec<Guard>,
    refusal: Option<String>,
}

impl Found {
    fn refused(text: String) -> Self {
        Self { refusal: Some(text), ..Self::judged(Judgement::unasked()) }
    }

    fn judged(judgement: Judgement) -> Self {
        Self { judgement, guards: Vec::new(), refusal: None }
    }
}

impl Toolbox {
    pub(super) async fn judge(&self, request: ToolRequest) -> Prepared {
        let (found, class, parallel) = self.look_at(&request).await;
        prepared(request, found, class, parallel)
    }

    /// What policy says of each part too. A foreign tool is judged by its name alone.
    pub(super) async fn judge_in_parts(&self, request: ToolRequest) -> (Prepared, Vec<Judged>) {
        let name = request.call.name.clone();
        let (found, class, parallel) = match name.split_once("__").filter(|_| catalog::find(&name).is_none())
        {
            Some((server, tool)) => {
                let (server, tool) = (server.to_owned(), tool.to_owned());
                let fact = Fact::Call { server, tool, read_only: false };
                let judgement = self.policy.judge(&who(&request), &name, &[fact]);
                (Found::judged(judgement), EffectClass::Unsafe, false)
            }
            None => self.look_at(&request).await,
        };
        let parts = found.judgement.parts.clone();
        (prepared(request, found, class, parallel), parts)
    }

    async fn look_at(&self, request: &ToolRequest) -> (Found, EffectClass, bool) {
        if let Some(tool) = catalog::find(&request.call.name) {
            let found = self.judge_builtin(tool, request).await;
            // Calls that only read may run side by side.
            let parallel = tool.class == EffectClass::Pure && tool.home != Home::Finish;
            return (found, self.class_of(tool, request), parallel);
        }
        match self.connections.find(&request.call.name).await {
            Some(tool) => {
                let found = self.judge_foreign(&tool, request).await;
                let class = tool.class();
                (found, class, class == EffectClass::Pure)
            }
            None => {
                let name = &request.call.name;
                let text = format!("There is no tool {name}. Use only the tools that were offered.");
                (Found::refused(text), EffectClass::Pure, true)
            }
        }
    }

    /// A command that reaches other hosts has effects that no snapshot takes back.
    fn class_of(&self, tool: &BuiltinTool, request: &ToolRequest) -> EffectClass {
        let reaches = || !self.reach(request, &shell_script(command_of(request))).hosts.is_empty();
        if tool.home == Home::Shell && reaches() { EffectClass::Unsafe } else { tool.class }
    }

    async fn judge_builtin(&self, tool: &BuiltinTool, request: &ToolRequest) -> Found {
        if let Some(fault) = arguments::check(tool.name, &tool.schema(), &request.call.args) {
            return Found::refused(fault);
        }
        if tool.home == Home::Finish {
            // Ending its own run is no effect that policy speaks of.
            return Found::judged(Judgement::unasked());
        }
        if request.workspace.is_none() {
            return Found::refused(format!("{} needs a workspace, and this run has none.", tool.name));
        }
        let Ok(_slot) = self.slots.policy.acquire(&request.tenant, SLOT_WAIT_MAX).await else {
            return unjudged();
        };
        let who = who(request);
        match tool.home {
            Home::Server(ServerKind::Files | ServerKind::Grep) => self.judge_files(tool, request, who).await,
            Home::Server(ServerKind::Git) => {
                let facts = git_facts(tool.name, &request.call.args);
                Found::judged(self.policy.judge(&who, tool.name, &facts))
            }
            _ => self.judge_shell(tool, request, who).await,
        }
    }

    async fn judge_shell(&self, tool: &BuiltinTool, request: &ToolRequest, who: Who) -> Found {
        let script = shell_script(command_of(request));
        let reach = self.reach(request, &script);
        let network = if reach.hosts.is_empty() { Network::None } else { Network::Listed };
        let Script { parts, redirects } = script;
        let mut facts: Vec<Fact> = parts.into_iter().map(|part| Fact::Exec(part, network)).collect();
        if !redirects.is_empty() {
            let workspace = request.workspace.clone().unwrap_or_default();
            let cwd = request.call.args.get("cwd").and_then(Value::as_str).unwrap_or_default().to_owned();
            let work = self.pool.run(move || redirected(&workspace, &cwd, &redirects));
            match work.await {
                Ok(Ok(more)) => facts.extend(more),
                Ok(Err(refusal)) => return Found::refused(refusal.0),
                Err(_) => return unjudged(),
            }
        }
        facts.extend(reach.hosts.into_iter().map(Fact::Connect));
        Found::judged(self.policy.judge(&who, tool.name, &facts))
    }

    /// The hosts that a shell call reaches: those of its agent's list to which policy lets it
    /// connect. A call that cannot be read in full runs without network.
    pub(super) fn reach(&self, request: &ToolRequest, script: &Script) -> Reach {
        let listed = self.config.network.of(&request.agent);
        if listed.is_empty() {
            return Reach::default();
        }
        if script.parts.iter().any(|part| !part.parsed) {
            return Reach { hosts: Vec::new(), is_withheld: true };
        }
        let who = who(request);
        let may = |rule: &&HostRule| {
            let fact = Fact::Connect((*rule).clone());
            self.policy.judge(&who, "bash", &[fact]).verdict == Verdict::Allow
        };
        Reach { hosts: listed.iter().filter(may).cloned().collect(), is_withheld: false }
    }

    async fn judge_files(&self, tool: &BuiltinTool, request: &ToolRequest, who: Who) -> Found {
        let (policy, workspace) = (self.policy.clone(), request.workspace.clone().unwrap_or_default());
        let (name, class) = (tool.name, tool.class);
        let args = request.call.args.as_object().cloned().unwrap_or_default();
        let work = self.pool.run(move || {
            let judged = Root::open(&workspace).and_then(|root| match class {
                EffectClass::Guarded => guarded(&policy, &who, &root, name, &args),
                _ => read(&policy, &who, &root, name, &args),
            });
            judged.unwrap_or_else(|refusal| Found::refused(refusal.0))
        });
        work.await.unwrap_or_else(|_| unjudged())
    }

    async fn judge_foreign(&self, tool: &ForeignTool, request: &ToolRequest) -> Found {
        if let Some(fault) = arguments::check(&request.call.name, &tool.schema(), &request.call.args) {
            return Found::refused(fault);
        }
        let Ok(_slot) = self.slots.policy.acquire(&request.tenant, SLOT_WAIT_MAX).await else {
            return unjudged();
        };
        let fact = Fact::Call {
            server: tool.server.name.clone(),
            tool: tool.tool.name.to_string(),
            read_only: tool.class() == EffectClass::Pure,
        };
        Found::judged(self.policy.judge(&who(request), &request.call.name, &[fact]))
    }

    /// What a built-in server of this run works with.
    pub(super) fn context(&self, request: &ToolRequest) -> Option<Context> {
        let (policy, who) = (self.policy.clone(), who(request));
        let mut limits = self.config.command.clone();
        limits.wall_ms = limits.wall_ms.min(u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX));
        Some(Context {
            tenant: request.tenant.clone(),
            run: request.run,
            workspace: request.workspace.clone()?,
            pool: self.pool.clone(),
            runner: Some(self.runner.clone()),
            limits,
            readable: Arc::new(move |path| policy.readable(&who, "grep", path)),
        })
    }
}

/// What a shell call may reach.
#[derive(Default)]
pub(super) struct Reach {
    pub(super) hosts: Vec<HostRule>,
    /// The agent has a list, and this call does not get it.
    pub(super) is_withheld: bool,
}

pub(super) fn command_of(request: &ToolRequest) -> &str {
    request.call.args.get("command").and_then(Value::as_str).unwrap_or_default()
}

/// What the redirections of a shell call open. Places of the sandbox's own are no files of the
/// workspace; a path that leads out of it leads to those.
fn redirected(workspace: &Path, cwd: &str, redirects: &[Redirect]) -> Result<Vec<Fact>, Refusal> {
    let root = Root::open(workspace)?;
    let mut facts = Vec::new();
    for Redirect { target, known, writes } in redirects {
        if target.starts_with('/') && !Path::new(target).starts_with(WORKSPACE) {
            continue;
        }
        let place = Path::new(cwd).join(target);
        let resolved = root.resolve(&place.to_string_lossy()).ok().filter(|_| *known);
        facts.push(match resolved {
            Some(resolved) if *writes => Fact::Write(resolved.path),
            Some(resolved) => Fact::Read(resolved.path),
            None => Fact::Unknown { path: target.clone(), writes: *writes },
        });
    }
    Ok(facts)
}

/// What a git tool names, or the whole workspace. The paths are git's own and pass no link: it
/// stores links as such, and looks nothing up through them.
fn git_facts(tool: &str, args: &Value) -> Vec<Fact> {
    let fact = |path: &str| match tool {
        "git_commit" => Fact::Commit(path.to_owned()),
        _ => Fact::read(path),
    };
    let many = args.get("paths").and_then(Value::as_array).into_iter().flatten();
    let named = many.chain(args.get("path")).filter_map(Value::as_str);
    let mut facts: Vec<Fact> = named.map(|path| fact(&plain(path))).collect();
    if facts.is_empty() {
        facts.push(fact(""));
    }
    facts
}

/// A path as git takes it: without the workspace's own name, `.` and empty parts, and with `..`
/// taken back by the letter.
fn plain(path: &str) -> String {
    let inside = path.strip_prefix(WORKSPACE).unwrap_or(path);
    let mut parts: Vec<&str> = Vec::new();
    for part in inside.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn prepared(request: ToolRequest, found: Found, class: EffectClass, parallel: bool) -> Prepared {
    Prepared {
        request,
        verdict: found.judgement.verdict,
        policies: found.judgement.policies,
        class,
        parallel,
        guards: found.guards,
        refusal: found.refusal,
    }
}

fn who(request: &ToolRequest) -> Who {
    Who { tenant: request.tenant.clone(), run: request.run, agent: request.agent.clone() }
}

/// Without a judgement nothing runs.
fn unjudged() -> Found {
    let reason = "The policy engine could not judge this call, so it was not run. Try again.".to_owned();
    Found::judged(Judgement { verdict: Verdict::Deny { reason }, ..Judgement::unasked() })
}

fn read(
    policy: &Policy,
    who: &Who,
    root: &Root,
    tool: &str,
    args: &Map<String, Value>,
) -> Result<Found, Refusal> {
    let resolved = root.resolve(Args(args).optional_text("path").unwrap_or("."))?;
    let judgement = policy.judge(who, tool, &[Fact::read(&resolved.path)]);
    if !resolved.exists && judgement.verdict == Verdict::Allow {
        return Err(crate::beneath::refusal(rustix::io::Errno::NOENT, &resolved.path));
    }
    Ok(Found::judged(judgement))
}

fn guarded(
    policy: &Policy,
    who: &Who,
    root: &Root,
    tool: &str,
    args: &Map<String, Value>,
) -> Result<Found, Refusal> {
    let args = Args(args);
    let mut facts = Vec::new();
    for path in files::written(root, tool, &args)? {
        // A failed edit shows the nearest text of the file, so editing is reading too.
        if tool != "write_file" {
            facts.push(Fact::read(&path));
        }
        facts.push(Fact::write(&path));
    }
    let judgement = policy.judge(who, tool, &facts);
    if judgement.verdict != Verdict::Allow {
        // What the plan would say about the files is not for one who may not see them. A call that
        // a person allows is planned again when it runs, and its guards are those of that plan.
        let guards = match judgement.verdict {
            Verdict::Ask { .. } => guards_of(files::plan(root, tool, &args)).unwrap_or_default(),
            _ => Vec::new(),
        };
        return Ok(Found { guards, ..Found::judged(judgement) });
    }
    match guards_of(files::plan(root, tool, &args)) {
        Ok(guards) => Ok(Found { guards, ..Found::judged(judgement) }),
        Err(refusal) => Ok(Found { refusal: Some(refusal.0), ..Found::judged(judgement) }),
    }
}

fn guards_of(plan: Result<Vec<files::Change>, Refusal>) -> Result<Vec<Guard>, Refusal> {
    plan.map(|changes| changes.iter().map(files::Change::guard).collect())
}
