//! A keeper: runs one command at a time and watches over it.
//!
//! It owns what commands share without seeing it: a cgroup, a user, the plan of the root, the
//! filter. While it waits it holds one sandbox ready, so that a command waits for the little that
//! is its own. It ends what it runs when it is told to or when its socket closes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};

use super::cgroup::Cgroup;
use super::command::Stdio;
use super::filter::Filter;
use super::identity::{Identity, Translations};
use super::init::{self, Outcome, Task};
use super::meter::{self, Amount, Meter};
use super::root::{self, Material, Plan, Sources, Template};
use super::{bare, bubblewrap, priority, socket, sys};
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
    /// Where the kernel can copy one, and this process may take views.
    template: Option<Template>,
    filter: Filter,
    cgroup: Option<Cgroup>,
    translations: Translations,
    /// A sandbox that waits for its command.
    ready: Option<Ready>,
}

/// A sandbox that waits for its command.
pub(super) struct Ready {
    identity: Identity,
    pid: Pid,
    pidfd: OwnedFd,
    channel: OwnedFd,
    report: OwnedFd,
}

/// What came along with a command.
pub(super) struct Pipes {
    pub(super) stdio: Stdio,
    /// Through which pid 1 hands out the socket of the proxy.
    pub(super) proxy: Option<OwnedFd>,
}

impl Pipes {
    pub(super) fn new(mut fds: Vec<OwnedFd>) -> Result<Self, Failure> {
        let proxy = (fds.len() > 3).then(|| fds.pop()).flatten();
        let stdio = fds.try_into().map_err(|fds: Vec<_>| format!("{} descriptors came along", fds.len()));
        Ok(Self { stdio: stdio.step("start")?, proxy })
    }
}

/// How a command ended, and what was in force.
pub(super) struct Ran {
    pub(super) reply: Reply,
    pub(super) landlock: bool,
    pub(super) identity: Option<Identity>,
    pub(super) watched: Watched,
    /// Its sandbox, in which nothing of it lives any more.
    pub(super) spent: Option<Ready>,
}

/// What came while a command ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    /// The launcher closed its socket.
    pub(super) is_orphaned: bool,
    /// The workspace outgrew what it may hold.
    pub(super) workspace_full: bool,
}

/// What a command's workspace may hold.
pub(super) fn allowed(request: &Request) -> Amount {
    Amount { bytes: request.limits.workspace_bytes, files: request.limits.workspace_files }
}

impl Keeper {
    /// Makes this process a keeper.
    pub(super) fn new(raise: Raise, cgroup: Option<Cgroup>) -> Result<Self, Failure> {
        rustix::process::umask(Mode::from(0o022));
        if let Some(cgroup) = &cgroup {
            cgroup.enter().step("enter the cgroup")?;
            priority::go_first();
        }
        let plan = Plan::new(&raise.read_only_paths);
        let is_useful = is_root() && raise.isolation == Isolation::Native;
        let template = is_useful.then(|| Template::new(&plan).ok()).flatten();
        let (filter, translations) = (Filter::new(), Translations::default());
        Ok(Self { raise, plan, template, filter, cgroup, translations, ready: None })
    }

    /// Serves one command after the other until the socket closes.
    pub(super) fn serve(&mut self, socket: OwnedFd) -> Result<(), Failure> {
        loop {
            self.prepare_next();
            let Some((request, fds)) = socket::receive::<Request>(&socket)? else {
                break;
            };
            let pipes = Pipes::new(fds)?;
            let ran = match self.raise.isolation {
                Isolation::Native | Isolation::Bubblewrap => self.run(&request, pipes, socket.as_fd()),
                Isolation::None => bare::run(&request, &pipes.stdio, socket.as_fd()),
            };
            let told = frame(&ran.reply).and_then(|frame| socket::deliver(&socket, &frame, &[]));
            // What it held counts against the memory of the next one, and keeps the cgroup in use.
            if let Some(spent) = ran.spent {
                spent.bury();
            }
            if ran.watched.is_orphaned {
                break;
            }
            told?;
        }
        if let Some(ready) = self.ready.take() {
            ready.dismiss();
        }
        Ok(())
    }

    /// Makes a sandbox ahead. If that fails now it is tried again, and told, with the command.
    fn prepare_next(&mut self) {
        if self.raise.isolation == Isolation::Native && self.ready.is_none() {
            self.ready = priority::behind(|| self.prepare(self.usual_identity())).ok();
        }
    }

    /// Runs one command to its end.
    pub(super) fn run(&mut self, request: &Request, pipes: Pipes, socket: BorrowedFd<'_>) -> Ran {
        self.try_run(request, pipes, socket).unwrap_or_else(|failure| Ran {
            reply: Reply::Failed(failure),
            landlock: false,
            identity: None,
            watched: Watched::default(),
            spent: None,
        })
    }

