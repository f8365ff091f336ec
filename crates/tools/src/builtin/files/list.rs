//! `list_dir` and `glob`.

use std::os::fd::AsRawFd;
use std::path::Path;

use globset::GlobBuilder;
use rustix::fs::{AtFlags, Dir, FileType};
use serde_json::json;

use super::super::{Args, Outcome};
use crate::beneath::{Refusal, Root, refusal};
use crate::blocking::Cancel;

/// Entries returned at most.
const ENTRIES_MAX: usize = 1000;

pub(super) fn list_dir(root: &Root, args: &Args<'_>) -> Result<Outcome, Refusal> {
    let resolved = root.resolve(args.optional_text("path").unwrap_or("."))?;
    let fd = root.directory(&resolved.path)?;
    let mut entries = Vec::new();
    for entry in Dir::read_from(&fd).map_err(|errno| refusal(errno, &resolved.path))? {
        let entry = entry.map_err(|errno| refusal(errno, &resolved.path))?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push(match stat.map(|stat| (FileType::from_raw_mode(stat.st_mode), stat.st_size)) {
            Ok((FileType::Directory, _)) => format!("{name}/"),
            Ok((FileType::Symlink, _)) => {
                let target = rustix::fs::readlinkat(&fd, entry.file_name(), Vec::new()).unwrap_or_default();
                format!("{name} -> {}", target.to_string_lossy())
            }
            Ok((FileType::RegularFile, size)) => format!("{name} ({size} bytes)"),
            Ok(_) => format!("{name} (special file)"),
            Err(_) => name,
        });
    }
    entries.sort();
    let n_entries = entries.len();
    let mut text = if entries.is_empty() { "The directory is empty.".to_owned() } else { String::new() };
    for entry in entries.iter().take(ENTRIES_MAX) {
        text.push_str(entry);
        text.push('\n');
    }
    if n_entries > ENTRIES_MAX {
        text.push_str(&format!("[{} more entries; use glob]\n", n_entries - ENTRIES_MAX));
    }
    Ok(Outcome::ok(text, json!({ "entries": n_entries })))
}

pub(super) fn glob(root: &Root, args: &Args<'_>, cancel: &Cancel) -> Result<Outcome, Refusal> {
    let pattern = args.text("pattern").trim_start_matches("./");
    let matcher = GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(|error| Refusal(format!("The pattern {pattern:?} is not valid: {}.", error.kind())))?
        .compile_matcher();
    let resolved = root.resolve(args.optional_text("path").unwrap_or("."))?;
    let mut found = Vec::new();
    let mut more = false;
    walk(root, &resolved.path, cancel, |below, _| {
        if matcher.is_match(below) {
            if found.len() == ENTRIES_MAX {
                more = true;
                return false;
            }
            found.push(join(&resolved.path, below));
        }
        true
    })?;
    let mut text = if found.is_empty() { "No file matches.".to_owned() } else { found.join("\n") };
    if more {
        text.push_str(&format!("\n[more than {ENTRIES_MAX} files match; use a narrower pattern]"));
    }
    Ok(Outcome::ok(text, json!({ "files": found.len() })))
}

/// A path below a directory of the workspace, relative to the workspace.
pub(crate) fn join(directory: &str, below: &str) -> String {
    if directory.is_empty() { below.to_owned() } else { format!("{directory}/{below}") }
}

/// Visits the files below a resolved directory in the order of their names, without what
/// `.gitignore` files of the workspace name and without `.git`, following no links. The visitor
/// gets each path relative to the directory, and returns false to end the walk.
pub(crate) fn walk(
    root: &Root,
    directory: &str,
    cancel: &Cancel,
    mut visit: impl FnMut(&str, &Path) -> bool,
) -> Result<(), Refusal> {
    let fd = root.directory(directory)?;
    // Walking through the descriptor keeps the walk beneath what was opened, whatever happens to
    // the path that led there.
    let start = format!("/proc/self/fd/{}/.", fd.as_raw_fd());
    let entries = ignore::WalkBuilder::new(&start)
        .hidden(false)
        .parents(false)
        .git_global(false)
        .git_exclude(false)
        .require_git(false)
        .follow_links(false)
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .filter_entry(|entry| entry.file_name() != ".git")
        .build();
    for entry in entries {
        if cancel.is_set() {
            return Err(Refusal::new("The call was cancelled."));
        }
        // An unreadable directory hides its files, not the whole answer.
        let Ok(entry) = entry else { continue };
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let below = entry.path().strip_prefix(&start).ok().and_then(Path::to_str);
        if let Some(below) = below
            && !visit(below, entry.path())
        {
            break;
        }
    }
    Ok(())
}
