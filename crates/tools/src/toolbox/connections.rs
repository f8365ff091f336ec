//! Sessions with tool servers: built-in ones per run and kind, foreign ones per process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::id::RunId;
use evenkeel_core::journal::EffectClass;
use evenkeel_core::message::ToolSpec;
use evenkeel_core::port::tools::{Prepared, ToolOutput};
use evenkeel_env::Env;
use rmcp::model::Tool;
use serde_json::{Map, Value};

use super::{failed, failed_with};
use crate::builtin::OUTPUT_BYTES_MAX;
use crate::builtin::{self, Context, Outcome, Server};
use crate::config::{McpConfig, McpEffect, McpHints};
use crate::mcp::foreign::Foreign;
use crate::mcp::session::{Call, CallError, Session, timed_out};
use crate::mcp::{ServerKind, local};

type Local = Arc<tokio::sync::Mutex<Option<Arc<Session>>>>;

/// All sessions of a process.
pub(super) struct Connections {
    env: Env,
    local: Mutex<BTreeMap<(RunId, ServerKind), Local>>,
    foreign: BTreeMap<String, Arc<Foreign>>,
}

/// A tool of a foreign server.
pub(super) struct ForeignTool {
    pub(super) server: Arc<Foreign>,
    pub(super) tool: Tool,
}

impl ForeignTool {
    /// How a call is settled after a crash, as far as the server's hints are believed.
    pub(super) fn class(&self) -> EffectClass {
        match self.server.config.effects.get(self.tool.name.as_ref()) {
            Some(McpEffect::Pure) => return EffectClass::Pure,
            Some(McpEffect::Idempotent) => return EffectClass::Idempotent,
            Some(McpEffect::Unsafe) => return EffectClass::Unsafe,
            None => {}
        }
        let hints = self.tool.annotations.clone().unwrap_or_default();
        let trust = self.server.config.hints;
        if trust == McpHints::Trusted && hints.read_only_hint == Some(true) {
            EffectClass::Pure
        } else if trust != McpHints::Ignored && hints.idempotent_hint == Some(true) {
            EffectClass::Idempotent
        } else {
            EffectClass::Unsafe
        }
    }

    pub(super) fn schema(&self) -> Value {
        Value::Object((*self.tool.input_schema).clone())
    }

    pub(super) fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: full_name(&self.server.name, &self.tool.name),
            description: self.tool.description.as_deref().unwrap_or_default().to_owned(),
            input_schema: self.schema(),
        }
    }
}

/// The name on the model's wire: `server__tool`, other characters replaced, at most 64.
fn full_name(server: &str, tool: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    format!("{server}__{tool}").chars().map(clean).take(64).collect()
}

impl Connections {
    pub(super) fn new(env: &Env, config: &McpConfig) -> Self {
        let servers = config.servers.iter();
        let foreign = servers
            .map(|(name, server)| (name.clone(), Arc::new(Foreign::new(env, name.clone(), server.clone()))))
            .collect();
        Self { env: env.clone(), local: Mutex::default(), foreign }
    }

    /// The tools of one foreign server, or of all. A server that cannot be reached now offers
    /// nothing: the run goes on without it.
    pub(super) async fn specs(&self, server: Option<&str>) -> Vec<ToolSpec> {
        let mut specs = Vec::new();
        let wanted = |foreign: &&Arc<Foreign>| server.is_none_or(|name| name == foreign.name);
        for foreign in self.foreign.values().filter(wanted) {
            match foreign.tools().await {
                Ok(tools) => {
                    let spec = |tool| ForeignTool { server: foreign.clone(), tool }.spec();
                    specs.extend(tools.into_iter().map(spec));
                }
                Err(error) => tracing::warn!(server = %foreign.name, %error, "tool server offers nothing"),
            }
        }
        specs
    }

    /// The foreign tool of this name on the model's wire.
    pub(super) async fn find(&self, name: &str) -> Option<ForeignTool> {
        let (server, _) = name.split_once("__")?;
        let server = self.foreign.get(server)?;
        let tools = server.tools().await.ok()?;
        let tool = tools.into_iter().find(|tool| full_name(&server.name, &tool.name) == name)?;
        Some(ForeignTool { server: server.clone(), tool })
    }

