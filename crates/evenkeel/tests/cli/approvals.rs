//! A run that waits for a person outlives its server, its call is made once, and whoever started it at a
//! terminal is asked there.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use evenkeel_env::process;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::play::{Play, ask, begin, config, printed, provider, reaches, serve_logged};

const POLICY: &str = r#"@id("release-files") @ask("This changes a file of the release process.")
forbid (principal, action == Action::"write", resource) when { resource.path like "release/*" };"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_outlives_a_killed_server_and_the_call_is_made_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    let write = |path: &str, content: &str| ("write_file", json!({ "path": path, "content": content }));
    let play = Play(vec![
        vec![write("notes.md", "free\n"), write("release/a.txt", "one\n"), write("release/b.txt", "two\n")],
        vec![("finish", json!({ "summary": "All is written." }))],
    ]);
    let fake = provider(play, &["k"]).await;
    std::fs::write(at.join("site.cedar"), POLICY).expect("the file is written");
    let config = format!("{}[policy]\nfiles = [\"site.cedar\"]\n", config(&fake, "env:MODEL_KEY"));
    std::fs::write(at.join("evenkeel.toml"), config).expect("the file is written");
    let envs = [("MODEL_KEY", "k")];

    let (mut server, address) = serve_logged(at, &envs).await;
    let (thread, run) = begin(&address, "Write the release.").await;
    reaches(&address, &run, "waiting").await;
    // As the machine does it: nothing is told, nothing is written any more.
    server.start_kill().expect("it runs");
    server.wait().await.expect("its status is known");

    let (mut server, address) = serve_logged(at, &envs).await;
    let listed = printed(at, &["approvals", "list", "--json", "--server", &address]).await;
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let ids: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|of| of["id"].as_str()).collect();
    assert_eq!(ids.len(), 2, "{listed}");
    let shown = printed(at, &["approvals", "show", ids[0], "--server", &address]).await;
    assert!(shown.contains("This changes a file of the release process. (release/a.txt)"), "{shown}");
    assert!(shown.contains("\"content\": \"one\\n\""), "the whole arguments are shown: {shown}");
    let thread_shown = ask(&address, Method::GET, &format!("/threads/{thread}"), None).await;
    assert_eq!(thread_shown["status"], "interrupted", "{thread_shown}");

    printed(at, &["approvals", "approve", ids[0], "--server", &address]).await;
    printed(at, &["approvals", "deny", ids[1], "--note", "b is not ready", "--server", &address]).await;
    let again = crate::output(at, &["approvals", "approve", ids[0], "--server", &address]).await;
    assert!(crate::text(&again.stderr).contains("error[approval-closed]"), "{again:?}");

    let ended = reaches(&address, &run, "completed").await;
    let diff = ended["outcome"]["diff"].as_str().expect("a diff");
    assert!(diff.contains("+one") && diff.contains("+free") && !diff.contains("+two"), "{diff}");
    let journal = ask(&address, Method::GET, &format!("/v1/runs/{run}/events"), None).await;
    let events = journal["events"].as_array().expect("events");
    let of = |kind: &str| -> Vec<&Value> {
        events.iter().map(|event| &event["body"]).filter(|body| body["type"] == kind).collect()
    };
    assert_eq!((of("approval_requested").len(), of("approval_answered").len()), (2, 2), "{journal}");
    let used: Vec<&str> = of("effect_intended").iter().filter_map(|body| body["approval"].as_str()).collect();
    assert_eq!(used, [ids[0]], "one approval was used, once");
    let told =
        of("effect_settled").iter().filter_map(|body| body["text"].as_str()).collect::<Vec<_>>().join("\n");
    assert!(told.contains("b is not ready"), "the model is told why: {told}");
    let story = printed(at, &["explain", &run, "--server", &address]).await;
    assert!(story.contains("a person is asked whether write_file may run"), "{story}");
    server.start_kill().expect("it runs");
}

/// A command at a terminal of its own, which `script` makes.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    shown: String,
}

