//! Was the task really done? Its repository is made afresh, the run's diff is put on it, and its
//! tests run in a fresh sandbox. The product's own word is not taken for it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use evenkeel_core::Wall;
use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Command, Runner, RunnerLimits};
use evenkeel_env::{Env, process};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;

use super::Script;
use super::script::EFFECTS;

/// What was found in the workspace of a task that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Whether its tests pass.
    pub tests_pass: bool,
    /// The lines of the effects file, in order.
    pub effects: Vec<String>,
    /// The end of what the tests printed, or why they did not run.
    pub text: String,
}

/// The same, judged against the script.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether its tests pass.
    pub tests_pass: bool,
    /// Effects that are there more than once.
    pub doubled: Vec<String>,
    /// Effects that are not there.
    pub missing: Vec<String>,
    /// The end of what the tests printed.
    pub text: String,
}

impl Verdict {
    /// Compares what was found with what the script leaves.
    #[must_use]
    pub fn of(script: &Script, facts: Facts) -> Self {
        let n_of = |line: &str| facts.effects.iter().filter(|found| found.as_str() == line).count();
        let wanted = || script.effects();
        Self {
            tests_pass: facts.tests_pass,
            doubled: wanted().filter(|line| n_of(line) > 1).map(str::to_owned).collect(),
            missing: wanted().filter(|line| n_of(line) == 0).map(str::to_owned).collect(),
            text: facts.text,
        }
    }
}

/// Makes repositories of tasks and looks at their ends.
#[derive(Clone)]
pub struct Verifier {
    env: Env,
    runner: Arc<dyn Runner>,
    root: PathBuf,
}

impl Verifier {
    /// Works below `root`, which must exist.
    #[must_use]
    pub fn new(env: &Env, runner: Arc<dyn Runner>, root: PathBuf) -> Self {
        Self { env: env.part("verifier"), runner, root }
    }

    /// Makes the repository of a task below the root, with one commit, and returns its path.
    ///
    /// # Errors
    /// If a file cannot be written or git fails.
    pub fn repository<'a>(&'a self, script: &'a Script) -> BoxFuture<'a, anyhow::Result<PathBuf>> {
        Box::pin(async move {
            let dir = self.root.join("repositories").join(script.name);
            write_files(script, &dir).await?;
            git(&dir, &["init", "-q", "-b", "main"], b"").await?;
            git(&dir, &["add", "-A"], b"").await?;
            let who = ["-c", "user.name=Evenkeel lab", "-c", "user.email=lab@localhost"];
            let commit = ["commit", "-q", "--no-gpg-sign", "-m", "The task as given"];
            git(&dir, &[&who[..], &commit[..]].concat(), b"").await?;
            Ok(dir)
        })
    }

    /// Puts `diff` on a fresh copy of the task's files and runs its tests in a fresh sandbox.
    ///
    /// # Errors
    /// If the sandbox or git cannot be started. A diff that does not apply, or tests that fail, are
    /// facts and no errors.
    pub fn examine<'a>(
        &'a self,
        script: &'a Script,
        diff: &'a str,
        label: &'a str,
    ) -> BoxFuture<'a, anyhow::Result<Facts>> {
        Box::pin(async move {
            let dir = self.root.join("verify").join(label);
            write_files(script, &dir).await?;
            let facts = self.examine_in(script, diff, &dir).await;
            // A directory that stays costs room in the temporary folder and nothing else.
            drop(tokio::fs::remove_dir_all(&dir).await);
            facts
        })
    }

    async fn examine_in(&self, script: &Script, diff: &str, dir: &Path) -> anyhow::Result<Facts> {
        if let Err(error) = apply(dir, diff).await {
            return Ok(Facts { text: format!("{error:#}"), ..Facts::default() });
        }
        let log = tokio::fs::read_to_string(dir.join(EFFECTS)).await.unwrap_or_default();
        let (tests_pass, text) = self.run_tests(script, dir).await?;
        Ok(Facts { tests_pass, effects: log.lines().map(str::to_owned).collect(), text })
    }

    async fn run_tests(&self, script: &Script, dir: &Path) -> anyhow::Result<(bool, String)> {
        let command = Command {
            tenant: TenantId::from("lab"),
            run: RunId::new(Wall(self.env.wall().ms()), &self.env.generator),
            argv: ["sh", "-c", &script.test].map(str::to_owned).to_vec(),
            workspace: dir.to_owned(),
            read_only: false,
            cwd: String::new(),
            env: Vec::new(),
            stdin: Vec::new(),
            limits: RunnerLimits { wall_ms: 60_000, ..RunnerLimits::default() },
            hosts: Vec::new(),
        };
        let exit = self.runner.run(command).await.context("run the tests of a task in a sandbox")?;
        let text = String::from_utf8_lossy(&exit.stdout);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.iter().skip(lines.len().saturating_sub(12)).copied().collect::<Vec<_>>();
        Ok((exit.code == Some(0), last.join("\n")))
    }
}

async fn write_files(script: &Script, dir: &Path) -> anyhow::Result<()> {
    for (path, text) in &script.files {
        let path = dir.join(path);
        let parent = path.parent().unwrap_or(dir);
        tokio::fs::create_dir_all(parent).await.with_context(|| format!("make {}", parent.display()))?;
        tokio::fs::write(&path, text).await.with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

async fn apply(dir: &Path, diff: &str) -> anyhow::Result<()> {
    if diff.trim().is_empty() {
        bail!("The run changed nothing.");
    }
    git(dir, &["apply", "--whitespace=nowarn", "-"], diff.as_bytes()).await
}

/// Runs git on the host, in a directory of ours, without anybody's configuration.
async fn git(dir: &Path, args: &[&str], stdin: &[u8]) -> anyhow::Result<()> {
    let mut command = process::command("git");
    command.args(args).current_dir(dir);
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", dir);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    // A folder above that happens to be a repository must not be taken for this one.
    if let Some(parent) = dir.parent() {
        command.env("GIT_CEILING_DIRECTORIES", parent);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("start git")?;
    if let Some(mut pipe) = child.stdin.take() {
        // git closes the pipe early when it fails; its own words tell why.
        drop(pipe.write_all(stdin).await);
    }
    let output = child.wait_with_output().await.context("wait for git")?;
    if !output.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
