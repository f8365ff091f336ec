//! The forty attacks, each with its outcome: as whoever runs the tests, with the helper and with the
//! whole server as an ordinary user, with both backends, without and with a list of hosts.
//!
//! What one command can try from inside is tried by `evenkeel-sandbox-attack`; its answers are the
//! table below. Attacks that need something outside (a proxy, a host that reads what was planted, a
//! server that is killed) are tests of their own, named in [`ELSEWHERE`].

use std::collections::BTreeSet;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use evenkeel_core::port::runner::{Command, HostRule, Runner};
use evenkeel_env::process;
use evenkeel_sandbox::doctor::{self, Report, State};
use evenkeel_sandbox::{HelperProgram, SandboxConfig};
use expect_test::expect;

use crate::bubblewrap;
use crate::host::{Host, ORDINARY, PROGRAMS, User, attack_program, helper_program, install, is_root, stdout};

/// Attacks that another test shows: number, its source, and its name there.
const ELSEWHERE: &[(u8, &str, &str)] = &[
    (2, include_str!("view.rs"), "the_environment_is_clean"),
    (34, include_str!("network.rs"), "only_listed_hosts_are_reached"),
    (34, include_str!("../../src/network/tests.rs"), "a_request_is_read_in_one_way_or_refused"),
    (34, include_str!("../../src/network/tests.rs"), "only_public_addresses_are_reached"),
    (35, include_str!("../../../tools/src/toolbox/tests.rs"), "no_path_leads_out_of_the_workspace"),
    (35, include_str!("../../../tools/src/toolbox/tests.rs"), "what_is_no_text_file_is_refused"),
    (35, include_str!("../../../tools/src/workspace/tests.rs"), "restoring_follows_no_link"),
    (35, include_str!("../../../tools/src/beneath/tests.rs"), "a_resolved_path_is_opened_without_links"),
    (
        36,
        include_str!("../../../tools/src/workspace/tests.rs"),
        "nothing_planted_in_a_repository_runs_outside",
    ),
    (
        36,
        include_str!("../../../tools/src/workspace/tests.rs"),
        "what_may_not_be_used_is_refused_with_a_remedy",
    ),
    (37, include_str!("limits.rs"), "a_fork_bomb_is_bounded"),
    (37, include_str!("limits.rs"), "descriptors_are_bounded"),
    (37, include_str!("limits.rs"), "memory_is_bounded"),
    (37, include_str!("limits.rs"), "tmp_and_inodes_are_bounded"),
    (37, include_str!("limits.rs"), "files_have_a_largest_size"),
    (37, include_str!("limits.rs"), "one_file_never_outgrows_its_workspace"),
    (37, include_str!("limits.rs"), "a_workspace_holds_what_it_may_and_can_be_made_smaller"),
    (38, include_str!("limits.rs"), "a_flood_costs_no_memory"),
    (38, include_str!("../../../evenkeel/src/output/tests.rs"), "a_text_cannot_drive_the_terminal"),
    (39, include_str!("life.rs"), "what_a_command_leaves_behind_dies_and_delays_nothing"),
    (39, include_str!("life.rs"), "processes_that_resist_die_at_the_limit"),
    (39, include_str!("life.rs"), "a_killed_server_leaves_no_process"),
    (40, include_str!("view.rs"), "no_descriptor_leaks"),
    (40, include_str!("view.rs"), "two_sandboxes_do_not_see_each_other"),
    (
        40,
        include_str!("../../../evenkeel/tests/cli/secrets.rs"),
        "a_secret_is_in_no_file_environment_argument_log_event_or_answer",
    ),
];

#[tokio::test]
async fn every_way_out_is_closed() {
    closed_with(SandboxConfig::default(), &outcome()).await;
}

/// The other backend closes every one of them as well. What a command sees differs in one line: pid 1
/// was started with another argument. Under a server that runs as root, on a workspace of root, a
/// command has the number of the host's root without any of its rights; it may then list which
/// descriptors pid 1 has, and open none.
#[tokio::test]
async fn every_way_out_is_closed_with_bubblewrap() {
    let Some(config) = bubblewrap::config() else { return };
    let native = outcome();
    let expected = unindented(native.data())
        .replace("arguments of pid 1: sandbox-helper", "arguments of pid 1: sandbox-helper inside");
    for user in User::all() {
        let host = Host::start_with(*user, config.clone());
        let expected = match user {
            User::Current if is_root() => expected
                .replace("/proc/1/fd: refused", "/proc/1/fd: ALLOWED")
                .replace("/proc/1/map_files: refused", "/proc/1/map_files: ALLOWED"),
            _ => expected.clone(),
        };
        let closed = attack(&host, &format!("{user:?}-bwrap"), Vec::new()).await;
        assert_eq!(differences(&expected, &closed), Vec::<String>::new(), "{user:?}");
        assert!(!closed.contains(": NO"), "{user:?}: {closed}");
        let rules = vec![HostRule::try_from("pkg.example".to_owned()).unwrap()];
        let listed = attack(&host, &format!("{user:?}-bwrap-listed"), rules).await;
        assert_eq!(differences(&with_proxy(&expected), &listed), Vec::<String>::new(), "{user:?}");
    }
}

