//! A run that waits for a person outlives its server, and its call is made once.

use http::Method;
use serde_json::{Value, json};

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
