//! How much a workspace holds, watched while a command runs.
//!
//! A workspace is a directory of the host, and few hosts can bound one: project quotas need a file
//! system that was made for them, and an upper layer in memory would have to be copied back. So the
//! keeper looks: every [`INTERVAL_MS`] it asks the file system how much is free, which costs
//! nothing, and counts the workspace itself only when so much was written anywhere on that file
//! system that this workspace may have outgrown what it may hold. A command that is found beyond is
//! killed. What it can write between two looks is bounded by the speed of the disk, and a single file
//! by the kernel, at what the whole workspace may hold or at the file's own limit.
//!
//! A workspace that is too large already may be made smaller: only growth is stopped.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstatvfs, openat, statat};

/// Between two looks, in milliseconds.
pub(super) const INTERVAL_MS: i64 = 100;
/// Growth of the file system below which nothing is counted: bytes, and files.
const UNNOTICED: Amount = Amount { bytes: 1 << 20, files: 256 };
/// Directories below each other that are followed.
const DEPTH_MAX: usize = 256;

/// Bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    pub(super) files: u64,
}

impl Amount {
    fn exceeds(self, other: Self) -> bool {
        self.bytes > other.bytes || self.files > other.files
    }

    fn minus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), files: self.files.saturating_sub(other.files) }
    }
}

/// Watches one workspace.
pub(super) struct Meter {
    workspace: OwnedFd,
    allowed: Amount,
    /// What the file system held when the workspace was last counted, or when the command began.
    held: Amount,
    /// Growth since then that needs no count.
    unnoticed: Amount,
}

impl Meter {
    /// Begins to watch. `None` where the file system does not tell what it holds.
    pub(super) fn start(workspace: &Path, allowed: Amount) -> Option<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let workspace = openat(CWD, workspace, flags, Mode::empty()).ok()?;
        let held = held(&workspace)?;
        Some(Self { workspace, allowed, held, unnoticed: UNNOTICED })
    }

    /// Whether the workspace holds more than it may.
    pub(super) fn is_exceeded(&mut self) -> bool {
        let Some(now) = held(&self.workspace) else { return false };
        if !now.minus(self.held).exceeds(self.unnoticed) {
            return false;
        }
        let used = self.count();
        // The file system has to grow by what is left before the workspace can be too large.
        let left = self.allowed.minus(used);
        self.held = now;
        self.unnoticed =
            Amount { bytes: left.bytes.max(UNNOTICED.bytes), files: left.files.max(UNNOTICED.files) };
        used.exceeds(self.allowed)
    }

    /// What the workspace holds; not more than a little beyond what it may is ever counted.
    fn count(&self) -> Amount {
        let mut count = Count { allowed: self.allowed, so_far: Amount::default(), linked: BTreeSet::new() };
        if let Ok(device) = rustix::fs::fstat(&self.workspace).map(|stat| stat.st_dev) {
            count.directory(&self.workspace, device, 0);
        }
        count.so_far
    }
}

/// What the file system holds, in differences that matter here: what is free, turned around.
fn held(workspace: &OwnedFd) -> Option<Amount> {
    let stat = fstatvfs(workspace).ok()?;
    Some(Amount {
        bytes: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
        // File systems that make inodes as they need them tell no number; then bytes must do.
        files: stat.f_files.saturating_sub(stat.f_ffree),
    })
}

struct Count {
    allowed: Amount,
    so_far: Amount,
    /// Files with several names, which count once.
    linked: BTreeSet<u64>,
}

impl Count {
    /// Adds what is below a directory. No link is followed and no other file system entered.
    fn directory(&mut self, directory: &OwnedFd, device: u64, depth: usize) {
        let Ok(entries) = Dir::read_from(directory) else { return };
        for entry in entries.flatten() {
            if self.so_far.exceeds(self.allowed) {
                return;
            }
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if stat.st_dev != device || (stat.st_nlink > 1 && !self.is_new(&stat)) {
                continue;
            }
            self.so_far.files += 1;
            self.so_far.bytes += stat.st_blocks.unsigned_abs().saturating_mul(512);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && depth < DEPTH_MAX {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
                if let Ok(below) = openat(directory, name, flags, Mode::empty()) {
                    self.directory(&below, device, depth + 1);
                }
            }
        }
    }

    fn is_new(&mut self, stat: &rustix::fs::Stat) -> bool {
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory || self.linked.insert(stat.st_ino)
    }
}
