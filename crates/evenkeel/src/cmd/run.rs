//! `evenkeel run "task" --repo DIR|URL`: one coding task, with live progress and the diff at the end.
//!
//! With `--server` the task goes to that server. Without it the whole platform is started in this
//! process, on a free port of the loopback, and driven through the same HTTP door; nothing is
//! short-cut. Progress goes to stderr and the diff to stdout, so that it can be piped into
//! `git apply`.

mod follow;
mod progress;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use evenkeel_server::{Config, Running};
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::client::Server;
use crate::cmd::Done;
use crate::cmd::configure::Choice;
use crate::cmd::serve::Stop;
use crate::output::{self, Paint, Style};
use follow::Ended;

/// Arguments of `run`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel run \"make the tests pass\" --repo .                      standalone, with ./evenkeel.toml
  evenkeel run \"add a --json flag\" --repo . > change.patch         progress on stderr, diff on stdout
  evenkeel run \"fix the build\" --repo https://example.com/r.git --server http://127.0.0.1:7070
  evenkeel run \"fix the build\" --repo https://github.com/acme/shop --pull-request

The repository is copied or cloned; your files are not touched. Ctrl-c cancels the run and keeps what it
changed; a second ctrl-c leaves at once. Exit code 0 if the run completed, 1 if it ended otherwise, 2 if
it could not begin.")]
pub(crate) struct Args {
    /// What is to be done
    task: String,
    /// The repository: a directory, or a URL that git can clone; an empty workspace without it
    #[arg(long, value_name = "DIR|URL")]
    repo: Option<String>,
    /// Push the result to a branch of the repository, which is named by its URL, and open a pull request
    #[arg(long, requires = "repo")]
    pull_request: bool,
    /// Push the result to this branch; with --pull-request without it, to one named after the thread
    #[arg(long, value_name = "NAME", requires = "repo")]
    branch: Option<String>,
    /// The assistant that does it
    #[arg(long, default_value = "coder")]
    assistant: String,
    /// Send it to this server instead of starting the platform in this process
    #[arg(long, value_name = "URL", env = "EVENKEEL_SERVER")]
    server: Option<String>,
    /// An API key for that server
    #[arg(long, value_name = "KEY", env = "EVENKEEL_API_KEY", hide_env_values = true)]
    api_key: Option<SecretString>,
    #[command(flatten)]
    choice: Choice,
    /// Keep the data directory of a standalone run, and say where it is
    #[arg(long)]
    keep: bool,
    /// Print one JSON object with the outcome instead of progress and diff
    #[arg(long)]
    json: bool,
    /// Show the platform's log
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the task.
pub(crate) async fn run(env: Env, args: Args) -> Done {
    let mut stop = Stop::listen()?;
    let platform = match &args.server {
        Some(address) => Platform::remote(&env, address, args.api_key.clone()),
        None => Platform::start(&env, &args).await?,
    };
    let ended = task(&env, &args, &platform.server, &mut stop).await;
    platform.end(args.keep).await;
    let ended = ended?;
    report(&args, &ended)?;
    Ok(if ended.state == "completed" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Creates the run and follows it to its end.
async fn task(env: &Env, args: &Args, server: &Server, stop: &mut Stop) -> Result<Ended, Error> {
    let thread = server.post("/threads", &json!({})).await?;
    let thread = text(&thread, "thread_id")?;
    let mut input = json!({ "messages": [{ "role": "user", "content": args.task }] });
    if let Some(repo) = &args.repo {
        input["repository"] = repository(repo)?;
    }
    if args.pull_request || args.branch.is_some() {
        input["deliver"] = json!({ "pull_request": args.pull_request, "branch": args.branch });
    }
    let body = json!({ "assistant_id": args.assistant, "input": input });
    // The request may be sent again without a second run: the key stands for this one.
    let key = evenkeel_core::id::uuid_v7(env.wall(), &env.generator).to_string();
    let path = format!("/threads/{thread}/runs");
    let run = server.json(http::Method::POST, &path, Some(&body), &[("idempotency-key", &key)]).await?;
    let run = text(&run, "run_id")?;
    follow::follow(server, &thread, &run, stop, args.json).await
}

fn text(value: &Value, key: &str) -> Result<String, Error> {
    value.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| {
        Error::new(
            Code::ServerUnreachable,
            Origin::Ours,
            format!("The server's answer has no `{key}`."),
            "Check that the address is an Evenkeel server's.",
        )
    })
}

/// A directory becomes absolute, since the server may stand elsewhere; anything with a scheme is a URL.
fn repository(repo: &str) -> Result<Value, Error> {
    if repo.contains("://") {
        return Ok(json!({ "url": repo }));
    }
    match absolute(Path::new(repo)) {
        Ok(path) => Ok(json!({ "directory": path })),
        Err(error) => Err(Error::client(
            Code::RepositoryUnreadable,
            format!("The repository {repo} cannot be read: {error}."),
            "Name an existing directory, or a URL that git can clone.",
        )),
    }
}

fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let path = path.canonicalize()?;
    if path.is_dir() { Ok(path) } else { Err(std::io::Error::other("it is not a directory")) }
}

/// A server elsewhere, or the platform in this process.
struct Platform {
    server: Server,
    own: Option<Own>,
}

struct Own {
    running: Running,
    /// Removed at the end unless it is to be kept or was named by the user.
    scratch: Option<tempfile::TempDir>,
    data_dir: PathBuf,
}

impl Platform {
    fn remote(env: &Env, address: &str, key: Option<SecretString>) -> Self {
        Self { server: Server::new(env, address, key), own: None }
    }

