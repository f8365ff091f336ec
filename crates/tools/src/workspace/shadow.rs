//! The shadow of one workspace: taking snapshots and going back to them.
//!
//! A snapshot walks the tree and hashes only files whose size, times or inode changed since the
//! last look, so an unchanged workspace costs one `stat` for each file. A file is remembered only
//! if it was last changed before the walk began by the file system's own clock: a later change in
//! the same tick of that clock would otherwise look like none.
//!
//! Everything goes through directory descriptors and follows no link: the tree was written by
//! commands nobody trusts. Only one thread works on a shadow at a time, and no command of the run
//! runs beside it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use super::objects::{Hash, Objects};
use super::tree::{Entry, Kind, decode, encode};

/// Larger files are not kept: no command of a run can write one.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Directories inside directories; deeper ones are left out.
const DEPTH_MAX: usize = 200;

/// The shadow of one workspace.
pub(super) struct Shadow {
    tree: PathBuf,
    /// Its own times tell the file system's clock.
    clock: File,
    pub(super) objects: Objects,
    seen: BTreeMap<Vec<u8>, Seen>,
    /// Paths that the last snapshot could not keep, for people.
    pub(super) left_out: Vec<String>,
}

/// A file as it was when it was hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    stamp: Stamp,
    hash: Hash,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Stamp {
    #[expect(clippy::useless_conversion, reason = "the types of these fields differ between architectures")]
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev.into(),
            inode: stat.st_ino.into(),
            size: stat.st_size.into(),
            modified: (stat.st_mtime.into(), stat.st_mtime_nsec.into()),
            changed: (stat.st_ctime.into(), stat.st_ctime_nsec.into()),
        }
    }
}

impl Shadow {
    /// Opens the shadow in `directory` of the workspace at `tree`.
    pub(super) fn open(directory: &Path, tree: &Path) -> io::Result<Self> {
        let clock = directory.join("clock");
        let clock = File::options().write(true).create(true).truncate(false).open(clock)?;
        Ok(Self {
            tree: tree.to_owned(),
            clock,
            objects: Objects::open(&directory.join("objects"))?,
            seen: BTreeMap::new(),
            left_out: Vec::new(),
        })
    }

    /// The hash of the workspace as it is; every content of it is stored and durable.
    pub(super) fn snapshot(&mut self) -> io::Result<Hash> {
        let root = open_root(&self.tree)?;
        self.left_out.clear();
        let mut scan = Scan { now: self.now()?, seen: BTreeMap::new(), shadow: self };
        let hash = scan.directory(root.as_fd(), &mut Vec::new(), 0)?;
        self.seen = scan.seen;
        self.objects.commit()?;
        Ok(hash)
    }

