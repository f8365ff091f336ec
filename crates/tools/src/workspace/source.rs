//! Where a workspace comes from: a directory that is copied, or a URL that is cloned.
//!
//! A copy follows no link and takes links as links, and leaves out pipes, sockets and devices. The
//! repository's own `.git` comes along, so that git works inside the sandbox, without the
//! credentials that a remote's URL or an extra header may hold. A clone runs git on the host, on
//! an empty directory, with a configuration of our own and only the protocols that are allowed.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::{Code, Error};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::AllowedSources;
use super::shadow::{names, open_root};
use crate::forge::Broker;
use crate::git::Git;

pub(super) fn unreadable(message: impl Into<String>, remedy: &'static str) -> Error {
    Error::client(Code::RepositoryUnreadable, message.into(), remedy)
}

/// The directory as the file system knows it, if runs may use it.
pub(super) fn allowed_directory(written: &str, allowed: &AllowedSources) -> Result<PathBuf, Error> {
    let path = Path::new(written);
    if !path.is_absolute() {
        let message = format!("The repository directory {written:?} is not an absolute path.");
        return Err(unreadable(message, "Give the whole path, from /."));
    }
    let real = path.canonicalize().map_err(|error| {
        unreadable(format!("The repository directory {written} cannot be read: {error}."), "Check the path.")
    })?;
    let under = |prefix: &PathBuf| prefix.canonicalize().is_ok_and(|prefix| real.starts_with(prefix));
    if !allowed.directories.iter().any(under) {
        return Err(unreadable(
            format!("The repository directory {written} is not under a directory that runs may use."),
            "Add its parent to the list of allowed directories in the server's configuration.",
        ));
    }
    if !real.is_dir() {
        return Err(unreadable(format!("{written} is not a directory."), "Name the repository's directory."));
    }
    Ok(real)
}

/// Copies a directory into a new one.
pub(super) fn copy(from: &Path, to: &Path, allowed: &AllowedSources) -> Result<(), Error> {
    let mut copy = Copy { bytes_left: allowed.bytes_max, files_left: allowed.files_max };
    let copied = open_root(from).and_then(|from| {
        std::fs::create_dir_all(to)?;
        copy.directory(from.as_fd(), open_root(to)?.as_fd(), 0)
    });
    copied.map_err(|error| {
        unreadable(
            format!("The repository {} cannot be copied: {error}.", from.display()),
            "Check the files' permissions and the limits on repositories in the configuration.",
        )
    })?;
    let _ = without_credentials(&to.join(".git/config"));
    Ok(())
}

struct Copy {
    bytes_left: u64,
    files_left: u64,
}

impl Copy {
    fn directory(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
        if depth > 200 {
            return Err(io::Error::other("directories are nested too deeply"));
        }
        for name in names(from)? {
            let copied = self.entry(from, to, &name, depth);
            copied.map_err(|error| {
                let name = name.to_string_lossy().into_owned();
                io::Error::new(error.kind(), format!("{name}: {error}"))
            })?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        depth: usize,
    ) -> io::Result<()> {
        self.files_left =
            self.files_left.checked_sub(1).ok_or_else(|| io::Error::other("it has too many files"))?;
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inner = rustix::fs::openat(from, name, flags, Mode::empty())?;
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
                let copy = rustix::fs::openat(to, name, flags, Mode::empty())?;
                self.directory(inner.as_fd(), copy.as_fd(), depth + 1)?;
                // The owner can always use the copy, whatever the original allowed.
                rustix::fs::fchmod(&copy, mode | Mode::RWXU)?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
            }
            // A `.git` file points to a repository elsewhere (a worktree, a submodule); nothing
            // outside the workspace can be reached from it, so git starts without one.
            FileType::RegularFile if name.to_bytes() == b".git" => {}
            FileType::RegularFile => self.file(from, to, name, mode)?,
            _ => {}
        }
        Ok(())
    }

    fn file(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, mode: Mode) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut copy = File::from(rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?);
        let n_bytes = io::copy(&mut source.take(self.bytes_left.saturating_add(1)), &mut copy)?;
        self.bytes_left =
            self.bytes_left.checked_sub(n_bytes).ok_or_else(|| io::Error::other("it is too large"))?;
        rustix::fs::fchmod(&copy, mode | Mode::RUSR | Mode::WUSR)?;
        Ok(())
    }
}

/// Takes credentials out of a repository's configuration: nothing secret enters a sandbox.
fn without_credentials(path: &Path) -> io::Result<()> {
    let text = std::fs::read_to_string(path)?;
    let kept: Vec<String> = text
        .lines()
        .filter(|line| !line.trim_start().to_ascii_lowercase().starts_with("extraheader"))
        .map(without_userinfo)
        .collect();
    let clean = kept.join("\n") + "\n";
    if clean == text { Ok(()) } else { std::fs::write(path, clean) }
}

/// `https://user:secret@host/` as `https://host/`.
fn without_userinfo(line: &str) -> String {
    let Some((before, after)) = line.split_once("://") else {
        return line.to_owned();
    };
    let authority = after.split(['/', '"', ' ']).next().unwrap_or(after);
    match authority.rsplit_once('@') {
        Some((userinfo, _)) => {
            let rest = after.strip_prefix(userinfo).and_then(|rest| rest.strip_prefix('@')).unwrap_or(after);
            format!("{before}://{rest}")
        }
        None => line.to_owned(),
    }
}

/// Checks a URL before git sees it. A credential is looked for first, so that no text shows it.
pub(super) fn allowed_url(url: &str, allowed: &AllowedSources) -> Result<(), Error> {
    if without_userinfo(url) != url {
        return Err(unreadable(
            "The repository URL holds a user name or a password.",
            "Give the URL without them: what a run is asked is stored and shown.",
        ));
    }
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let known = scheme.filter(|scheme| allowed.url_schemes.iter().any(|allowed| allowed == scheme));
    let Some(scheme) = known else {
        return Err(unreadable(
            format!(
                "The repository URL {url:?} has no scheme that is allowed ({}).",
                allowed.url_schemes.join(", ")
            ),
            "Use an https URL, or allow the scheme in the server's configuration.",
        ));
    };
    if scheme == "file" {
        allowed_directory(url.get("file://".len()..).unwrap_or_default(), allowed)?;
    }
    Ok(())
}

/// Clones a URL into a directory that does not exist yet. `way` leads to it, if it needs a login.
pub(super) async fn clone(
    url: &str,
    to: &Path,
    home: &Path,
    allowed: &AllowedSources,
    way: Option<&Broker>,
) -> Result<(), Error> {
    let mut protocols = allowed.url_schemes.join(":");
    let limit = Duration::from_secs(allowed.clone_s_max);
    if way.is_some() {
        protocols.push_str(":http");
    }
    let mut git = Git::new(home, &protocols, limit);
    if let Some(way) = way {
        // The clone keeps the URL that was asked for; only its bytes go another way.
        git = git.set(&format!("url.{}.insteadOf={url}", way.url()));
    }
    let args = ["clone", "--quiet", "--no-hardlinks", "--no-recurse-submodules", "--template=", "--", url];
    let cloned = git.args(args).args([to]).run().await;
    cloned.map(drop).map_err(|why| {
        let why = way.and_then(Broker::trouble).map_or(why, |error| error.message.into_owned());
        unreadable(
            format!("The repository {url} cannot be cloned: {}.", why.trim_end_matches('.')),
            "Check the URL; for one that needs a login, configure a token for its host under [git.hosts].",
        )
    })
}
