//! Commands without isolation, for hosts that are themselves thrown away.
//!
//! Limits of time, output and resources still hold, and nothing that a command started outlives
//! it: the keeper adopts orphans and kills whatever is left.

use std::fs;
use std::os::fd::BorrowedFd;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};

use super::command::{self, Stdio};
use super::keeper::{Ran, ended, watch_process};
use super::sys;
use crate::config::Isolation;
use crate::wire::{Failure, Reply, Request, Step};

/// Runs one command to its end.
pub(super) fn run(request: &Request, stdio: &Stdio, socket: BorrowedFd<'_>) -> Ran {
    let ran = |reply, is_orphaned| Ran { reply, landlock: false, identity: None, is_orphaned };
    match try_run(request, stdio, socket) {
        Ok((reply, is_orphaned)) => ran(reply, is_orphaned),
        Err(failure) => ran(Reply::Failed(failure), false),
    }
}

fn try_run(request: &Request, stdio: &Stdio, socket: BorrowedFd<'_>) -> Result<(Reply, bool), Failure> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).step("adopt orphans")?;
    let cpu_ms_before = sys::children_cpu_ms();
    let Some(pid) = sys::fork().step("fork the command")? else {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        command::become_program(request, stdio, Isolation::None, false)
    };
    let is_orphaned = watch_process(pid, socket);
    let status = waitpid(Some(pid), WaitOptions::empty()).step("wait for the command")?;
    kill_the_rest();
    let cpu_ms = sys::children_cpu_ms().saturating_sub(cpu_ms_before);
    let status = status.map(|(_, status)| status.as_raw());
    Ok((ended(status, false, cpu_ms), is_orphaned))
}

/// Kills and reaps children, also those adopted by the death of their parents, until none is left.
fn kill_the_rest() {
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
