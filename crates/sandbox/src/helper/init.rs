//! Pid 1 of a sandbox: builds it, starts the command in it, reaps, and ends with the command.
//!
//! When this process ends, for whatever reason, the kernel kills every other process of its pid
//! namespace. It ends when the command ends, and when its keeper dies.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, wait};
use serde::{Deserialize, Serialize};

use super::command::{self, Stdio};
use super::filter::Filter;
use super::root::{self, Plan, Sources, Workspace};
use super::{identity, landlock, sys};
use crate::config::Isolation;
use crate::wire::{Failure, Request, Step};

/// What pid 1 tells its keeper, once.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The command's wait status, or why there was no command.
    pub(super) status: Result<i32, Failure>,
    /// Whether Landlock restricted it.
    pub(super) landlock: bool,
}

/// Everything that pid 1 needs.
pub(super) struct Task<'a> {
    pub(super) plan: &'a Plan,
    pub(super) filter: &'a Filter,
    pub(super) request: &'a Request,
    pub(super) stdio: &'a Stdio,
    /// Views taken by the keeper; else they are taken here, with the rights of the new namespace.
    pub(super) sources: Option<Sources>,
    /// Refuse to run without Landlock.
    pub(super) landlock_required: bool,
    /// Whether a cgroup bounds the memory.
    pub(super) memory_bounded: bool,
    /// One byte comes when the identity is mapped; the end of file means that the keeper died.
    pub(super) lifeline: OwnedFd,
    pub(super) report: OwnedFd,
}

/// Runs as pid 1.
pub(super) fn main(task: Task<'_>) -> ! {
    let mut outcome = Outcome { status: Ok(0), landlock: false };
    outcome.status = isolate(&task, &mut outcome.landlock).and_then(|()| run(&task));
    if let Ok(text) = serde_json::to_vec(&outcome) {
        let _ = rustix::io::write(&task.report, &text);
    }
    sys::exit_now(0)
}

/// Puts everything in force. The order matters: each step needs a right that a later one gives up.
fn isolate(task: &Task<'_>, landlocked: &mut bool) -> Result<(), Failure> {
    await_go(&task.lifeline)?;
    let sources = match &task.sources {
        Some(_) => None,
        None => {
            let workspace =
                Workspace { path: &task.request.workspace, read_only: task.request.read_only, id_map: None };
            Some(Sources::gather(task.plan, &workspace)?)
        }
    };
    identity::assume()?;
    let sources =
        sources.as_ref().or(task.sources.as_ref()).ok_or("there are no views").step("build the root")?;
    root::build(task.plan, sources, task.request.limits.tmp_bytes)?;
    rustix::system::sethostname(b"sandbox").step("name the host")?;
    sys::leave_session_keyring();
    sys::raise_loopback().step("raise the loopback device")?;
    drop_capabilities().step("drop capabilities")?;
    // The command shares this process's user: it must not read the keeper's memory through it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step("hide pid 1")?;
    rustix::thread::set_no_new_privs(true).step("give up new privileges")?;
    *landlocked = landlock::restrict(task.request.read_only)?;
    if task.landlock_required && !*landlocked {
        return Err("it is absent, and sandbox.allow_degraded does not name it").step("landlock");
    }
    // Set last, because changes of credentials clear it; the lifeline shows whether it came too late.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("follow the keeper")?;
    if is_cut(&task.lifeline) {
        sys::exit_now(1);
    }
    task.filter.apply()
}

fn await_go(lifeline: &OwnedFd) -> Result<(), Failure> {
    match rustix::io::read(lifeline, &mut [0; 1]) {
        Ok(1) => Ok(()),
        _ => sys::exit_now(1),
    }
}

fn is_cut(lifeline: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(lifeline.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)) != Ok(0)
}

fn drop_capabilities() -> rustix::io::Result<()> {
    use rustix::thread::{
        CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    };
    // The bounding set first: taking from it needs a capability. Kernels differ in the last one.
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if remove_capability_from_bounding_set(capability).is_err() {
            break;
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

fn run(task: &Task<'_>) -> Result<i32, Failure> {
    let Some(command) = sys::fork().step("fork the command")? else {
        command::become_program(task.request, task.stdio, Isolation::Native, task.memory_bounded)
    };
    reap_until(command).step("wait for the command")
}

/// Reaps whatever ends until the command does: its wait status.
fn reap_until(command: Pid) -> rustix::io::Result<i32> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => return Ok(status.as_raw()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
