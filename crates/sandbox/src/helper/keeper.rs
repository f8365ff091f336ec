//! A keeper: runs one command at a time and watches over it.
//!
//! It owns what commands share without seeing it: a cgroup, a user, the plan of the root, the
//! filter. It ends what it runs when it is told to or when its socket closes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};

use super::cgroup::Cgroup;
use super::command::Stdio;
use super::filter::Filter;
use super::identity::{Identity, Translations};
use super::init::{self, Outcome, Task};
use super::root::{Plan, Sources, Workspace};
use super::{bare, socket, sys};
use crate::config::{Degradable, Isolation};
use crate::wire::{Failure, Raise, Reply, Request, Step, frame};

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

pub(super) struct Keeper {
    raise: Raise,
    plan: Plan,
    filter: Filter,
    cgroup: Option<Cgroup>,
    translations: Translations,
}

/// How a command ended, and what was in force.
pub(super) struct Ran {
    pub(super) reply: Reply,
    pub(super) landlock: bool,
    pub(super) identity: Option<Identity>,
    /// The launcher closed its socket.
    pub(super) is_orphaned: bool,
}

impl Keeper {
    /// Makes this process a keeper.
    pub(super) fn new(raise: Raise, cgroup: Option<Cgroup>) -> Result<Self, Failure> {
        rustix::process::umask(Mode::from(0o022));
        if let Some(cgroup) = &cgroup {
            cgroup.enter().step("enter the cgroup")?;
        }
        let plan = Plan::new(&raise.read_only_paths);
        Ok(Self { raise, plan, filter: Filter::new(), cgroup, translations: Translations::default() })
    }

    /// Serves one command after the other until the socket closes.
    pub(super) fn serve(&mut self, socket: OwnedFd) -> Result<(), Failure> {
        while let Some((request, fds)) = socket::receive::<Request>(&socket)? {
            let stdio: Stdio = fds
                .try_into()
                .map_err(|fds: Vec<_>| format!("{} descriptors came along", fds.len()))
                .step("start")?;
            let ran = match self.raise.isolation {
                Isolation::Native => self.run(&request, stdio, socket.as_fd()),
                Isolation::None => bare::run(&request, &stdio, socket.as_fd()),
            };
            if ran.is_orphaned {
                break;
            }
            socket::reply(&socket, &frame(&ran.reply)?)?;
        }
        Ok(())
    }

    /// Runs one command to its end.
    pub(super) fn run(&mut self, request: &Request, stdio: Stdio, socket: BorrowedFd<'_>) -> Ran {
        self.try_run(request, stdio, socket).unwrap_or_else(|failure| Ran {
            reply: Reply::Failed(failure),
            landlock: false,
            identity: None,
            is_orphaned: false,
        })
    }

