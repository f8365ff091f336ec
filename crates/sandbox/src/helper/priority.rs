//! The keeper before its command in the line for the processor.
//!
//! Both share a cgroup, and so its share of processor time. A command that uses all of it would keep
//! the keeper from looking at the workspace and from ending it in time. Only a server that runs as root
//! may put somebody first; where it may not, there is no such cgroup either.
//!
//! What is made ahead stands behind everybody, until a command comes for it.

use std::sync::OnceLock;

use rustix::process::{Pid, getpriority_process, setpriority_process};

/// What this process had before it went first; a forked one knows it too.
static USUAL: OnceLock<i32> = OnceLock::new();

const FIRST: i32 = -20;
/// How much further behind than usual: a third of the share.
const BEHIND: i32 = 5;

/// Puts this process first.
pub(super) fn go_first() {
    if let Ok(usual) = getpriority_process(None) {
        let _ = USUAL.set(usual);
        let _ = setpriority_process(None, FIRST);
    }
}

/// Does something for which nobody waits yet. Processes that it makes stay where they are.
pub(super) fn behind<T>(work: impl FnOnce() -> T) -> T {
    let Some(usual) = USUAL.get() else { return work() };
    let _ = setpriority_process(None, usual.saturating_add(BEHIND));
    let done = work();
    let _ = setpriority_process(None, FIRST);
    done
}

/// Puts another process first, because somebody waits for it now.
pub(super) fn bring_forward(pid: Pid) {
    if USUAL.get().is_some() {
        let _ = setpriority_process(Some(pid), FIRST);
    }
}

/// Puts a process that is to become a command where it belongs.
pub(super) fn stand_in_line() {
    if let Some(usual) = USUAL.get() {
        let _ = setpriority_process(None, *usual);
    }
}
