//! The binary from outside: what scripts and operators rely on. Exit codes, what goes to which
//! stream, keys that open the door, an orderly end, and that bad input stops before anything starts.

mod approvals;
mod killed;
mod mcp;
mod play;
mod secrets;
mod talk;

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use evenkeel_core::Code;
use evenkeel_env::{Env, http::Client, process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

fn evenkeel(dir: &Path, args: &[&str]) -> Command {
    let mut command = process::command(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    command
}

async fn output(dir: &Path, args: &[&str]) -> Output {
    evenkeel(dir, args).output().await.expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The command fails with this code and exit status and says nothing on stdout. What it says instead.
async fn refused(dir: &Path, args: &[&str], code: Code, status: i32) -> String {
    let output = output(dir, args).await;
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{args:?}\n{stderr}");
    assert!(stderr.contains(&format!("error[{code}]:")), "{args:?}\n{stderr}");
    assert!(stderr.contains(&format!("evenkeel explain {code}")), "{args:?}\n{stderr}");
    assert_eq!(stdout, "", "{args:?}");
    stderr
}

/// A server that is ready, with its address.
async fn serve(dir: &Path, args: &[&str]) -> (Child, String) {
    let mut command = evenkeel(dir, &["serve", "--listen", "127.0.0.1:0", "--ready-json"]);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let line =
        BufReader::new(stdout).lines().next_line().await.expect("a line").expect("it says that it is ready");
    let ready: Value = serde_json::from_str(&line).expect("the line is JSON");
    (child, ready["listening"].as_str().expect("an address").to_owned())
}

async fn terminate(child: &mut Child) -> Option<i32> {
    let pid = child.id().expect("it runs").to_string();
    // The shell's own `kill`: a minimal system has no program of that name.
    let mut kill = process::command("/bin/sh");
    kill.args(["-c", &format!("kill -TERM {pid}")]);
    assert!(kill.status().await.expect("kill starts").success());
    let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await;
    ended.expect("it ends").expect("its status is known").code()
}

async fn status(address: &str, path: &str, key: Option<&str>) -> u16 {
    let mut request = http::Request::get(format!("{address}{path}"));
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let request = request.body(bytes::Bytes::new()).expect("a request");
    let client = Client::new(&Env::real(), Duration::from_secs(5));
    client.send(request).await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn help_and_versions_go_to_stdout() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["lab", "run", "--help"],
        &["lab", "plan", "--help"],
    ] {
        let output = output(dir.path(), args).await;
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
    let output = output(dir.path(), &["serv"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("serve"), "the nearest command is named");
}

#[tokio::test]
async fn bad_input_stops_before_anything_starts() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).expect("the file is written");
    write("unknown.toml", "[limits.harnes]\nslots = 1\n");
    write("type.toml", "[server]\nlisten = 7\n");
    write("key.toml", "[auth.keys.a]\nkey = \"env:NOT_SET\"\ntenant = \"t\"\n");
    write("broken.toml", "[server\n");
    refused(at, &["check", "--config", "unknown.toml"], Code::ConfigInvalid, 2).await;
    refused(at, &["serve", "--config", "type.toml"], Code::ConfigInvalid, 2).await;
    refused(at, &["serve", "--config", "key.toml"], Code::KeyMissing, 2).await;
    refused(at, &["check", "--config", "broken.toml"], Code::ConfigInvalid, 2).await;
    refused(at, &["check", "--config", "none.toml"], Code::ConfigUnreadable, 2).await;
    refused(at, &["serve", "--listen", "0.0.0.0:0"], Code::AddressRefused, 2).await;
    refused(at, &["run", "task", "--repo", "."], Code::RouteUnknown, 2).await;
    refused(at, &["runs", "list", "--server", "http://127.0.0.1:9"], Code::ServerUnreachable, 2).await;
    refused(at, &["explain", "no-such-code"], Code::BadRequest, 2).await;
    refused(at, &["lab", "run", "no-such-scenario"], Code::ScenarioInvalid, 2).await;
    write(
        "plan.toml",
        "name = \"x\"\nabout = \"x\"\n[traffic]\nshape = \"task-short\"\nrate_per_s = 1.0\nduration_s = 9\n[plan]\nheadrom = 0.5\n[goals]\nsuccess_min = 1.0\nlost_max = 0\ndoubled_max = 0\n",
    );
    let planned = refused(at, &["lab", "plan", "plan.toml"], Code::ScenarioInvalid, 2).await;
    assert!(planned.contains("plan.toml:8: unknown field `headrom`"), "{planned}");
    refused(at, &["lab", "plan", "no-such-file.toml"], Code::ScenarioInvalid, 2).await;
    refused(at, &["lab", "plan", "system1-as-given", "--rate", "0"], Code::BadRequest, 2).await;
    refused(at, &["lab", "plan", "system1-as-given", "--json", "no-such-folder/x.json"], Code::BadRequest, 2)
        .await;
    let nowhere = ["lab", "run", "system1-as-given", "--json", "no-such-folder/result.json"];
    refused(at, &nowhere, Code::BadRequest, 2).await;
    write("empty.jsonl", "");
    refused(at, &["lab", "check", "empty.jsonl"], Code::BadRequest, 2).await;
    refused(at, &["lab", "check", "broken.toml"], Code::BadRequest, 2).await;
    assert!(!at.join("evenkeel-data").exists(), "nothing was made");
}

#[tokio::test]
async fn codes_are_explained_as_they_are_printed() {
    let dir = tempfile::tempdir().expect("a directory");
    for what in ["store-in-use", "error[store-in-use]:"] {
        let output = output(dir.path(), &["explain", what]).await;
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).starts_with("# store-in-use\n"), "{what}");
    }
}

