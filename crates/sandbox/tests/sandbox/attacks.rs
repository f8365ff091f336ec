//! Ways out, tried from inside.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use evenkeel_core::port::runner::Runner;
use expect_test::expect;

use crate::host::{ATTACK, Host, User, install, stdout};

#[tokio::test]
async fn every_way_out_is_closed() {
    for user in User::all() {
        let host = Host::start(*user);
        let name = format!("evenkeel-attack-{}-{user:?}", std::process::id());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let path = format!("/tmp/{name}");
        let _outside = UnixListener::bind(&path).unwrap();
        install(Path::new(ATTACK), &host.workspace().join("attack"));
        let pid = std::process::id().to_string();
        let exit = host.launcher.run(host.command(&["./attack", "inside", &pid, &port, &name])).await;
        fs::remove_file(&path).unwrap();
        let exit = exit.unwrap();
        assert_eq!(exit.code, Some(0), "{user:?}: {exit:?}");
        let text = stdout(&exit);
        assert!(!text.contains("ALLOWED"), "{user:?}: {text}");
        // Which file is there and which is refused differs between kernels; that none is reached does not.
        let varies = |line: &str| {
            ["/dev/", "write /", "read /", "mount by x32"].iter().any(|name| line.starts_with(name))
        };
        let steady: String = text.split_inclusive('\n').filter(|line| !varies(line)).collect();
        expect![[r#"
            ptrace attach: Operation not permitted
            ptrace seize: Operation not permitted
            process_vm_readv: Operation not permitted
            process_vm_writev: Operation not permitted
            pidfd_getfd: Operation not permitted
            kcmp: Operation not permitted
            kill a host process: No such process
            kill pid 1: no effect
            /proc/1/mem: Permission denied
            /proc/1/environ: Permission denied
            /proc/1/fd: Permission denied
            /proc/1/root/etc: Permission denied
            /proc/1/cwd/etc: Permission denied
            /proc/1/maps: Permission denied
            /proc/1/exe: Permission denied
            mount: Operation not permitted
            remount writable: Operation not permitted
            umount: Operation not permitted
            fsopen: Operation not permitted
            open_tree: Operation not permitted
            move_mount: Operation not permitted
            mount_setattr: Operation not permitted
            pivot_root: Operation not permitted
            chroot: Operation not permitted
            unshare user: Operation not permitted
            unshare mounts: Operation not permitted
            unshare with high bits: Operation not permitted
            clone user: Operation not permitted
            clone3: Function not implemented
            setns: Operation not permitted
            /proc/1/ns/net: Permission denied
            keyctl: Operation not permitted
            add_key: Operation not permitted
            request_key: Operation not permitted
            bpf: Operation not permitted
            io_uring_setup: Function not implemented
            userfaultfd: Operation not permitted
            perf_event_open: Operation not permitted
            open_by_handle_at: Operation not permitted
            init_module: Operation not permitted
            finit_module: Operation not permitted
            kexec_load: Operation not permitted
            reboot: Operation not permitted
            swapon: Operation not permitted
            settimeofday: Operation not permitted
            clock_settime: Operation not permitted
            syslog: Operation not permitted
            personality: Operation not permitted
            mknod mem: Operation not permitted
            mknod kvm: Operation not permitted
            mknod vda: Operation not permitted
            TIOCSTI: Operation not permitted
            TIOCSTI with high bits: Operation not permitted
            TIOCLINUX: Operation not permitted
            setuid: Invalid argument
            setgid: Invalid argument
            setgroups: Operation not permitted
            sethostname: Operation not permitted
            setpriority: Permission denied
            raise a limit: Operation not permitted
            chmod u+s: Operation not permitted
            chmod g+s: Operation not permitted
            fchmod u+s: Operation not permitted
            fchmodat2 u+s: Operation not permitted
            create u+s: Operation not permitted
            temporary u+s: Operation not permitted
            openat2: Function not implemented
            mknod u+s: Operation not permitted
            hard link out: Invalid cross-device link
            rename out: Invalid cross-device link
            AF_PACKET: Operation not permitted
            AF_NETLINK: Operation not permitted
            AF_NETLINK dgram: Address family not supported by protocol
            AF_VSOCK: Address family not supported by protocol
            AF_ALG: Address family not supported by protocol
            raw ICMP: Operation not permitted
            connect to the test's port: Connection refused
            connect to 169.254.169.254:80: Network is unreachable
            connect to 192.0.2.1:53: Network is unreachable
            abstract unix socket: Connection refused
            unix socket outside: No such file or directory
        "#]]
        .assert_eq(&steady);
    }
}
