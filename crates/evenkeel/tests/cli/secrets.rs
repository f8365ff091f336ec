//! Where a secret must never be seen: a provider's key and a credential of a repository are planted,
//! and everything that a run, a reader or an operator can look at is searched for them.

use std::path::Path;

use evenkeel_env::process;
use http::Method;
use serde_json::json;

use crate::evenkeel;
use crate::play::{Play, ask, config, printed, provider, reaches, serve_logged};

const KEY: &str = "canary-key-6f1d2c9b7a";
const TOKEN: &str = "canary-token-93ab51c0de";

/// What a command of a run can look at: its environment, every process, every file.
const LOOK: &str = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; \
                    git -C . config --list --show-origin; git remote -v; cat .git/config; \
                    grep -rl canary- / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr 2>/dev/null; true";

fn hold(text: &str) -> bool {
    text.contains(KEY) || text.contains(TOKEN)
}

/// Files below a directory that hold one of them.
fn files_with_secrets(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(files_with_secrets(&path));
        } else if kind.is_file()
            && std::fs::read(&path).is_ok_and(|bytes| hold(&String::from_utf8_lossy(&bytes)))
        {
            found.push(path.display().to_string());
        }
    }
    found
}

/// A repository whose configuration holds a credential in every place that git knows.
async fn repository(at: &Path) -> std::path::PathBuf {
    let path = at.join("source").join("repository");
    std::fs::create_dir_all(&path).expect("the folder is made");
    std::fs::write(path.join("README.md"), "A tool.\n").expect("the file is written");
    let script = format!(
        "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm first && \
         git remote add origin https://x-access-token:{TOKEN}@forge.example/a/b.git && \
         git config http.https://forge.example/.extraheader 'Authorization: Basic {TOKEN}'"
    );
    let status = process::command("/bin/sh").args(["-c", &script]).current_dir(&path).status().await;
    assert!(status.expect("git starts").success());
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_in_no_file_environment_argument_log_event_or_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = &dir.path().canonicalize().expect("it is there");
    let play = Play(vec![
        vec![("bash", json!({ "command": LOOK })), ("read_file", json!({ "path": ".git/config" }))],
        vec![("finish", json!({ "summary": "I have looked." }))],
    ]);
    let fake = provider(play, &[KEY]).await;
    let repository = repository(at).await;
    // Policy would not let the run look; here it is to be seen what is behind policy.
    std::fs::write(at.join("all.cedar"), "permit (principal, action, resource);").expect("a file is written");
    let config = format!(
        "{}[policy]\ndefaults = false\nfiles = [\"all.cedar\"]\n[workspaces]\nsources = [{:?}]\n[telemetry]\nlog = \"debug\"\n",
        config(&fake, "env:MODEL_KEY"),
        at.join("source"),
    );
    std::fs::write(at.join("evenkeel.toml"), config).expect("the file is written");
    let (mut server, address) = serve_logged(at, &[("MODEL_KEY", KEY)]).await;

    let body = json!({ "assistant_id": "coder", "input": {
        "messages": [{ "role": "user", "content": "Look around." }],
        "repository": { "directory": repository },
    } });
    let thread = ask(&address, Method::POST, "/threads", Some(json!({}))).await;
    let thread = thread["thread_id"].as_str().expect("a thread").to_owned();
    let run = ask(&address, Method::POST, &format!("/threads/{thread}/runs"), Some(body.clone())).await;
    let run = run["run_id"].as_str().expect("a run").to_owned();
    reaches(&address, &run, "completed").await;
    // A clone that fails, from a URL that holds a credential: refused, and not told.
    let mut bad = body;
    bad["input"]["repository"] = json!({ "url": format!("https://x:{TOKEN}@127.0.0.1:9/a.git") });
    let refused = ask(&address, Method::POST, "/runs/wait", Some(bad)).await;

    let server_pid = server.id().expect("it runs");
    let cmdline = std::fs::read(format!("/proc/{server_pid}/cmdline")).expect("it runs");
    let journal = ask(&address, Method::GET, &format!("/v1/threads/{thread}/events"), None).await;
    let settled = journal.to_string();
    assert!(settled.contains("HOME=/tmp"), "the command did look: {settled}");
    assert!(settled.contains("https://forge.example/a/b.git"), "the repository was there: {settled}");
    let paths = ["/metrics", "/v1/router", "/v1/limits", "/info", "/openapi.json", "/v1/runs", "/v1/stats"];
    let check = evenkeel(at, &["check"]).env("MODEL_KEY", KEY).output().await.expect("the binary starts");
    assert_eq!(check.status.code(), Some(0), "{}", crate::text(&check.stderr));
    let mut seen = vec![
        ("arguments", String::from_utf8_lossy(&cmdline).into_owned()),
        ("events", settled),
        ("state", ask(&address, Method::GET, &format!("/threads/{thread}/state"), None).await.to_string()),
        ("log", std::fs::read_to_string(at.join("server.log")).expect("there is a log")),
        ("check", crate::text(&check.stdout)),
        ("doctor", crate::text(&crate::output(at, &["doctor"]).await.stdout)),
        ("explain", printed(at, &["explain", &run, "--server", &address]).await),
        ("helpers", helpers_of(server_pid)),
    ];
    for path in paths {
        seen.push((path, ask(&address, Method::GET, path, None).await.to_string()));
    }
    for (what, text) in &seen {
        assert!(!hold(text), "{what} holds a secret");
    }
    assert_eq!(refused["code"], "bad-request", "{refused}");
    assert!(!hold(&refused.to_string()), "{refused}");
    server.start_kill().expect("it runs");
    server.wait().await.expect("its status is known");
    let held = files_with_secrets(&at.join("evenkeel-data"));
    assert_eq!(
        held,
        Vec::<String>::new(),
        "no file of the store, the workspaces and the snapshots holds one"
    );
}

/// Environment and arguments of every process below the server.
fn helpers_of(server: u32) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).unwrap_or_default();
        if parent == server.to_string() {
            for name in ["environ", "cmdline"] {
                let bytes = std::fs::read(path.join(name)).unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }
    text
}
