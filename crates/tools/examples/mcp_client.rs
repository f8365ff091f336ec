//! Our MCP client against one server, as the public conformance suite drives clients: it is given the
//! server's address, opens a session, lists the tools and calls each of them once.
//!
//! `cargo run --example mcp_client -- http://127.0.0.1:3000/mcp`. The way is the whole one of a run's
//! call: the configuration, the toolbox, policy, the session. `cargo xtask lab-full` uses it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::agent::{Agent, RunLimits};
use evenkeel_core::id::{CallId, EffectId, RunId, TenantId, ThreadId};
use evenkeel_core::message::{ToolCall, ToolSpec};
use evenkeel_core::port::runner::{Command, Exit, Runner};
use evenkeel_core::port::tools::{ToolRequest, Tools};
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use evenkeel_tools::{ToolSlots, Toolbox, ToolsConfig};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

/// Commands are not what is tried here.
struct NoCommands;

impl Runner for NoCommands {
    fn run(&self, _command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        let error = Error::new(Code::SandboxUnavailable, Origin::Ours, "There is no sandbox here.", "None.");
        Box::pin(async { Err(error) })
    }
}

fn main() -> ExitCode {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("mcp_client URL");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(play(&url)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mcp_client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Lists the tools and calls each.
async fn play(url: &str) -> Result<(), String> {
    let env = Env::real();
    let told = |error: Error| error.to_string();
    let mut config = ToolsConfig::default();
    let server = serde_json::from_value(json!({ "url": url })).map_err(|error| error.to_string())?;
    config.mcp.servers.insert("peer".to_owned(), server);
    let slots = |name| Slots::new(name, 8, 8);
    let slots = ToolSlots { policy: slots("policy"), tools: slots("tools"), sandbox: slots("sandbox") };
    let toolbox = Toolbox::start(&env, config, Arc::new(NoCommands), slots).await.map_err(told)?;
    let offered = toolbox.offered(&agent()).await.map_err(told)?;
    // A server that could not be reached offers nothing, and a conversation goes on without it.
    let mut n_failed = 0;
    let run = RunId::new(env.wall(), &env.generator);
    for (call_idx, tool) in (0..).zip(&offered) {
        let prepared = toolbox.prepare(request(&env, run, call_idx, tool)).await;
        let output = toolbox.execute(prepared).await;
        println!("{}: {}{}", tool.name, if output.is_error { "error: " } else { "" }, output.text);
        n_failed += usize::from(output.is_error);
    }
    toolbox.release(run).await;
    if n_failed > 0 { Err(format!("{n_failed} of {} calls failed", offered.len())) } else { Ok(()) }
}

fn agent() -> Agent {
    Agent {
        name: "coder".to_owned(),
        description: String::new(),
        system_prompt: String::new(),
        route: "default".to_owned(),
        tools: vec!["mcp:*".to_owned()],
        workspace: false,
        limits: RunLimits::default(),
    }
}

fn request(env: &Env, run: RunId, call_idx: u32, tool: &ToolSpec) -> ToolRequest {
    let args = arguments(&tool.input_schema);
    ToolRequest {
        tenant: TenantId::from("conformance"),
        thread: ThreadId::new(env.wall(), &env.generator),
        run,
        agent: "coder".to_owned(),
        step: 1,
        call_idx,
        effect: EffectId::of(run, 1, call_idx),
        workspace: None,
        call: ToolCall { id: CallId::of(run, 1, call_idx), name: tool.name.clone(), args, wire_id: None },
        timeout: Duration::from_secs(20),
    }
}

/// Something for each argument that a tool demands.
fn arguments(schema: &Value) -> Value {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let args = required.map(|name| {
        let value = match schema["properties"][name]["type"].as_str() {
            Some("number" | "integer") => json!(5),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            _ => json!("text"),
        };
        (name.to_owned(), value)
    });
    Value::Object(Map::from_iter(args))
}