    fn try_run(&mut self, request: &Request, pipes: Pipes, socket: BorrowedFd<'_>) -> Result<Ran, Failure> {
        self.require(Degradable::CgroupMemory, self.cgroup.as_ref().is_some_and(Cgroup::bounds_memory))?;
        self.require(Degradable::CgroupPids, self.cgroup.as_ref().is_some_and(Cgroup::bounds_processes))?;
        self.require(Degradable::CgroupCpu, self.cgroup.as_ref().is_some_and(Cgroup::bounds_cpu))?;
        if let Some(cgroup) = &self.cgroup {
            cgroup.limit(&request.limits).step("limit the cgroup")?;
        }
        let n_killed_before = self.n_killed_for_memory();
        let mut ran = match self.raise.isolation {
            Isolation::Bubblewrap => self.run_in_bubblewrap(request, pipes, socket)?,
            _ => self.run_in_namespaces(request, pipes, socket)?,
        };
        let is_full = ran.watched.workspace_full;
        if let Reply::Ended { out_of_memory, workspace_full, .. } = &mut ran.reply {
            *out_of_memory = self.n_killed_for_memory() > n_killed_before;
            *workspace_full = is_full;
        }
        Ok(ran)
    }

    fn run_in_namespaces(
        &mut self,
        request: &Request,
        pipes: Pipes,
        socket: BorrowedFd<'_>,
    ) -> Result<Ran, Failure> {
        let cpu_ms_before = sys::children_cpu_ms();
        let (identity, workspace) = self.identify(request)?;
        self.require(Degradable::OwnUser, identity.separate_user().is_some())?;

        let sandbox = self.sandbox_of(identity)?;
        priority::bring_forward(sandbox.pid);
        let mut fds: Vec<BorrowedFd<'_>> = pipes.stdio.iter().map(AsFd::as_fd).collect();
        fds.extend(pipes.proxy.as_ref().map(AsFd::as_fd));
        fds.extend(workspace.as_ref().map(AsFd::as_fd));
        // A sandbox that failed while it was made does not listen any more; its report says why.
        let _ = socket::deliver(&sandbox.channel, &frame(request)?, &fds);
        drop((pipes, workspace));
        // It can be read when pid 1 tells how it went, and when pid 1 is dead.
        let end = Target { end: sandbox.report.as_fd(), process: sandbox.pidfd.as_fd() };
        let watched = watch(&end, socket, Meter::start(&request.workspace, allowed(request)));
        let Some(outcome) = read_outcome(&sandbox.report) else {
            // Pid 1 was killed: by us, or for memory.
            sandbox.bury();
            let cpu_ms = sys::children_cpu_ms().saturating_sub(cpu_ms_before);
            let reply = ended(None, cpu_ms);
            return Ok(Ran { reply, landlock: false, identity: Some(identity), watched, spent: None });
        };
        let reply = match outcome.status {
            Ok(status) => ended(Some(status), outcome.cpu_ms),
            Err(failure) => Reply::Failed(failure),
        };
        let landlock = outcome.landlock;
        Ok(Ran { reply, landlock, identity: Some(identity), watched, spent: Some(sandbox) })
    }

    fn run_in_bubblewrap(
        &self,
        request: &Request,
        pipes: Pipes,
        socket: BorrowedFd<'_>,
    ) -> Result<Ran, Failure> {
        self.require(Degradable::OwnUser, false)?;
        let memory_bounded = self.cgroup.as_ref().is_some_and(Cgroup::bounds_memory);
        let of = bubblewrap::Circumstances { raise: &self.raise, plan: &self.plan, memory_bounded };
        bubblewrap::run(&of, request, pipes, socket)
    }

    /// The sandbox that is ready, if it has this identity; else a new one.
    fn sandbox_of(&mut self, identity: Identity) -> Result<Ready, Failure> {
        match self.ready.take() {
            Some(ready) if ready.identity == identity => Ok(ready),
            other => {
                if let Some(unfit) = other {
                    unfit.dismiss();
                }
                self.prepare(identity)
            }
        }
    }

    /// Makes a sandbox that waits for its command.
    fn prepare(&self, identity: Identity) -> Result<Ready, Failure> {
        let material = is_root().then(|| self.material()).transpose()?;
        let (channel, theirs) = socket_pair()?;
        let (report_read, report) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
        let Some((pid, pidfd)) = sys::fork_into(NAMESPACES).step("make namespaces")? else {
            drop((channel, report_read));
            init::main(Task {
                plan: &self.plan,
                filter: &self.filter,
                material,
                landlock_required: !self.raise.allow_degraded.contains(&Degradable::Landlock),
                memory_bounded: self.cgroup.as_ref().is_some_and(Cgroup::bounds_memory),
                channel: theirs,
                report,
            })
        };
        let ready = Ready { identity, pid, pidfd, channel, report: report_read };
        let mapped = identity.map_into(pid).and_then(|()| Ok(rustix::io::write(&ready.channel, &[1])?));
        match mapped {
            Ok(_) => Ok(ready),
            Err(error) => {
                ready.dismiss();
                Err(error).step("map the user")
            }
        }
    }

