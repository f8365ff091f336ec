//! The second backend keeps the promises of the first.

use evenkeel_core::port::runner::{LimitHit, Runner};
use evenkeel_sandbox::doctor::{self, State};
use evenkeel_sandbox::{HelperProgram, Isolation, SandboxConfig};

use crate::host::{Host, User, processes_with, stdout, wait_until, wait_until_gone};

/// The configuration that chooses it; `None`, with a message, on a machine without the program.
pub(crate) fn config() -> Option<SandboxConfig> {
    let is_there =
        ["/usr/bin/bwrap", "/usr/local/bin/bwrap"].iter().any(|path| std::path::Path::new(path).exists());
    if !is_there {
        println!("skipped: bubblewrap is not installed (cargo xtask setup installs it)");
        return None;
    }
    Some(SandboxConfig { isolation: Isolation::Bubblewrap, ..SandboxConfig::default() })
}

#[tokio::test]
async fn a_command_runs_in_it_as_in_the_native_one() {
    let Some(config) = config() else { return };
    for user in User::all() {
        let host = Host::start_with(*user, config.clone());
        let script = "id -u; pwd; echo made >file; ls / | tr '\\n' ' '; exit 7";
        let exit = host.sh(script).await;
        let native = Host::start(*user).sh(script).await;
        assert_eq!((exit.code, native.code), (Some(7), Some(7)), "{user:?}: {exit:?}");
        assert_eq!(stdout(&exit), stdout(&native), "{user:?}");
        assert_eq!(std::fs::read_to_string(host.workspace().join("file")).unwrap(), "made\n");
        let mut command = host.command(&["sh", "-c", "echo no >file"]);
        command.read_only = true;
        assert_ne!(host.launcher.run(command).await.unwrap().code, Some(0), "{user:?}: read-only");
    }
}

#[tokio::test]
async fn what_it_starts_dies_with_the_command_its_time_and_its_caller() {
    let Some(config) = config() else { return };
    for user in User::all() {
        let host = Host::start_with(*user, config.clone());
        let exit = host.sh("(setsid sh -c 'sleep 7373.3 & ' &); trap '' TERM; echo done").await;
        assert_eq!((exit.code, stdout(&exit).as_str()), (Some(0), "done\n"), "{user:?}: {exit:?}");
        assert_eq!(processes_with("7373.3").len(), 0, "{user:?}");
        let exit = host.limited("sleep 7373.3 & sleep 7373.3", |limits| limits.wall_ms = 300).await;
        assert_eq!(exit.limit, Some(LimitHit::Time), "{user:?}: {exit:?}");
        assert_eq!(processes_with("7373.3").len(), 0, "{user:?}");
        let ready = host.workspace().join("ready");
        tokio::select! {
            biased;
            exit = host.launcher.run(host.command(&["bash", "-c", "echo >ready; sleep 7373.3"])) => panic!("{exit:?}"),
            () = wait_until("it runs", || ready.exists()) => {}
        }
        wait_until_gone("7373.3").await;
    }
}

#[tokio::test]
async fn what_bwrap_says_is_the_cause_that_is_told() {
    let Some(config) = config() else { return };
    let host = Host::start_with(User::Current, config);
    let mut command = host.command(&["true"]);
    command.workspace = host.outside().join("not-there");
    let error = host.launcher.run(command).await.unwrap_err();
    assert!(error.message.contains("not-there"), "{error}");
}

#[test]
fn the_doctor_names_the_backend() {
    let Some(config) = config() else { return };
    for user in User::all() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let host = runtime.block_on(async { Host::start_with(*user, config.clone()) });
        let helper = HelperProgram::Path(host.helper.clone());
        let report = doctor::examine_with(&SandboxConfig { helper, ..config.clone() });
        assert!(report.usable, "{user:?}: {report}");
        let backend = report.finding("backend").unwrap();
        assert!(backend.state == State::Enforced && backend.detail.contains("bwrap"), "{report}");
        for mechanism in ["user namespace", "pid namespace", "network namespace", "read-only root", "seccomp"]
        {
            assert_eq!(
                report.finding(mechanism).unwrap().state,
                State::Enforced,
                "{user:?} {mechanism}: {report}"
            );
        }
        // It cannot translate owners; that is told, and may be refused.
        assert_eq!(report.finding("own user").unwrap().state, State::Missing, "{report}");
        assert!(report.admit(&std::collections::BTreeSet::new()).is_err());
    }
}
