//! The seccomp filter: system calls that a command has no business with.
//!
//! A deny list, because commands are compilers, package managers and test suites that nobody has
//! listed. It closes the doors out of the sandbox (namespaces, mounts, tracing) and the parts of
//! the kernel that have opened most often (bpf, io_uring, userfaultfd, keys, odd sockets).
//! The program is written instruction by instruction because arguments of `clone`, `ioctl` and
//! `socket` are judged by mask and by table.

use seccompiler::{BpfProgram, apply_filter, sock_filter};

use crate::wire::{Failure, Step};

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ANY: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Calls of the x32 convention: the same architecture, other numbers.
#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// Every flag of `clone` and `unshare` that makes a namespace.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Only in `unshare`: in `clone` the bit is part of the signal number.
const CLONE_NEWTIME: i32 = 0x80;

/// Answered with "not permitted".
const FORBIDDEN: &[i64] = &[
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // Namespaces and other processes.
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Files around their paths.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    // Parts of the kernel.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    // The machine.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// Answered with "not implemented", so that libraries take the older way: calls whose arguments
/// are in memory, where a filter cannot read them, and whose older forms are judged.
const ABSENT: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Where a file's mode is an argument. A program in the workspace that runs as its owner would,
/// on the host, run as the server's user, for whoever can reach it.
const MODES: &[(i64, u32)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (SYS_FCHMODAT2, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
];

/// Where the mode follows the flags, and counts only when a file is made.
const OPENS: &[(i64, u32)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
    (libc::SYS_openat, 2),
];

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// The bit of `O_TMPFILE` that is not also `O_DIRECTORY`.
const TEMPORARY_FILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// Newer than the `libc` crate; the number is the same on every architecture.
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FCHMODAT2: i64 = 452;

/// Writing into a terminal's input, and taking one over.
const TERMINAL_REQUESTS: &[u32] = &[0x5412, 0x541C, 0x541D, 0x5423];

/// Sockets that may exist. What they reach is decided by the network namespace.
const SOCKET_FAMILIES: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// Sockets below a protocol: `SOCK_RAW` and the old `SOCK_PACKET`.
const RAW_SOCKET_TYPES: &[u32] = &[3, 10];

/// Personalities that change nothing that protects: query, Linux, 32-bit `uname`.
const PERSONALITIES: &[u32] = &[u32::MAX, 0, 8];

/// The filter, ready to be put in force.
pub(super) struct Filter {
    program: BpfProgram,
}

impl Filter {
    pub(super) fn new() -> Self {
        let mut program = Program::default();
        program.judge_architecture();
        for number in FORBIDDEN {
            program.answer(*number, refuse(libc::EPERM));
        }
        for number in ABSENT {
            program.answer(*number, refuse(libc::ENOSYS));
        }
        program.forbid_flags(libc::SYS_clone, 0, NAMESPACES);
        program.forbid_flags(libc::SYS_unshare, 0, NAMESPACES | CLONE_NEWTIME);
        for (call, argument) in MODES {
            program.forbid_flags(*call, *argument, SET_ID.cast_signed());
        }
        for (call, argument) in OPENS {
            program.forbid_set_id_files(*call, *argument);
        }
        program.forbid_values(libc::SYS_ioctl, 1, u32::MAX, TERMINAL_REQUESTS);
        #[cfg(target_arch = "x86_64")]
        program.forbid_values(libc::SYS_mknod, 1, libc::S_IFMT, &[libc::S_IFCHR, libc::S_IFBLK]);
        program.forbid_values(libc::SYS_mknodat, 2, libc::S_IFMT, &[libc::S_IFCHR, libc::S_IFBLK]);
        let families: Vec<u32> = SOCKET_FAMILIES.iter().map(|family| family.unsigned_abs()).collect();
        program.forbid_values(libc::SYS_socket, 1, 0xF, RAW_SOCKET_TYPES);
        program.allow_only(libc::SYS_socket, &families, refuse(libc::EAFNOSUPPORT));
        program.allow_only(libc::SYS_socketpair, &families, refuse(libc::EAFNOSUPPORT));
        program.allow_only(libc::SYS_personality, PERSONALITIES, refuse(libc::EPERM));
        program.push(RETURN, 0, 0, ALLOW);
        Self { program: program.0 }
    }

    /// Puts it in force for this process and all of its children, for ever.
    pub(super) fn apply(&self) -> Result<(), Failure> {
        apply_filter(&self.program).step("apply the seccomp filter")
    }
}

fn refuse(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

/// A filter being written. Jumps count the instructions that they skip.
#[derive(Default)]
struct Program(Vec<sock_filter>);

impl Program {
    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.0.push(sock_filter { code, jt, jf, k });
    }

    fn judge_architecture(&mut self) {
        self.push(LOAD, 0, 0, OFFSET_ARCHITECTURE);
        self.push(JUMP_IF_EQUAL, 1, 0, ARCHITECTURE);
        self.push(RETURN, 0, 0, KILL);
        self.push(LOAD, 0, 0, OFFSET_NUMBER);
        #[cfg(target_arch = "x86_64")]
        {
            self.push(JUMP_IF_ANY, 0, 1, X32_BIT);
            self.push(RETURN, 0, 0, refuse(libc::ENOSYS));
        }
    }

    /// Gives one call one answer.
    fn answer(&mut self, number: i64, answer: u32) {
        self.push(JUMP_IF_EQUAL, 0, 1, number_of(number));
        self.push(RETURN, 0, 0, answer);
    }

    /// Refuses a call when its argument has any of the flags.
    fn forbid_flags(&mut self, number: i64, argument: u32, flags: i32) {
        self.judge(number, argument, u32::MAX, |judge| {
            judge.push(JUMP_IF_ANY, 0, 1, flags.cast_unsigned());
            judge.push(RETURN, 0, 0, refuse(libc::EPERM));
        });
    }

    /// Refuses to make a file that runs as its owner.
    fn forbid_set_id_files(&mut self, number: i64, flags_argument: u32) {
        self.judge(number, flags_argument, u32::MAX, |judge| {
            let makes_a_file = (libc::O_CREAT | TEMPORARY_FILE).cast_unsigned();
            judge.push(JUMP_IF_ANY, 0, 3, makes_a_file);
            judge.push(LOAD, 0, 0, offset_of_argument(flags_argument + 1));
            judge.push(JUMP_IF_ANY, 0, 1, SET_ID);
            judge.push(RETURN, 0, 0, refuse(libc::EPERM));
        });
    }

    /// Refuses a call when its masked argument is one of the values.
    fn forbid_values(&mut self, number: i64, argument: u32, mask: u32, values: &[u32]) {
        self.judge(number, argument, mask, |judge| {
            for value in values {
                judge.push(JUMP_IF_EQUAL, 0, 1, *value);
                judge.push(RETURN, 0, 0, refuse(libc::EPERM));
            }
        });
    }

    /// Refuses a call unless its first argument is one of the values.
    fn allow_only(&mut self, number: i64, values: &[u32], otherwise: u32) {
        self.judge(number, 0, u32::MAX, |judge| {
            for value in values {
                judge.push(JUMP_IF_EQUAL, 0, 1, *value);
                judge.push(RETURN, 0, 0, ALLOW);
            }
            judge.push(RETURN, 0, 0, otherwise);
        });
    }

    /// Judges an argument of one call; falls through to the next rule, with the number loaded.
    /// Only the lower half is read, as the kernel does for these arguments: what is above must
    /// not hide it.
    fn judge(&mut self, number: i64, argument: u32, mask: u32, rules: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        inner.push(LOAD, 0, 0, offset_of_argument(argument));
        if mask != u32::MAX {
            inner.push(AND, 0, 0, mask);
        }
        rules(&mut inner);
        inner.push(LOAD, 0, 0, OFFSET_NUMBER);
        let skip = u8::try_from(inner.0.len()).expect("a rule has far fewer than 256 instructions");
        self.push(JUMP_IF_EQUAL, 0, skip, number_of(number));
        self.0.append(&mut inner.0);
    }
}

/// The lower half of an argument, on little-endian machines.
fn offset_of_argument(argument: u32) -> u32 {
    16 + 8 * argument
}

fn number_of(call: i64) -> u32 {
    u32::try_from(call).expect("numbers of system calls are small and positive")
}
