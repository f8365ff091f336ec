//! What is configured, and what a host is refused for.

use std::collections::BTreeSet;

use evenkeel_core::Code;
use evenkeel_env::Env;
use evenkeel_sandbox::doctor::{self, Finding, Report, State};
use evenkeel_sandbox::{Degradable, HelperProgram, Isolation, Launcher, SandboxConfig};
use expect_test::expect;

use crate::host::{Host, User};

#[test]
fn unknown_keys_are_refused() {
    let config: SandboxConfig = serde_json::from_str(
        r#"{"isolation": "none", "allow_degraded": ["landlock"], "limits": {"cpu_s": 5}}"#,
    )
    .unwrap();
    assert_eq!(config.isolation, Isolation::None);
    assert_eq!(config.allow_degraded, BTreeSet::from([Degradable::Landlock]));
    assert_eq!((config.limits.cpu_s, config.limits.wall_ms), (5, 120_000));
    for text in [r#"{"isolate": true}"#, r#"{"isolation": "docker"}"#, r#"{"allow_degraded": ["seccomp"]}"#] {
        assert!(serde_json::from_str::<SandboxConfig>(text).is_err(), "{text}");
    }
    for name in Degradable::ALL {
        assert_eq!(serde_json::to_value(name).unwrap(), name.as_str());
    }
}

#[test]
fn a_degraded_host_is_refused_unless_allowed() {
    let finding = |mechanism: &str, degradable| Finding {
        mechanism: mechanism.to_owned(),
        state: State::Missing,
        detail: "the kernel says no".to_owned(),
        remedy: "Do this.".to_owned(),
        degradable,
    };
    let landlock = finding("landlock", Some(Degradable::Landlock));
    let report = Report { usable: true, kernel: "1.0".to_owned(), findings: vec![landlock] };
    assert_eq!(report.admit(&BTreeSet::from([Degradable::Landlock])), Ok(()));
    let error = report.admit(&BTreeSet::new()).unwrap_err();
    assert_eq!(error.code, Code::SandboxUnavailable);
    expect![[r#"This host does not enforce: landlock (the kernel says no). Do this. Or allow its absence: add "landlock" to sandbox.allow_degraded. [sandbox-unavailable]"#]]
        .assert_eq(&error.to_string());
    let report = Report { findings: vec![finding("namespaces", None)], ..report };
    let error = report.admit(&Degradable::ALL.into_iter().collect()).unwrap_err();
    expect![[r#"This host does not enforce: namespaces (the kernel says no). Do this. Only on a host that is itself thrown away, set sandbox.isolation = "none". [sandbox-unavailable]"#]]
        .assert_eq(&error.to_string());
    expect![[r#"
        Sandbox on Linux 1.0: commands are isolated
          NO    namespaces  the kernel says no
                            -> Do this.
    "#]]
    .assert_eq(&report.to_string());
}

#[tokio::test]
async fn a_helper_that_is_none_is_told() {
    let config =
        SandboxConfig { helper: HelperProgram::Path("/bin/true".into()), ..SandboxConfig::default() };
    let error = Launcher::start(&Env::real(), config).err().unwrap();
    assert_eq!(error.code, Code::SandboxUnavailable);
}

#[tokio::test]
async fn the_doctor_sees_what_is_enforced() {
    for user in User::all() {
        let host = Host::start(*user);
        let helper = HelperProgram::Path(host.helper.clone());
        let report = doctor::examine_with(&SandboxConfig { helper, ..SandboxConfig::default() });
        assert!(report.usable, "{report}");
        for mechanism in [
            "user namespace",
            "pid namespace",
            "network namespace",
            "read-only root",
            "seccomp",
            "no new privileges",
        ] {
            assert_eq!(report.finding(mechanism).unwrap().state, State::Enforced, "{user:?}: {report}");
        }
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}

#[tokio::test]
async fn read_only_paths_that_cannot_be_shown_are_refused() {
    for path in
        ["opt", "/opt/../root", "/", "/tmp/x", "/etc/ssh", "/workspace", "/no/such/directory", "/bin/true"]
    {
        let config = SandboxConfig { read_only_paths: vec![path.into()], ..SandboxConfig::default() };
        let error = Launcher::start(&Env::real(), config).err().unwrap();
        assert_eq!(error.code, Code::ConfigInvalid, "{path}: {error}");
    }
}
