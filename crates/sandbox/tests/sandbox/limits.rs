//! What a command may use, and what is said when it wants more.

use std::fs;
use std::os::unix::fs::MetadataExt;

use evenkeel_core::port::runner::LimitHit;

use crate::host::{Host, Place, User, processes_with, stderr, stdout, wait_until_gone};

#[tokio::test]
async fn time_ends_everything_and_keeps_what_was_read() {
    for place in Place::few() {
        let host = place.host();
        let exit =
            host.limited("echo begun; sleep 918273 & sleep 918273", |limits| limits.wall_ms = 400).await;
        assert_eq!((exit.limit, exit.code, exit.signal), (Some(LimitHit::Time), None, Some(9)), "{exit:?}");
        assert_eq!(stdout(&exit), "begun\n");
        assert_eq!(processes_with("918273").len(), 0);
    }
}

#[tokio::test]
async fn a_time_out_kills_the_whole_tree_langfuse_15955() {
    for place in Place::all() {
        let host = place.host();
        let exit = host.limited("sleep 300.918 & wait", |limits| limits.wall_ms = 50).await;
        assert_eq!(exit.limit, Some(LimitHit::Time), "{exit:?}");
        assert!(exit.ms < 10_000, "{exit:?}");
        assert_eq!(processes_with("300.918").len(), 0);
    }
}

#[tokio::test]
async fn fifty_time_outs_use_nothing_up_openclaw_110735() {
    for user in User::all() {
        let host = Host::start(*user);
        for _ in 0..50 {
            let exit = host
                .limited("sleep 300.5050 & sleep 300.5050 & wait", |limits| {
                    limits.wall_ms = 20;
                    limits.processes = 8;
                })
                .await;
            assert_eq!(exit.limit, Some(LimitHit::Time), "{exit:?}");
        }
        let exit = host.limited("true & true & wait; true", |limits| limits.processes = 8).await;
        assert_eq!((exit.code, exit.limit), (Some(0), None));
        assert_eq!(processes_with("300.5050").len(), 0);
    }
}

#[tokio::test]
async fn a_command_without_end_ends_nanobot_950() {
    let host = Host::start(User::Current);
    let exit = host.limited("sleep 999", |limits| limits.wall_ms = 100).await;
    assert_eq!(exit.limit, Some(LimitHit::Time));
}

#[tokio::test]
async fn memory_is_bounded() {
    let bomb = "python3 -c 'x = bytearray(900 << 20); print(len(x))'";
    for place in Place::few() {
        let host = place.host();
        let exit = host.limited(bomb, |limits| limits.memory_bytes = 128 << 20).await;
        assert_ne!(exit.code, Some(0), "{place:?}: {exit:?}");
        let bounded =
            host.limited("python3 -c 'x = bytearray(30 << 20)'", |limits| limits.memory_bytes = 128 << 20);
        assert_eq!(bounded.await.code, Some(0), "{place:?}");
        // Where nothing bounds a whole command, the bound holds for each process, and the doctor says so.
        if host.enforces("cgroup memory") {
            assert_eq!(exit.limit, Some(LimitHit::Memory), "{exit:?}");
            // Many processes that are each within the limit are together beyond it.
            let many = "for i in 1 2 3 4 5 6; do python3 -c 'x = bytearray(60 << 20); import time; time.sleep(9)' & done; wait -n; exit $?";
            let exit = host.limited(many, |limits| limits.memory_bytes = 128 << 20).await;
            assert_eq!(exit.limit, Some(LimitHit::Memory), "{exit:?}");
        }
    }
}

