//! `bash`: one command in a fresh sandbox, and how it ended in words.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::port::runner::{Command, Exit, LimitHit, Runner, RunnerLimits, WORKSPACE};
use evenkeel_core::port::tools::{ToolOutput, ToolRequest};
use serde_json::{Map, json};

use super::prepare::Reach;
use super::{failed, failed_with};
use crate::builtin::Args;

pub(super) async fn run(
    runner: &Arc<dyn Runner>,
    limits: &RunnerLimits,
    request: &ToolRequest,
    reach: Reach,
) -> ToolOutput {
    let Some(workspace) = request.workspace.clone() else {
        return failed("This run has no workspace.");
    };
    let empty = Map::new();
    let args = Args(request.call.args.as_object().unwrap_or(&empty));
    let wall_ms = wall_ms(&args, limits, request.timeout);
    let command = Command {
        tenant: request.tenant.clone(),
        run: request.run,
        argv: vec![shell(), "-c".to_owned(), args.text("command").to_owned()],
        workspace,
        read_only: false,
        cwd: relative(args.optional_text("cwd").unwrap_or_default()),
        env: Vec::new(),
        stdin: Vec::new(),
        limits: RunnerLimits { wall_ms, ..limits.clone() },
        hosts: reach.hosts,
    };
    match runner.run(command).await {
        Ok(exit) => output_of(&exit, wall_ms, reach.is_withheld),
        Err(error) => failed_with(&error),
    }
}

/// The least of what was asked, what the call may take and what a command may take.
fn wall_ms(args: &Args<'_>, limits: &RunnerLimits, timeout: Duration) -> u64 {
    let asked = match args.optional_count("timeout_s") {
        Some(seconds) => timeout.min(Duration::from_secs(seconds)),
        None => timeout,
    };
    u64::try_from(asked.as_millis()).unwrap_or(u64::MAX).min(limits.wall_ms).max(1)
}

/// The sandbox shows the host's own programs read-only.
fn shell() -> String {
    let bash = "/bin/bash";
    if Path::new(bash).exists() { bash.to_owned() } else { "/bin/sh".to_owned() }
}

fn relative(cwd: &str) -> String {
    let inside = cwd.strip_prefix(WORKSPACE).unwrap_or(cwd);
    inside.trim_matches('/').trim_start_matches("./").to_owned()
}

fn output_of(exit: &Exit, wall_ms: u64, is_withheld: bool) -> ToolOutput {
    let mut text = String::from_utf8_lossy(&exit.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&exit.stderr);
    if !stderr.is_empty() {
        end_line(&mut text);
        text.push_str("[stderr]\n");
        text.push_str(&stderr);
    }
    end_line(&mut text);
    if exit.bytes_dropped > 0 {
        text.push_str(&format!("[{} more bytes of output were dropped]\n", exit.bytes_dropped));
    }
    if is_withheld && exit.code != Some(0) {
        text.push_str("[this ran without network, because it could not be read in full; write it with plain commands]\n");
    }
    for refused in &exit.refused {
        text.push_str(&format!("[network: {refused}]\n"));
    }
    text.push_str(&ending(exit, wall_ms));
    let facts = json!({
        "exit_code": exit.code,
        "signal": exit.signal,
        "limit": exit.limit,
        "ms": exit.ms,
        "bytes_dropped": exit.bytes_dropped,
        "refused": exit.refused,
    });
    ToolOutput { text, is_error: exit.code != Some(0), facts, finish: None }
}

fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

fn ending(exit: &Exit, wall_ms: u64) -> String {
    let seconds = Duration::from_millis(wall_ms).as_secs_f64();
    let limit = exit.limit.map(|limit| match limit {
        LimitHit::Time => format!("the time limit of {seconds} s; everything it had started was killed"),
        LimitHit::Cpu => "the limit of processor time".to_owned(),
        LimitHit::Memory => "the memory limit".to_owned(),
        LimitHit::Output => "the limit of output; print less, or into a file".to_owned(),
        LimitHit::FileSize => "the limit of a file's size".to_owned(),
        LimitHit::Workspace => {
            "the limit of what the workspace may hold; remove what is not needed".to_owned()
        }
    });
    match (limit, exit.code, exit.signal) {
        (Some(limit), _, _) => format!("[stopped by {limit}]"),
        (None, Some(code), _) => format!("[exit code {code}]"),
        (None, None, Some(signal)) => format!("[killed by signal {signal}]"),
        (None, None, None) => "[ended in a way that is not known]".to_owned(),
    }
}
