//! Pid 1 of a sandbox: builds it, starts the command in it, reaps, and ends with the command.
//!
//! It is made before its command is known and does the slow part (namespaces, mounts, the loopback
//! device) while nobody waits. No sandbox ever serves a second command.
//!
//! When this process ends, for whatever reason, the kernel kills every other process of its pid
//! namespace. It ends when the command ends, and when its keeper dies.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, kill_process_group, wait};
use serde::{Deserialize, Serialize};

use super::bubblewrap::{self, Taken};
use super::command::{self, Stdio};
use super::filter::Filter;
use super::keeper::Pipes;
use super::root::{self, Material, Plan, Sources};
use super::{identity, landlock, socket, sys};
use crate::config::Isolation;
use crate::network::PROXY_PORT;
use crate::wire::{Failure, Request, Step};

/// Also children whose parents asked for another signal than the usual one at their end.
const EVERY_CHILD: WaitOptions = WaitOptions::from_bits_retain(libc::__WALL.cast_unsigned());

/// What pid 1 tells its keeper, once.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The command's wait status, or why there was no command.
    pub(super) status: Result<i32, Failure>,
    /// Whether Landlock restricted it.
    pub(super) landlock: bool,
    /// Processor time of the command and of all that it started, in milliseconds.
    pub(super) cpu_ms: u64,
}

/// Everything that pid 1 needs before it knows its command.
pub(super) struct Task<'a> {
    pub(super) plan: &'a Plan,
    pub(super) filter: &'a Filter,
    /// What the keeper gives for the root; else its views are taken here, with the rights of the new
    /// namespace.
    pub(super) material: Option<Material>,
    /// Refuse to run without Landlock.
    pub(super) landlock_required: bool,
    /// Whether a cgroup bounds the memory.
    pub(super) memory_bounded: bool,
    /// One byte comes when the identity is mapped, then the command. The end of file means that
    /// the keeper died, or has no use for this sandbox.
    pub(super) channel: OwnedFd,
    pub(super) report: OwnedFd,
}

/// The command, when it comes.
struct Order {
    request: Request,
    stdio: Stdio,
    /// Through which the socket of the proxy is handed out.
    proxy: Option<OwnedFd>,
    /// The view of the workspace, if the keeper took it.
    workspace: Option<OwnedFd>,
}

/// Runs as pid 1.
pub(super) fn main(mut task: Task<'_>) -> ! {
    let mut landlock = false;
    let status = serve(&mut task, &mut landlock);
    tell(status, landlock, &task.report)
}

/// Tells how it ended, when nothing of the command lives any more: whoever hears it need not wait
/// until the kernel has taken the namespaces apart.
fn tell(status: Result<i32, Failure>, landlock: bool, report: &OwnedFd) -> ! {
    end_the_rest();
    let outcome = Outcome { status, landlock, cpu_ms: sys::children_cpu_ms() };
    if let Ok(text) = serde_json::to_vec(&outcome) {
        let _ = rustix::io::write(report, &text);
    }
    sys::exit_now(0)
}

/// Puts everything in force and runs the command. The order matters: each step needs a right that
/// a later one gives up.
fn serve(task: &mut Task<'_>, landlocked: &mut bool) -> Result<i32, Failure> {
    await_go(&task.channel)?;
    let is_given = task.material.is_some();
    let material = match task.material.take() {
        Some(material) => material,
        None => Material::Views(Sources::gather(task.plan)?),
    };
    identity::assume()?;
    let root = root::build(task.plan, material)?;
    if is_given {
        // The view of the workspace will be too: nothing is needed of the old root any more.
        root::enter(&root)?;
    }
    rustix::system::sethostname(b"sandbox").step("name the host")?;
    sys::leave_session_keyring();
    sys::raise_loopback().step("raise the loopback device")?;

    let order = await_order(&task.channel)?;
    if let Some(channel) = order.proxy {
        hand_out_proxy(&channel).step("open the socket of the proxy")?;
    }
    let workspace = match order.workspace {
        Some(workspace) => workspace,
        None => root::view_workspace(&order.request.workspace, order.request.read_only, None)?,
    };
    root::complete(&root, &workspace, order.request.limits.tmp_bytes)?;
    if !is_given {
        root::enter(&root)?;
    }
    drop((root, workspace));
    let conditions = Conditions {
        landlock_required: task.landlock_required,
        memory_bounded: task.memory_bounded,
        channel: Some(&task.channel),
    };
    lock_and_run(&order.request, &order.stdio, task.filter, &conditions, landlocked)
}

