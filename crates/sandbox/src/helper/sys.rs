//! System calls for which no safe wrapper exists: all `unsafe` of the project.
#![expect(unsafe_code, reason = "raw system calls; each block states what it relies on")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Forks. `None` in the child. Callers have one thread, so the child is a full copy.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the helper never has a second thread, so no lock can be held by one that the child
    // lacks, and the child may run any code.
    let pid = unsafe { libc::fork() };
    child_or_parent(i64::from(pid))
}

/// Forks into new namespaces. `None` in the child, its pid and a descriptor of it in the parent.
pub(super) fn fork_into(namespaces: i32) -> io::Result<Option<(Pid, OwnedFd)>> {
    let flags = namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: RawFd = -1;
    // SAFETY: without CLONE_VM and with a null stack this is a fork (see `fork` for why that is
    // sound here). The third argument is where the kernel stores the descriptor; it outlives the
    // call. The last two are not used without their flags.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_long, 0, &raw mut pidfd, 0, 0) };
    Ok(child_or_parent(pid)?.map(|pid| {
        // SAFETY: the kernel has just made this descriptor for us and nothing else knows it.
        (pid, unsafe { OwnedFd::from_raw_fd(pidfd) })
    }))
}

fn child_or_parent(pid: i64) -> io::Result<Option<Pid>> {
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(i32::try_from(pid).ok().and_then(Pid::from_raw)),
    }
}

/// Ends this process at once: no destructors, no buffers of a parent written twice.
pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from `first` on.
pub(super) fn close_from(first: RawFd) {
    // SAFETY: callers hold no `OwnedFd` from `first` on that they would use or drop afterwards.
    unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
}

/// Makes every descriptor from `first` on close at exec.
pub(super) fn close_from_at_exec(first: RawFd) {
    // SAFETY: sets a flag on descriptors; none is closed.
    unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// A descriptor that this program was started with, closed at the next exec. Each number is taken
/// at most once.
pub(super) fn inherited(number: RawFd) -> OwnedFd {
    // SAFETY: whoever started this program passed these numbers on and told them; nothing else of
    // this process knows them. A wrong number gives errors on use, not a closed descriptor of ours.
    unsafe {
        libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(number)
    }
}

/// Makes `fd` standard input, output or error, or the descriptor of an order.
pub(super) fn become_stdio(fd: impl AsFd, target: RawFd) -> io::Result<()> {
    // SAFETY: `target` is 0, 1 or 2, which no `OwnedFd` of this process owns; or 3 in a process that
    // becomes another program at once and drops nothing before.
    match unsafe { libc::dup2(fd.as_fd().as_raw_fd(), target) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Gives every signal its default effect and blocks none, whatever the server was started with.
pub(super) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: restoring a default handler is always sound. It fails for the signals that have
        // none to set, which is what is wanted.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the set is initialised by `sigemptyset` before it is read.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Makes writing to a pipe or socket that nobody reads an error and not an end.
pub(super) fn ignore_broken_pipes() {
    // SAFETY: ignoring a signal is always sound.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Replaces this process. Returns only when that fails.
pub(super) fn exec(program: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let argv = pointers(argv);
    let env = pointers(env);
    // SAFETY: both arrays end with a null pointer and point to C strings that live until exec.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// What to change about a mount.
#[derive(Clone, Copy, Default)]
pub(super) struct MountChange<'a> {
    /// Attributes to set (`MOUNT_ATTR_*`).
    pub(super) set: u64,
    /// A user namespace whose map translates owners on this mount.
    pub(super) id_map: Option<&'a OwnedFd>,
    /// Also the mounts below.
    pub(super) recursive: bool,
}

/// Changes a mount that is given by a descriptor.
pub(super) fn change_mount(mount: impl AsFd, change: MountChange<'_>) -> io::Result<()> {
    let id_map_flag = if change.id_map.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 };
    let attributes = libc::mount_attr {
        attr_set: change.set | id_map_flag,
        attr_clr: 0,
        propagation: 0,
        userns_fd: change.id_map.map_or(0, |fd| u64::from(fd.as_raw_fd().unsigned_abs())),
    };
    let recursive = if change.recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, and the structure has the size that is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result)
}

/// Brings the loopback device of this network namespace up.
pub(super) fn raise_loopback() -> io::Result<()> {
    // SAFETY: plain system calls. `request` is zeroed, which is valid for it, its name is shorter
    // than its field, and it outlives the call. The socket is closed by its `OwnedFd`.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        check(i64::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l'.cast_signed();
        request.ifr_name[1] = b'o'.cast_signed();
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check(i64::from(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)))
    }
}

/// Gets an empty session keyring in place of the server's. Kernels without keys have none to leave.
pub(super) fn leave_session_keyring() {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for a new anonymous keyring.
    unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// The version of Landlock, if the kernel has it and it is enabled.
pub(super) fn landlock_version() -> Option<i64> {
    // SAFETY: with this flag and no attributes the call only tells the version.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0, 1) };
    (version > 0).then_some(version)
}

/// CPU time in milliseconds of all children that were waited for, and theirs.
pub(super) fn children_cpu_ms() -> u64 {
    // SAFETY: zeroed is valid for the structure, and it outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let ms = |time: libc::timeval| time.tv_sec.unsigned_abs() * 1000 + time.tv_usec.unsigned_abs() / 1000;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

fn check(result: i64) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
