//! Attacks on the sandbox, for the tests: tries each way out and prints what the kernel answered.
//!
//! `evenkeel-sandbox-attack inside PID PORT SOCKET` runs inside a sandbox and prints one line per
//! attack: its name, and the error, or `ALLOWED`. `evenkeel-sandbox-attack serve HELPER WORKSPACE
//! SCRIPT` is a server that runs a script in a sandbox, to be killed.
#![expect(unsafe_code, reason = "attacks are raw system calls")]

use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::{Command, Runner, RunnerLimits};
use evenkeel_env::Env;
use evenkeel_sandbox::{HelperProgram, Launcher, SandboxConfig};

const PID_1: i64 = 1;
const NULL: i64 = 0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["inside", pid, port, socket] => inside(pid.parse().unwrap_or(0), port, socket),
        ["serve", helper, workspace, script] => return serve(helper, workspace, script),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn serve(helper: &str, workspace: &str, script: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async {
        let helper = HelperProgram::Path(PathBuf::from(helper));
        let config = SandboxConfig { helper, ..SandboxConfig::default() };
        let env = Env::real();
        let launcher = Launcher::start(&env, config).expect("the sandbox is available");
        let exit = launcher
            .run(Command {
                tenant: TenantId("test".to_owned()),
                run: RunId::new(env.wall(), &env.generator),
                argv: ["sh", "-c", script].map(str::to_owned).into(),
                workspace: PathBuf::from(workspace),
                read_only: false,
                cwd: String::new(),
                env: Vec::new(),
                stdin: Vec::new(),
                limits: RunnerLimits::default(),
            })
            .await;
        println!("{exit:?}");
    });
    ExitCode::SUCCESS
}

fn inside(host_pid: i64, port: &str, socket: &str) {
    processes(host_pid);
    mounts();
    namespaces();
    kernel();
    devices_and_terminals();
    rights();
    files();
    network(port, socket);
}

fn processes(host_pid: i64) {
    syscall("ptrace attach", libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), PID_1, NULL, NULL, NULL]);
    syscall("ptrace seize", libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), PID_1, NULL, NULL, NULL]);
    syscall("process_vm_readv", libc::SYS_process_vm_readv, [PID_1, NULL, 0, NULL, 0]);
    syscall("process_vm_writev", libc::SYS_process_vm_writev, [PID_1, NULL, 0, NULL, 0]);
    // SAFETY: no pointers.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, PID_1, 0) };
    syscall("pidfd_getfd", libc::SYS_pidfd_getfd, [pidfd, 0, 0, 0, 0]);
    syscall("kcmp", libc::SYS_kcmp, [PID_1, PID_1, 0, 0, 0]);
    syscall("kill a host process", libc::SYS_kill, [host_pid, 0, 0, 0, 0]);
    // Answered with success and ignored: that there is a next line says so.
    // SAFETY: no pointers.
    unsafe { libc::kill(1, libc::SIGKILL) };
    println!("kill pid 1: no effect");
    for name in ["mem", "environ", "fd", "root/etc", "cwd/etc", "maps", "exe"] {
        let path = format!("/proc/1/{name}");
        let read = if name == "fd" || name.contains('/') {
            fs::read_dir(&path).map(drop)
        } else {
            fs::read(&path).map(drop)
        };
        tell(&path, read);
    }
}

fn mounts() {
    let tmpfs = pointer(c"tmpfs");
    let (tmp, root, proc) = (pointer(c"/tmp"), pointer(c"/"), pointer(c"/proc"));
    syscall("mount", libc::SYS_mount, [tmpfs, tmp, tmpfs, 0, NULL]);
    syscall("remount writable", libc::SYS_mount, [NULL, root, NULL, libc::MS_REMOUNT as i64, NULL]);
    syscall("umount", libc::SYS_umount2, [proc, i64::from(libc::MNT_DETACH), 0, 0, 0]);
    syscall("fsopen", libc::SYS_fsopen, [tmpfs, 0, 0, 0, 0]);
    syscall("open_tree", libc::SYS_open_tree, [i64::from(libc::AT_FDCWD), root, 1, 0, 0]);
    syscall("move_mount", libc::SYS_move_mount, [0, root, 0, tmp, 0]);
    syscall("mount_setattr", libc::SYS_mount_setattr, [0, root, 0, NULL, 0]);
    syscall("pivot_root", libc::SYS_pivot_root, [tmp, tmp, 0, 0, 0]);
    syscall("chroot", libc::SYS_chroot, [tmp, 0, 0, 0, 0]);
}