    /// Calls a tool of a built-in server over its run's session.
    pub(super) async fn call_local(
        &self,
        kind: ServerKind,
        context: Context,
        prepared: &Prepared,
        limit: Duration,
    ) -> ToolOutput {
        if self.env.spawner.runs_inline() {
            return here(kind, &context, prepared, limit).await;
        }
        let slot = self.local_slot(prepared.request.run, kind);
        let name = &prepared.request.call.name;
        let mut n_tries = 0;
        loop {
            n_tries += 1;
            let session = match self.local_session(&slot, kind, &context).await {
                Ok(session) => session,
                Err(error) => return failed_with(&error),
            };
            let error = match session.call(call(name, prepared, limit, OUTPUT_BYTES_MAX)).await {
                Ok(output) => return output,
                Err(error) => error,
            };
            if is_gone(&error) {
                *slot.lock().await = None;
            }
            if n_tries > 1 || !may_repeat(&error, prepared.class) {
                return output_of(error, name, limit);
            }
        }
    }

    /// Calls a tool of a foreign server; a lost session is opened once more.
    pub(super) async fn call_foreign(&self, prepared: &Prepared, limit: Duration) -> ToolOutput {
        let name = &prepared.request.call.name;
        match tokio::time::timeout(limit, self.try_foreign(prepared, limit)).await {
            Ok(output) => output,
            Err(_) => output_of(CallError::TimedOut, name, limit),
        }
    }

    async fn try_foreign(&self, prepared: &Prepared, limit: Duration) -> ToolOutput {
        let name = &prepared.request.call.name;
        let mut n_tries = 0;
        loop {
            n_tries += 1;
            let Some(ForeignTool { server, tool }) = self.find(name).await else {
                return failed(&format!("The tool {name} cannot be reached now. Go on without it."));
            };
            let session = match server.session().await {
                Ok(session) => session,
                Err(error) => return failed_with(&error),
            };
            let bytes_max = server.config.output_bytes_max;
            let limit = server.config.call_ms_max.map_or(limit, |ms| limit.min(Duration::from_millis(ms)));
            let error = match session.call(call(&tool.name, prepared, limit, bytes_max)).await {
                Ok(output) => {
                    server.worked().await;
                    return output;
                }
                Err(error) => error,
            };
            if is_gone(&error) {
                server.forget(&session).await;
            }
            if n_tries > 1 || !may_repeat(&error, prepared.class) {
                return output_of(error, name, limit);
            }
        }
    }

    fn local_slot(&self, run: RunId, kind: ServerKind) -> Local {
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        local.entry((run, kind)).or_default().clone()
    }

    async fn local_session(
        &self,
        slot: &Local,
        kind: ServerKind,
        context: &Context,
    ) -> Result<Arc<Session>, Error> {
        let mut open = slot.lock().await;
        if let Some(session) = open.as_ref().filter(|session| session.is_open()) {
            return Ok(session.clone());
        }
        let server = Server::new(kind, context.clone());
        let session = Arc::new(local::open(&self.env, kind.as_str(), server).await?);
        *open = Some(session.clone());
        Ok(session)
    }

    /// Closes the built-in sessions of a run.
    pub(super) fn release(&self, run: RunId) {
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        local.retain(|(of, _), _| *of != run);
    }
}

/// Calls a tool of a built-in server without a session: the MCP library starts tasks of its own and
/// chooses between ready ones by chance, which a simulation can neither stop nor repeat.
async fn here(kind: ServerKind, context: &Context, prepared: &Prepared, limit: Duration) -> ToolOutput {
    let name = &prepared.request.call.name;
    let args = prepared.request.call.args.as_object().cloned().unwrap_or_default();
    match tokio::time::timeout(limit, builtin::call(kind, context, name, args)).await {
        Ok(Outcome { text, is_error, facts }) => ToolOutput { text, is_error, facts, finish: None },
        Err(_) => output_of(CallError::TimedOut, name, limit),
    }
}

fn call<'a>(tool: &'a str, prepared: &'a Prepared, timeout: Duration, output_bytes_max: usize) -> Call<'a> {
    let args = prepared.request.call.args.as_object().cloned().unwrap_or_else(Map::new);
    Call { tool, args, effect: &prepared.request.effect, timeout, output_bytes_max }
}

fn is_gone(error: &CallError) -> bool {
    matches!(error, CallError::Lost(_) | CallError::Unknown(_))
}

/// A call that never reached the server may be made again; one whose answer was lost only if
/// repeating it does no harm.
fn may_repeat(error: &CallError, class: EffectClass) -> bool {
    match error {
        CallError::Unknown(_) => true,
        CallError::Lost(_) => matches!(class, EffectClass::Pure | EffectClass::Idempotent),
        CallError::TimedOut | CallError::Refused(_) => false,
    }
}

fn output_of(error: CallError, tool: &str, limit: Duration) -> ToolOutput {
    match error {
        CallError::Lost(error) | CallError::Unknown(error) => failed_with(&error),
        CallError::TimedOut => failed_with(&timed_out(tool, limit)),
        CallError::Refused(text) => failed(&text),
    }
}
