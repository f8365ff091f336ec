//! The helper: what runs on the other side of the sockets, in processes with one thread.
//!
//! Nothing here may start a thread: the kernel lets only single-threaded processes fork safely
//! and enter namespaces.

mod bare;
mod bubblewrap;
mod cgroup;
mod command;
mod examine;
mod filter;
mod identity;
mod init;
mod keeper;
mod landlock;
mod meter;
mod nursery;
mod priority;
mod root;
mod socket;
mod sys;

use std::process::ExitCode;

use crate::wire::{EXAMINE_ARGUMENT, HELPER_ARGUMENT, INSIDE_ARGUMENT};

/// Runs this process as the sandbox helper if it was started as one.
///
/// Every program that uses [`HelperProgram::CurrentExe`](crate::HelperProgram::CurrentExe) calls
/// this first in `main`, before any thread exists, and returns the code if there is one.
#[must_use]
pub fn helper_main() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != HELPER_ARGUMENT {
        return None;
    }
    Some(match arguments.next().as_deref() {
        Some(EXAMINE_ARGUMENT) => examine::main(arguments.next(), arguments.next()),
        Some(INSIDE_ARGUMENT) => init::main_inside(),
        _ => nursery::main(),
    })
}