/// Lines that are not the same.
fn differences(expected: &str, seen: &str) -> Vec<String> {
    let (expected, seen): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), seen.lines().collect());
    let longest = expected.len().max(seen.len());
    let line = |lines: &[&str], idx: usize| lines.get(idx).copied().unwrap_or_default().to_owned();
    let pairs = (0..longest).map(|idx| (line(&expected, idx), line(&seen, idx)));
    pairs.filter(|(a, b)| a != b).map(|(a, b)| format!("expected {a:?}, seen {b:?}")).collect()
}

/// The text of the table without the indentation that it has in this file.
fn unindented(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim_start()).filter(|line| !line.is_empty());
    lines.map(|line| format!("{line}\n")).collect()
}

/// With a list the proxy's variables are the only thing that a command sees more of.
fn with_proxy(closed: &str) -> String {
    let more =
        "HTTPS_PROXY HTTP_PROXY LANG NO_PROXY PATH TERM TMPDIR all_proxy http_proxy https_proxy no_proxy";
    closed.replace("environment: HOME LANG PATH TERM TMPDIR", &format!("environment: ALL_PROXY HOME {more}"))
}

async fn closed_with(config: SandboxConfig, expected: &expect_test::Expect) {
    for user in User::all() {
        let host = Host::start_with(*user, config.clone());
        let closed = attack(&host, &format!("{user:?}-closed"), Vec::new()).await;
        assert!(!closed.contains("ALLOWED") && !closed.contains(": NO"), "{user:?}: {closed}");
        expected.assert_eq(&closed);
        let rules = vec![HostRule::try_from("pkg.example".to_owned()).unwrap()];
        let listed = attack(&host, &format!("{user:?}-listed"), rules).await;
        assert_eq!(listed, with_proxy(&closed), "{user:?}");
    }
}

/// What the table shows as reached is what the doctor says cannot be closed here.
#[tokio::test]
async fn the_doctor_tells_what_stays_open() {
    for user in User::all() {
        let host = Host::start(*user);
        let helper = HelperProgram::Path(host.helper.clone());
        let report = doctor::examine_with(&SandboxConfig { helper, ..SandboxConfig::default() });
        let finding = report.finding("sockets in the workspace").unwrap();
        assert_eq!(finding.state, State::Open, "{report}");
        assert!(outcome().data().contains("one in the workspace is reached: yes"));
        assert!(report.to_string().contains("open  sockets in the workspace"), "{report}");
        // What is open everywhere is no reason to refuse this host.
        let only_open = Report { findings: vec![finding.clone()], ..report };
        assert_eq!(only_open.admit(&BTreeSet::new()), Ok(()));
    }
}

/// With the helper alone as an ordinary user the server is still root. Here the whole server is one: this
/// test program again, as somebody who owns nothing, with what needs no process of its own name.
#[test]
fn the_whole_server_may_be_an_ordinary_user() {
    if !is_root() {
        println!("skipped: the server of these tests is an ordinary user already");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (tests, scratch) = (dir.path().join("tests"), dir.path().join("scratch"));
    install(&std::env::current_exe().unwrap(), &tests);
    install(&helper_program(), &dir.path().join("helper"));
    install(&attack_program(), &dir.path().join("attack"));
    fs::create_dir(&scratch).unwrap();
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o1777)).unwrap();
    let names = [
        "attacks::every_way_out_is_closed",
        "attacks::every_way_out_is_closed_with_bubblewrap",
        "attacks::the_doctor_tells_what_stays_open",
        "network::only_listed_hosts_are_reached",
        "limits::descriptors_are_bounded",
        "limits::files_have_a_largest_size",
        "limits::memory_is_bounded",
        "limits::tmp_and_inodes_are_bounded",
        "view::no_descriptor_leaks",
        "view::two_sandboxes_do_not_see_each_other",
    ];
    let output = process::command("setpriv")
        .into_std()
        .args([format!("--reuid={ORDINARY}"), format!("--regid={ORDINARY}"), "--clear-groups".to_owned()])
        .arg(&tests)
        .args(["--test-threads=1", "--exact"])
        .args(names)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("TMPDIR", &scratch)
        .env(PROGRAMS, dir.path())
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("{} passed; 0 failed", names.len())), "{said}");
}

