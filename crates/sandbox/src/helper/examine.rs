//! Examines the host: makes a real sandbox and looks at a command in it.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evenkeel_core::port::runner::RunnerLimits;
use rustix::pipe::{PipeFlags, pipe_with};

use super::bubblewrap;
use super::cgroup::{Cgroup, Hierarchy};
use super::identity::Identity;
use super::keeper::{Keeper, Pipes, Ran};
use super::sys;
use crate::config::{Degradable, Isolation};
use crate::doctor::{Finding, Report, State};
use crate::wire::{Failure, Raise, Reply, Request, Step};

/// Prints what the trial shows, inside of the sandbox.
const TRIAL: &[&str] = &["cat", "/proc/self/status", "/proc/mounts", "/proc/net/dev", "/proc/net/route"];

/// A number far from those that the nursery gives out.
const TRIAL_SLOT: u32 = u32::MAX;

/// Examines and prints the report as JSON. The arguments are the JSON list of extra directories, and
/// the isolation as JSON.
pub(super) fn main(paths: Option<String>, isolation: Option<String>) -> ExitCode {
    let paths = paths.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let isolation = isolation.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let report = examine(paths, isolation);
    match serde_json::to_string(&report) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn examine(read_only_paths: Vec<PathBuf>, isolation: Isolation) -> Report {
    let cgroup = Hierarchy::find().and_then(|hierarchy| hierarchy.create(TRIAL_SLOT).ok());
    let bounds = |of: fn(&Cgroup) -> bool| cgroup.as_ref().is_some_and(of);
    let bounded =
        [bounds(Cgroup::bounds_memory), bounds(Cgroup::bounds_processes), bounds(Cgroup::bounds_cpu)];
    // The trial itself needs no cgroup, and could not leave it again.
    if let Some(cgroup) = &cgroup {
        Cgroup::remove(cgroup);
    }
    let allow_degraded = Degradable::ALL.into_iter().collect();
    let raise = Raise { slot: 0, isolation, allow_degraded, read_only_paths };
    let trial = try_sandbox(raise);
    let mut findings = vec![backend(isolation)];
    let usable = match &trial {
        Ok(seen) => {
            findings.extend(seen.indispensable());
            findings.push(seen.landlock());
            findings.push(seen.own_user());
            findings.iter().all(|finding| finding.state == State::Enforced || finding.degradable.is_some())
        }
        Err(failure) => {
            findings.push(cannot_isolate(failure));
            false
        }
    };
    let [memory, processes, cpu] = bounded;
    findings.push(cgroup_finding("cgroup memory", Degradable::CgroupMemory, memory));
    findings.push(cgroup_finding("cgroup processes", Degradable::CgroupPids, processes));
    findings.push(cgroup_finding("cgroup cpu", Degradable::CgroupCpu, cpu));
    findings.push(workspace_size());
    findings.push(workspace_sockets());
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Report { usable, kernel, findings }
}

/// What the trial saw.
struct Seen {
    /// What the command printed.
    text: String,
    ran: Ran,
}

fn try_sandbox(raise: Raise) -> Result<Seen, Failure> {
    let workspace = std::env::temp_dir().join(format!("evenkeel-doctor-{}", std::process::id()));
    fs::create_dir(&workspace).step("make a directory for a trial")?;
    let seen = run_trial(raise, &workspace);
    let _ = fs::remove_dir_all(&workspace);
    seen
}

fn run_trial(raise: Raise, workspace: &Path) -> Result<Seen, Failure> {
    let request = Request {
        argv: TRIAL.iter().map(ToString::to_string).collect(),
        workspace: workspace.to_owned(),
        read_only: false,
        cwd: String::new(),
        env: Vec::new(),
        limits: RunnerLimits::default(),
        network: false,
    };
    let (socket, _held) = UnixStream::pair().step("make a socket")?;
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let null: OwnedFd = fs::File::open("/dev/null").step("open /dev/null")?.into();
    let stdio = [null, write.try_clone().step("make a pipe")?, write];
    let pipes = Pipes { stdio, proxy: None };
    let ran = Keeper::new(raise, None)?.run(&request, pipes, socket.as_fd());
    let mut text = String::new();
    fs::File::from(read).read_to_string(&mut text).step("read what the trial printed")?;
    match &ran.reply {
        Reply::Failed(failure) => Err(failure.clone()),
        Reply::Ended { code: Some(0), .. } => Ok(Seen { text, ran }),
        Reply::Ended { .. } => Err(text.trim()).step("run a trial command"),
    }
}

impl Seen {
    /// The value of a line of `/proc/self/status`.
    fn status(&self, name: &str) -> &str {
        let line = self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_default()
    }

    fn indispensable(&self) -> Vec<Finding> {
        let capabilities: Vec<&str> =
            ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|name| self.status(name)).into();
        let has_none =
            capabilities.iter().all(|set| !set.is_empty() && set.chars().all(|digit| digit == '0'));
        // The last file's header is followed by the routes: there must be none. Some kernels put
        // idle tunnel devices into every network namespace, so devices alone tell nothing.
        let has_loopback = self.text.lines().any(|line| line.trim_start().starts_with("lo:"));
        let (_, routes) = self.text.split_once("\nIface").unwrap_or_default();
        let is_closed = has_loopback && routes.lines().count() == 1;
        let pid: u32 = self.status("Pid").parse().unwrap_or(u32::MAX);
        let root_read_only = self.text.lines().any(|line| {
            let mut fields = line.split(' ').skip(1);
            fields.next() == Some("/") && fields.nth(1).is_some_and(|options| options.starts_with("ro"))
        });
        vec![
            holds("user namespace", has_none, format!("capabilities {}", capabilities.join(" "))),
            holds("pid namespace", pid < 10, format!("the command is pid {pid}")),
            holds("network namespace", is_closed, "only the loopback device, no route".to_owned()),
            holds("read-only root", root_read_only, "built in memory, old root unmounted".to_owned()),
            holds("seccomp", self.status("Seccomp") == "2", format!("mode {}", self.status("Seccomp"))),
            holds(
                "no new privileges",
                self.status("NoNewPrivs") == "1",
                "setuid programs give nothing".to_owned(),
            ),
        ]
    }

    fn landlock(&self) -> Finding {
        let detail = match sys::landlock_version() {
            Some(version) => format!("ABI {version}"),
            None => "the kernel does not have it, or it is not in its list of security modules".to_owned(),
        };
        let remedy = "Use Linux 5.13 or later and boot with landlock in the lsm= list.";
        degradable("landlock", Degradable::Landlock, self.ran.landlock, detail, remedy)
    }

    fn own_user(&self) -> Finding {
        let (is_own, detail) = match self.ran.identity {
            Some(Identity::Separate(uid)) => (true, format!("user {uid} of the host, owners translated")),
            Some(Identity::Shared(uid, _)) => {
                (false, format!("commands run as the host's user {uid}, without rights"))
            }
            None => (false, "unknown".to_owned()),
        };
        let remedy =
            "Run the server as root on a file system that translates owners (ext4, xfs, btrfs, tmpfs).";
        degradable("own user", Degradable::OwnUser, is_own, detail, remedy)
    }
}

