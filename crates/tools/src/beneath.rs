//! Opening files beneath a workspace, by descriptor.
//!
//! The kernel resolves every path (`openat2` with `RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS`), so
//! no symbolic link, `..` or race leads out of the workspace, also not for a file that does not
//! exist yet: its parent is opened beneath, and the file is made in that descriptor. Comparing
//! strings would answer for a path, not for the file that is opened.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use evenkeel_core::port::runner::WORKSPACE;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Why a call cannot be carried out, in words for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub(crate) String);

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A workspace, held open.
pub(crate) struct Root {
    fd: OwnedFd,
    /// Where it is, for turning absolute paths of the model into relative ones.
    path: PathBuf,
    /// Where it is according to the kernel.
    real: PathBuf,
}

/// A path after the kernel followed every symbolic link in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Relative to the workspace; empty for the workspace itself.
    pub(crate) path: String,
    /// Whether anything is there.
    pub(crate) exists: bool,
}

/// `openat2` may report EAGAIN when the tree changes beneath it; more tries than this mean
/// that something renames directories in a loop.
const TRIES: usize = 32;

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

impl Root {
    /// Opens a workspace.
    pub(crate) fn open(path: &Path) -> Result<Self, Refusal> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| Refusal(format!("The workspace cannot be opened: {}.", reason(errno))))?;
        let real = link_of(&fd).map_err(|errno| {
            Refusal(format!("The workspace's own path cannot be read: {}.", reason(errno)))
        })?;
        Ok(Self { fd, path: path.to_owned(), real })
    }

    /// The path as the model wrote it, made relative: `/workspace/a` and `./a` are `a`. Whether it
    /// stays inside is for the kernel to say.
    pub(crate) fn relative(&self, written: &str) -> Result<String, Refusal> {
        if written.contains('\0') {
            return Err(Refusal::new("A path cannot contain a NUL character."));
        }
        let path = Path::new(written);
        let inside = [Path::new(WORKSPACE), self.path.as_path(), self.real.as_path()];
        let relative = match inside.iter().find_map(|root| path.strip_prefix(root).ok()) {
            Some(relative) => relative,
            None if path.is_absolute() => return Err(outside(written)),
            None => path,
        };
        let parts: Vec<&str> = relative
            .components()
            .filter_map(|part| match part {
                std::path::Component::CurDir => None,
                other => other.as_os_str().to_str(),
            })
            .collect();
        Ok(parts.join("/"))
    }

    /// Follows every link of a path as written, without opening the file itself.
    pub(crate) fn resolve(&self, written: &str) -> Result<Resolved, Refusal> {
        let relative = self.relative(written)?;
        self.resolve_relative(&relative, written)
    }

    fn resolve_relative(&self, relative: &str, written: &str) -> Result<Resolved, Refusal> {
        match self.openat(relative, OFlags::PATH | OFlags::CLOEXEC, BENEATH) {
            Ok(fd) => Ok(Resolved { path: self.real_relative(&fd, written)?, exists: true }),
            Err(Errno::NOENT) => self.resolve_new(relative, written),
            Err(errno) => Err(refusal(errno, written)),
        }
    }

    fn resolve_new(&self, relative: &str, written: &str) -> Result<Resolved, Refusal> {
        let (parent, name) = split(relative);
        if name.is_empty() || name == ".." {
            return Err(refusal(Errno::NOENT, written));
        }
        let parent = self.resolve_relative(parent, written)?;
        let path = if parent.path.is_empty() { name.to_owned() } else { format!("{}/{name}", parent.path) };
        if parent.exists && self.link_at(&path).is_some() {
            return Err(Refusal(format!("{written} is a symbolic link to nothing. Remove the link first.")));
        }
        Ok(Resolved { path, exists: false })
    }

    fn link_at(&self, path: &str) -> Option<Stat> {
        let (parent, name) = split(path);
        let parent = self.openat(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, BENEATH).ok()?;
        rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Opens a regular file for reading. `path` is a resolved one: no link is followed.
    pub(crate) fn read(&self, path: &str) -> Result<(File, Stat), Refusal> {
        // Without NONBLOCK, opening a fifo would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self
            .openat(path, flags, BENEATH | ResolveFlags::NO_SYMLINKS)
            .map_err(|errno| refusal(errno, path))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| refusal(errno, path))?;
        regular(&stat, path)?;
        Ok((File::from(fd), stat))
    }

    /// Opens a directory. `path` is a resolved one.
    pub(crate) fn directory(&self, path: &str) -> Result<OwnedFd, Refusal> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.openat(path, flags, BENEATH | ResolveFlags::NO_SYMLINKS).map_err(|errno| refusal(errno, path))
    }

    /// Opens the directory that holds `path` and returns the file's name in it; makes what is
    /// missing on the way if `create`.
    pub(crate) fn parent<'p>(&self, path: &'p str, create: bool) -> Result<(OwnedFd, &'p str), Refusal> {
        let (parent, name) = split(path);
        if name.is_empty() || name == ".." {
            return Err(Refusal(format!("{path:?} does not name a file.")));
        }
        let fd = self.parent_directory(parent, create).map_err(|errno| refusal(errno, path))?;
        Ok((fd, name))
    }

    fn parent_directory(&self, path: &str, create: bool) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match self.openat(path, flags, BENEATH | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::NOENT) if create && !path.is_empty() => {
                let (above, name) = split(path);
                let above = self.parent_directory(above, create)?;
                match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                self.openat(path, flags, BENEATH | ResolveFlags::NO_SYMLINKS)
            }
            other => other,
        }
    }

    fn openat(&self, path: &str, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { "." } else { path };
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    fn real_relative(&self, fd: &OwnedFd, written: &str) -> Result<String, Refusal> {
        let real = link_of(fd).map_err(|errno| refusal(errno, written))?;
        let relative = real.strip_prefix(&self.real).map_err(|_| outside(written))?;
        relative
            .to_str()
            .map(str::to_owned)
            .ok_or_else(|| Refusal(format!("{written} leads to a name that is not UTF-8.")))
    }
}

/// A path's directory and its last name.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn link_of(fd: &OwnedFd) -> Result<PathBuf, Errno> {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(link.as_bytes())))
}

fn regular(stat: &Stat, path: &str) -> Result<(), Refusal> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => return Err(Refusal(format!("{path} is a directory; use list_dir."))),
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "not a regular file",
    };
    Err(Refusal(format!("{path} is {kind}; only regular files can be read or changed.")))
}

fn outside(path: &str) -> Refusal {
    Refusal(format!(
        "{path} leads out of the workspace. Use a path relative to the workspace; links that leave it are \
         not followed."
    ))
}

/// The text for an error of the operating system.
pub(crate) fn refusal(errno: Errno, path: &str) -> Refusal {
    match errno {
        Errno::XDEV => outside(path),
        Errno::NOENT => Refusal(format!("There is no {path}. Use list_dir or glob to see what there is.")),
        Errno::LOOP => Refusal(format!("{path} passes through a symbolic link that cannot be followed.")),
        Errno::NOTDIR => Refusal(format!("{path} passes through something that is not a directory.")),
        Errno::NXIO => {
            Refusal(format!("{path} is a pipe or a device; only regular files can be read or changed."))
        }
        _ => Refusal(format!("{path}: {}.", reason(errno))),
    }
}

/// An error of the operating system in words, without its number.
pub(crate) fn reason(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests;