/// Every attack of the list is shown by a line of the table or by a test that exists.
#[test]
fn no_attack_is_left_out() {
    for number in 1..=40u8 {
        let here = outcome().data().contains(&format!("[{number}] "));
        let elsewhere = ELSEWHERE.iter().any(|(of, _, _)| *of == number);
        assert!(here || elsewhere, "attack {number} has no test");
    }
    for (number, source, name) in ELSEWHERE {
        assert!(source.contains(&format!("fn {name}()")), "attack {number}: there is no test {name}");
    }
}

/// Puts up what can be reached outside and runs the attacks in a sandbox: what they printed.
async fn attack(host: &Host, label: &str, hosts: Vec<HostRule>) -> String {
    let name = format!("evenkeel-attack-{}-{label}", std::process::id());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let path = format!("/tmp/{name}");
    let _outside = UnixListener::bind(&path).unwrap();
    let _inside = UnixListener::bind(host.workspace().join("socket")).unwrap();
    fs::set_permissions(host.workspace().join("socket"), fs::Permissions::from_mode(0o666)).unwrap();
    install(&attack_program(), &host.workspace().join("attack"));
    let pid = std::process::id().to_string();
    let command = host.command(&["./attack", "inside", &pid, &port, &name]);
    let exit = host.launcher.run(Command { hosts, ..command }).await;
    fs::remove_file(&path).unwrap();
    fs::remove_file(host.workspace().join("socket")).unwrap();
    for left in ["set-id", "link"] {
        fs::remove_file(host.workspace().join(left)).unwrap();
    }
    let exit = exit.unwrap();
    assert_eq!(exit.code, Some(0), "{label}: {exit:?}");
    stdout(&exit)
}

