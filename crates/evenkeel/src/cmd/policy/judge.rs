//! Asks the real toolbox what it decides about a call, without a sandbox or tool servers behind it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::{CallId, EffectId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::Verdict;
use evenkeel_core::message::ToolCall;
use evenkeel_core::port::runner::{Command, Exit, Runner};
use evenkeel_core::port::tools::{Prepared, ToolRequest};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use evenkeel_server::Config;
use evenkeel_tools::{Judged, McpConfig, PolicyMode, ToolSlots, Toolbox};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

/// A toolbox that judges and runs nothing.
pub(super) struct Judge {
    toolbox: Arc<Toolbox>,
    workspace: PathBuf,
    run: RunId,
}

/// One call.
pub(super) struct Question<'a> {
    pub(super) tool: &'a str,
    pub(super) args: Value,
    pub(super) agent: &'a str,
    pub(super) tenant: &'a str,
}

/// What is decided about it.
pub(super) struct Answer {
    prepared: Prepared,
    parts: Vec<Judged>,
}

/// Nothing is run here.
struct Nothing;

impl Runner for Nothing {
    fn run(&self, _command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        let error =
            Error::new(Code::SandboxUnavailable, Origin::Ours, "Nothing is run here.", "Use a server.");
        Box::pin(async { Err(error) })
    }
}

impl Judge {
    pub(super) async fn start(env: &Env, config: Config, workspace: &Path) -> anyhow::Result<Self> {
        let mut tools = config.tools;
        tools.mcp = McpConfig::default();
        // What would be decided is asked, whatever becomes of it.
        tools.policy.mode = PolicyMode::Enforce;
        let slots = |name| Slots::new(name, 1, 1);
        let slots = ToolSlots { policy: slots("policy"), tools: slots("tools"), sandbox: slots("sandbox") };
        let toolbox = Toolbox::start(env, tools, Arc::new(Nothing), slots).await?;
        let run = RunId::new(env.wall(), &env.generator);
        Ok(Self { toolbox, workspace: workspace.canonicalize()?, run })
    }

    pub(super) async fn ask(&self, question: Question<'_>) -> Answer {
        let Question { tool, args, agent, tenant } = question;
        let args = if args.is_null() { json!({}) } else { args };
        let call = ToolCall { id: CallId::of(self.run, 1, 0), name: tool.to_owned(), args, wire_id: None };
        let request = ToolRequest {
            tenant: TenantId::from(tenant),
            thread: ThreadId(self.run.0),
            run: self.run,
            agent: agent.to_owned(),
            step: 1,
            call_idx: 0,
            effect: EffectId::of(self.run, 1, 0),
            workspace: Some(self.workspace.clone()),
            call,
            timeout: Duration::from_secs(10),
        };
        let (prepared, parts) = self.toolbox.examine(request).await;
        Answer { prepared, parts }
    }
}

impl Answer {
    /// `allow`, `deny`, `ask`, or `refuse` for a call that cannot run as asked, whatever policy says.
    pub(super) fn verdict(&self) -> &'static str {
        match &self.prepared.refusal {
            Some(_) if self.prepared.verdict == Verdict::Allow => "refuse",
            _ => word(&self.prepared.verdict),
        }
    }

    pub(super) fn policies(&self) -> &[String] {
        &self.prepared.policies
    }

    pub(super) fn told(&self) -> String {
        let mut text = self.verdict().to_owned();
        let why = match (&self.prepared.refusal, &self.prepared.verdict) {
            (_, Verdict::Deny { reason } | Verdict::Ask { reason }) => reason.as_str(),
            (Some(refusal), Verdict::Allow) => refusal.as_str(),
            (None, Verdict::Allow) => "",
        };
        if !why.is_empty() {
            let _ = write!(text, ": {why}");
        }
        for part in &self.parts {
            let (verdict, by) = (word(&part.verdict), part.policies.join(" "));
            let by = if by.is_empty() { "no policy" } else { &by };
            let _ = write!(text, "\n  {verdict:5} {:7} {}  ({by})", part.action, part.resource);
        }
        text
    }

    pub(super) fn to_json(&self) -> Value {
        let parts: Vec<Value> = self
            .parts
            .iter()
            .map(|part| {
                json!({
                    "action": part.action,
                    "resource": part.resource,
                    "verdict": part.verdict,
                    "policies": part.policies,
                })
            })
            .collect();
        json!({
            "verdict": self.verdict(),
            "reason": self.prepared.verdict,
            "refusal": self.prepared.refusal,
            "policies": self.prepared.policies,
            "effect_class": self.prepared.class,
            "parts": parts,
        })
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny { .. } => "deny",
        Verdict::Ask { .. } => "ask",
    }
}