#[tokio::test]
async fn a_fork_bomb_is_bounded() {
    for place in Place::few() {
        let host = place.host();
        let script = "bomb() { exec -a bomb.7171 sleep 7171 | bomb & }; for i in $(seq 200); do sleep 7171.7 & done; \
                      ls -d /proc/[0-9]* | wc -l";
        let exit = host
            .limited(script, |limits| {
                limits.processes = 32;
                limits.wall_ms = 3_000;
            })
            .await;
        assert!(stderr(&exit).contains("Resource temporarily unavailable"), "{place:?}: {exit:?}");
        wait_until_gone("7171.7").await;
        let classic = ":(){ :|: & };: ; sleep 8181.8";
        let exit = host
            .limited(classic, |limits| {
                limits.processes = 32;
                limits.wall_ms = 1_500;
            })
            .await;
        assert!(stderr(&exit).contains("fork"), "{place:?}: {exit:?}");
        wait_until_gone("8181.8").await;
        assert_eq!(host.text("echo fine").await, "fine\n");
    }
}

#[tokio::test]
async fn tmp_and_inodes_are_bounded() {
    for place in Place::all() {
        let host = place.host();
        let script = "head -c 40000000 /dev/zero >/tmp/big; stat -c %s /tmp/big; rm /tmp/big; \
                      i=0; while : >/tmp/$i; do i=$((i + 1)); done; echo stopped";
        let exit = host.limited(script, |limits| limits.tmp_bytes = 8 << 20).await;
        let text = stdout(&exit);
        let size: u64 = text.lines().next().and_then(|line| line.parse().ok()).unwrap();
        assert!(size <= 8 << 20, "{place:?}: {text}");
        assert!(text.ends_with("stopped\n"), "{place:?}: {exit:?}");
        assert!(stderr(&exit).contains("No space left on device"), "{place:?}: {exit:?}");
    }
}

#[tokio::test]
async fn files_have_a_largest_size() {
    for place in Place::all() {
        let host = place.host();
        let exit =
            host.limited("exec head -c 9000000 /dev/zero >big", |limits| limits.file_bytes = 1 << 20).await;
        assert_eq!(exit.limit, Some(LimitHit::FileSize), "{place:?}: {exit:?}");
        assert_eq!(fs::metadata(host.workspace().join("big")).unwrap().size(), 1 << 20);
        let sparse = host.limited("truncate -s 1T sparse", |limits| limits.file_bytes = 1 << 20).await;
        assert_eq!(sparse.limit, Some(LimitHit::FileSize), "{place:?}: {sparse:?}");
    }
}

#[tokio::test]
async fn processor_time_is_bounded() {
    for place in Place::few() {
        let host = place.host();
        let exit = host.limited("while :; do :; done", |limits| limits.cpu_s = 1).await;
        assert_eq!(exit.limit, Some(LimitHit::Cpu), "{place:?}: {exit:?}");
        let stubborn = host.limited("trap '' XCPU; while :; do :; done", |limits| limits.cpu_s = 1).await;
        assert_eq!(stubborn.limit, Some(LimitHit::Cpu), "{place:?}: {stubborn:?}");
    }
}

#[tokio::test]
async fn descriptors_are_bounded() {
    for place in Place::all() {
        let host = place.host();
        let script = "for i in $(seq 3 100); do eval \"exec $i</dev/null\" || break; done; echo $i";
        let exit = host.limited(script, |limits| limits.open_files = 32).await;
        assert!(
            stderr(&exit).contains("Too many open files") || stderr(&exit).contains("Bad file descriptor"),
            "{exit:?}"
        );
        assert!(host.limited("ulimit -n 64", |limits| limits.open_files = 32).await.code != Some(0));
    }
}

#[tokio::test]
async fn a_flood_costs_no_memory() {
    for place in Place::few() {
        let host = place.host();
        for script in [
            "yes",
            "cat /dev/zero",
            "yes >&2",
            "while :; do printf '\\xff\\xfe\\x1b]0;x\\x07'; done | head -c 100000000",
        ] {
            let exit = host.limited(script, |limits| limits.output_bytes = 100_000).await;
            assert_eq!(exit.limit, Some(LimitHit::Output), "{place:?} {script}: {:?}", exit.code);
            assert_eq!(exit.stdout.len() + exit.stderr.len(), 100_000);
            assert!(
                exit.bytes_dropped >= 700_000 && exit.bytes_dropped < 2_000_000,
                "{}",
                exit.bytes_dropped
            );
        }
    }
}

