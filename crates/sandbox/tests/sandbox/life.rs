//! Nothing outlives its command, its caller, or its server.

use std::process::Stdio;
use std::time::Duration;

use evenkeel_core::port::runner::{LimitHit, Runner};
use evenkeel_env::process;
use evenkeel_sandbox::{Isolation, SandboxConfig};

use crate::host::{Host, Place, User, attack_program, processes_with, stdout, wait_until, wait_until_gone};

#[tokio::test]
async fn what_a_command_leaves_behind_dies_and_delays_nothing() {
    let table = [
        ("a background child holds the pipes", "sleep 6161.1 & echo done"),
        ("a daemon that forked twice", "(setsid sh -c 'sleep 6161.1 & ' &) ; echo done"),
        ("nohup", "nohup sleep 6161.1 >/dev/null 2>&1 & echo done"),
        ("SIGTERM is ignored", "(trap '' TERM HUP INT; sleep 6161.1 & wait) & echo done"),
        ("a stopped child", "sleep 6161.1 & kill -STOP $!; echo done"),
    ];
    for place in Place::all() {
        let host = place.host();
        for (what, script) in table {
            let exit = host.sh(script).await;
            assert_eq!(
                (exit.code, exit.limit, stdout(&exit).as_str()),
                (Some(0), None, "done\n"),
                "{place:?} {what}"
            );
            assert!(exit.ms < 20_000, "{what}: {exit:?}");
            assert_eq!(processes_with("6161.1").len(), 0, "{place:?} {what}");
        }
    }
}

#[tokio::test]
async fn processes_that_resist_die_at_the_limit() {
    let table = [
        "trap '' TERM HUP INT; while :; do sleep 6262.2; done",
        "kill -STOP $$",
        "sleep 6262.2 & kill -STOP $! $$",
    ];
    for place in Place::all() {
        let host = place.host();
        for script in table {
            let exit = host.limited(script, |limits| limits.wall_ms = 200).await;
            assert_eq!(exit.limit, Some(LimitHit::Time), "{place:?} {script}: {exit:?}");
            assert_eq!(processes_with("6262.2").len(), 0);
        }
    }
}

#[tokio::test]
async fn dropping_the_future_kills() {
    for place in Place::all() {
        let host = place.host();
        let command = host.command(&["bash", "-c", "echo $$ >ready; sleep 6363.3 & sleep 6363.3"]);
        let ready = host.workspace().join("ready");
        tokio::select! {
            biased;
            exit = host.launcher.run(command) => panic!("it ended: {exit:?}"),
            () = wait_until("it runs", || ready.exists()) => {}
        }
        wait_until_gone("6363.3").await;
        assert_eq!(host.text("echo next").await, "next\n");
    }
}

#[tokio::test]
async fn a_killed_server_leaves_no_process() {
    for place in Place::all() {
        let host = place.host();
        let ready = host.workspace().join("ready");
        let script = "echo $$ >ready; (setsid sleep 6464.4 &); sleep 6464.4";
        let mut server = process::command(attack_program())
            .args(["serve", if place.is_bubblewrap() { "bwrap" } else { "native" }])
            .arg(if place.listed { "pkg.example" } else { "-" })
            .args([host.helper.as_path(), host.workspace().as_path()])
            .arg(script)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the command runs", || ready.exists() && processes_with("sleep 6464.4").len() >= 2).await;
        let helpers = format!("{} sandbox-helper", if place.user == User::Current { "" } else { "helper" });
        assert!(!processes_with(helpers.trim()).is_empty());
        server.start_kill().unwrap();
        server.wait().await.unwrap();
        wait_until_gone("6464.4").await;
    }
}

/// Whether a process has closed everything: it is gone, or waits to be reaped.
fn has_ended(pid: &std::ffi::OsStr) -> bool {
    let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(pid).join("stat"));
    stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

#[tokio::test]
async fn a_killed_helper_is_replaced() {
    let host = Host::start(User::Ordinary.min_of_all());
    host.text("true").await;
    // The helper of this host has a path of its own only for the ordinary user.
    if host.user == User::Ordinary {
        let marker = host.outside().join("helper").to_string_lossy().into_owned();
        let pids = processes_with(&marker);
        for pid in &pids {
            let _ = process::command("kill").env("PATH", "/usr/bin:/bin").arg("-9").arg(pid).status().await;
        }
        // One that is dying has no command line any more, and its sockets still take a request.
        wait_until("the helper is dead", || pids.iter().all(|pid| has_ended(pid))).await;
    }
    assert_eq!(host.text("echo again").await, "again\n");
}

#[tokio::test]
async fn many_run_at_once() {
    for place in Place::few() {
        let host = place.host();
        let scripts: Vec<String> =
            (0..24).map(|number| format!("echo {number} >/tmp/x; sleep 0.05; cat /tmp/x")).collect();
        let texts = futures_util::future::join_all(scripts.iter().map(|script| host.text(script))).await;
        let expected: Vec<String> = (0..24).map(|number| format!("{number}\n")).collect();
        assert_eq!(texts, expected, "{place:?}");
    }
}

#[tokio::test]
async fn without_isolation_limits_still_hold() {
    let config = SandboxConfig { isolation: Isolation::None, ..SandboxConfig::default() };
    let host = Host::start_with(User::Current, config);
    let exit = host
        .limited("echo here >file; (setsid sleep 6565.5 &); sleep 6565.5", |limits| limits.wall_ms = 500)
        .await;
    assert_eq!(exit.limit, Some(LimitHit::Time), "{exit:?}");
    assert_eq!(processes_with("6565.5").len(), 0);
    assert!(host.workspace().join("file").exists());
    let exit = host.sh("(setsid sleep 6565.5 &); echo done").await;
    assert_eq!((exit.code, stdout(&exit).as_str()), (Some(0), "done\n"));
    assert!(exit.ms < Duration::from_secs(20).as_millis() as u64);
    assert_eq!(processes_with("6565.5").len(), 0);
}

impl User {
    fn min_of_all(self) -> Self {
        if Self::all().contains(&self) { self } else { Self::Current }
    }
}