    /// Puts the workspace back, and makes sure that it is exactly so.
    pub(super) fn restore(&mut self, target: &Hash) -> io::Result<()> {
        if self.objects.get(target)?.is_none() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such snapshot"));
        }
        // Looking first tells which files are as they must be without reading them.
        let _ = self.snapshot()?;
        let root = open_root(&self.tree)?;
        self.restore_directory(root.as_fd(), target, &mut Vec::new())?;
        if self.snapshot()? == *target {
            return Ok(());
        }
        Err(io::Error::other("the workspace differs from the snapshot after it was restored"))
    }

    /// The entries of a stored directory.
    pub(super) fn entries(&self, hash: &Hash) -> io::Result<Vec<Entry>> {
        let bytes = self.objects.get(hash)?;
        bytes
            .and_then(|bytes| decode(&bytes))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "a stored directory is missing"))
    }

    fn now(&self) -> io::Result<(i64, u64)> {
        use std::os::unix::fs::FileExt;
        self.clock.write_all_at(b".", 0)?;
        Ok(Stamp::of(&rustix::fs::fstat(&self.clock)?).changed)
    }

    fn restore_directory(
        &mut self,
        directory: BorrowedFd<'_>,
        hash: &Hash,
        path: &mut Vec<u8>,
    ) -> io::Result<()> {
        let wanted = self.entries(hash)?;
        for name in names(directory)? {
            if wanted.binary_search_by(|entry| entry.name.cmp(&name)).is_err() {
                remove(directory, &name)?;
            }
        }
        for entry in &wanted {
            let length = path.len();
            push(path, &entry.name);
            self.restore_entry(directory, entry, path)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn restore_entry(
        &mut self,
        directory: BorrowedFd<'_>,
        entry: &Entry,
        path: &mut Vec<u8>,
    ) -> io::Result<()> {
        let now = rustix::fs::statat(directory, &entry.name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let kind = now.map(|stat| FileType::from_raw_mode(stat.st_mode));
        match entry.kind {
            Kind::Directory => {
                if kind != Some(FileType::Directory) {
                    remove(directory, &entry.name)?;
                    rustix::fs::mkdirat(directory, &entry.name, Mode::from_raw_mode(0o700))?;
                }
                let inner = open_directory(directory, &entry.name)?;
                self.restore_directory(inner.as_fd(), &entry.hash, path)?;
                rustix::fs::fchmod(&inner, Mode::from_raw_mode(entry.mode))?;
            }
            Kind::File => {
                let same = self.seen.get(path.as_slice()).is_some_and(|seen| {
                    seen.hash == entry.hash && now.is_some_and(|stat| seen.stamp == Stamp::of(&stat))
                });
                if !same {
                    self.restore_file(directory, entry, kind)?;
                } else if now.is_some_and(|stat| stat.st_mode & 0o7777 != entry.mode) {
                    rustix::fs::chmodat(
                        directory,
                        &entry.name,
                        Mode::from_raw_mode(entry.mode),
                        AtFlags::empty(),
                    )?;
                }
            }
            Kind::Link => {
                let target = self.objects.get(&entry.hash)?.unwrap_or_default();
                let there = rustix::fs::readlinkat(directory, &entry.name, Vec::new());
                if there.map_or(true, |there| there.as_bytes() != target) {
                    remove(directory, &entry.name)?;
                    let target = CString::new(target).map_err(|_| io::ErrorKind::InvalidData)?;
                    rustix::fs::symlinkat(&target, directory, &entry.name)?;
                }
            }
            // It was not kept; as long as it is there unchanged, the snapshot still holds.
            Kind::Oversize => {}
        }
        Ok(())
    }

    fn restore_file(
        &mut self,
        directory: BorrowedFd<'_>,
        entry: &Entry,
        now: Option<FileType>,
    ) -> io::Result<()> {
        if now == Some(FileType::Directory) {
            remove(directory, &entry.name)?;
        }
        let temporary = c".evenkeel-restore.tmp";
        remove(directory, temporary)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file =
            File::from(rustix::fs::openat(directory, temporary, flags, Mode::from_raw_mode(0o600))?);
        if !self.objects.copy_to(&entry.hash, &mut file)? {
            return Err(io::Error::new(io::ErrorKind::NotFound, "a stored content is missing"));
        }
        own_as(directory, &file);
        rustix::fs::fchmod(&file, Mode::from_raw_mode(entry.mode))?;
        rustix::fs::renameat(directory, temporary, directory, &entry.name)?;
        Ok(())
    }
}

/// A walk over the workspace.
struct Scan<'s> {
    shadow: &'s mut Shadow,
    now: (i64, u64),
    seen: BTreeMap<Vec<u8>, Seen>,
}

impl Scan<'_> {
    fn directory(&mut self, directory: BorrowedFd<'_>, path: &mut Vec<u8>, depth: usize) -> io::Result<Hash> {
        let mut entries = Vec::new();
        for name in names(directory)? {
            let length = path.len();
            push(path, &name);
            let entry = self.entry(directory, name, path, depth);
            let entry =
                entry.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", shown(path))))?;
            entries.extend(entry);
            path.truncate(length);
        }
        self.shadow.objects.put(&encode(&entries))
    }

    fn entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: CString,
        path: &mut Vec<u8>,
        depth: usize,
    ) -> io::Result<Option<Entry>> {
        let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = stat.st_mode & 0o7777;
        let entry = |kind, mode, hash| Ok(Some(Entry { name: name.clone(), kind, mode, hash }));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if depth >= DEPTH_MAX => {
                self.shadow.left_out.push(shown(path));
                Ok(None)
            }
            FileType::Directory => {
                let inner = open_directory(directory, &name)?;
                let hash = self.directory(inner.as_fd(), path, depth + 1);
                if mode & 0o700 != 0o700 {
                    rustix::fs::fchmod(&inner, Mode::from_raw_mode(mode))?;
                }
                entry(Kind::Directory, mode, hash?)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, &name, Vec::new())?;
                entry(Kind::Link, 0, self.shadow.objects.put(target.as_bytes())?)
            }
            FileType::RegularFile => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                if size > FILE_BYTES_MAX {
                    self.shadow.left_out.push(shown(path));
                    let stamp = format!("{size} {} {}", stat.st_mtime, stat.st_mtime_nsec);
                    return entry(Kind::Oversize, mode, *blake3::hash(stamp.as_bytes()).as_bytes());
                }
                entry(Kind::File, mode, self.file(directory, &name, path, &stat)?)
            }
            // Pipes, sockets and devices hold nothing that could be kept.
            _ => Ok(None),
        }
    }

    fn file(&mut self, directory: BorrowedFd<'_>, name: &CStr, path: &[u8], stat: &Stat) -> io::Result<Hash> {
        let stamp = Stamp::of(stat);
        let known = self.shadow.seen.get(path).filter(|seen| seen.stamp == stamp).copied();
        let seen = match known {
            Some(seen) => seen,
            None => {
                let mut file = open_file(directory, name, stat)?;
                let hash =
                    self.shadow.objects.put_file(&mut file, u64::try_from(stat.st_size).unwrap_or(0))?;
                Seen { stamp, hash }
            }
        };
        if stamp.changed < self.now {
            self.seen.insert(path.to_vec(), seen);
        }
        Ok(seen.hash)
    }
}

