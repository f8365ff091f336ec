//! The rehearsal: what the files of each task must be at each of its commands, and at its end.
//!
//! A virtual run starts no program, so nobody can say whether a task's tests pass. Instead each
//! task's file changes are made once before the run, in order and without any fault, by the
//! product's own tools. A command then "passes" if the files that it finds are those of the
//! rehearsal, and a task is done if its diff, put on the files as given, leads to the last of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use evenkeel_core::id::{CallId, EffectId, RunId, TenantId, ThreadId};
use evenkeel_core::message::ToolCall;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::runner::{Command, Exit, Runner};
use evenkeel_core::port::tools::{ToolRequest, Tools as _};
use evenkeel_core::{Error, Wall};
use evenkeel_env::Env;
use evenkeel_env::slots::Slots;
use evenkeel_tools::{ToolSlots, Toolbox, ToolsConfig};

use super::patch;
use crate::task::{EFFECTS, Facts, Script, SolverCall};

/// Contents by path.
pub(super) type Files = BTreeMap<String, String>;

/// The tools that change files.
const CHANGES: [&str; 3] = ["write_file", "edit_file", "apply_patch"];

/// The rehearsals of all tasks of a load.
pub(crate) struct Rehearsal {
    root: PathBuf,
    parts: BTreeMap<&'static str, Part>,
}

/// One task's.
pub(super) struct Part {
    pub(super) script: &'static Script,
    /// The files that each command finds.
    before: BTreeMap<String, Files>,
    last: Files,
}

impl Rehearsal {
    /// Rehearses these tasks below `root`.
    pub(crate) async fn of(env: &Env, root: &Path, scripts: &[&'static Script]) -> anyhow::Result<Self> {
        let slots = || Slots::new("rehearsal", 1, 1);
        let slots = ToolSlots { policy: slots(), tools: slots(), sandbox: slots() };
        let config = ToolsConfig::default();
        let toolbox = Toolbox::start(env, config, Arc::new(NoRunner), slots).await?;
        let mut parts = BTreeMap::new();
        for script in scripts {
            let dir = root.join("rehearsal").join(script.name);
            write_files(script, &dir)?;
            let part = Part::play(env, &toolbox, script, &dir).await;
            parts.insert(script.name, part.with_context(|| format!("rehearse the task {}", script.name))?);
        }
        Ok(Self { root: root.to_owned(), parts })
    }

    /// Puts a task's files where repositories may lie, and says where.
    pub(crate) fn repository(&self, script: &Script) -> anyhow::Result<PathBuf> {
        let dir = self.root.join("repositories").join(script.name);
        write_files(script, &dir)?;
        Ok(dir)
    }

    /// The task that works in this folder.
    pub(super) fn task_in(&self, workspace: &Path) -> Option<&Part> {
        let is_there = |part: &&Part| part.script.files.keys().all(|path| workspace.join(path).is_file());
        self.parts.values().find(is_there)
    }

    /// Judges what a task has changed.
    pub(crate) fn examine(&self, script: &Script, diff: &str) -> anyhow::Result<Facts> {
        let part = self.parts.get(script.name).context("the task was rehearsed")?;
        let given = script.files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        let mut files = match patch::apply(given.collect(), diff) {
            Ok(files) => files,
            Err(error) => return Ok(Facts { text: format!("{error:#}"), ..Facts::default() }),
        };
        let effects = files.remove(EFFECTS).unwrap_or_default();
        let differs = part.last.iter().find(|(path, text)| files.get(*path) != Some(text));
        Ok(Facts {
            tests_pass: differs.is_none(),
            effects: effects.lines().map(str::to_owned).collect(),
            text: differs.map_or_else(String::new, |(path, _)| format!("{path} is not as it should be.")),
        })
    }
}

impl Part {
    async fn play(env: &Env, toolbox: &Toolbox, script: &'static Script, dir: &Path) -> anyhow::Result<Self> {
        let mut before = BTreeMap::new();
        for call in script.calls(0) {
            if call.name == "bash" {
                let command = call.args["command"].as_str().unwrap_or_default();
                before.insert(command.to_owned(), files(script, dir)?);
            } else if CHANGES.contains(&call.name.as_str()) {
                change(env, toolbox, &call, dir).await?;
            }
        }
        Ok(Self { script, before, last: files(script, dir)? })
    }

    /// Whether the files in a workspace are those that this command finds in the rehearsal; none if
    /// the task has no such command.
    pub(super) fn is_as_rehearsed(&self, command: &str, workspace: &Path) -> Option<bool> {
        let wanted = self.before.get(command)?;
        Some(files(self.script, workspace).is_ok_and(|found| found == *wanted))
    }
}

async fn change(env: &Env, toolbox: &Toolbox, call: &SolverCall, dir: &Path) -> anyhow::Result<()> {
    let (now, generator) = (Wall(env.wall().ms()), &env.generator);
    let request = ToolRequest {
        tenant: TenantId::from("lab"),
        thread: ThreadId::new(now, generator),
        run: RunId::new(now, generator),
        agent: "coder".to_owned(),
        step: 1,
        call_idx: 0,
        effect: EffectId::from("rehearsal"),
        workspace: Some(dir.to_owned()),
        call: ToolCall {
            id: CallId::from("rehearsal"),
            name: call.name.clone(),
            args: call.args.clone(),
            wire_id: None,
        },
        timeout: Duration::from_secs(60),
    };
    let prepared = toolbox.prepare(request).await;
    ensure!(prepared.refusal.is_none(), "{} is refused: {:?}", call.name, prepared.refusal);
    let output = toolbox.execute(prepared).await;
    if output.is_error {
        bail!("{} failed: {}", call.name, output.text);
    }
    Ok(())
}

fn files(script: &Script, dir: &Path) -> anyhow::Result<Files> {
    let read = |path: &&'static str| {
        let text = std::fs::read_to_string(dir.join(path)).with_context(|| format!("read {path}"))?;
        Ok(((*path).to_owned(), text))
    };
    script.files.keys().map(read).collect()
}

fn write_files(script: &Script, dir: &Path) -> anyhow::Result<()> {
    for (path, text) in &script.files {
        let path = dir.join(path);
        let parent = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Changes of files need no runner.
struct NoRunner;

impl Runner for NoRunner {
    fn run(&self, _command: Command) -> BoxFuture<'_, Result<Exit, Error>> {
        Box::pin(std::future::ready(Err(Error::internal("The rehearsal runs no commands."))))
    }
}
