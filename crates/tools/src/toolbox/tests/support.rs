//! A toolbox over a temporary workspace, with a runner that runs commands on this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::id::{CallId, EffectId, RunId, TenantId, ThreadId};
use evenkeel_core::journal::Verdict;
use evenkeel_core::message::ToolCall;
use evenkeel_core::port::runner::{Command, Exit, LimitHit, Runner};
use evenkeel_core::port::tools::{Prepared, ToolOutput, ToolRequest, Tools};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::io::AsyncReadExt;

use crate::{ToolSlots, Toolbox, ToolsConfig};

/// Isolates nothing: what is tested here is what is asked of the runner and how its answer reads.
#[derive(Default)]
struct HostRunner {
    asked: Mutex<Vec<Command>>,
}

impl Runner for HostRunner {
    fn run(&self, command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        self.asked.lock().unwrap().push(command.clone());
        Box::pin(async move {
            let (program, args) = command.argv.split_first().unwrap();
            let mut child = evenkeel_env::process::command(program)
                .args(args)
                .current_dir(command.workspace.join(&command.cwd))
                .env("PATH", "/usr/local/bin:/usr/bin:/bin")
                .envs(command.env)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0)
                .spawn()
                .unwrap();
            let group = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
            let mut stdin = child.stdin.take().unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stdin, &command.stdin).await.unwrap();
            drop(stdin);
            let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
            let mut exit = Exit::default();
            let limit = Duration::from_millis(command.limits.wall_ms);
            let reading = async {
                let (stdout, stderr) = (&mut exit.stdout, &mut exit.stderr);
                let _ = tokio::join!(out.read_to_end(stdout), err.read_to_end(stderr));
                child.wait().await.unwrap()
            };
            match tokio::time::timeout(limit, reading).await {
                Ok(status) => exit.code = status.code(),
                Err(_) => {
                    rustix::process::kill_process_group(group.unwrap(), rustix::process::Signal::KILL)
                        .unwrap();
                    exit.limit = Some(LimitHit::Time);
                    exit.signal = Some(9);
                }
            }
            Ok(exit)
        })
    }
}

pub(super) struct Bench {
    pub(super) toolbox: Arc<Toolbox>,
    pub(super) slots: ToolSlots,
    pub(super) run: RunId,
    runner: Arc<HostRunner>,
    directory: tempfile::TempDir,
}

impl Bench {
    pub(super) async fn new() -> Self {
        Self::with(ToolsConfig::default()).await
    }

    pub(super) async fn with(config: ToolsConfig) -> Self {
        let env = Env::seeded(1);
        let slots = ToolSlots {
            policy: Slots::new("policy", 10, 10),
            tools: Slots::new("tools", 10, 10),
            sandbox: Slots::new("sandbox", 10, 10),
        };
        let runner = Arc::new(HostRunner::default());
        let toolbox = Toolbox::start(&env, config, runner.clone(), slots.clone()).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("tree")).unwrap();
        Self { toolbox, slots, run: RunId::new(env.wall(), &env.generator), runner, directory }
    }

    pub(super) fn runner(&self) -> Arc<dyn Runner> {
        self.runner.clone()
    }

    /// The commands asked of the sandbox since this was called last.
    pub(super) fn asked(&self) -> Vec<Command> {
        std::mem::take(&mut self.runner.asked.lock().unwrap())
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("tree")
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    pub(super) fn write_bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(super) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path().join(path)).unwrap()
    }

    pub(super) fn set_mode(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.path().join(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(super) fn mode(&self, path: &str) -> u32 {
        std::fs::metadata(self.path().join(path)).unwrap().permissions().mode() & 0o7777
    }

    pub(super) fn link(&self, path: &str, target: &Path) {
        std::os::unix::fs::symlink(target, self.path().join(path)).unwrap();
    }

    pub(super) fn make_fifo(&self, path: &str) {
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o644));
        rustix::fs::mknodat(rustix::fs::CWD, self.path().join(path), kind, mode, 0).unwrap();
    }

    pub(super) async fn prepare(&self, tool: &str, args: Value) -> Prepared {
        self.prepare_for(tool, args, Duration::from_secs(20)).await
    }

    pub(super) async fn prepare_for(&self, tool: &str, args: Value, timeout: Duration) -> Prepared {
        let call = ToolCall { id: CallId::of(self.run, 1, 0), name: tool.to_owned(), args, wire_id: None };
        self.toolbox
            .prepare(ToolRequest {
                tenant: TenantId::from("tenant"),
                thread: ThreadId(self.run.0),
                run: self.run,
                agent: "coder".to_owned(),
                step: 1,
                call_idx: 0,
                effect: EffectId::of(self.run, 1, 0),
                workspace: Some(self.path()),
                call,
                timeout,
            })
            .await
    }

    /// Prepares a call and runs it if it may run.
    pub(super) async fn call(&self, tool: &str, args: Value) -> (Prepared, Option<ToolOutput>) {
        let prepared = self.prepare(tool, args).await;
        if prepared.refusal.is_some() || prepared.verdict != Verdict::Allow {
            return (prepared, None);
        }
        let output = self.toolbox.execute(prepared.clone()).await;
        (prepared, Some(output))
    }
}

/// What became of a call, as text.
pub(super) fn show((prepared, output): &(Prepared, Option<ToolOutput>)) -> String {
    match (output, &prepared.refusal, &prepared.verdict) {
        (Some(output), _, _) if output.is_error => format!("error: {}", output.text),
        (Some(output), _, _) => output.text.clone(),
        (None, Some(refusal), _) => format!("refused: {refusal}"),
        (None, None, Verdict::Deny { reason }) => format!("denied: {reason}"),
        (None, None, verdict) => format!("{verdict:?}"),
    }
}
