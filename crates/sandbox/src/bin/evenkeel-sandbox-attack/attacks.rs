//! The attacks that one command can try from inside, by their numbers in the table of the tests.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{TcpStream as StdTcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::tries::{call, clone_with, holds, pointer, result, show, syscall, tell, tell_refused};

const PID_1: i64 = 1;
const NULL: i64 = 0;
const CWD: i64 = libc::AT_FDCWD as i64;

/// What the test has put up outside, to be reached.
pub(crate) struct Outside {
    /// A process of the host.
    pub(crate) pid: i64,
    /// A port on the host's loopback device.
    pub(crate) port: String,
    /// The name of an abstract socket, and of a socket in the host's `/tmp`.
    pub(crate) socket: String,
}

type Attack = (u8, &'static str, fn(&Outside));

const ATTACKS: &[Attack] = &[
    (1, "the root of pid 1", |_| read_of_pid_1(&["root/etc", "cwd/etc"])),
    (2, "the environment of pid 1", |_| read_of_pid_1(&["environ"])),
    (3, "descriptors of pid 1", |_| read_of_pid_1(&["fd", "fd/0", "fd/3", "fdinfo", "map_files"])),
    (4, "memory of pid 1", |_| read_of_pid_1(&["mem", "maps", "exe", "auxv", "stack", "syscall"])),
    (5, "ptrace", |_| ptrace()),
    (6, "process_vm_readv and writev", |_| process_memory()),
    (7, "pidfd_getfd", |_| pidfd()),
    (8, "signals to others", signals),
    (9, "mount and umount", |_| mounts()),
    (10, "the new mount calls", |_| new_mounts()),
    (11, "pivot_root and chroot", |_| roots()),
    (12, "a user namespace of its own", |_| user_namespaces()),
    (13, "clone3", |_| syscall("clone3", libc::SYS_clone3, [NULL, 0, 0, 0, 0])),
    (14, "setns", |_| set_namespace()),
    (15, "kernel keys", |_| keys()),
    (16, "bpf", |_| syscall("bpf", libc::SYS_bpf, [0, NULL, 0, 0, 0])),
    (17, "io_uring", |_| syscall("io_uring_setup", libc::SYS_io_uring_setup, [1, NULL, 0, 0, 0])),
    (18, "userfaultfd", |_| syscall("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0, 0])),
    (19, "perf_event_open", |_| syscall("perf_event_open", libc::SYS_perf_event_open, [NULL, 0, -1, -1, 0])),
    (20, "open_by_handle_at", |_| handles()),
    (21, "modules, kexec, reboot, swap", |_| kernel()),
    (22, "the clock", |_| clock()),
    (23, "personality", |_| {
        syscall("no address randomisation", libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0])
    }),
    (24, "making devices", |_| make_devices()),
    (25, "devices of the host", |_| devices()),
    (26, "writing into a terminal", |_| terminals()),
    (27, "helpers that the kernel starts", |_| kernel_helpers()),
    (28, "cgroups", |_| cgroups()),
    (29, "programs that run as their owner", |_| set_id()),
    (30, "writing to the system", |_| system_files()),
    (31, "the network", network),
    (32, "odd sockets", |_| sockets()),
    (33, "unix sockets outside", unix_sockets),
    (35, "links and renames out of the workspace", |_| links()),
    (40, "what is inherited, and other sandboxes", |_| inherited()),
];

/// Tries all of them.
pub(crate) fn all(outside: &Outside) {
    for (number, name, attack) in ATTACKS {
        println!("[{number}] {name}");
        attack(outside);
    }
}

fn read_of_pid_1(names: &[&str]) {
    for name in names {
        let path = format!("/proc/1/{name}");
        let opened = if Path::new(&path).is_dir() || name.ends_with("/etc") {
            fs::read_dir(&path).map(drop)
        } else {
            fs::read(&path).map(drop)
        };
        tell_refused(&path, opened);
    }
}

fn ptrace() {
    syscall("attach", libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), PID_1, NULL, NULL, NULL]);
    syscall("seize", libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), PID_1, NULL, NULL, NULL]);
}

fn process_memory() {
    syscall("process_vm_readv", libc::SYS_process_vm_readv, [PID_1, NULL, 0, NULL, 0]);
    syscall("process_vm_writev", libc::SYS_process_vm_writev, [PID_1, NULL, 0, NULL, 0]);
}

fn pidfd() {
    let pidfd = call(libc::SYS_pidfd_open, [PID_1, 0, 0, 0, 0]);
    syscall("pidfd_getfd", libc::SYS_pidfd_getfd, [pidfd, 0, 0, 0, 0]);
    syscall("kcmp", libc::SYS_kcmp, [PID_1, PID_1, 0, 0, 0]);
}