#[tokio::test]
async fn more_output_than_is_kept_does_not_end_a_command() {
    let host = Host::start(User::Current);
    let exit =
        host.limited("head -c 300000 /dev/zero; echo end >&2", |limits| limits.output_bytes = 100_000).await;
    assert_eq!((exit.code, exit.limit), (Some(0), None));
    assert_eq!(exit.stdout.len() + exit.stderr.len(), 100_000);
    assert_eq!(exit.bytes_dropped, 200_004);
}

#[tokio::test]
async fn a_workspace_holds_what_it_may_and_can_be_made_smaller() {
    for place in Place::few() {
        let host = place.host();
        let script = "for i in $(seq 100); do head -c 2000000 /dev/zero >f$i; sleep 0.01; done; sleep 30";
        let exit = host.limited(script, |limits| limits.workspace_bytes = 20 << 20).await;
        assert_eq!(exit.limit, Some(LimitHit::Workspace), "{place:?}: {exit:?}");
        let many = "mkdir many; cd many; for i in $(seq 3000); do : >$i; done; sleep 30";
        let exit = host
            .limited(&format!("rm -f f*; {many}"), |limits| {
                limits.workspace_bytes = 100 << 20;
                limits.workspace_files = 1_000;
            })
            .await;
        assert_eq!(exit.limit, Some(LimitHit::Workspace), "{place:?}: {exit:?}");
        // What is too large already may still be read and made smaller.
        let exit =
            host.limited("rm -rf many; sleep 0.3; echo smaller", |limits| limits.workspace_files = 1_000);
        let exit = exit.await;
        assert_eq!((exit.code, stdout(&exit).as_str()), (Some(0), "smaller\n"), "{place:?}: {exit:?}");
    }
}

/// A keeper goes before its command, which has the priority of the server and cannot take more.
#[tokio::test]
async fn a_command_stands_in_line_with_the_server() {
    let own = rustix::process::getpriority_process(None).unwrap();
    for place in Place::all() {
        let host = place.host();
        let text = host.text("ps -o ni= -p $$ 2>/dev/null || cut -d' ' -f19 /proc/$$/stat").await;
        assert_eq!(text.trim(), own.to_string(), "{place:?}");
        assert_eq!(host.text("nice -n -5 true 2>&1 | grep -o denied").await, "denied\n", "{place:?}");
    }
}

/// Between two looks at a workspace much can be written, but not into one file: that bound is the kernel's.
/// The doctor says which part is which.
#[tokio::test]
async fn one_file_never_outgrows_its_workspace() {
    for place in Place::few() {
        let host = place.host();
        let exit = host
            .limited("exec head -c 400000000 /dev/zero >big", |limits| {
                limits.workspace_bytes = 4 << 20;
                limits.file_bytes = 1 << 30;
            })
            .await;
        assert!(matches!(exit.limit, Some(LimitHit::FileSize | LimitHit::Workspace)), "{place:?}: {exit:?}");
        let size = fs::metadata(host.workspace().join("big")).unwrap().size();
        assert!(size <= 4 << 20, "{place:?}: {size}");
        let report = host.report();
        let said = &report.finding("size of the workspace").unwrap().detail;
        assert!(
            said.contains("one file is bounded by the kernel") && said.contains("ten times a second"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn the_share_of_a_processor_is_bounded_where_a_cgroup_can() {
    let host = Host::start(User::Current);
    if !host.enforces("cgroup cpu") {
        println!("skipped: needs a cgroup for processor time, and the doctor says that there is none");
        return;
    }
    let script = "python3 -c 'import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())'";
    let exit = host.limited(script, |limits| limits.cpu_percent = 20).await;
    let used: f64 = stdout(&exit).trim().parse().unwrap();
    assert!(used < 1.0, "{used} s of processor time in 2 s");
}
