//! A launcher with a workspace, started as one of the users.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Command, Exit, HostRule, Runner, RunnerLimits};
use evenkeel_env::{Env, process};
use evenkeel_sandbox::doctor::{self, Report};
use evenkeel_sandbox::{HelperProgram, Isolation, Launcher, SandboxConfig};
use tempfile::TempDir;

/// Where copies of the programs are, for a user who cannot reach those that cargo built.
pub(crate) const PROGRAMS: &str = "EVENKEEL_TEST_PROGRAMS";

/// An ordinary user that owns nothing.
pub(crate) const ORDINARY: u32 = 54_321;

/// The helper.
pub(crate) fn helper_program() -> PathBuf {
    built("helper", env!("CARGO_BIN_EXE_evenkeel-sandbox-helper"))
}

/// The program that attacks.
pub(crate) fn attack_program() -> PathBuf {
    built("attack", env!("CARGO_BIN_EXE_evenkeel-sandbox-attack"))
}

fn built(name: &str, path: &str) -> PathBuf {
    std::env::var_os(PROGRAMS).map_or_else(|| PathBuf::from(path), |dir| PathBuf::from(dir).join(name))
}

/// Who runs the server's helper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum User {
    /// Whoever runs the tests.
    Current,
    /// An ordinary user; only root can become one.
    Ordinary,
}

impl User {
    /// Every user that can be tested here.
    pub(crate) fn all() -> &'static [Self] {
        if is_root() { &[Self::Current, Self::Ordinary] } else { &[Self::Current] }
    }
}

/// Where something is tried: who runs the helper, what makes the sandbox, and whether the command may
/// reach a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) user: User,
    pub(crate) isolation: Isolation,
    pub(crate) listed: bool,
}

impl Place {
    /// Every one that there is here: each user, with each backend, without and with a list of hosts.
    pub(crate) fn all() -> Vec<Self> {
        let backends = backends();
        let of = |user: User| {
            let modes = backends.iter().flat_map(|isolation| [(*isolation, false), (*isolation, true)]);
            modes.map(move |(isolation, listed)| Self { user, isolation, listed }).collect::<Vec<_>>()
        };
        User::all().iter().flat_map(|user| of(*user)).collect()
    }

    /// For what takes long: each user, backend and mode, but not each with each.
    pub(crate) fn few() -> Vec<Self> {
        let is_chosen = |place: &Self| backends().len() == 1 || place.listed == place.is_bubblewrap();
        Self::all().into_iter().filter(is_chosen).collect()
    }

    pub(crate) fn is_bubblewrap(&self) -> bool {
        self.isolation == Isolation::Bubblewrap
    }

    pub(crate) fn host(&self) -> Host {
        self.host_in(Env::real())
    }

    pub(crate) fn host_in(&self, env: Env) -> Host {
        let config = SandboxConfig { isolation: self.isolation, ..SandboxConfig::default() };
        let mut host = Host::start_in(env, self.user, config);
        if self.listed {
            host.hosts.push(HostRule::try_from("pkg.example".to_owned()).unwrap());
        }
        host
    }
}

/// The native one, and bubblewrap where it is installed.
fn backends() -> Vec<Isolation> {
    let has_bubblewrap = crate::bubblewrap::config().is_some();
    std::iter::once(Isolation::Native).chain(has_bubblewrap.then_some(Isolation::Bubblewrap)).collect()
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

pub(crate) struct Host {
    pub(crate) user: User,
    pub(crate) env: Env,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) helper: PathBuf,
    config: SandboxConfig,
    /// What its commands may reach.
    hosts: Vec<HostRule>,
    dir: TempDir,
}

impl Host {
    pub(crate) fn start(user: User) -> Self {
        Self::start_with(user, SandboxConfig::default())
    }

    pub(crate) fn start_with(user: User, config: SandboxConfig) -> Self {
        Self::start_in(Env::real(), user, config)
    }

    pub(crate) fn start_in(env: Env, user: User, config: SandboxConfig) -> Self {
        let dir = TempDir::with_prefix("evenkeel-sandbox-").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let workspace = dir.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        let helper = match user {
            User::Current => helper_program(),
            User::Ordinary => {
                chown(&workspace, Some(ORDINARY), Some(ORDINARY)).unwrap();
                ordinary_helper(dir.path())
            }
        };
        let config = SandboxConfig { helper: HelperProgram::Path(helper.clone()), ..config };
        let launcher = Launcher::start(&env, config.clone()).unwrap();
        Self { user, env, launcher, helper, config, hosts: Vec::new(), dir }
    }