fn signals(outside: &Outside) {
    let kill = i64::from(libc::SIGKILL);
    syscall("a process of the host", libc::SYS_kill, [outside.pid, kill, 0, 0, 0]);
    syscall("all others", libc::SYS_kill, [-1, kill, 0, 0, 0]);
    // Answered with success and ignored: that there is a next line says so.
    call(libc::SYS_kill, [PID_1, kill, 0, 0, 0]);
    holds("pid 1 does not care", Path::new("/proc/1").exists());
}

fn mounts() {
    let tmpfs = pointer(c"tmpfs");
    let (tmp, root, proc) = (pointer(c"/tmp"), pointer(c"/"), pointer(c"/proc"));
    syscall("mount", libc::SYS_mount, [tmpfs, tmp, tmpfs, 0, NULL]);
    syscall("remount writable", libc::SYS_mount, [NULL, root, NULL, libc::MS_REMOUNT as i64, NULL]);
    syscall("umount", libc::SYS_umount2, [proc, i64::from(libc::MNT_DETACH), 0, 0, 0]);
    #[cfg(target_arch = "x86_64")]
    tell_refused("mount by x32", result(call(libc::SYS_mount | 0x4000_0000, [0; 5])));
}

fn new_mounts() {
    let (root, tmp) = (pointer(c"/"), pointer(c"/tmp"));
    syscall("fsopen", libc::SYS_fsopen, [pointer(c"tmpfs"), 0, 0, 0, 0]);
    syscall("fspick", libc::SYS_fspick, [CWD, root, 0, 0, 0]);
    syscall("fsconfig", libc::SYS_fsconfig, [0, 0, NULL, NULL, 0]);
    syscall("fsmount", libc::SYS_fsmount, [0, 0, 0, 0, 0]);
    syscall("open_tree", libc::SYS_open_tree, [CWD, root, 1, 0, 0]);
    syscall("move_mount", libc::SYS_move_mount, [0, root, 0, tmp, 0]);
    syscall("mount_setattr", libc::SYS_mount_setattr, [0, root, 0, NULL, 0]);
}

fn roots() {
    let tmp = pointer(c"/tmp");
    syscall("pivot_root", libc::SYS_pivot_root, [tmp, tmp, 0, 0, 0]);
    syscall("chroot", libc::SYS_chroot, [tmp, 0, 0, 0, 0]);
}

fn user_namespaces() {
    let new_user = i64::from(libc::CLONE_NEWUSER);
    syscall("unshare", libc::SYS_unshare, [new_user, 0, 0, 0, 0]);
    syscall("unshare with high bits", libc::SYS_unshare, [new_user | (1 << 40), 0, 0, 0, 0]);
    syscall("unshare mounts", libc::SYS_unshare, [i64::from(libc::CLONE_NEWNS), 0, 0, 0, 0]);
    tell("clone", clone_with(new_user));
    tell("clone mounts", clone_with(i64::from(libc::CLONE_NEWNS)));
}

fn set_namespace() {
    let own = File::open("/proc/self/ns/net");
    let fd = own.as_ref().map_or(-1, |file| i64::from(file.as_raw_fd()));
    syscall("setns", libc::SYS_setns, [fd, 0, 0, 0, 0]);
    for name in ["net", "mnt", "user", "pid"] {
        let path = format!("/proc/1/ns/{name}");
        tell(&path, File::open(&path).map(drop));
    }
}

fn keys() {
    let text = pointer(c"user");
    syscall("keyctl", libc::SYS_keyctl, [0, -3, 0, 0, 0]);
    syscall("add_key", libc::SYS_add_key, [text, text, text, 4, -3]);
    syscall("request_key", libc::SYS_request_key, [text, text, NULL, -3, 0]);
}

fn handles() {
    syscall("open_by_handle_at", libc::SYS_open_by_handle_at, [0, NULL, 0, 0, 0]);
    syscall("name_to_handle_at", libc::SYS_name_to_handle_at, [CWD, pointer(c"/"), NULL, NULL, 0]);
}

fn kernel() {
    let text = pointer(c"x");
    syscall("init_module", libc::SYS_init_module, [NULL, 0, text, 0, 0]);
    syscall("finit_module", libc::SYS_finit_module, [0, text, 0, 0, 0]);
    syscall("delete_module", libc::SYS_delete_module, [text, 0, 0, 0, 0]);
    syscall("kexec_load", libc::SYS_kexec_load, [0, 0, NULL, 0, 0]);
    syscall("reboot", libc::SYS_reboot, [0, 0, 0, 0, 0]);
    syscall("swapon", libc::SYS_swapon, [text, 0, 0, 0, 0]);
    syscall("syslog", libc::SYS_syslog, [10, NULL, 0, 0, 0]);
}