fn namespaces() {
    let new_user = i64::from(libc::CLONE_NEWUSER);
    syscall("unshare user", libc::SYS_unshare, [new_user, 0, 0, 0, 0]);
    syscall("unshare mounts", libc::SYS_unshare, [i64::from(libc::CLONE_NEWNS), 0, 0, 0, 0]);
    syscall("unshare with high bits", libc::SYS_unshare, [new_user | (1 << 40), 0, 0, 0, 0]);
    let flags = new_user | i64::from(libc::SIGCHLD);
    // SAFETY: a fork without shared memory; a child that should not exist ends at once.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: no preconditions.
        unsafe { libc::_exit(0) };
    }
    tell("clone user", result(child));
    syscall("clone3", libc::SYS_clone3, [NULL, 0, 0, 0, 0]);
    let own = fs::File::open("/proc/self/ns/net");
    let fd = own.as_ref().map_or(-1, |file| i64::from(std::os::fd::AsRawFd::as_raw_fd(file)));
    syscall("setns", libc::SYS_setns, [fd, 0, 0, 0, 0]);
    tell("/proc/1/ns/net", fs::File::open("/proc/1/ns/net").map(drop));
}

fn kernel() {
    let text = pointer(c"user");
    syscall("keyctl", libc::SYS_keyctl, [0, -3, 0, 0, 0]);
    syscall("add_key", libc::SYS_add_key, [text, text, text, 4, -3]);
    syscall("request_key", libc::SYS_request_key, [text, text, NULL, -3, 0]);
    syscall("bpf", libc::SYS_bpf, [0, NULL, 0, 0, 0]);
    syscall("io_uring_setup", libc::SYS_io_uring_setup, [1, NULL, 0, 0, 0]);
    syscall("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0, 0]);
    syscall("perf_event_open", libc::SYS_perf_event_open, [NULL, 0, -1, -1, 0]);
    syscall("open_by_handle_at", libc::SYS_open_by_handle_at, [0, NULL, 0, 0, 0]);
    syscall("init_module", libc::SYS_init_module, [NULL, 0, text, 0, 0]);
    syscall("finit_module", libc::SYS_finit_module, [0, text, 0, 0, 0]);
    syscall("kexec_load", libc::SYS_kexec_load, [0, 0, NULL, 0, 0]);
    syscall("reboot", libc::SYS_reboot, [0, 0, 0, 0, 0]);
    syscall("swapon", libc::SYS_swapon, [text, 0, 0, 0, 0]);
    syscall("settimeofday", libc::SYS_settimeofday, [NULL, NULL, 0, 0, 0]);
    syscall("clock_settime", libc::SYS_clock_settime, [0, NULL, 0, 0, 0]);
    syscall("syslog", libc::SYS_syslog, [10, NULL, 0, 0, 0]);
    syscall("personality", libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0]);
    #[cfg(target_arch = "x86_64")]
    syscall("mount by x32", libc::SYS_mount | 0x4000_0000, [0; 5]);
}

fn devices_and_terminals() {
    let path = pointer(c"/tmp/device");
    let at = i64::from(libc::AT_FDCWD);
    for (name, kind, major, minor) in [
        ("mknod mem", libc::S_IFCHR, 1, 1),
        ("mknod kvm", libc::S_IFCHR, 10, 232),
        ("mknod vda", libc::S_IFBLK, 254, 0),
    ] {
        let device = i64::try_from(libc::makedev(major, minor)).unwrap_or(0);
        syscall(name, libc::SYS_mknodat, [at, path, i64::from(kind | 0o666), device, 0]);
    }
    for name in ["kvm", "fuse", "kmsg", "mem", "tty", "ptmx", "vda"] {
        let path = format!("/dev/{name}");
        tell(&path, fs::File::open(&path).map(drop));
    }
    syscall("TIOCSTI", libc::SYS_ioctl, [0, 0x5412, pointer(c"x"), 0, 0]);
    syscall("TIOCSTI with high bits", libc::SYS_ioctl, [0, 0x5412 | (1 << 32), pointer(c"x"), 0, 0]);
    syscall("TIOCLINUX", libc::SYS_ioctl, [0, 0x541C, pointer(c"x"), 0, 0]);
}

fn rights() {
    syscall("setuid", libc::SYS_setuid, [0, 0, 0, 0, 0]);
    syscall("setgid", libc::SYS_setgid, [0, 0, 0, 0, 0]);
    syscall("setgroups", libc::SYS_setgroups, [0, NULL, 0, 0, 0]);
    syscall("sethostname", libc::SYS_sethostname, [pointer(c"x"), 1, 0, 0, 0]);
    syscall("setpriority", libc::SYS_setpriority, [0, 0, -20, 0, 0]);
    let more = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    let resource = i64::from(libc::RLIMIT_NOFILE);
    syscall("raise a limit", libc::SYS_setrlimit, [resource, (&raw const more) as i64, 0, 0, 0]);
}