#[tokio::test]
async fn a_key_opens_the_door_until_it_is_revoked() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path();
    std::fs::write(at.join("evenkeel.toml"), "[auth]\nmode = \"keys\"\n").expect("the file is written");
    let created = output(at, &["keys", "create", "ci"]).await;
    assert_eq!(created.status.code(), Some(0), "{}", text(&created.stderr));
    let key = text(&created.stdout).trim().to_owned();
    assert!(key.starts_with("ek_") && key.len() == 46, "{key}");
    refused(at, &["keys", "create", "ci"], Code::BadRequest, 2).await;
    for wrong in [
        &["keys", "create", ""][..],
        &["keys", "create", "a", "--tenant", ""],
        &["keys", "create", "a", "--calls-per-min", "0"],
    ] {
        assert_eq!(output(at, wrong).await.status.code(), Some(2), "{wrong:?}");
    }

    let (mut server, address) = serve(at, &[]).await;
    assert_eq!(status(&address, "/v1/runs", Some(&key)).await, 200);
    assert_eq!(status(&address, "/v1/runs", Some("ek_other")).await, 401);
    assert_eq!(status(&address, "/v1/runs", None).await, 401);
    assert_eq!(status(&address, "/healthz", None).await, 200);
    refused(at, &["keys", "list"], Code::StoreInUse, 2).await;
    refused(at, &["serve", "--listen", "127.0.0.1:0"], Code::StoreInUse, 2).await;
    assert_eq!(terminate(&mut server).await, Some(0), "SIGTERM is an orderly end");

    let listed = output(at, &["keys", "list", "--json"]).await;
    assert!(!text(&listed.stdout).contains(&key), "the key is nowhere but with its holder");
    assert_eq!(output(at, &["keys", "revoke", "ci"]).await.status.code(), Some(0));
    let (mut server, address) = serve(at, &[]).await;
    assert_eq!(status(&address, "/v1/runs", Some(&key)).await, 401);
    assert_eq!(terminate(&mut server).await, Some(0));
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut server, address) = serve(dir.path(), &[]).await;
    let taken = address.trim_start_matches("http://").to_owned();
    refused(dir.path(), &["serve", "--data-dir", "other", "--listen", &taken], Code::AddressInUse, 2).await;
    assert_eq!(terminate(&mut server).await, Some(0));
}

/// A supervisor may close what it reads the log from; whatever logs then must not end by it.
#[tokio::test]
async fn a_server_whose_log_nobody_takes_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = evenkeel(dir.path(), &["serve", "--listen", "127.0.0.1:0", "--ready-json"]);
    command.env("RUST_LOG", "debug").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn().expect("the binary starts");
    drop(server.stderr.take());
    let stdout = server.stdout.take().expect("stdout is piped");
    let line = BufReader::new(stdout).lines().next_line().await.expect("a line").expect("it is ready");
    let ready: Value = serde_json::from_str(&line).expect("the line is JSON");
    let address = ready["listening"].as_str().expect("an address");
    for path in ["/readyz", "/v1/runs", "/threads/00000000-0000-0000-0000-000000000000"] {
        let expected = if path.starts_with("/threads") { 404 } else { 200 };
        assert_eq!(status(address, path, None).await, expected, "{path}");
    }
    assert_eq!(terminate(&mut server).await, Some(0));
}

#[tokio::test]
async fn policies_are_checked_explained_and_tested() {
    let dir = tempfile::tempdir().expect("a directory");
    let write =
        |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file is written");
    write("bad.cedar", "permit (principal, action, resource)\nwhen { resource.color == 1 };\n");
    let bad = output(dir.path(), &["policy", "check", "bad.cedar"]).await;
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
    assert!(text(&bad.stderr).contains("bad.cedar:2:8: "), "{}", text(&bad.stderr));
    write(
        "site.cedar",
        r#"@id("push") @ask("May it push?") forbid (principal, action == Action::"exec", resource)
           when { resource.line like "git push*" };"#,
    );
    write("evenkeel.toml", "[policy]\nfiles = [\"site.cedar\"]\n");
    let good = output(dir.path(), &["policy", "check"]).await;
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    assert!(text(&good.stdout).contains("site/push\n"));

    let asked = output(dir.path(), &["policy", "explain", "git status && git push > log"]).await;
    assert_eq!(asked.status.code(), Some(1));
    let expected = "ask: May it push? (`git push`)\n\
                    \x20 allow exec    `git status`  (default/closed-sandbox)\n\
                    \x20 ask   exec    `git push`  (site/push)\n\
                    \x20 allow write   log  (default/workspace-write)\n";
    assert_eq!(text(&asked.stdout), expected);

    let case = |expect: &str| {
        format!(
            "[[case]]\ntool = \"bash\"\nargs = {{ command = \"git push\" }}\nexpect = \"{expect}\"\npolicies = [\"site/push\"]\n"
        )
    };
    write(
        "cases.toml",
        &format!(
            "{}[[case]]\ntool = \"read_file\"\nargs = {{ path = \"id_rsa\" }}\nexpect = \"deny\"\n",
            case("ask")
        ),
    );
    let passed = output(dir.path(), &["policy", "test", "cases.toml"]).await;
    assert_eq!((passed.status.code(), text(&passed.stdout).as_str()), (Some(0), ""), "{passed:?}");
    write("cases.toml", &case("allow"));
    let failed = output(dir.path(), &["policy", "test", "cases.toml"]).await;
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stdout).contains("expected allow, is ask by"), "{failed:?}");
}
