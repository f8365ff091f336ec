//! What a command sees, and what it leaves behind.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use evenkeel_core::port::runner::Runner;
use evenkeel_sandbox::SandboxConfig;
use expect_test::expect;

use crate::host::{Host, Place, User, stderr, stdout};

#[tokio::test]
async fn the_environment_is_clean() {
    // What the proxy's variables add with a list is in the table of the attacks.
    for place in Place::all().into_iter().filter(|place| !place.listed) {
        let host = place.host();
        let mut command = host.command(&["env"]);
        command.env =
            vec![("GREETING".to_owned(), "hello".to_owned()), ("TERM".to_owned(), "vt100".to_owned())];
        let exit = host.launcher.run(command).await.unwrap();
        let mut lines: Vec<String> = stdout(&exit).lines().map(str::to_owned).collect();
        lines.sort();
        expect![[r#"
            GREETING=hello
            HOME=/tmp
            LANG=C.UTF-8
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
            TERM=vt100
            TMPDIR=/tmp"#]]
        .assert_eq(&lines.join("\n"));
    }
}

#[tokio::test]
async fn no_descriptor_leaks() {
    // Held open on purpose, and without close-on-exec, in the process that starts the helper.
    let leaked = rustix::io::dup(fs::File::open("/proc/version").unwrap()).unwrap();
    for place in Place::all() {
        let host = place.host();
        // The fourth is the directory that `ls` itself reads.
        assert_eq!(host.text("ls /proc/self/fd").await, "0\n1\n2\n3\n", "{place:?}");
    }
    drop(leaked);
}

#[tokio::test]
async fn only_own_processes_are_visible() {
    for place in Place::all() {
        let host = place.host();
        let text =
            host.text("for pid in /proc/[0-9]*; do tr '\\0' ' ' <$pid/cmdline; echo; done; echo $$").await;
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.last(), Some(&"2"), "{place:?}: {text}");
        assert!(
            lines.iter().all(|line| ["helper", "bash", "tr", "2"].iter().any(|name| line.contains(name))),
            "{text}"
        );
        assert!(lines.len() <= 4, "{text}");
    }
}

#[tokio::test]
async fn the_root_shows_only_what_it_must() {
    for user in User::all() {
        let host = Host::start(*user);
        let text =
            host.text("ls / | grep -v -E '^(bin|sbin|lib|lib32|lib64|libx32)$'; hostname; id -un; pwd").await;
        expect![[r#"
            dev
            etc
            proc
            tmp
            usr
            workspace
            sandbox
            sandbox
            /workspace
        "#]]
        .assert_eq(&text);
        let devices = host.text("ls /dev").await;
        assert_eq!(devices, "fd\nfull\nnull\nrandom\nshm\nstderr\nstdin\nstdout\nurandom\nzero\n");
    }
}

#[tokio::test]
async fn files_belong_to_the_owner_of_the_workspace() {
    for user in User::all() {
        let host = Host::start(*user);
        fs::write(host.workspace().join("given"), "from outside").unwrap();
        let owner = fs::metadata(host.workspace()).unwrap();
        std::os::unix::fs::chown(host.workspace().join("given"), Some(owner.uid()), Some(owner.gid()))
            .unwrap();
        let script = "set -e; cat given; echo more >>given; mkdir -p a/b; echo '#!/bin/sh' >a/b/x; chmod 755 a/b/x; \
                      ln -s /etc/shadow link; a/b/x; stat -c %U given a/b/x; mv given moved";
        assert_eq!(host.text(script).await, "from outsidesandbox\nsandbox\n", "{user:?}");
        for name in ["moved", "a", "a/b", "a/b/x"] {
            let data = fs::metadata(host.workspace().join(name)).unwrap();
            assert_eq!((data.uid(), data.gid()), (owner.uid(), owner.gid()), "{user:?}: {name}");
        }
        assert_eq!(fs::metadata(host.workspace().join("a/b/x")).unwrap().permissions().mode() & 0o777, 0o755);
        fs::remove_dir_all(host.workspace().join("a")).unwrap();
    }
}

#[tokio::test]
async fn a_read_only_workspace_cannot_be_written() {
    for place in Place::all() {
        let host = place.host();
        let mut command = host.command(&["bash", "-c", "echo x >file; touch /tmp/fine && echo tmp; ls -A"]);
        command.read_only = true;
        let exit = host.launcher.run(command).await.unwrap();
        assert_eq!(stdout(&exit), "tmp\n", "{place:?}: {exit:?}");
        assert_eq!(fs::read_dir(host.workspace()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn nothing_of_one_command_is_left_for_the_next() {
    for place in Place::all() {
        let host = place.host();
        host.text("echo secret >/tmp/secret; echo kept >kept; ln -s /tmp/secret trap").await;
        assert_eq!(
            host.text("ls -A /tmp; cat kept; cat trap 2>/dev/null || echo gone").await,
            "kept\ngone\n"
        );
    }
}

#[tokio::test]
async fn two_sandboxes_do_not_see_each_other() {
    for place in Place::all() {
        let host = place.host();
        let other = host.other_workspace();
        let mut first = host.command(&["bash", "-c", "echo x >/tmp/first; echo $$ >ready; sleep 60"]);
        first.workspace.clone_from(&other);
        let look = async {
            crate::host::wait_until("the first runs", || other.join("ready").exists()).await;
            host.text("ls /tmp; echo /proc/[0-9]*; ls /workspace; kill -9 -1; echo alive").await
        };
        let text = tokio::select! {
            biased;
            exit = host.launcher.run(first) => panic!("the first ended: {exit:?}"),
            text = look => text,
        };
        // Pid 1 and the shell, which looks by itself: a pipe's ends would start in any order.
        assert_eq!(text, "/proc/1 /proc/2\nalive\n", "{place:?}");
    }
}

#[tokio::test]
async fn programs_work() {
    let cases = [
        (
            "echo '#include <stdio.h>\nint main(){puts(\"compiled\");}' >x.c && cc x.c -o x && ./x",
            "compiled\n",
        ),
        (
            "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m && git log --format=%s",
            "m\n",
        ),
        (
            "/usr/bin/python3 -c 'import subprocess, threading, multiprocessing as m; print(m.Pool(2).map(abs, [-1]))'",
            "[1]\n",
        ),
        ("yes | head -1; echo ${PIPESTATUS[0]}", "y\n141\n"),
        ("echo x | tee /dev/stderr >/dev/null; cat <(echo y); mktemp -d >/dev/null && echo ok", "y\nok\n"),
        (
            "(exec 3<>/dev/tcp/127.0.0.1/1) 2>&1 | grep -o 'Connection refused' | head -1",
            "Connection refused\n",
        ),
    ];
    for user in User::all() {
        let host = Host::start(*user);
        for (script, expected) in cases {
            let program =
                script.split_whitespace().find(|word| ["cc", "git", "/usr/bin/python3"].contains(word));
            if let Some(program) = program
                && host.sh(&format!("command -v {program}")).await.code != Some(0)
            {
                continue;
            }
            assert_eq!(host.text(script).await, expected, "{user:?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_run_is_told_like_a_shell_does() {
    let host = Host::start(User::Current);
    fs::write(host.workspace().join("text"), "no program").unwrap();
    let table = [
        (vec!["no-such-program"], "", 127, "sandbox: no-such-program: command not found\n"),
        (vec!["./missing"], "", 127, "sandbox: ./missing: command not found\n"),
        (vec!["./text"], "", 126, "sandbox: ./text: Permission denied (os error 13)\n"),
        (vec![], "", 127, "sandbox: : command not found\n"),
        (
            vec!["true"],
            "no/such/dir",
            126,
            "sandbox: the directory /workspace/no/such/dir: No such file or directory (os error 2)\n",
        ),
        (
            vec!["true", "a\0b"],
            "",
            126,
            "sandbox: an argument or a variable: nul byte found in provided data at position: 1\n",
        ),
    ];
    for (argv, cwd, code, message) in table {
        let mut command = host.command(&argv);
        command.cwd = cwd.to_owned();
        let exit = host.launcher.run(command).await.unwrap();
        assert_eq!((exit.code, stderr(&exit).as_str()), (Some(code), message), "{argv:?}");
    }
}

#[tokio::test]
async fn stdin_is_fed_and_closed() {
    for user in User::all() {
        let host = Host::start(*user);
        let mut command = host.command(&["sha256sum"]);
        command.stdin = vec![b'x'; 3 << 20];
        let exit = host.launcher.run(command).await.unwrap();
        assert!(
            stdout(&exit).starts_with("f59ac8fc9a31ad2f9b0a2d7d0e1c") || exit.code == Some(0),
            "{exit:?}"
        );
        let mut unread = host.command(&["true"]);
        unread.stdin = vec![b'x'; 3 << 20];
        assert_eq!(host.launcher.run(unread).await.unwrap().code, Some(0));
        let mut count = host.command(&["wc", "-c"]);
        count.stdin = vec![b'x'; 3 << 20];
        assert_eq!(stdout(&host.launcher.run(count).await.unwrap()).trim(), (3 << 20).to_string());
    }
}

#[tokio::test]
async fn read_only_paths_are_shown_and_cannot_be_written() {
    for user in User::all() {
        let extra = tempfile::TempDir::new_in("/var/tmp").unwrap();
        let tools = extra.path().join("tools");
        fs::create_dir(&tools).unwrap();
        fs::write(tools.join("version"), "1.2\n").unwrap();
        // Only the server has to be able to reach it.
        let mode = if *user == User::Current { 0o700 } else { 0o755 };
        fs::set_permissions(extra.path(), fs::Permissions::from_mode(mode)).unwrap();
        let config = SandboxConfig { read_only_paths: vec![tools.clone()], ..SandboxConfig::default() };
        let host = Host::start_with(*user, config);
        let path = tools.display();
        let text =
            host.text(&format!("cat {path}/version; (echo x >{path}/x) 2>/dev/null || echo refused")).await;
        assert_eq!(text, "1.2\nrefused\n", "{user:?}");
        assert_eq!(host.text("ls -A /var/tmp | wc -l").await, "1\n");
    }
}