/// What is to be minded when everything is locked.
struct Conditions<'a> {
    landlock_required: bool,
    memory_bounded: bool,
    /// Shows whether the keeper died before this process followed it.
    channel: Option<&'a OwnedFd>,
}

/// Gives up every right and runs the command: its wait status.
fn lock_and_run(
    request: &Request,
    stdio: &Stdio,
    filter: &Filter,
    of: &Conditions<'_>,
    landlocked: &mut bool,
) -> Result<i32, Failure> {
    drop_capabilities().step("drop capabilities")?;
    // The command shares this process's user: it must not read the keeper's memory through it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step("hide pid 1")?;
    rustix::thread::set_no_new_privs(true).step("give up new privileges")?;
    *landlocked = landlock::restrict(request.read_only)?;
    if of.landlock_required && !*landlocked {
        return Err("it is absent, and sandbox.allow_degraded does not name it").step("landlock");
    }
    // Set last, because changes of credentials clear it; the channel shows whether it came too late.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("follow the keeper")?;
    if of.channel.is_some_and(is_cut) {
        sys::exit_now(1);
    }
    filter.apply()?;
    let Some(command) = sys::fork().step("fork the command")? else {
        command::become_program(request, stdio, Isolation::Native, of.memory_bounded)
    };
    reap_until(command).step("wait for the command")
}

/// Runs as pid 1 of a sandbox whose namespaces and view bubblewrap has made.
pub(super) fn main_inside() -> ! {
    // Signals for which this program has a handler would reach pid 1 from inside.
    sys::reset_signals();
    let Ok(order) = bubblewrap::take_order() else { sys::exit_now(1) };
    let mut landlock = false;
    let status = serve_inside(&order, &mut landlock);
    tell(status, landlock, &order.report)
}

fn serve_inside(order: &Taken, landlocked: &mut bool) -> Result<i32, Failure> {
    sys::leave_session_keyring();
    if let Some(channel) = &order.proxy {
        hand_out_proxy(channel).step("open the socket of the proxy")?;
    }
    root::tighten(order.request.limits.tmp_bytes)?;
    let conditions = Conditions {
        landlock_required: order.landlock_required,
        memory_bounded: order.memory_bounded,
        // bwrap has seen to it before this program began.
        channel: None,
    };
    lock_and_run(&order.request, &order.stdio, &Filter::new(), &conditions, landlocked)
}

fn await_go(channel: &OwnedFd) -> Result<(), Failure> {
    match rustix::io::read(channel, &mut [0; 1]) {
        Ok(1) => Ok(()),
        _ => sys::exit_now(1),
    }
}

fn await_order(channel: &OwnedFd) -> Result<Order, Failure> {
    let Some((request, mut fds)) = socket::receive::<Request>(channel)? else {
        sys::exit_now(0);
    };
    let n_own = if request.network { 4 } else { 3 };
    let workspace = (fds.len() > n_own).then(|| fds.pop()).flatten();
    let Pipes { stdio, proxy } = Pipes::new(fds)?;
    Ok(Order { request, stdio, proxy, workspace })
}

/// Opens the socket on which the command finds its proxy and gives it to the server. This side
/// keeps no copy: what the command connects to is served outside.
fn hand_out_proxy(channel: &OwnedFd) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PROXY_PORT)).step("listen")?;
    socket::deliver(channel, &[1], &[listener.as_fd()])
}

fn is_cut(channel: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
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

/// Kills and reaps every other process of this pid namespace. One signal reaches all of them at
/// once, and whoever has it pending cannot fork.
fn end_the_rest() {
    // "All" would be the host's anywhere else.
    if rustix::process::getpid() != Pid::INIT {
        return;
    }
    loop {
        let _ = kill_process_group(Pid::INIT, Signal::KILL);
        match wait(EVERY_CHILD) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No children any more.
            Err(_) => return,
        }
    }
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