fn clock() {
    syscall("settimeofday", libc::SYS_settimeofday, [NULL, NULL, 0, 0, 0]);
    syscall("clock_settime", libc::SYS_clock_settime, [0, NULL, 0, 0, 0]);
    syscall("adjtimex", libc::SYS_adjtimex, [NULL, 0, 0, 0, 0]);
}

fn make_devices() {
    let path = pointer(c"/tmp/device");
    for (name, kind, major, minor) in [
        ("mem", libc::S_IFCHR, 1, 1),
        ("kvm", libc::S_IFCHR, 10, 232),
        ("vda", libc::S_IFBLK, 254, 0),
        ("null", libc::S_IFCHR, 1, 3),
    ] {
        let device = i64::try_from(libc::makedev(major, minor)).unwrap_or(0);
        syscall(name, libc::SYS_mknodat, [CWD, path, i64::from(kind | 0o666), device, 0]);
    }
}

fn devices() {
    for name in ["kvm", "fuse", "kmsg", "mem", "tty", "ptmx", "vda", "net/tun"] {
        let path = format!("/dev/{name}");
        tell_refused(&path, File::open(&path).map(drop));
    }
}

fn terminals() {
    let text = pointer(c"x");
    syscall("TIOCSTI", libc::SYS_ioctl, [0, 0x5412, text, 0, 0]);
    syscall("TIOCSTI with high bits", libc::SYS_ioctl, [0, 0x5412 | (1 << 32), text, 0, 0]);
    syscall("TIOCLINUX", libc::SYS_ioctl, [0, 0x541C, text, 0, 0]);
    syscall("TIOCCONS", libc::SYS_ioctl, [0, 0x541D, 0, 0, 0]);
}

fn write_to(paths: &[&str]) {
    for path in paths {
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        tell_refused(&format!("write {path}"), opened.map(drop));
    }
}

fn kernel_helpers() {
    write_to(&[
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/fs/binfmt_misc/register",
        "/sys/kernel/uevent_helper",
    ]);
}

fn cgroups() {
    write_to(&[
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/memory/cgroup.procs",
    ]);
    tell_refused("see /sys", fs::read_dir("/sys").map(drop));
    tell("unshare", result(call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWCGROUP), 0, 0, 0, 0])));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    holds("its own cgroup is all it sees", own.lines().all(|line| line.ends_with(":/")));
}

fn set_id() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    show("no new privileges", of("NoNewPrivs:"));
    show("bounding set", of("CapBnd:"));
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let of_system = |line: &&str| line.split(' ').nth(1).is_some_and(|path| path == "/usr");
    holds(
        "/usr is mounted nosuid",
        mounts.lines().find(of_system).is_some_and(|line| line.contains("nosuid")),
    );
    syscall("setuid", libc::SYS_setuid, [0, 0, 0, 0, 0]);
    syscall("setgid", libc::SYS_setgid, [0, 0, 0, 0, 0]);
    syscall("setgroups", libc::SYS_setgroups, [0, NULL, 0, 0, 0]);
    make_set_id();
}

/// Files that would run as the owner of the workspace, on the host.
fn make_set_id() {
    let path = pointer(c"/workspace/set-id");
    let create = i64::from(libc::O_CREAT | libc::O_RDWR);
    fs::write("/workspace/set-id", "x").expect("the workspace is writable");
    let file = File::open("/workspace/set-id");
    let fd = file.as_ref().map_or(-1, |file| i64::from(file.as_raw_fd()));
    syscall("chmod u+s", libc::SYS_fchmodat, [CWD, path, 0o4755, 0, 0]);
    syscall("chmod g+s", libc::SYS_fchmodat, [CWD, path, 0o2755, 0, 0]);
    syscall("fchmod u+s", libc::SYS_fchmod, [fd, 0o4755, 0, 0, 0]);
    syscall("fchmodat2 u+s", 452, [CWD, path, 0o4755, 0, 0]);
    syscall("create u+s", libc::SYS_openat, [CWD, pointer(c"/workspace/other"), create, 0o4755, 0]);
    let temporary = i64::from(libc::O_TMPFILE | libc::O_RDWR);
    syscall("temporary u+s", libc::SYS_openat, [CWD, pointer(c"/workspace"), temporary, 0o4755, 0]);
    syscall("openat2", libc::SYS_openat2, [CWD, path, NULL, 0, 0]);
    syscall("mknod u+s", libc::SYS_mknodat, [CWD, pointer(c"/workspace/third"), 0o104_755, 0, 0]);
}

