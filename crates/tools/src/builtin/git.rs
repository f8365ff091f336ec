//! The git server. Git always runs inside the sandbox: a repository can name programs to run
//! (hooks, fsmonitor, filters, pagers, `ext::` URLs), and the repository is the user's.

use evenkeel_core::port::runner::{Command, Exit, LimitHit};
use serde_json::{Value, json};

use super::{Args, Context, Outcome};

/// Settings of our own for every git command: nothing asks, pages, signs or watches.
const SETTINGS: &[&str] = &[
    "-c",
    "safe.directory=*",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.pager=cat",
    "-c",
    "commit.gpgSign=false",
    "-c",
    "gc.auto=0",
    "-c",
    "color.ui=false",
    "-c",
    "advice.detachedHead=false",
];

/// Who commits. The address is in a domain that cannot exist.
const WHO: (&str, &str) = ("Evenkeel agent", "agent@evenkeel.invalid");

pub(super) async fn call(context: &Context, name: &str, args: &Args<'_>) -> Outcome {
    let arguments = match name {
        "git_status" => Ok(words(&["status", "--short", "--branch", "--untracked-files=all"])),
        "git_diff" => diff(args),
        "git_log" => log(args),
        "git_commit" => return commit(context, args).await,
        _ => Err(format!("There is no tool {name}.")),
    };
    match arguments {
        Ok(arguments) => run(context, git(&["--no-optional-locks"], arguments), Vec::new(), true).await,
        Err(fault) => Outcome::error(fault),
    }
}

fn diff(args: &Args<'_>) -> Result<Vec<String>, String> {
    let mut arguments = words(&["diff", "--no-ext-diff", "--no-textconv"]);
    if args.flag("staged") {
        arguments.push("--cached".to_owned());
    }
    arguments.extend(args.optional_text("revision").map(revision).transpose()?);
    arguments.push("--".to_owned());
    arguments.extend(args.optional_text("path").map(pathspec));
    Ok(arguments)
}

fn log(args: &Args<'_>) -> Result<Vec<String>, String> {
    let mut arguments =
        words(&["log", "--no-ext-diff", "--no-textconv", "--no-show-signature", "--date=iso-strict"]);
    arguments.push(format!("--max-count={}", args.count("limit", 20)));
    arguments.push(if args.flag("patch") { "--patch" } else { "--format=%h %ad %an: %s" }.to_owned());
    arguments.extend(args.optional_text("revision").map(revision).transpose()?);
    arguments.push("--".to_owned());
    arguments.extend(args.optional_text("path").map(pathspec));
    Ok(arguments)
}

async fn commit(context: &Context, args: &Args<'_>) -> Outcome {
    let paths: Vec<String> = match args.0.get("paths").and_then(Value::as_array) {
        Some(paths) => paths.iter().filter_map(Value::as_str).map(pathspec).collect(),
        None => Vec::new(),
    };
    if args.text("message").trim().is_empty() {
        return Outcome::error("The commit message is empty.");
    }
    let git_words = shell_words(&git(&[], Vec::new()));
    // With paths, `--only` leaves what else is staged as it is.
    let script = format!(
        "if [ $# -gt 0 ]; then {git_words} add -A -- \"$@\" && {git_words} commit -q -F - --only -- \"$@\"; \
         else {git_words} add -A && {git_words} commit -q -F -; fi && {git_words} log -1 --format='Committed %h: %s' --stat"
    );
    let mut argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), script, "git_commit".to_owned()];
    argv.extend(paths);
    run(context, argv, args.text("message").as_bytes().to_vec(), false).await
}

fn git(before: &[&str], arguments: Vec<String>) -> Vec<String> {
    let mut argv = words(&["git"]);
    argv.extend(words(SETTINGS));
    argv.extend(words(before));
    argv.extend(arguments);
    argv
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn shell_words(argv: &[String]) -> String {
    let quoted: Vec<String> = argv.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    quoted.join(" ")
}

/// A revision must not be taken for an option.
fn revision(text: &str) -> Result<String, String> {
    if text.starts_with('-') || text.trim().is_empty() {
        return Err(format!("{text:?} is not a revision."));
    }
    Ok(text.to_owned())
}

/// A path taken literally, so that `:(exclude)x` or `*` in a name means itself.
fn pathspec(path: &str) -> String {
    let path = path.strip_prefix("/workspace/").unwrap_or(path);
    format!(":(literal){path}")
}

async fn run(context: &Context, argv: Vec<String>, stdin: Vec<u8>, read_only: bool) -> Outcome {
    let Some(runner) = &context.runner else {
        return Outcome::error("Git needs a sandbox, and this server has none.");
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let env = vec![
        pair("GIT_CONFIG_NOSYSTEM", "1"),
        pair("GIT_CONFIG_GLOBAL", "/dev/null"),
        pair("GIT_TERMINAL_PROMPT", "0"),
        pair("GIT_PAGER", "cat"),
        pair("GIT_EDITOR", "true"),
        pair("GIT_AUTHOR_NAME", WHO.0),
        pair("GIT_AUTHOR_EMAIL", WHO.1),
        pair("GIT_COMMITTER_NAME", WHO.0),
        pair("GIT_COMMITTER_EMAIL", WHO.1),
    ];
    let command = Command {
        tenant: context.tenant.clone(),
        run: context.run,
        argv,
        workspace: context.workspace.clone(),
        read_only,
        cwd: String::new(),
        env,
        stdin,
        limits: context.limits.clone(),
        hosts: Vec::new(),
    };
    match runner.run(command).await {
        Ok(exit) => outcome_of(&exit),
        Err(error) => Outcome { facts: json!({"code": error.code}), ..Outcome::error(error.to_string()) },
    }
}

fn outcome_of(exit: &Exit) -> Outcome {
    let mut text = String::from_utf8_lossy(&exit.stdout).into_owned();
    let failed = exit.code != Some(0);
    if failed {
        text.push_str(&String::from_utf8_lossy(&exit.stderr));
        match (exit.limit, exit.code) {
            (Some(LimitHit::Time), _) => text.push_str("[git was stopped by its time limit]"),
            (_, Some(code)) => text.push_str(&format!("[git ended with exit code {code}]")),
            (_, None) => text.push_str("[git was killed]"),
        }
    } else if text.trim().is_empty() {
        text = "Nothing to show.".to_owned();
    }
    Outcome { text, is_error: failed, facts: json!({"exit_code": exit.code, "ms": exit.ms}) }
}
