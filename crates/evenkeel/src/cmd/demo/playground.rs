//! A server with a fake provider beside it and a small repository to work on, for trying things out.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use evenkeel_env::{Env, process};
use evenkeel_lab::provider::{self, FakeConfig, WireKind};
use evenkeel_lab::task::{Script, Shape, Solver};
use evenkeel_server::{Config, Overrides};

use crate::cmd::Done;
use crate::cmd::serve::Stop;
use crate::output;

/// Starts both and waits for a signal.
pub(super) async fn run(env: Env, listen: SocketAddr, data_dir: PathBuf, n_replicas: Option<u8>) -> Done {
    output::log("info")?;
    let mut stop = Stop::listen()?;
    let repository = data_dir.join("playground");
    let (scripts, _) = evenkeel_lab::task::available();
    let script = scripts.first().copied().context("no task of the lab can run on this machine")?;
    write(script, &repository).await?;
    let repository = repository.canonicalize().context("find the repository")?;
    let fake = provider::start(&env, FakeConfig::new("fake", Arc::new(Solver))).await?;
    let text = text(&fake.base_url(WireKind::Openai));
    if let Some(n) = n_replicas {
        let sources = toml_list(&repository);
        let text = format!("{text}\n[workspaces]\nsources = {sources}\n");
        return super::replicas::run(env, &mut stop, n.into(), listen, &data_dir, &text).await;
    }
    let overrides = Overrides::of_process()
        .with("server.listen", listen.to_string())
        .with("server.data_dir", data_dir.display().to_string());
    let mut config = Config::parse("the playground", &text, &overrides)?;
    config.workspaces.sources.push(repository.clone());
    let running = evenkeel_server::start(env.clone(), config).await?;
    let address = format!("http://{}", running.address());
    eprintln!("{}", greeting(&address, &repository, script));
    stop.wait().await;
    running.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// A new copy of the task's repository, so that each start begins with its failing test.
async fn write(script: &Script, folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    for (name, text) in &script.files {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    git(folder, &["init", "--quiet"]).await?;
    git(folder, &["add", "."]).await?;
    git(
        folder,
        &[
            "-c",
            "user.name=Playground",
            "-c",
            "user.email=none@localhost",
            "commit",
            "--quiet",
            "-m",
            "Begin",
        ],
    )
    .await
}

/// Runs git in a folder that we have just written ourselves.
async fn git(folder: &Path, args: &[&str]) -> anyhow::Result<()> {
    let mut command = process::command("git");
    command.args(args).current_dir(folder).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    let status = command.status().await.context("start git")?;
    anyhow::ensure!(status.success(), "git {} failed in {}", args.join(" "), folder.display());
    Ok(())
}

/// A list of one path, as TOML.
fn toml_list(path: &Path) -> String {
    format!("[{:?}]", path.display().to_string())
}

fn text(base_url: &str) -> String {
    format!(
        "[providers.fake]\nkind = \"openai\"\nbase_url = \"{base_url}\"\n\
         [deployments.fake]\nprovider = \"fake\"\nmodel = \"fake-large\"\ncontext_tokens = 32000\n\
         [routes.default]\ntiers = [[\"fake\"]]\n"
    )
}

fn greeting(address: &str, repository: &Path, script: &Script) -> String {
    let task = Solver::ask(script, Shape::Short, 1).replace('\n', " ").replace('\'', "");
    format!(
        "evenkeel listens on {address}, with a fake model behind it. Try:\n\n  \
         evenkeel run '{task}' --repo {} --server {address}\n  \
         evenkeel runs list --server {address}\n  evenkeel router --server {address}\n\n\
         The fake model plays back tasks of the lab and answers anything else with an echo.",
        repository.display()
    )
}