    fn try_run(&mut self, request: &Request, stdio: Stdio, socket: BorrowedFd<'_>) -> Result<Ran, Failure> {
        self.require(Degradable::CgroupMemory, self.cgroup.as_ref().is_some_and(Cgroup::bounds_memory))?;
        self.require(Degradable::CgroupPids, self.cgroup.as_ref().is_some_and(Cgroup::bounds_processes))?;
        if let Some(cgroup) = &self.cgroup {
            cgroup.limit(&request.limits).step("limit the cgroup")?;
        }
        let n_killed_before = self.n_killed_for_memory();
        let cpu_ms_before = sys::children_cpu_ms();
        let (identity, sources) = self.identify(request)?;
        self.require(Degradable::OwnUser, identity.separate_user().is_some())?;
        let (lifeline, hold) = pipe()?;
        let (report_read, report) = pipe()?;
        let forked = sys::fork_into(NAMESPACES).step("make namespaces")?;
        let Some((pid, pidfd)) = forked else {
            drop((hold, report_read));
            init::main(Task {
                plan: &self.plan,
                filter: &self.filter,
                request,
                stdio: &stdio,
                sources,
                landlock_required: !self.raise.allow_degraded.contains(&Degradable::Landlock),
                memory_bounded: self.cgroup.as_ref().is_some_and(Cgroup::bounds_memory),
                lifeline,
                report,
            })
        };
        drop((lifeline, report, sources, stdio));
        let mapped = identity.map_into(pid).and_then(|()| Ok(rustix::io::write(&hold, &[1])?));
        if mapped.is_err() {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        let is_orphaned = watch(&pidfd, socket);
        // Returns when every process of the pid namespace is gone.
        waitpid(Some(pid), WaitOptions::empty()).step("wait for pid 1")?;
        mapped.step("map the user")?;
        let outcome = read_outcome(&report_read);
        let landlock = outcome.as_ref().is_some_and(|outcome| outcome.landlock);
        let out_of_memory = self.n_killed_for_memory() > n_killed_before;
        let cpu_ms = sys::children_cpu_ms().saturating_sub(cpu_ms_before);
        let reply = match outcome.map(|outcome| outcome.status) {
            Some(Ok(status)) => ended(Some(status), out_of_memory, cpu_ms),
            Some(Err(failure)) => Reply::Failed(failure),
            // Pid 1 was killed: by us, or for memory.
            None => ended(None, out_of_memory, cpu_ms),
        };
        Ok(Ran { reply, landlock, identity: Some(identity), is_orphaned })
    }

    /// Who the command will be, and its views if they have to be taken from out here.
    fn identify(&mut self, request: &Request) -> Result<(Identity, Option<Sources>), Failure> {
        let path = request.workspace.as_path();
        let owner = std::fs::metadata(path).step(&format!("look at {}", path.display()))?;
        let owner = (owner.uid(), owner.gid());
        if !rustix::process::geteuid().is_root() {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            return Ok((Identity::Shared(uid.as_raw(), gid.as_raw()), None));
        }
        let identity = Identity::of_slot(self.raise.slot);
        let translated = identity.separate_user().and_then(|outside| {
            let id_map = self.translations.get(owner, outside).ok()?;
            let workspace = Workspace { path, read_only: request.read_only, id_map: Some(id_map) };
            Sources::gather(&self.plan, &workspace).ok()
        });
        if let Some(sources) = translated {
            return Ok((identity, Some(sources)));
        }
        // The workspace's file system cannot translate owners.
        let workspace = Workspace { path, read_only: request.read_only, id_map: None };
        let sources = Sources::gather(&self.plan, &workspace)?;
        Ok((Identity::Shared(owner.0, owner.1), Some(sources)))
    }

    /// Refuses to go on without a mechanism whose absence is not allowed. The host was examined when
    /// the server started; this is for what changed since, and for single workspaces.
    fn require(&self, name: Degradable, is_there: bool) -> Result<(), Failure> {
        if is_there || self.raise.allow_degraded.contains(&name) {
            return Ok(());
        }
        Err("it is absent, and sandbox.allow_degraded does not name it").step(name.as_str())
    }

    fn n_killed_for_memory(&self) -> u64 {
        self.cgroup.as_ref().map_or(0, Cgroup::n_killed_for_memory)
    }
}

/// A reply from a wait status. Without one the process was killed.
pub(super) fn ended(status: Option<i32>, out_of_memory: bool, cpu_ms: u64) -> Reply {
    let (code, signal) = match status {
        Some(status) if libc::WIFEXITED(status) => (Some(libc::WEXITSTATUS(status)), None),
        Some(status) => (None, Some(libc::WTERMSIG(status))),
        None => (None, Some(libc::SIGKILL)),
    };
    Reply::Ended { code, signal, out_of_memory, cpu_ms }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    pipe_with(PipeFlags::CLOEXEC).step("make a pipe")
}

/// Waits until the process ends, and kills it when that is asked for. True if the launcher went.
fn watch(pidfd: &OwnedFd, socket: BorrowedFd<'_>) -> bool {
    let mut is_orphaned = false;
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        if !is_orphaned {
            fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Without a way to wait there is only one safe end.
            Err(_) => is_orphaned = true,
        }
        let has_ended = !fds[0].revents().is_empty();
        let is_asked = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if has_ended {
            return is_orphaned;
        }
        if is_asked {
            is_orphaned = socket::receive_kill(socket);
        }
        if is_asked || is_orphaned {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

fn read_outcome(report: &OwnedFd) -> Option<Outcome> {
    let mut text = [0; 4096];
    let n = rustix::io::read(report, &mut text).ok()?;
    serde_json::from_slice(text.get(..n)?).ok()
}

/// A process that runs without namespaces and is watched in the same way.
pub(super) fn watch_process(pid: Pid, socket: BorrowedFd<'_>) -> bool {
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(pidfd) => watch(&pidfd, socket),
        Err(_) => false,
    }
}