fn holds(mechanism: &str, is_enforced: bool, detail: String) -> Finding {
    let (state, remedy) = if is_enforced {
        (State::Enforced, String::new())
    } else {
        (
            State::Missing,
            "The kernel accepted the request but does not show it in force; report it.".to_owned(),
        )
    };
    Finding { mechanism: mechanism.to_owned(), state, detail, remedy, degradable: None }
}

fn degradable(mechanism: &str, name: Degradable, is_enforced: bool, detail: String, remedy: &str) -> Finding {
    let (state, remedy) =
        if is_enforced { (State::Enforced, String::new()) } else { (State::Missing, remedy.to_owned()) };
    Finding { mechanism: mechanism.to_owned(), state, detail, remedy, degradable: Some(name) }
}

fn cgroup_finding(mechanism: &str, name: Degradable, is_enforced: bool) -> Finding {
    let detail = if is_enforced {
        "bounds the whole command"
    } else {
        "no cgroup that we may write to; limits hold per process"
    };
    let remedy = "Give the server a cgroup of its own (systemd: Delegate=yes and DelegateSubgroup=server), or run it as root.";
    degradable(mechanism, name, is_enforced, detail.to_owned(), remedy)
}

/// A workspace is a directory of the host: it is looked at, not walled.
fn workspace_size() -> Finding {
    Finding {
        mechanism: "size of the workspace".to_owned(),
        state: State::Enforced,
        detail:
            "one file is bounded by the kernel; many are looked at ten times a second, and a command that \
                 makes it too large is killed: what it wrote between two looks is there"
                .to_owned(),
        remedy: String::new(),
        degradable: None,
    }
}

/// Sockets with a path belong to no namespace, and no filter can read the path.
fn workspace_sockets() -> Finding {
    Finding {
        mechanism: "sockets in the workspace".to_owned(),
        state: State::Open,
        detail: "a command reaches a process outside that listens on a socket inside its workspace"
            .to_owned(),
        remedy: "Let nothing of the host listen below server.data_dir; workspaces begin without sockets."
            .to_owned(),
        degradable: None,
    }
}

/// Which of the two backends makes sandboxes.
fn backend(isolation: Isolation) -> Finding {
    let (state, detail, remedy) = match (isolation, bubblewrap::program()) {
        (Isolation::Bubblewrap, Some(path)) => {
            (State::Enforced, format!("{}, as sandbox.isolation says", path.display()), "")
        }
        (Isolation::Bubblewrap, None) => (
            State::Missing,
            "sandbox.isolation is \"bwrap\", and bubblewrap is not installed".to_owned(),
            "Install the package bubblewrap, or remove sandbox.isolation for the native backend.",
        ),
        _ => (State::Enforced, "native: nothing has to be installed".to_owned(), ""),
    };
    let (mechanism, remedy) = ("backend".to_owned(), remedy.to_owned());
    Finding { mechanism, state, detail, remedy, degradable: None }
}

/// Why namespaces do not work here, as far as the host tells.
fn cannot_isolate(failure: &Failure) -> Finding {
    let is_set = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let remedy = if is_set("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor forbids namespaces to ordinary users: add an AppArmor profile with `userns,` for this program, or set kernel.apparmor_restrict_unprivileged_userns=0."
    } else if is_set("/proc/sys/user/max_user_namespaces", "0") {
        "Set user.max_user_namespaces above 0."
    } else if is_set("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "Set kernel.unprivileged_userns_clone=1."
    } else if fs::metadata("/.dockerenv").is_ok_and(|data| data.uid() == 0) {
        "In a container, allow namespaces and mounts: --security-opt seccomp=unconfined --security-opt systempaths=unconfined."
    } else {
        "Allow this user to make user, mount, pid and network namespaces."
    };
    Finding {
        mechanism: "namespaces".to_owned(),
        state: State::Missing,
        detail: failure.to_string(),
        remedy: remedy.to_owned(),
        degradable: None,
    }
}
