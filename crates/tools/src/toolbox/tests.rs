mod edits;
mod foreign;
mod support;

use std::time::Duration;

use evenkeel_core::journal::{EffectClass, Verdict};
use evenkeel_core::port::runner::HostRule;
use evenkeel_core::port::tools::{GuardState, Tools};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{NetworkConfig, PolicyConfig, ToolsConfig};
use support::{Bench, show};

async fn check(bench: &Bench, tool: &str, args: Value, expected: Expect) {
    expected.assert_eq(&show(&bench.call(tool, args).await));
}

#[tokio::test]
async fn the_coder_is_offered_its_tools_in_their_order() {
    let bench = Bench::new().await;
    let coder = crate::agents::builtin().remove(0);
    let offered = bench.toolbox.offered(&coder).await.unwrap();
    let names: Vec<&str> = offered.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, crate::agents::CODER_TOOLS);
    let chat = crate::agents::builtin().remove(1);
    assert_eq!(bench.toolbox.offered(&chat).await.unwrap(), Vec::new());
}

#[tokio::test]
async fn files_are_read_listed_found_and_searched() {
    let bench = Bench::new().await;
    bench.write("src/main.rs", "fn main() {\n    greet();\n}\n");
    bench.write("src/greet.rs", "pub fn greet() {}\n");
    bench.write("build/out.rs", "fn greet() {}\n");
    bench.write(".gitignore", "build/\n");
    bench.write("keys/server.pem", "greet secret\n");
    check(
        &bench,
        "read_file",
        json!({"path": "src/main.rs", "offset": 2, "limit": 1}),
        expect![[r#"
                 2	    greet();
            [src/main.rs: lines 2-2 of 3; more with offset; hash f871187c893d8a6f]"#]],
    )
    .await;
    check(
        &bench,
        "list_dir",
        json!({}),
        expect![[r#"
        .gitignore (7 bytes)
        build/
        keys/
        src/
    "#]],
    )
    .await;
    check(
        &bench,
        "glob",
        json!({"pattern": "**/*.rs"}),
        expect![[r#"
        src/greet.rs
        src/main.rs"#]],
    )
    .await;
    check(
        &bench,
        "grep",
        json!({"pattern": "greet"}),
        expect![[r#"
        src/greet.rs:1:pub fn greet() {}
        src/main.rs:2:    greet();
        [1 files were not searched: policy keeps their content]
    "#]],
    )
    .await;
    check(
        &bench,
        "grep",
        json!({"pattern": "GREET", "ignore_case": true, "glob": "main.rs", "context": 1}),
        expect![[r#"
        src/main.rs-1-fn main() {
        src/main.rs:2:    greet();
        src/main.rs-3-}
    "#]],
    )
    .await;
    check(
        &bench,
        "grep",
        json!({"pattern": "greet", "max_matches": 1}),
        expect![[r#"
            src/greet.rs:1:pub fn greet() {}
            [limit of matches reached: there may be more; narrow the pattern, path or glob]
            [1 files were not searched: policy keeps their content]
        "#]],
    )
    .await;
    check(
        &bench,
        "grep",
        json!({"pattern": "("}),
        expect![[r#"
        error: The pattern is not a valid regular expression: regex parse error:
            (?:()
            ^
        error: unclosed group"#]],
    )
    .await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused_with_help() {
    let bench = Bench::new().await;
    check(&bench, "read_file", json!({"file": "a", "offset": 0}), expect![[r#"
        refused: The arguments of read_file do not fit: path is missing; file is not known; offset must be at least 1. It takes path (string), offset (integer, optional), limit (integer, optional)."#]])
    .await;
    check(
        &bench,
        "reed_file",
        json!({}),
        expect![[r#"refused: There is no tool reed_file. Use only the tools that were offered."#]],
    )
    .await;
    check(&bench, "bash", json!({"command": ["ls"]}), expect![[
        r#"refused: The arguments of bash do not fit: command must be string, not array. It takes command (string), cwd (string, optional), timeout_s (integer, optional)."#
    ]])
    .await;
}

#[tokio::test]
async fn what_is_no_text_file_is_refused() {
    let bench = Bench::new().await;
    bench.write_bytes("latin1.txt", b"caf\xe9");
    bench.write_bytes("image.png", b"\x89PNG\0\0");
    bench.make_fifo("pipe");
    check(
        &bench,
        "read_file",
        json!({"path": "latin1.txt"}),
        expect![[r#"error: latin1.txt is not UTF-8 text (byte 3); it cannot be shown or edited."#]],
    )
    .await;
    check(
        &bench,
        "edit_file",
        json!({"path": "image.png", "old_text": "PNG", "new_text": "GIF"}),
        expect![[r#"refused: image.png is not UTF-8 text (byte 0); it cannot be shown or edited."#]],
    )
    .await;
    check(
        &bench,
        "read_file",
        json!({"path": "pipe"}),
        expect![[r#"error: pipe is a pipe; only regular files can be read or changed."#]],
    )
    .await;
    check(
        &bench,
        "write_file",
        json!({"path": "pipe", "content": "x"}),
        expect![[r#"refused: pipe is a pipe; only regular files can be read or changed."#]],
    )
    .await;
    check(
        &bench,
        "read_file",
        json!({"path": "nothing"}),
        expect![[r#"refused: There is no nothing. Use list_dir or glob to see what there is."#]],
    )
    .await;
}

/// P05: links that leave the workspace, also for files that do not exist yet.
#[tokio::test]
async fn no_path_leads_out_of_the_workspace() {
    let bench = Bench::new().await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    bench.link("out", outside.path());
    bench.link("up", std::path::Path::new("../.."));
    bench.link("self", std::path::Path::new("self"));
    bench.link("proc", std::path::Path::new("/proc/self/root"));
    bench.link("dangling", std::path::Path::new("not/there"));
    let paths = [
        "out/secret",
        "out/new",
        "../x",
        "up/x",
        "self/x",
        "proc/etc/passwd",
        "/etc/passwd",
        "out",
        "dangling",
    ];
    let mut table = String::new();
    for path in paths {
        let read = show(&bench.call("read_file", json!({"path": path})).await);
        let write = show(&bench.call("write_file", json!({"path": path, "content": "x"})).await);
        let why = read.replacen(path, "P", 1).split(". ").next().unwrap_or_default().to_owned();
        assert_eq!(read, write);
        table.push_str(&format!("{path:16} {why}\n"));
    }
    expect![[r#"
        out/secret       refused: P leads out of the workspace
        out/new          refused: P leads out of the workspace
        ../x             refused: P leads out of the workspace
        up/x             refused: P leads out of the workspace
        self/x           refused: P passes through a symbolic link that cannot be followed.
        proc/etc/passwd  refused: P leads out of the workspace
        /etc/passwd      refused: P leads out of the workspace
        out              refused: P leads out of the workspace
        dangling         refused: P is a symbolic link to nothing
    "#]]
    .assert_eq(&table);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn paths_may_be_written_as_commands_see_them() {
    let bench = Bench::new().await;
    bench.write("a.txt", "hello\n");
    bench.link("b.txt", std::path::Path::new("a.txt"));
    let read = bench.call("read_file", json!({"path": "/workspace/./b.txt"})).await;
    assert!(show(&read).contains("[a.txt: lines 1-1 of 1"));
}

#[tokio::test]
async fn credentials_are_not_shown_and_git_is_not_written() {
    let bench = Bench::new().await;
    bench.write(".ssh/id_rsa", "PRIVATE");
    bench.write(".git/config", "[core]");
    bench.link("innocent", std::path::Path::new(".git"));
    for (tool, args) in [
        ("read_file", json!({"path": ".ssh/id_rsa"})),
        ("edit_file", json!({"path": ".ssh/id_rsa", "old_text": "x", "new_text": "y"})),
        ("write_file", json!({"path": "innocent/hooks/pre-commit", "content": "evil"})),
        ("bash", json!({"command": "cd /; cat .git/config"})),
        ("git_log", json!({"path": "./.ssh/x/..//id_rsa", "patch": true})),
    ] {
        let prepared = bench.prepare(tool, args).await;
        assert!(matches!(prepared.verdict, Verdict::Deny { .. }), "{tool}: {prepared:?}");
        assert!(!format!("{prepared:?}").contains("PRIVATE"));
    }
    let prepared = bench.prepare("write_file", json!({"path": "innocent/hooks/x", "content": ""})).await;
    assert_eq!(prepared.policies, ["default/git-directory"]);
}

#[tokio::test]
async fn effect_classes_are_as_the_design_says() {
    let bench = Bench::new().await;
    bench.write("a", "a");
    let mut table = String::new();
    for (tool, args) in [
        ("read_file", json!({"path": "a"})),
        ("grep", json!({"pattern": "a"})),
        ("git_log", json!({})),
        ("write_file", json!({"path": "a", "content": "b"})),
        ("bash", json!({"command": "true"})),
        ("git_commit", json!({"message": "m"})),
        ("finish", json!({"summary": "s"})),
    ] {
        let prepared = bench.prepare(tool, args).await;
        table.push_str(&format!(
            "{tool} {:?} parallel={} {:?}\n",
            prepared.class, prepared.parallel, prepared.policies
        ));
    }
    expect![[r#"
        read_file Pure parallel=true ["default/workspace-read"]
        grep Pure parallel=true ["default/workspace-read"]
        git_log Pure parallel=true ["default/workspace-read"]
        write_file Guarded parallel=false ["default/workspace-write"]
        bash Workspace parallel=false ["default/closed-sandbox"]
        git_commit Workspace parallel=false ["default/commit"]
        finish Pure parallel=false []
    "#]]
    .assert_eq(&table);
}

#[tokio::test]
async fn a_redirection_is_judged_as_the_file_that_it_opens() {
    let bench = Bench::new().await;
    bench.write(".git/config", "[core]\n");
    bench.write("sub/.netrc", "secret");
    bench.link("innocent", std::path::Path::new(".git"));
    let mut table = String::new();
    for (command, cwd) in [
        ("echo a > out", ""),
        ("echo a > .git/config", ""),
        ("echo a > innocent/config", ""),
        ("echo a > config", ".git"),
        ("echo a > /workspace/.git/config", "sub"),
        ("echo a > /tmp/out 2>/dev/null", ""),
        ("echo a > ../../out", "sub"),
        ("cat < sub/.netrc", ""),
        ("cat < .netrc", "sub"),
        ("cd sub && cat < .netrc", ""),
        ("echo a > $out", ""),
    ] {
        let prepared = bench.prepare("bash", json!({"command": command, "cwd": cwd})).await;
        let verdict = if prepared.verdict == Verdict::Allow { "allow" } else { "deny" };
        table.push_str(&format!("{cwd:5} {command:32} {verdict:5} {}\n", prepared.policies.join(" ")));
    }
    expect![[r#"
              echo a > out                     allow default/closed-sandbox default/workspace-write
              echo a > .git/config             deny  default/closed-sandbox default/git-directory
              echo a > innocent/config         deny  default/closed-sandbox default/git-directory
        .git  echo a > config                  deny  default/closed-sandbox default/git-directory
        sub   echo a > /workspace/.git/config  deny  default/closed-sandbox default/git-directory
              echo a > /tmp/out 2>/dev/null    allow default/closed-sandbox
        sub   echo a > ../../out               allow default/closed-sandbox default/workspace-write
              cat < sub/.netrc                 deny  default/closed-sandbox default/credentials
        sub   cat < .netrc                     deny  default/closed-sandbox default/credentials
              cd sub && cat < .netrc           deny  default/closed-sandbox default/credentials
              echo a > $out                    allow default/closed-sandbox default/workspace-write
    "#]]
    .assert_eq(&table);
}

/// An agent with a list of hosts: what is asked of the sandbox, and how such a call is settled.
#[tokio::test]
async fn an_agent_reaches_the_hosts_on_its_list() {
    let rules =
        |names: &[&str]| names.iter().map(|name| HostRule::try_from((*name).to_owned()).unwrap()).collect();
    let network = NetworkConfig {
        hosts: rules(&["other.example"]),
        agents: [("coder".to_owned(), rules(&["pkg.example", "*.mirror.example:8443"]))].into(),
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("site.cedar");
    let text = r#"@id("no-mirror") forbid (principal, action == Action::"connect", resource) when { resource.below };"#;
    std::fs::write(&file, text).unwrap();
    let policy = PolicyConfig { files: vec![file], ..PolicyConfig::default() };
    let bench = Bench::with(ToolsConfig { network, policy, ..ToolsConfig::default() }).await;
    let mut table = String::new();
    for command in ["pip install x", "$unknown; false", "pip install x > .git/config"] {
        let (prepared, output) = bench.call("bash", json!({"command": command})).await;
        let asked = bench.asked();
        let hosts: Vec<String> =
            asked.iter().flat_map(|command| &command.hosts).map(ToString::to_string).collect();
        let said = output.map(|output| output.text.contains("without network"));
        table.push_str(&format!(
            "{command} {:?} {} hosts={hosts:?} {said:?}\n",
            prepared.class,
            prepared.policies.join(" ")
        ));
    }
    expect![[r#"
        pip install x Unsafe default/listed-network default/listed-hosts hosts=["pkg.example"] Some(false)
        $unknown; false Workspace default/closed-sandbox hosts=[] Some(true)
        pip install x > .git/config Unsafe default/listed-network default/git-directory default/listed-hosts hosts=[] None
    "#]]
    .assert_eq(&table);
    let coder = crate::agents::builtin().remove(0);
    let offered = bench.toolbox.offered(&coder).await.unwrap();
    assert!(
        offered[0].description.contains("only to pkg.example, *.mirror.example:8443."),
        "{}",
        offered[0].description
    );
}

#[tokio::test]
async fn guards_tell_whether_a_change_was_applied() {
    let bench = Bench::new().await;
    bench.write("a.txt", "one\n");
    let prepared =
        bench.prepare("edit_file", json!({"path": "a.txt", "old_text": "one", "new_text": "two"})).await;
    assert_eq!((prepared.class, bench.read("a.txt").as_str()), (EffectClass::Guarded, "one\n"));
    let now = || bench.toolbox.guards_now(bench.path(), prepared.guards.clone());
    assert_eq!(now().await, GuardState::Before);
    bench.toolbox.execute(prepared.clone()).await;
    assert_eq!((now().await, bench.read("a.txt").as_str()), (GuardState::After, "two\n"));
    bench.write("a.txt", "three\n");
    assert_eq!(now().await, GuardState::Other);
}

#[tokio::test]
async fn commands_tell_how_they_ended() {
    let bench = Bench::new().await;
    check(
        &bench,
        "bash",
        json!({"command": "echo out; echo err >&2; exit 3"}),
        expect![[r#"
        error: out
        [stderr]
        err
        [exit code 3]"#]],
    )
    .await;
    check(&bench, "bash", json!({"command": "true"}), expect!["[exit code 0]"]).await;
}

/// P08: a command without end is stopped and what it printed is returned.
#[tokio::test]
async fn a_command_that_never_ends_is_stopped() {
    let bench = Bench::new().await;
    check(
        &bench,
        "bash",
        json!({"command": "echo before; sleep 999", "timeout_s": 1}),
        expect![[r#"
        error: before
        [stopped by the time limit of 1 s; everything it had started was killed]"#]],
    )
    .await;
}

#[tokio::test]
async fn a_call_takes_slots_and_gives_them_back() {
    let bench = Bench::new().await;
    bench.call("bash", json!({"command": "true"})).await;
    bench.call("list_dir", json!({})).await;
    for (slots, peak) in [(&bench.slots.policy, 1), (&bench.slots.tools, 1), (&bench.slots.sandbox, 1)] {
        let gauges = slots.gauges();
        assert_eq!((gauges.in_use, gauges.in_use_peak), (0, peak), "{}", gauges.component);
    }
}

#[tokio::test]
async fn finish_ends_the_run() {
    let bench = Bench::new().await;
    let output = bench.call("finish", json!({"summary": "Done."})).await.1;
    assert_eq!(output.unwrap().finish.as_deref(), Some("Done."));
}

#[tokio::test]
async fn git_commits_inside_the_sandbox() {
    let bench = Bench::new().await;
    bench.call("bash", json!({"command": "git init -q -b main ."})).await;
    bench.write("a.txt", "one\n");
    bench.write("b.txt", "two\n");
    check(
        &bench,
        "git_status",
        json!({}),
        expect![[r#"
        ## No commits yet on main
        ?? a.txt
        ?? b.txt
    "#]],
    )
    .await;
    let committed = show(
        &bench.call("git_commit", json!({"message": "Add a\n\nIt's \"quoted\".", "paths": ["a.txt"]})).await,
    );
    assert!(committed.starts_with("Committed ") && committed.contains(": Add a"), "{committed}");
    check(
        &bench,
        "git_status",
        json!({}),
        expect![[r#"
        ## main
        ?? b.txt
    "#]],
    )
    .await;
    bench.write("a.txt", "three\n");
    let diff = show(&bench.call("git_diff", json!({"path": "a.txt"})).await);
    assert!(diff.contains("-one\n+three\n"), "{diff}");
    let log = show(&bench.call("git_log", json!({"limit": 1})).await);
    assert!(log.contains("Evenkeel agent: Add a"), "{log}");
    check(
        &bench,
        "git_diff",
        json!({"revision": "--output=/tmp/x"}),
        expect![[r#"error: "--output=/tmp/x" is not a revision."#]],
    )
    .await;
}

#[tokio::test]
async fn sessions_of_a_run_end_with_it() {
    let bench = Bench::new().await;
    bench.call("list_dir", json!({})).await;
    bench.toolbox.release(bench.run).await;
    // A later call of the same run opens a new one.
    check(&bench, "list_dir", json!({}), expect!["The directory is empty."]).await;
}

#[tokio::test]
async fn a_dropped_call_gives_its_slot_back() {
    let bench = Bench::new().await;
    let prepared = bench.prepare("bash", json!({"command": "sleep 999"})).await;
    let call = bench.toolbox.execute(prepared);
    assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    assert_eq!(bench.slots.sandbox.gauges().in_use, 0);
}
