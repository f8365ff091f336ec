//! Who a command is.
//!
//! Inside every sandbox it is user and group [`INSIDE`]. Outside it is, for a server that runs as
//! root, a user that nothing else on the host uses, one per keeper; the workspace is mounted with
//! translated owners, so that its files still belong to whom they belonged to. For an ordinary
//! server it is the server's own user, the only one it may map.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Pid, Uid, WaitOptions, waitpid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::sys;
use crate::wire::{Failure, Step};

/// User and group inside.
pub(super) const INSIDE: u32 = 1000;

/// The first of the users for sandboxes. systemd's table of ranges leaves everything above its
/// containers' unused, and distributions hand out subordinate ids far below.
const FIRST_OUTSIDE: u32 = 1_900_000_000;
const N_OUTSIDE: u32 = 1 << 16;

/// Who a command is outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Identity {
    /// A user of its own.
    Separate(u32),
    /// This user and group, which own the workspace.
    Shared(u32, u32),
}

impl Identity {
    /// The separate user of a keeper.
    pub(super) fn of_slot(slot: u32) -> Self {
        Self::Separate(FIRST_OUTSIDE + slot % N_OUTSIDE)
    }

    /// The user, when it is a separate one.
    pub(super) fn separate_user(self) -> Option<u32> {
        match self {
            Self::Separate(id) => Some(id),
            Self::Shared(..) => None,
        }
    }

    /// Lets the user namespace of `pid` know this identity, seen from here.
    pub(super) fn map_into(self, pid: Pid) -> io::Result<()> {
        let (uid, gid) = match self {
            Self::Separate(id) => (id, id),
            Self::Shared(uid, gid) => (uid, gid),
        };
        write_maps(pid, (INSIDE, uid), (INSIDE, gid))
    }
}

/// Becomes user [`INSIDE`] of the user namespace that this process is in. An ordinary user is it
/// already, and could not give its groups away.
pub(super) fn assume() -> Result<(), Failure> {
    let left = set_thread_groups(&[]);
    if rustix::process::geteuid() == Uid::from_raw(INSIDE) {
        return Ok(());
    }
    left.step("leave all groups")?;
    let (uid, gid) = (Uid::from_raw(INSIDE), Gid::from_raw(INSIDE));
    set_thread_res_gid(gid, gid, gid).step("become the sandbox's group")?;
    set_thread_res_uid(uid, uid, uid).step("become the sandbox's user")
}

/// User namespaces that translate owners of workspaces, by the owner.
#[derive(Default)]
pub(super) struct Translations {
    known: BTreeMap<(u32, u32), OwnedFd>,
}

impl Translations {
    /// A namespace that shows files of `owner` as files of the separate user `outside`.
    pub(super) fn get(&mut self, owner: (u32, u32), outside: u32) -> Result<&OwnedFd, Failure> {
        Ok(match self.known.entry(owner) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(user_namespace((owner.0, outside), (owner.1, outside))?),
        })
    }
}

/// Makes a user namespace with these maps that no process lives in.
fn user_namespace(uids: (u32, u32), gids: (u32, u32)) -> Result<OwnedFd, Failure> {
    const STEP: &str = "make a namespace for owners";
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).step(STEP)?;
    let Some((pid, _pidfd)) = sys::fork_into(libc::CLONE_NEWUSER).step(STEP)? else {
        drop(write);
        // The end of this process's only reason to live shows as end of file.
        let _ = rustix::io::read(&read, &mut [0; 1]);
        sys::exit_now(0)
    };
    let opened = write_maps(pid, uids, gids)
        .and_then(|()| fs::File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero())));
    drop(write);
    let _ = waitpid(Some(pid), WaitOptions::empty());
    Ok(opened.step(STEP)?.into())
}

/// Each pair is an id inside the namespace and the id it stands for.
fn write_maps(pid: Pid, uids: (u32, u32), gids: (u32, u32)) -> io::Result<()> {
    let file = |name: &str| format!("/proc/{}/{name}", pid.as_raw_nonzero());
    if !rustix::process::geteuid().is_root() {
        // Without this the kernel lets an ordinary user map no group: it could be rid of one that
        // takes rights away.
        fs::write(file("setgroups"), "deny")?;
    }
    fs::write(file("uid_map"), format!("{} {} 1\n", uids.0, uids.1))?;
    fs::write(file("gid_map"), format!("{} {} 1\n", gids.0, gids.1))
}
