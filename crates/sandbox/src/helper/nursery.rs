//! The nursery: forks a keeper for each socket it is given, and cleans up after them.
//!
//! It holds nothing of any command. It ends when the launcher's end of its socket closes, after
//! all of its keepers, which end for the same reason.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::WaitOptions;

use super::cgroup::{Cgroup, Hierarchy};
use super::keeper::Keeper;
use super::{socket, sys};
use crate::config::Isolation;
use crate::wire::{Failure, Raise, Step};

/// How often the ended keepers are looked for when nothing happens.
const SWEEP_INTERVAL: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Runs the nursery on the socket that is standard input.
pub(super) fn main() -> ExitCode {
    sys::close_from(3);
    sys::reset_signals();
    sys::ignore_broken_pipes();
    // A terminal's Ctrl-C is for the server, which then lets commands end in order.
    let _ = rustix::process::setsid();
    // Borrowed, never duplicated: a keeper that held a copy would keep a dead nursery reachable.
    let stdin = io::stdin();
    let mut nursery = Nursery { hierarchy: Hierarchy::find(), cgroups: BTreeMap::new() };
    if let Some(hierarchy) = &nursery.hierarchy {
        hierarchy.sweep();
    }
    match nursery.serve(stdin.as_fd()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    eprintln!("evenkeel sandbox helper: {failure}");
    ExitCode::FAILURE
}

struct Nursery {
    hierarchy: Option<Hierarchy>,
    /// The cgroups of living keepers, by their process.
    cgroups: BTreeMap<i32, Option<Cgroup>>,
}

impl Nursery {
    fn serve(&mut self, socket: BorrowedFd<'_>) -> Result<(), Failure> {
        loop {
            self.reap(WaitOptions::NOHANG);
            if !readable(socket)? {
                continue;
            }
            let Some((raise, fds)) = socket::receive::<Raise>(socket)? else {
                break;
            };
            let keeper_socket =
                fds.into_iter().next().ok_or("no socket came along").step("raise a keeper")?;
            self.raise(raise, keeper_socket)?;
        }
        self.reap(WaitOptions::empty());
        Ok(())
    }

    fn raise(&mut self, raise: Raise, keeper_socket: OwnedFd) -> Result<(), Failure> {
        // Without a cgroup commands still run; the doctor has said that it is missing.
        let cgroup = self
            .hierarchy
            .as_ref()
            .filter(|_| raise.isolation != Isolation::None)
            .and_then(|hierarchy| hierarchy.create(raise.slot).ok());
        if let Some(pid) = sys::fork().step("fork a keeper")? {
            self.cgroups.insert(pid.as_raw_nonzero().get(), cgroup);
            return Ok(());
        }
        // The nursery's own socket is standard input; a keeper must not hold it open.
        if let Ok(null) = std::fs::File::open("/dev/null") {
            let _ = sys::become_stdio(&null, 0);
        }
        let code = match Keeper::new(raise, cgroup).and_then(|mut keeper| keeper.serve(keeper_socket)) {
            Ok(()) => 0,
            Err(failure) => {
                eprintln!("evenkeel sandbox keeper: {failure}");
                1
            }
        };
        sys::exit_now(code)
    }

    /// Reaps ended keepers and removes their cgroups.
    fn reap(&mut self, options: WaitOptions) {
        while let Ok(Some((pid, _))) = rustix::process::wait(options) {
            if let Some(Some(cgroup)) = self.cgroups.remove(&pid.as_raw_nonzero().get()) {
                cgroup.remove();
            }
        }
    }
}

/// Waits a while for something to read.
fn readable(socket: BorrowedFd<'_>) -> Result<bool, Failure> {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    match poll(&mut fds, Some(&SWEEP_INTERVAL)) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error).step("wait for the launcher"),
    }
}
