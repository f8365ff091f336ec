//! Verdicts a second with the policies that ship, on the path that every call takes: arguments
//! checked, facts found, judged.

use std::time::Duration;

use anyhow::{Result, ensure};
use evenkeel_core::id::{EffectId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::Verdict;
use evenkeel_core::message::ToolCall;
use evenkeel_core::port::tools::{ToolRequest, Tools};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use evenkeel_sandbox::{Launcher, SandboxConfig};
use evenkeel_tools::{ToolSlots, Toolbox, ToolsConfig};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::aim::judge;

const FOR: Duration = Duration::from_secs(3);

/// Measures and prints.
pub(crate) async fn measure(env: &Env) -> Result<()> {
    println!("\npolicy: calls judged a second by one caller, the policies that ship");
    println!("  call                                    verdicts/s  us/verdict");
    let launcher = Launcher::start(env, SandboxConfig::default())?;
    let slots = |name| Slots::new(name, 4000, 10_000);
    let slots = ToolSlots { policy: slots("policy"), tools: slots("tools"), sandbox: slots("sandbox") };
    let toolbox = Toolbox::start(env, ToolsConfig::default(), launcher, slots).await?;
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("a.txt"), "text\n")?;
    let table = [
        ("bash: make test", "bash", json!({ "command": "make test" })),
        (
            "bash: a pipeline of four parts",
            "bash",
            json!({ "command": "cd src && grep -rn foo . | sort | head -n 3" }),
        ),
        ("read_file a.txt", "read_file", json!({ "path": "a.txt" })),
    ];
    let mut slowest: f64 = 0.0;
    for (label, tool, args) in table {
        let begun = Instant::now();
        let mut n = 0_u32;
        while begun.elapsed() < FOR {
            let prepared = toolbox.prepare(request(env, folder.path(), tool, args.clone())).await;
            ensure!(prepared.verdict == Verdict::Allow, "{label} is not allowed: {:?}", prepared.verdict);
            n += 1;
        }
        let us = begun.elapsed().as_secs_f64() * 1e6 / f64::from(n);
        println!("  {label:<38}  {:>10.0}  {us:>10.1}", 1e6 / us);
        slowest = slowest.max(us);
    }
    judge("the slowest call's verdict", slowest, 100.0, "us");
    Ok(())
}

fn request(env: &Env, workspace: &std::path::Path, tool: &str, args: Value) -> ToolRequest {
    let run = RunId::new(env.wall(), &env.generator);
    ToolRequest {
        tenant: TenantId::from("bench"),
        thread: ThreadId::new(env.wall(), &env.generator),
        run,
        agent: "coder".to_owned(),
        step: 1,
        call_idx: 0,
        effect: EffectId::of(run, 1, 0),
        workspace: Some(workspace.to_owned()),
        call: ToolCall { id: "call".into(), name: tool.to_owned(), args, wire_id: None },
        timeout: Duration::from_secs(60),
    }
}
