//! The keeper before its command in the line for the processor.
//!
//! Both share a cgroup, and so its share of processor time. A command that uses all of it would keep
//! the keeper from looking at the workspace and from ending it in time. Only a server that runs as root
//! may put somebody first; where it may not, there is no such cgroup either.

use std::sync::OnceLock;

use rustix::process::{getpriority_process, setpriority_process};

/// What this process had before it went first; a forked one knows it too.
static USUAL: OnceLock<i32> = OnceLock::new();

const FIRST: i32 = -20;

/// Puts this process first.
pub(super) fn go_first() {
    if let Ok(usual) = getpriority_process(None) {
        let _ = USUAL.set(usual);
        let _ = setpriority_process(None, FIRST);
    }
}

/// Puts a process that is to become a command where it belongs.
pub(super) fn stand_in_line() {
    if let Some(usual) = USUAL.get() {
        let _ = setpriority_process(None, *usual);
    }
}
