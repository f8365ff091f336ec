//! The second backend: bubblewrap makes the namespaces and the view, our own pid 1 does the rest.
//!
//! ```text
//! keeper ── bwrap (outside)                 waits for what is inside and dies with the keeper
//!              └─ pid 1: this program again  tightens the view, gives up every right, and runs the
//!                  └─ the command            command exactly as the native backend does
//! ```
//! bwrap is started with an empty environment and sees none of the command's arguments: the order
//! comes on a file in memory, descriptor [`ORDER`], together with the numbers of the command's pipes.
//! What it says when it fails is read from a pipe of its own and told as the cause.
//!
//! Commands run as the user that owns the workspace: bwrap cannot translate owners, so there is no
//! user of the host for each sandbox, and `own_user` counts as missing.

use std::ffi::CString;
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Signal, Uid, WaitOptions, waitpid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

use super::command::Stdio;
use super::identity::{INSIDE, Identity};
use super::init::Outcome;
use super::keeper::{Pipes, Ran, ended, read_outcome, watch_process};
use super::root::{DEVICES, LINKS, Plan, WORKSPACE};
use super::{bare, priority, sys};
use crate::config::Degradable;
use crate::wire::{Failure, HELPER_ARGUMENT, INSIDE_ARGUMENT, Raise, Reply, Request, Step};

/// Where pid 1 finds its order.
pub(super) const ORDER: i32 = 3;
/// Numbers below this one are free for [`ORDER`] and for bwrap itself.
const FIRST_FREE: i32 = 64;
/// Where this program is seen inside.
const PROGRAM: &str = "/.evenkeel-pid-1";
/// Where bwrap is looked for.
const PLACES: [&str; 3] = ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"];

/// What pid 1 is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) request: Request,
    pub(super) stdio: [i32; 3],
    pub(super) proxy: Option<i32>,
    pub(super) report: i32,
    pub(super) landlock_required: bool,
    pub(super) memory_bounded: bool,
}

/// What pid 1 has: the order with its descriptors.
pub(super) struct Taken {
    pub(super) request: Request,
    pub(super) stdio: Stdio,
    pub(super) proxy: Option<OwnedFd>,
    pub(super) report: OwnedFd,
    pub(super) landlock_required: bool,
    pub(super) memory_bounded: bool,
}

/// Takes the order, as pid 1.
pub(super) fn take_order() -> Result<Taken, Failure> {
    const STEP: &str = "take the order";
    let mut text = String::new();
    fs::File::from(sys::inherited(ORDER)).read_to_string(&mut text).step(STEP)?;
    let Order { request, stdio, proxy, report, landlock_required, memory_bounded } =
        serde_json::from_str(&text).step(STEP)?;
    let stdio = stdio.map(sys::inherited);
    let (proxy, report) = (proxy.map(sys::inherited), sys::inherited(report));
    Ok(Taken { request, stdio, proxy, report, landlock_required, memory_bounded })
}

/// The program, if it is installed.
pub(super) fn program() -> Option<PathBuf> {
    PLACES.iter().map(PathBuf::from).find(|path| path.is_file())
}

/// What a keeper knows when a command comes.
pub(super) struct Circumstances<'a> {
    pub(super) raise: &'a Raise,
    pub(super) plan: &'a Plan,
    pub(super) memory_bounded: bool,
}

/// Runs one command to its end. The reply lacks what the caller knows: kills for memory, a full
/// workspace.
pub(super) fn run(
    of: &Circumstances<'_>,
    request: &Request,
    pipes: Pipes,
    socket: BorrowedFd<'_>,
) -> Result<Ran, Failure> {
    let bwrap = program().ok_or("it is not installed").step("find bubblewrap")?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).step("adopt orphans")?;
    let owner = fs::metadata(&request.workspace);
    let owner = owner.step(&format!("look at {}", request.workspace.display()))?;
    let (uid, gid) = (owner.uid(), owner.gid());
    let (report_read, report) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let (complaint_read, complaint) = pipe_with(PipeFlags::CLOEXEC).step("make a pipe")?;
    let cpu_ms_before = sys::children_cpu_ms();
    let Some(pid) = sys::fork().step("fork bubblewrap")? else {
        let held = Held { pipes, report, complaint };
        let Err(failure) = become_bwrap(of, request, &bwrap, (uid, gid), held);
        eprintln!("{failure}");
        sys::exit_now(1)
    };
    drop((pipes, report, complaint));
    let watched = watch_process(pid, socket, request);
    let status = waitpid(Some(pid), WaitOptions::empty()).step("wait for bubblewrap")?;
    bare::kill_the_rest();
    let outcome: Option<Outcome> = read_outcome(&report_read);
    let landlock = outcome.as_ref().is_some_and(|outcome| outcome.landlock);
    let cpu_ms = sys::children_cpu_ms().saturating_sub(cpu_ms_before);
    let reply = match outcome.map(|outcome| outcome.status) {
        Some(Ok(status)) => ended(Some(status), cpu_ms),
        Some(Err(failure)) => Reply::Failed(failure),
        None => match status.map(|(_, status)| status.as_raw()) {
            Some(status) if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 => {
                Reply::Failed(complained(complaint_read))
            }
            // It was killed, with all that was in it: by us, or for memory.
            _ => ended(None, cpu_ms),
        },
    };
    Ok(Ran { reply, landlock, identity: Some(Identity::Shared(uid, gid)), watched, spent: None })
}