fn system_files() {
    write_to(&["/evil", "/usr/evil", "/usr/bin/env", "/etc/passwd", "/etc/evil", "/dev/evil"]);
    for path in ["/root", "/home", "/var", "/run", "/boot", "/etc/shadow", "/etc/ssh", "/proc/kcore"] {
        tell_refused(&format!("read {path}"), File::open(path).map(drop));
    }
    syscall("sethostname", libc::SYS_sethostname, [pointer(c"x"), 1, 0, 0, 0]);
}

fn network(outside: &Outside) {
    let port = &outside.port;
    for (name, address) in [
        ("a service of the host", format!("127.0.0.1:{port}")),
        ("the same by IPv6", format!("[::1]:{port}")),
        ("cloud metadata", "169.254.169.254:80".to_owned()),
        ("a private address", "10.0.0.1:80".to_owned()),
        ("the Internet", "192.0.2.1:443".to_owned()),
        ("the Internet by IPv6", "[2001:db8::1]:443".to_owned()),
    ] {
        let address = address.parse().expect("an address");
        let connected = StdTcpStream::connect_timeout(&address, Duration::from_secs(2));
        tell_refused(&format!("connect to {name}"), connected.map(drop));
    }
    let asked = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", "192.0.2.1:53"));
    tell("ask a name server", asked.map(drop));
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    holds("there is a loopback device", devices.contains("lo:"));
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    show("routes", routes.lines().count().saturating_sub(1));
}

fn sockets() {
    for (name, family, kind, protocol) in [
        ("AF_PACKET", libc::AF_PACKET, libc::SOCK_RAW, 0),
        ("AF_NETLINK", libc::AF_NETLINK, libc::SOCK_RAW, 0),
        ("AF_NETLINK dgram", libc::AF_NETLINK, libc::SOCK_DGRAM, 0),
        ("AF_VSOCK", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        ("AF_ALG", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
        ("raw ICMP", libc::AF_INET, libc::SOCK_RAW, 1),
        ("a pair of AF_VSOCK", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
    ] {
        syscall(name, libc::SYS_socket, [family.into(), kind.into(), protocol, 0, 0]);
    }
}

fn unix_sockets(outside: &Outside) {
    let by_name = SocketAddr::from_abstract_name(&outside.socket).expect("a name");
    tell("by an abstract name", UnixStream::connect_addr(&by_name).map(drop));
    tell("by a path", UnixStream::connect(format!("/tmp/{}", outside.socket)).map(drop));
    tell("by a path of the system", UnixStream::connect("/run/docker.sock").map(drop));
    // Not closed by any kernel that there is; the doctor says so.
    holds("one in the workspace is reached", UnixStream::connect("/workspace/socket").is_ok());
}

fn links() {
    tell("hard link out", fs::hard_link("/etc/passwd", "/workspace/passwd"));
    tell("rename out", fs::rename("/usr/bin/env", "/workspace/env"));
    let linked = std::os::unix::fs::symlink("/etc/shadow", "/workspace/link");
    holds("a symbolic link can be made", linked.is_ok());
    tell_refused("and leads nowhere", fs::read("/workspace/link").map(drop));
}

fn inherited() {
    let numbers = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.parse::<u32>().is_ok()).collect();
        names.sort();
        names
    };
    // The fourth is the directory that is read here.
    show("descriptors", numbers("/proc/self/fd").join(" "));
    show("directory", std::env::current_dir().unwrap_or_default().display());
    let mut names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    names.sort();
    show("environment", names.join(" "));
    show("processes", numbers("/proc").len());
    show("files in /tmp", fs::read_dir("/tmp").map_or(0, Iterator::count));
    show("user", fs::metadata("/proc/self").map_or(0, |data| data.uid()));
    let parent = fs::read("/proc/1/cmdline").unwrap_or_default();
    let parent = String::from_utf8_lossy(&parent);
    show("arguments of pid 1", parent.split('\0').skip(1).collect::<Vec<_>>().join(" ").trim());
    raise_limits();
}

fn raise_limits() {
    syscall("setpriority", libc::SYS_setpriority, [0, 0, -20, 0, 0]);
    let more = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    let resource = i64::from(libc::RLIMIT_NOFILE);
    let raised: io::Result<()> =
        result(call(libc::SYS_setrlimit, [resource, (&raw const more) as i64, 0, 0, 0]));
    tell("raise a limit", raised);
}
