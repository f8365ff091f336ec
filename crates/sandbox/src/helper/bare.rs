//! Commands without isolation, for hosts that are themselves thrown away.
//!
//! Limits of time, output and resources still hold, and nothing that a command started outlives
//! it: the keeper adopts orphans and kills whatever is left.

use std::fs;
use std::os::fd::BorrowedFd;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};

use super::command::{self, Stdio};
use super::keeper::{Ran, Watched, ended, watch_process};
use super::sys;
use crate::config::Isolation;
use crate::wire::{Failure, Reply, Request, Step};

/// Runs one command to its end.
pub(super) fn run(request: &Request, stdio: &Stdio, socket: BorrowedFd<'_>) -> Ran {
    let ran = |reply, watched| Ran { reply, landlock: false, identity: None, watched, spent: None };
    match try_run(request, stdio, socket) {
        Ok((reply, watched)) => ran(reply, watched),
        Err(failure) => ran(Reply::Failed(failure), Watched::default()),
    }
}

fn try_run(request: &Request, stdio: &Stdio, socket: BorrowedFd<'_>) -> Result<(Reply, Watched), Failure> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).step("adopt orphans")?;
    let cpu_ms_before = sys::children_cpu_ms();
    let Some(pid) = sys::fork().step("fork the command")? else {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        command::become_program(request, stdio, Isolation::None, false)
    };
    let watched = watch_process(pid, socket, request);
    let status = waitpid(Some(pid), WaitOptions::empty()).step("wait for the command")?;
    kill_the_rest();
    let cpu_ms = sys::children_cpu_ms().saturating_sub(cpu_ms_before);
    let status = status.map(|(_, status)| status.as_raw());
    let mut reply = ended(status, cpu_ms);
    if let Reply::Ended { workspace_full, .. } = &mut reply {
        *workspace_full = watched.workspace_full;
    }
    Ok((reply, watched))
}

/// Kills and reaps children, also those adopted by the death of their parents, until none is left.
pub(super) fn kill_the_rest() {
    loop {
        for child in children() {
            let _ = kill_process(child, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No children any more.
            Err(_) => return,
        }
    }
}

fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero();
    let text = fs::read_to_string(format!("/proc/self/task/{own}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw).collect()
}