impl Terminal {
    fn open(at: &Path, command: &str) -> Self {
        let mut script = process::command("script");
        script.args(["-qfec", &format!("{} {command}", env!("CARGO_BIN_EXE_evenkeel")), "/dev/null"]);
        script.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("MODEL_KEY", "k");
        script.env("NO_COLOR", "1").env("TERM", "xterm").env("SHELL", "/bin/sh").current_dir(at);
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = script.spawn().expect("script starts");
        let (keys, screen) = (child.stdin.take(), child.stdout.take());
        let (keys, screen) = (keys.expect("stdin is piped"), screen.expect("stdout is piped"));
        Self { child, keys, screen, shown: String::new() }
    }

    /// Waits until this is shown, behind what was waited for before; gives what came before it.
    async fn shows(&mut self, wanted: &str) -> String {
        let reading = async {
            while !self.shown.contains(wanted) {
                let mut bytes = [0; 4096];
                let n = self.screen.read(&mut bytes).await.expect("it can be read");
                assert!(n > 0, "it ended without {wanted:?}: {}", self.shown);
                self.shown.push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), reading).await;
        assert!(waited.is_ok(), "{wanted:?} is not shown: {}", self.shown);
        let (before, after) = self.shown.split_once(wanted).expect("it is there");
        let (before, after) = (before.to_owned(), after.to_owned());
        self.shown = after;
        before
    }

    async fn types(&mut self, line: &str) {
        self.keys.write_all(format!("{line}\n").as_bytes()).await.expect("it reads");
    }

    /// Everything else that is shown, and the exit code.
    async fn end(mut self) -> (String, Option<i32>) {
        let mut rest = Vec::new();
        self.screen.read_to_end(&mut rest).await.expect("it can be read");
        let status = self.child.wait().await.expect("it ends");
        (format!("{}{}", self.shown, String::from_utf8_lossy(&rest)), status.code())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_started_a_run_at_a_terminal_is_asked_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    let write = |path: &str, content: &str| ("write_file", json!({ "path": path, "content": content }));
    let steps = || {
        vec![
            vec![write("release/a.txt", "one\n"), write("release/b.txt", "two\n")],
            vec![("finish", json!({ "summary": "All is written." }))],
        ]
    };
    let fake = provider(Play(steps()), &["k"]).await;
    std::fs::write(at.join("site.cedar"), POLICY).expect("the file is written");
    let config = format!("{}[policy]\nfiles = [\"site.cedar\"]\n", config(&fake, "env:MODEL_KEY"));
    std::fs::write(at.join("evenkeel.toml"), config).expect("the file is written");

    let mut run = Terminal::open(at, "run \"Write the release.\"");
    let asked = run.shows("Allow it, once?").await;
    assert!(asked.contains("This changes a file of the release process. (release/a.txt)"), "{asked}");
    assert!(asked.contains("content: one"), "the whole arguments are shown: {asked}");
    run.types("perhaps").await;
    run.shows("Allow it, once?").await;
    run.types("y").await;
    let asked = run.shows("Allow it, once?").await;
    assert!(asked.contains("content: two"), "{asked}");
    run.types("n b is not ready").await;
    let (rest, code) = run.end().await;
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("+one") && !rest.contains("+two"), "{rest}");

    let (mut server, address) = serve_logged(at, &[("MODEL_KEY", "k")]).await;
    let mut chat = Terminal::open(at, &format!("chat --assistant coder --server {address}"));
    chat.shows("/help says what can be typed").await;
    chat.types("Write the release.").await;
    let asked = chat.shows("Allow it, once?").await;
    assert!(asked.contains("content: one"), "{asked}");
    chat.types("n").await;
    chat.shows("Allow it, once?").await;
    chat.types("y").await;
    let listed = || ask(&address, Method::GET, "/v1/runs", None);
    let id = listed().await[0]["id"].as_str().expect("a run").to_owned();
    let ended = reaches(&address, &id, "completed").await;
    let diff = ended["outcome"]["diff"].as_str().expect("a diff");
    assert!(diff.contains("+two") && !diff.contains("+one"), "{diff}");
    chat.types("/quit").await;
    let (rest, code) = chat.end().await;
    assert_eq!(code, Some(0), "{rest}");
    server.start_kill().expect("it runs");
}