fn push(path: &mut Vec<u8>, name: &CStr) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend(name.to_bytes());
}

pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

pub(super) fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a directory of the tree, taking the rights to use it if its owner took them away.
pub(super) fn open_directory(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if is_directory && stat.st_mode & 0o700 != 0o700 {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700);
        rustix::fs::chmodat(directory, name, mode, AtFlags::empty())?;
    }
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

fn open_file(directory: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(directory, name, flags, Mode::empty());
    match open() {
        Err(rustix::io::Errno::ACCESS) => {
            let mode = stat.st_mode & 0o7777;
            rustix::fs::chmodat(directory, name, Mode::from_raw_mode(mode | 0o400), AtFlags::empty())?;
            let file = open();
            rustix::fs::chmodat(directory, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
            Ok(File::from(file?))
        }
        other => Ok(File::from(other?)),
    }
}

/// The names in a directory, sorted.
pub(super) fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Removes whatever is there, and is content if nothing is.
pub(super) fn remove(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let inner = open_directory(directory, name)?;
    for inside in names(inner.as_fd())? {
        remove(inner.as_fd(), &inside)?;
    }
    rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
    Ok(())
}

/// A server that runs as root leaves files to whoever owns the directory.
pub(super) fn own_as(directory: BorrowedFd<'_>, file: &File) {
    let Ok(owner) = rustix::fs::fstat(directory) else { return };
    if owner.st_uid != rustix::process::geteuid().as_raw() {
        let uid = rustix::fs::Uid::from_raw(owner.st_uid);
        let _ = rustix::fs::fchown(file, Some(uid), Some(rustix::fs::Gid::from_raw(owner.st_gid)));
    }
}
