//! Many sandboxes that misbehave at once, and one among them that does not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::port::runner::{Command, Runner, RunnerLimits};

use crate::host::{Host, User, processes_with, stdout, wait_until, wait_until_gone};

/// In the command line of everything that the crowd starts.
const MARK: &str = "9191.9";

/// What the crowd does, in turn.
const DEEDS: [&str; 4] = [
    // Hangs, with daemons.
    "(setsid sleep 9191.9 &); sleep 9191.9",
    // Floods.
    "exec -a flood-9191.9 yes",
    // Forks without end.
    "bomb() { bomb | bomb & }; bomb; sleep 9191.9",
    // Fills its disk, its /tmp and their inodes.
    "i=0; while :; do head -c 400000 /dev/zero >f$i; : >/tmp/f$i; i=$((i + 1)); done 2>/dev/null; sleep 9191.9",
];

fn bounded() -> RunnerLimits {
    RunnerLimits {
        wall_ms: 12_000,
        processes: 24,
        memory_bytes: 64 << 20,
        tmp_bytes: 4 << 20,
        output_bytes: 100_000,
        workspace_bytes: 4 << 20,
        workspace_files: 1_000,
        cpu_percent: 5,
        ..RunnerLimits::default()
    }
}

/// The shortest and the middle of the times of a short command, one after the other.
async fn times(host: &Host) -> (Duration, Duration) {
    let mut times = Vec::new();
    for _ in 0..15 {
        let begun = tokio::time::Instant::now();
        assert_eq!(host.text("echo fine").await, "fine\n");
        times.push(begun.elapsed());
    }
    times.sort();
    (times[0], times[times.len() / 2])
}

/// Cgroups of living helpers, wherever this host has them.
fn cgroups() -> BTreeSet<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = ["", "memory", "pids", "cpu", "unified"].map(|name| root.join(name).join("evenkeel"));
    let entries = controllers.iter().filter_map(|parent| fs::read_dir(parent).ok()).flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn mounts() -> usize {
    fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_that_misbehave_do_not_slow_one_more_and_leave_nothing() {
    let (cgroups_before, mounts_before) = (cgroups(), mounts());
    let crowd_dir = {
        let host = Host::start(User::Current);
        let (alone, usual) = times(&host).await;
        let workspaces: Vec<PathBuf> = (0..50).map(|n| host.outside().join(format!("crowd-{n}"))).collect();
        for workspace in &workspaces {
            fs::create_dir(workspace).unwrap();
        }
        let crowd = (0..50).map(|n| {
            let deed = DEEDS[n % DEEDS.len()];
            let command = host.command(&["bash", "-c", deed]);
            host.launcher.run(Command { workspace: workspaces[n].clone(), limits: bounded(), ..command })
        });
        let measured = async {
            wait_until("the crowd is at it", || processes_with(MARK).len() >= 12).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            times(&host).await
        };
        let (_, (among, usual_among)) = tokio::join!(futures_util::future::join_all(crowd), measured);
        println!(
            "a short command takes {alone:?} (median {usual:?}) alone, {among:?} ({usual_among:?}) among fifty"
        );
        // The shortest times: other tests run beside this one, and are no part of the crowd.
        assert!(
            among <= alone.mul_f64(1.5) + Duration::from_millis(15),
            "{alone:?} alone, {among:?} among fifty"
        );
        wait_until_gone(MARK).await;
        let used = |workspace: &PathBuf| -> u64 {
            fs::read_dir(workspace).unwrap().flatten().map(|file| file.metadata().unwrap().len()).sum()
        };
        let largest = workspaces.iter().map(used).max().unwrap();
        println!("the largest workspace holds {} KiB of {}", largest >> 10, bounded().workspace_bytes >> 10);
        assert!(largest < 32 << 20, "{largest} bytes");
        assert_eq!(stdout(&host.sh("ls -a /tmp | wc -l").await), "2\n", "a private /tmp is new each time");
        host.outside().to_owned()
    };
    // The launcher is gone, and its helper with everything that it held.
    wait_until("no cgroup is left", || cgroups().is_subset(&cgroups_before)).await;
    assert_eq!(mounts(), mounts_before);
    assert!(!crowd_dir.exists());
}