    async fn start(env: &Env, args: &Args) -> anyhow::Result<Self> {
        let scratch = match args.choice.data_dir {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("evenkeel-run-").tempdir()?),
        };
        let config = standalone(args, scratch.as_ref().map(tempfile::TempDir::path))?;
        output::log(if args.verbose { &config.telemetry.log } else { "off" })?;
        let data_dir = config.server.data_dir.clone();
        let running = evenkeel_server::start(env.clone(), config).await?;
        let server = Server::new(env, &format!("http://{}", running.address()), None);
        Ok(Self { server, own: Some(Own { running, scratch, data_dir }) })
    }

    async fn end(self, keep: bool) {
        let Some(Own { running, scratch, data_dir }) = self.own else { return };
        running.shutdown().await;
        if keep {
            // Keeping means not removing it when the value is dropped.
            let _ = scratch.map(tempfile::TempDir::keep);
            eprintln!("kept {}", data_dir.display());
        }
    }
}

/// The configuration of a platform for one run: on a free port of the loopback, open, with the
/// repository as the only directory that may be read.
fn standalone(args: &Args, scratch: Option<&Path>) -> anyhow::Result<Config> {
    let mut set = vec![("server.listen", "127.0.0.1:0".to_owned()), ("auth.mode", "open".to_owned())];
    set.extend(scratch.map(|path| ("server.data_dir", path.display().to_string())));
    let mut config = args.choice.load(&set)?;
    if config.router.routes.is_empty() {
        return Err(Error::new(
            Code::RouteUnknown,
            Origin::Ours,
            "No model is configured, so nobody can do the task.",
            "Write a provider, a deployment and a route into evenkeel.toml (the README has both kinds), or use --server.",
        )
        .into());
    }
    let local = args.repo.as_deref().filter(|repo| !repo.contains("://")).map(Path::new);
    config.workspaces.sources.extend(local.and_then(|path| absolute(path).ok()));
    Ok(config)
}

fn report(args: &Args, ended: &Ended) -> anyhow::Result<()> {
    if args.json {
        return output::json(&ended.json());
    }
    let style = Style::stderr();
    let took = output::duration(ended.ms);
    eprintln!("\n{} after {} steps in {took}", style.state(&ended.state), ended.steps);
    if let Some(error) = &ended.error {
        eprintln!(
            "{} {}",
            style.paint(Paint::Red, format!("error[{}]:", error.code)),
            output::safe(&error.message)
        );
        eprintln!("  {}\n  evenkeel explain {}", output::safe(&error.remedy), error.code);
    }
    if !ended.text.trim().is_empty() {
        eprintln!("\n{}", output::safe(ended.text.trim()));
    }
    if let Some(delivered) = &ended.delivered {
        eprintln!("\ndelivered to branch {} as {}", delivered.branch, delivered.commit);
        if let Some(address) = &delivered.pull_request {
            eprintln!("pull request: {}", output::safe(address));
        }
    }
    match &ended.diff {
        Some(diff) if !diff.is_empty() => output::text(diff)?,
        _ => eprintln!("nothing was changed"),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