    /// What the doctor says of it.
    pub(crate) fn report(&self) -> Report {
        doctor::examine_with(&self.config)
    }

    /// Whether the doctor says that a mechanism is in force here; one that is not must have been said
    /// to be missing, with what to do about it.
    pub(crate) fn enforces(&self, mechanism: &str) -> bool {
        let report = self.report();
        let finding = report.finding(mechanism).unwrap_or_else(|| panic!("nothing of {mechanism}: {report}"));
        if finding.state == doctor::State::Enforced {
            return true;
        }
        assert!(!finding.remedy.is_empty() && finding.degradable.is_some(), "{report}");
        assert!(report.admit(&std::collections::BTreeSet::new()).is_err(), "{report}");
        false
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// Another workspace of the same user.
    pub(crate) fn other_workspace(&self) -> PathBuf {
        let path = self.dir.path().join("other");
        fs::create_dir_all(&path).unwrap();
        let owner = fs::metadata(self.workspace()).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        path
    }

    /// A directory outside of the workspace.
    pub(crate) fn outside(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn command(&self, argv: &[&str]) -> Command {
        Command {
            tenant: TenantId("test".to_owned()),
            run: RunId::new(self.env.wall(), &self.env.generator),
            argv: argv.iter().map(ToString::to_string).collect(),
            workspace: self.workspace(),
            read_only: false,
            cwd: String::new(),
            env: Vec::new(),
            stdin: Vec::new(),
            limits: RunnerLimits { wall_ms: 60_000, ..RunnerLimits::default() },
            hosts: self.hosts.clone(),
        }
    }

    /// Runs a script with changed limits.
    pub(crate) async fn limited(&self, script: &str, change: impl FnOnce(&mut RunnerLimits)) -> Exit {
        let mut command = self.command(&["bash", "-c", script]);
        change(&mut command.limits);
        self.launcher.run(command).await.unwrap()
    }

    /// Runs a script.
    pub(crate) async fn sh(&self, script: &str) -> Exit {
        self.limited(script, |_| {}).await
    }

    /// Runs a script that must succeed: its stdout.
    pub(crate) async fn text(&self, script: &str) -> String {
        let exit = self.sh(script).await;
        assert_eq!(exit.code, Some(0), "{:?}: {script}: {exit:?}", self.user);
        stdout(&exit)
    }
}

/// A copy of the helper that an ordinary user can reach, behind a script that becomes that user.
fn ordinary_helper(dir: &Path) -> PathBuf {
    let copy = dir.join("helper");
    install(&helper_program(), &copy);
    let text = format!(
        "#!/bin/sh\ncd /\nexec /usr/bin/setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups {} \"$@\"\n",
        copy.display()
    );
    let draft = dir.join("draft");
    fs::write(&draft, text).unwrap();
    let script = dir.join("helper-as-ordinary-user");
    install(&draft, &script);
    script
}

/// Copies a program by another process. A file that this one had open for writing could not be
/// started ("text file busy") while a child that another test has just forked still holds it.
pub(crate) fn install(from: &Path, to: &Path) {
    let mut command = process::command("install").into_std();
    let status = command.env("PATH", "/usr/bin:/bin").args(["-m", "755"]).arg(from).arg(to).status().unwrap();
    assert!(status.success(), "install {} {}", from.display(), to.display());
}

pub(crate) fn stdout(exit: &Exit) -> String {
    String::from_utf8_lossy(&exit.stdout).into_owned()
}

pub(crate) fn stderr(exit: &Exit) -> String {
    String::from_utf8_lossy(&exit.stderr).into_owned()
}

/// Pids of the host's processes whose command line contains the marker.
pub(crate) fn processes_with(marker: &str) -> Vec<OsString> {
    let has_marker = |pid: &Path| {
        let line = fs::read(pid.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(marker)
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| has_marker(&entry.path())).map(|entry| entry.file_name()).collect()
}

/// Waits for a state. The bound only ends a test that would never end.
pub(crate) async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "still not so after 30 s: {what}");
}

/// Waits until no process of the host has the marker in its command line.
pub(crate) async fn wait_until_gone(marker: &str) {
    wait_until(&format!("no process with {marker}"), || processes_with(marker).is_empty()).await;
}