    fn material(&self) -> Result<Material, Failure> {
        match &self.template {
            Some(template) => template.copy().map(Material::Copy),
            None => Sources::gather(&self.plan).map(Material::Views),
        }
    }

    /// Who commands are unless their workspace does not allow it.
    fn usual_identity(&self) -> Identity {
        if is_root() {
            return Identity::of_slot(self.raise.slot);
        }
        Identity::Shared(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    /// Who the command will be, and its workspace if the view has to be taken from out here.
    fn identify(&mut self, request: &Request) -> Result<(Identity, Option<OwnedFd>), Failure> {
        let path = request.workspace.as_path();
        let owner = std::fs::metadata(path).step(&format!("look at {}", path.display()))?;
        let owner = (owner.uid(), owner.gid());
        let identity = self.usual_identity();
        let Some(outside) = identity.separate_user() else {
            return Ok((identity, None));
        };
        let id_map = self.translations.get(owner, outside).ok();
        if let Some(id_map) = id_map
            && let Ok(view) = root::view_workspace(path, request.read_only, Some(id_map))
        {
            return Ok((identity, Some(view)));
        }
        // The workspace's file system cannot translate owners.
        let view = root::view_workspace(path, request.read_only, None)?;
        Ok((Identity::Shared(owner.0, owner.1), Some(view)))
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

/// A reply from a wait status, without what a cgroup and a meter tell. Without a status the process
/// was killed.
pub(super) fn ended(status: Option<i32>, cpu_ms: u64) -> Reply {
    let (code, signal) = match status {
        Some(status) if libc::WIFEXITED(status) => (Some(libc::WEXITSTATUS(status)), None),
        Some(status) => (None, Some(libc::WTERMSIG(status))),
        None => (None, Some(libc::SIGKILL)),
    };
    Reply::Ended { code, signal, out_of_memory: false, workspace_full: false, cpu_ms }
}

impl Ready {
    /// Waits until every process of the pid namespace is gone, and what it held.
    fn bury(self) {
        // Nobody else waits for it, so there is no other way for this to fail than a signal.
        while matches!(waitpid(Some(self.pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    }

    /// Ends a sandbox that is not needed.
    fn dismiss(self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        self.bury();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Failure> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).step("make a socket")
}

/// What is watched.
struct Target<'a> {
    /// Can be read when the command has ended.
    end: BorrowedFd<'a>,
    /// Whom to kill.
    process: BorrowedFd<'a>,
}

/// Waits until the command ends, and kills it when that is asked for, or when its workspace is full.
fn watch(target: &Target<'_>, socket: BorrowedFd<'_>, mut meter: Option<Meter>) -> Watched {
    let mut seen = Watched::default();
    let interval = Timespec { tv_sec: 0, tv_nsec: meter::INTERVAL_MS * 1_000_000 };
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(target.end, PollFlags::IN)];
        if !seen.is_orphaned {
            fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN));
        }
        match poll(&mut fds, meter.as_ref().map(|_| &interval)) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Without a way to wait there is only one safe end.
            Err(_) => seen.is_orphaned = true,
        }
        let has_ended = !fds[0].revents().is_empty();
        let is_asked = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if has_ended {
            return seen;
        }
        if is_asked {
            seen.is_orphaned = socket::receive_kill(socket);
        }
        if meter.as_mut().is_some_and(Meter::is_exceeded) {
            seen.workspace_full = true;
            // It dies now; there is nothing left to watch.
            meter = None;
        }
        if is_asked || seen.is_orphaned || seen.workspace_full {
            let _ = pidfd_send_signal(target.process, Signal::KILL);
        }
    }
}

pub(super) fn read_outcome(report: &OwnedFd) -> Option<Outcome> {
    let mut text = [0; 4096];
    let n = rustix::io::read(report, &mut text).ok()?;
    serde_json::from_slice(text.get(..n)?).ok()
}

/// A process that runs without namespaces and is watched in the same way.
pub(super) fn watch_process(pid: Pid, socket: BorrowedFd<'_>, request: &Request) -> Watched {
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(pidfd) => {
            let target = Target { end: pidfd.as_fd(), process: pidfd.as_fd() };
            watch(&target, socket, Meter::start(&request.workspace, allowed(request)))
        }
        Err(_) => Watched::default(),
    }
}