fn files() {
    for path in [
        "/evil",
        "/usr/evil",
        "/etc/passwd",
        "/etc/evil",
        "/dev/evil",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/cgroup.procs",
        "/proc/sys/fs/binfmt_misc/register",
    ] {
        tell(
            &format!("write {path}"),
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map(drop),
        );
    }
    for path in ["/root", "/home", "/var", "/run", "/sys", "/boot", "/etc/shadow", "/etc/ssh", "/proc/kcore"]
    {
        tell(&format!("read {path}"), fs::File::open(path).map(drop));
    }
    set_id_files();
    tell("hard link out", fs::hard_link("/etc/passwd", "/workspace/passwd"));
    tell("rename out", fs::rename("/usr/bin/env", "/workspace/env"));
}

/// Files that would run as the owner of the workspace, on the host.
fn set_id_files() {
    let at = i64::from(libc::AT_FDCWD);
    let path = pointer(c"/workspace/set-id");
    let create = i64::from(libc::O_CREAT | libc::O_RDWR);
    fs::write("/workspace/set-id", "x").expect("the workspace is writable");
    let file = fs::File::open("/workspace/set-id");
    let fd = file.as_ref().map_or(-1, |file| i64::from(std::os::fd::AsRawFd::as_raw_fd(file)));
    syscall("chmod u+s", libc::SYS_fchmodat, [at, path, 0o4755, 0, 0]);
    syscall("chmod g+s", libc::SYS_fchmodat, [at, path, 0o2755, 0, 0]);
    syscall("fchmod u+s", libc::SYS_fchmod, [fd, 0o4755, 0, 0, 0]);
    syscall("fchmodat2 u+s", 452, [at, path, 0o4755, 0, 0]);
    syscall("create u+s", libc::SYS_openat, [at, pointer(c"/workspace/other"), create, 0o4755, 0]);
    let temporary = i64::from(libc::O_TMPFILE | libc::O_RDWR);
    syscall("temporary u+s", libc::SYS_openat, [at, pointer(c"/workspace"), temporary, 0o4755, 0]);
    syscall("openat2", libc::SYS_openat2, [at, path, NULL, 0, 0]);
    syscall("mknod u+s", libc::SYS_mknodat, [at, pointer(c"/workspace/third"), 0o104_755, 0, 0]);
}

fn network(port: &str, socket: &str) {
    for (name, family, kind, protocol) in [
        ("AF_PACKET", libc::AF_PACKET, libc::SOCK_RAW, 0),
        ("AF_NETLINK", libc::AF_NETLINK, libc::SOCK_RAW, 0),
        ("AF_NETLINK dgram", libc::AF_NETLINK, libc::SOCK_DGRAM, 0),
        ("AF_VSOCK", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        ("AF_ALG", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
        ("raw ICMP", libc::AF_INET, libc::SOCK_RAW, 1),
    ] {
        syscall(name, libc::SYS_socket, [family.into(), kind.into(), protocol, 0, 0]);
    }
    for address in [format!("127.0.0.1:{port}"), "169.254.169.254:80".to_owned(), "192.0.2.1:53".to_owned()] {
        let name = if address.ends_with(port) { "the test's port" } else { address.as_str() };
        let timeout = Duration::from_secs(2);
        let address = address.parse().expect("an address");
        tell(&format!("connect to {name}"), StdTcpStream::connect_timeout(&address, timeout).map(drop));
    }
    let abstract_socket = SocketAddr::from_abstract_name(socket).expect("a name");
    tell("abstract unix socket", UnixStream::connect_addr(&abstract_socket).map(drop));
    tell("unix socket outside", UnixStream::connect(format!("/tmp/{socket}")).map(drop));
}

fn pointer(text: &'static CStr) -> i64 {
    text.as_ptr() as i64
}

fn syscall(name: &str, number: i64, arguments: [i64; 5]) {
    let [a, b, c, d, e] = arguments;
    // SAFETY: pointers are null or to static text that the kernel only reads; what a call that is
    // wrongly allowed does to this process does not matter.
    tell(name, result(unsafe { libc::syscall(number, a, b, c, d, e) }));
}

fn result(value: i64) -> io::Result<()> {
    if value == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn tell(name: &str, result: io::Result<()>) {
    match result {
        Ok(()) => println!("{name}: ALLOWED"),
        Err(error) => {
            let text = error.to_string();
            println!("{name}: {}", text.split(" (os error").next().unwrap_or_default());
        }
    }
}