fn complained(pipe: OwnedFd) -> Failure {
    let mut text = String::new();
    let _ = fs::File::from(pipe).take(4096).read_to_string(&mut text);
    Failure { step: "make a sandbox with bubblewrap".to_owned(), cause: text.trim().to_owned() }
}

/// What the forked process takes along.
struct Held {
    pipes: Pipes,
    report: OwnedFd,
    complaint: OwnedFd,
}

/// Becomes bwrap. Returns only when that fails.
fn become_bwrap(
    of: &Circumstances<'_>,
    request: &Request,
    bwrap: &Path,
    owner: (u32, u32),
    held: Held,
) -> Result<std::convert::Infallible, Failure> {
    const STEP: &str = "prepare bubblewrap";
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step(STEP)?;
    // What is started there knows nothing of us.
    priority::stand_in_line();
    let _ = rustix::process::setsid();
    let null = fs::File::open("/dev/null").step(STEP)?;
    sys::become_stdio(&null, 0).step(STEP)?;
    sys::become_stdio(&held.complaint, 1).step(STEP)?;
    sys::become_stdio(&held.complaint, 2).step(STEP)?;
    sys::reset_signals();
    let program = std::env::current_exe().step("find this program")?;
    let [stdin, stdout, stderr] = held.pipes.stdio;
    let order = Order {
        request: request.clone(),
        stdio: [passed(stdin)?, passed(stdout)?, passed(stderr)?],
        proxy: held.pipes.proxy.map(passed).transpose()?,
        report: passed(held.report)?,
        landlock_required: !of.raise.allow_degraded.contains(&Degradable::Landlock),
        memory_bounded: of.memory_bounded,
    };
    let mut arguments = view(of.plan, request, &program)?;
    let order = in_memory(&serde_json::to_vec(&order).step(STEP)?)?;
    sys::become_stdio(&order, ORDER).step(STEP)?;
    for word in ["--", PROGRAM, HELPER_ARGUMENT, INSIDE_ARGUMENT] {
        arguments.push(word.to_owned());
    }
    let argv: Result<Vec<CString>, _> = arguments.iter().map(|word| CString::new(word.as_bytes())).collect();
    become_user(owner).step("become the owner of the workspace")?;
    let path = CString::new(bwrap.as_os_str().as_bytes()).step(STEP)?;
    Err(sys::exec(&path, &argv.step(STEP)?, &[])).step("start bubblewrap")
}

/// A copy of the descriptor that is inherited; its number.
fn passed(fd: OwnedFd) -> Result<i32, Failure> {
    const STEP: &str = "pass a descriptor on";
    let copy = fcntl_dupfd_cloexec(&fd, FIRST_FREE).step(STEP)?;
    fcntl_setfd(&copy, FdFlags::empty()).step(STEP)?;
    let number = copy.as_raw_fd();
    // It lives until exec and beyond; nobody here closes it.
    std::mem::forget(copy);
    Ok(number)
}

fn in_memory(bytes: &[u8]) -> Result<fs::File, Failure> {
    const STEP: &str = "make a file in memory";
    let mut file = fs::File::from(memfd_create("evenkeel", MemfdFlags::CLOEXEC).step(STEP)?);
    file.write_all(bytes).step(STEP)?;
    file.rewind().step(STEP)?;
    Ok(file)
}

/// A server that runs as root becomes the owner of the workspace; another user is it already.
fn become_user((uid, gid): (u32, u32)) -> rustix::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// The arguments that make the same view as the native backend's; pid 1 tightens it.
fn view(plan: &Plan, request: &Request, program: &Path) -> Result<Vec<String>, Failure> {
    let mut words: Vec<String> = Vec::new();
    let mut say = |parts: &[&str]| words.extend(parts.iter().map(|part| (*part).to_owned()));
    let inside = INSIDE.to_string();
    say(&["bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]);
    say(&["--unshare-cgroup", "--uid", &inside, "--gid", &inside, "--hostname", "sandbox"]);
    // Pid 1 needs rights in its own namespace until it has tightened the view, and drops them all.
    say(&["--die-with-parent", "--as-pid-1", "--clearenv", "--cap-add", "ALL"]);
    for (target, link) in plan.links() {
        say(&["--symlink", &target.to_string_lossy(), link]);
    }
    for path in plan.directories() {
        let path = path.to_string_lossy();
        say(&["--ro-bind", &path, &path]);
    }
    for (path, bytes) in plan.files() {
        let number = passed(in_memory(bytes)?.into())?.to_string();
        say(&["--perms", "0644", "--ro-bind-data", &number, path]);
    }
    say(&["--proc", "/proc"]);
    for path in DEVICES {
        say(&["--dev-bind", path, path]);
    }
    for (target, link) in LINKS {
        say(&["--symlink", target, link]);
    }
    say(&["--dir", "/tmp", "--ro-bind", &program.to_string_lossy(), PROGRAM]);
    let bind = if request.read_only { "--ro-bind" } else { "--bind" };
    say(&[bind, &request.workspace.to_string_lossy(), WORKSPACE, "--remount-ro", "/", "--chdir", "/"]);
    Ok(words)
}
