//! Changes to files: planned without touching anything, applied all or not at all.
//!
//! A plan holds each file's content before and after, so the same code tells the hashes that
//! guard the effect and carries it out. Applying writes every new content to a temporary file
//! beside its target first (the only step that can run out of space), then renames; a rename that
//! fails takes the earlier ones back.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use evenkeel_core::journal::Guard;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::super::Args;
use super::{edit, patch, read};
use crate::beneath::{Refusal, Root, refusal, split};
use crate::blocking::Cancel;

/// What a new file may be: read by all, written by its owner.
const NEW_MODE: u32 = 0o644;

/// One file's content before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Resolved, relative to the workspace.
    pub(crate) path: String,
    pub(crate) before: Option<Vec<u8>>,
    pub(crate) after: Option<Vec<u8>>,
    /// Permission bits that the file gets.
    pub(crate) mode: u32,
}

impl Change {
    /// The hashes that tell later whether it was applied.
    pub(crate) fn guard(&self) -> Guard {
        let hash = |content: &Option<Vec<u8>>| content.as_ref().map(|bytes| hash_of(bytes));
        Guard { path: self.path.clone(), before: hash(&self.before), after: hash(&self.after) }
    }
}

fn hash_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// What a call of `write_file`, `edit_file` or `apply_patch` would change. Changes nothing.
pub(crate) fn plan(root: &Root, tool: &str, args: &Args<'_>) -> Result<Vec<Change>, Refusal> {
    match tool {
        "write_file" => Ok(vec![plan_write(root, args)?]),
        "edit_file" => Ok(vec![edit::plan_edit(root, args)?]),
        "apply_patch" => patch::plan_patch(root, args.text("patch")),
        _ => Err(Refusal(format!("{tool} changes no files."))),
    }
}

fn plan_write(root: &Root, args: &Args<'_>) -> Result<Change, Refusal> {
    let resolved = root.resolve(args.text("path"))?;
    let after = Some(args.text("content").as_bytes().to_vec());
    Ok(Change { after, ..current(root, &resolved.path, resolved.exists)? })
}

/// A change that leaves the file as it is.
pub(super) fn current(root: &Root, path: &str, exists: bool) -> Result<Change, Refusal> {
    if path.is_empty() {
        return Err(Refusal::new("The path names the workspace itself, not a file."));
    }
    if !exists {
        return Ok(Change { path: path.to_owned(), before: None, after: None, mode: NEW_MODE });
    }
    let (bytes, stat) = read::content(root, path)?;
    let mode = stat.st_mode & 0o7777;
    Ok(Change { path: path.to_owned(), before: Some(bytes.clone()), after: Some(bytes), mode })
}

/// The hash of a file as it is now; `None` if there is none.
pub(crate) fn hash_now(root: &Root, path: &str) -> Result<Option<String>, Refusal> {
    let resolved = root.resolve(path)?;
    if !resolved.exists {
        return Ok(None);
    }
    Ok(Some(hash_of(&read::content(root, &resolved.path)?.0)))
}

/// Carries out a plan, all of it or nothing.
pub(crate) fn apply(root: &Root, changes: &[Change], cancel: &Cancel) -> Result<(), Refusal> {
    let mut staged = Vec::new();
    for change in changes {
        match stage(root, change) {
            Ok(one) => staged.push(one),
            Err(refusal) => {
                staged.iter().for_each(Staged::discard);
                return Err(refusal);
            }
        }
    }
    if cancel.is_set() {
        staged.iter().for_each(Staged::discard);
        return Err(Refusal::new("The call was cancelled; nothing was changed."));
    }
    for (idx, one) in staged.iter().enumerate() {
        if let Err(errno) = one.commit() {
            staged.iter().skip(idx).for_each(Staged::discard);
            changes.iter().take(idx).for_each(|change| take_back(root, change));
            let text = refusal(errno, one.path).0;
            return Err(Refusal(format!("{text} Nothing was changed.")));
        }
    }
    for one in &staged {
        let _ = rustix::fs::fsync(&one.directory);
    }
    Ok(())
}

/// A change that is ready beside its target.
struct Staged<'c> {
    path: &'c str,
    directory: OwnedFd,
    name: &'c str,
    /// The temporary file; `None` for a deletion.
    temporary: Option<String>,
}

impl Staged<'_> {
    fn commit(&self) -> Result<(), Errno> {
        match &self.temporary {
            Some(temporary) => rustix::fs::renameat(&self.directory, temporary, &self.directory, self.name),
            None => rustix::fs::unlinkat(&self.directory, self.name, AtFlags::empty()),
        }
    }

    fn discard(&self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
        }
    }
}

fn stage<'c>(root: &Root, change: &'c Change) -> Result<Staged<'c>, Refusal> {
    let (directory, name) = root.parent(&change.path, change.after.is_some())?;
    let mut staged = Staged { path: &change.path, directory, name, temporary: None };
    if let Some(content) = &change.after {
        let temporary = temporary_name(&change.path);
        write_temporary(&staged.directory, &temporary, content, change.mode)
            .map_err(|errno| refusal(errno, &change.path))?;
        staged.temporary = Some(temporary);
    }
    Ok(staged)
}

/// The same for the same path, so that a call that is redone after a crash replaces its own
/// leftover.
fn temporary_name(path: &str) -> String {
    let hash = blake3::hash(split(path).1.as_bytes()).to_hex().to_string();
    format!(".evenkeel-{}.tmp", hash.chars().take(16).collect::<String>())
}

fn write_temporary(directory: &OwnedFd, name: &str, content: &[u8], mode: u32) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600));
    let fd = match open() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            open()?
        }
        other => other?,
    };
    let written = fill(directory, fd, content, mode);
    if written.is_err() {
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    }
    written
}

fn fill(directory: &OwnedFd, fd: OwnedFd, content: &[u8], mode: u32) -> Result<(), Errno> {
    let mut file = File::from(fd);
    file.write_all(content).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // A server that runs as root leaves files to whoever owns the directory; before the mode is
    // set, because changing the owner clears set-uid bits.
    let owner = rustix::fs::fstat(directory)?;
    if owner.st_uid != rustix::process::geteuid().as_raw() {
        let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
        let _ = rustix::fs::fchown(&file, Some(uid), Some(gid));
    }
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    rustix::fs::fsync(&file)
}

fn take_back(root: &Root, change: &Change) {
    let undone = Change { after: change.before.clone(), ..change.clone() };
    if let Ok(staged) = stage(root, &undone) {
        let _ = staged.commit();
    }
}

/// One line for each file.
pub(crate) fn summary(changes: &[Change]) -> String {
    let lines: Vec<String> = changes
        .iter()
        .map(|change| {
            let n_lines = |content: &[u8]| content.iter().filter(|byte| **byte == b'\n').count();
            match (&change.before, &change.after) {
                (None, Some(after)) => {
                    format!("Created {} ({} bytes, {} lines).", change.path, after.len(), n_lines(after))
                }
                (Some(_), None) => format!("Deleted {}.", change.path),
                (Some(before), Some(after)) if before == after => format!("{} was so already.", change.path),
                (Some(before), Some(after)) => {
                    format!(
                        "Changed {} ({} lines before, {} now).",
                        change.path,
                        n_lines(before),
                        n_lines(after)
                    )
                }
                (None, None) => format!("There was no {}.", change.path),
            }
        })
        .collect();
    lines.join("\n")
}