fn outcome() -> expect_test::Expect {
    expect![[r#"
        [1] the root of pid 1
        /proc/1/root/etc: refused
        /proc/1/cwd/etc: refused
        [2] the environment of pid 1
        /proc/1/environ: refused
        [3] descriptors of pid 1
        /proc/1/fd: refused
        /proc/1/fd/0: refused
        /proc/1/fd/3: refused
        /proc/1/fdinfo: refused
        /proc/1/map_files: refused
        [4] memory of pid 1
        /proc/1/mem: refused
        /proc/1/maps: refused
        /proc/1/exe: refused
        /proc/1/auxv: refused
        /proc/1/stack: refused
        /proc/1/syscall: refused
        [5] ptrace
        attach: Operation not permitted
        seize: Operation not permitted
        [6] process_vm_readv and writev
        process_vm_readv: Operation not permitted
        process_vm_writev: Operation not permitted
        [7] pidfd_getfd
        pidfd_getfd: Operation not permitted
        kcmp: Operation not permitted
        [8] signals to others
        a process of the host: No such process
        all others: No such process
        pid 1 does not care: yes
        [9] mount and umount
        mount: Operation not permitted
        remount writable: Operation not permitted
        umount: Operation not permitted
        mount by x32: refused
        [10] the new mount calls
        fsopen: Operation not permitted
        fspick: Operation not permitted
        fsconfig: Operation not permitted
        fsmount: Operation not permitted
        open_tree: Operation not permitted
        move_mount: Operation not permitted
        mount_setattr: Operation not permitted
        [11] pivot_root and chroot
        pivot_root: Operation not permitted
        chroot: Operation not permitted
        [12] a user namespace of its own
        unshare: Operation not permitted
        unshare with high bits: Operation not permitted
        unshare mounts: Operation not permitted
        clone: Operation not permitted
        clone mounts: Operation not permitted
        [13] clone3
        clone3: Function not implemented
        [14] setns
        setns: Operation not permitted
        /proc/1/ns/net: Permission denied
        /proc/1/ns/mnt: Permission denied
        /proc/1/ns/user: Permission denied
        /proc/1/ns/pid: Permission denied
        [15] kernel keys
        keyctl: Operation not permitted
        add_key: Operation not permitted
        request_key: Operation not permitted
        [16] bpf
        bpf: Operation not permitted
        [17] io_uring
        io_uring_setup: Function not implemented
        [18] userfaultfd
        userfaultfd: Operation not permitted
        [19] perf_event_open
        perf_event_open: Operation not permitted
        [20] open_by_handle_at
        open_by_handle_at: Operation not permitted
        name_to_handle_at: Operation not permitted
        [21] modules, kexec, reboot, swap
        init_module: Operation not permitted
        finit_module: Operation not permitted
        delete_module: Operation not permitted
        kexec_load: Operation not permitted
        reboot: Operation not permitted
        swapon: Operation not permitted
        syslog: Operation not permitted
        [22] the clock
        settimeofday: Operation not permitted
        clock_settime: Operation not permitted
        adjtimex: Operation not permitted
        [23] personality
        no address randomisation: Operation not permitted
        [24] making devices
        mem: Operation not permitted
        kvm: Operation not permitted
        vda: Operation not permitted
        null: Operation not permitted
        [25] devices of the host
        /dev/kvm: refused
        /dev/fuse: refused
        /dev/kmsg: refused
        /dev/mem: refused
        /dev/tty: refused
        /dev/ptmx: refused
        /dev/vda: refused
        /dev/net/tun: refused
        [26] writing into a terminal
        TIOCSTI: Operation not permitted
        TIOCSTI with high bits: Operation not permitted
        TIOCLINUX: Operation not permitted
        TIOCCONS: Operation not permitted
        [27] helpers that the kernel starts
        write /proc/sysrq-trigger: refused
        write /proc/sys/kernel/core_pattern: refused
        write /proc/sys/kernel/modprobe: refused
        write /proc/sys/vm/drop_caches: refused
        write /proc/sys/fs/binfmt_misc/register: refused
        write /sys/kernel/uevent_helper: refused
        [28] cgroups
        write /sys/fs/cgroup/cgroup.procs: refused
        write /sys/fs/cgroup/memory/release_agent: refused
        write /sys/fs/cgroup/memory/cgroup.procs: refused
        see /sys: refused
        unshare: Operation not permitted
        its own cgroup is all it sees: yes
        [29] programs that run as their owner
        no new privileges: 1
        bounding set: 0000000000000000
        /usr is mounted nosuid: yes
        setuid: Invalid argument
        setgid: Invalid argument
        setgroups: Operation not permitted
        chmod u+s: Operation not permitted
        chmod g+s: Operation not permitted
        fchmod u+s: Operation not permitted
        fchmodat2 u+s: Operation not permitted
        create u+s: Operation not permitted
        temporary u+s: Operation not permitted
        openat2: Function not implemented
        mknod u+s: Operation not permitted
        [30] writing to the system
        write /evil: refused
        write /usr/evil: refused
        write /usr/bin/env: refused
        write /etc/passwd: refused
        write /etc/evil: refused
        write /dev/evil: refused
        read /root: refused
        read /home: refused
        read /var: refused
        read /run: refused
        read /boot: refused
        read /etc/shadow: refused
        read /etc/ssh: refused
        read /proc/kcore: refused
        sethostname: Operation not permitted
        [31] the network
        connect to a service of the host: refused
        connect to the same by IPv6: refused
        connect to cloud metadata: refused
        connect to a private address: refused
        connect to the Internet: refused
        connect to the Internet by IPv6: refused
        ask a name server: Network is unreachable
        there is a loopback device: yes
        routes: 0
        [32] odd sockets
        AF_PACKET: Operation not permitted
        AF_NETLINK: Operation not permitted
        AF_NETLINK dgram: Address family not supported by protocol
        AF_VSOCK: Address family not supported by protocol
        AF_ALG: Address family not supported by protocol
        raw ICMP: Operation not permitted
        a pair of AF_VSOCK: Address family not supported by protocol
        [33] unix sockets outside
        by an abstract name: Connection refused
        by a path: No such file or directory
        by a path of the system: No such file or directory
        one in the workspace is reached: yes
        [35] links and renames out of the workspace
        hard link out: Invalid cross-device link
        rename out: Invalid cross-device link
        a symbolic link can be made: yes
        and leads nowhere: refused
        [40] what is inherited, and other sandboxes
        descriptors: 0 1 2 3 4
        directory: /workspace
        environment: HOME LANG PATH TERM TMPDIR
        processes: 2
        files in /tmp: 0
        user: 1000
        arguments of pid 1: sandbox-helper
        setpriority: Permission denied
        raise a limit: Operation not permitted
    "#]]
}
