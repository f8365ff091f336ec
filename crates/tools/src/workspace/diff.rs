//! What changed between a snapshot and the workspace, as a unified diff in git's form.
//!
//! Files that the workspace's own `.gitignore` files name are left out (a build would bury the
//! change), and so is `.git`. The ignore files are only read; no git runs.

use std::io;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::objects::Hash;
use super::shadow::{Shadow, shown};
use super::tree::{Entry, Kind};

/// Bytes of a file that are compared line by line; larger ones are only named.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Bytes of a diff; what comes after is only named.
const DIFF_BYTES_MAX: usize = 4 << 20;

/// Directories inside directories that may have ignore files of their own.
const IGNORE_FILES_MAX: usize = 32;

/// The diff from one snapshot to another.
pub(super) fn diff(shadow: &Shadow, from: &Hash, to: &Hash) -> io::Result<String> {
    let mut diff = Diff { shadow, text: String::new(), ignores: Vec::new() };
    diff.directories(Some(from), Some(to), "")?;
    for path in &shadow.left_out {
        diff.text.push_str(&format!("# {path} is too large or too deep to be kept in snapshots.\n"));
    }
    Ok(diff.text)
}

struct Diff<'s> {
    shadow: &'s Shadow,
    text: String,
    ignores: Vec<Gitignore>,
}

impl Diff<'_> {
    fn directories(&mut self, from: Option<&Hash>, to: Option<&Hash>, path: &str) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        let entries =
            |hash: Option<&Hash>| hash.map_or_else(|| Ok(Vec::new()), |hash| self.shadow.entries(hash));
        let (old, new) = (entries(from)?, entries(to)?);
        let n_ignores = self.ignores.len();
        self.push_ignores(&new, path);
        for (old, new) in paired(&old, &new) {
            let Some(either) = new.or(old) else { continue };
            let name = shown(either.name.as_bytes());
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let is_directory = either.kind == Kind::Directory;
            if old == new || name == ".git" || self.is_ignored(&path, is_directory) {
                continue;
            }
            self.entry(old, new, &path)?;
        }
        self.ignores.truncate(n_ignores);
        Ok(())
    }

    fn entry(&mut self, old: Option<&Entry>, new: Option<&Entry>, path: &str) -> io::Result<()> {
        let inner = |entry: Option<&Entry>| {
            entry.filter(|entry| entry.kind == Kind::Directory).map(|entry| entry.hash)
        };
        let outer = |entry: Option<&Entry>| entry.filter(|entry| entry.kind != Kind::Directory).cloned();
        let (before, after) = (outer(old), outer(new));
        if before.is_some() || after.is_some() {
            self.file(before.as_ref(), after.as_ref(), path)?;
        }
        self.directories(inner(old).as_ref(), inner(new).as_ref(), path)
    }

    fn file(&mut self, old: Option<&Entry>, new: Option<&Entry>, path: &str) -> io::Result<()> {
        self.text.push_str(&format!("diff --git a/{path} b/{path}\n"));
        match (old, new) {
            (None, Some(new)) => self.text.push_str(&format!("new file mode {:o}\n", git_mode(new))),
            (Some(old), None) => self.text.push_str(&format!("deleted file mode {:o}\n", git_mode(old))),
            (Some(old), Some(new)) if git_mode(old) != git_mode(new) => {
                self.text.push_str(&format!("old mode {:o}\nnew mode {:o}\n", git_mode(old), git_mode(new)));
            }
            _ => {}
        }
        if old.map(|old| old.hash) == new.map(|new| new.hash) {
            return Ok(());
        }
        let from = if old.is_some() { format!("a/{path}") } else { "/dev/null".to_owned() };
        let to = if new.is_some() { format!("b/{path}") } else { "/dev/null".to_owned() };
        match (self.content(old)?, self.content(new)?) {
            (Some(before), Some(after)) if self.text.len() < DIFF_BYTES_MAX => {
                let mut options = diffy::DiffOptions::new();
                options.set_original_filename(from).set_modified_filename(to);
                self.text.push_str(&options.create_patch(&before, &after).to_string());
            }
            _ => self.text.push_str(&format!("Binary files {from} and {to} differ\n")),
        }
        Ok(())
    }

    /// The text of a side; `None` if it is not text that can be compared.
    fn content(&self, entry: Option<&Entry>) -> io::Result<Option<String>> {
        let Some(entry) = entry else {
            return Ok(Some(String::new()));
        };
        if entry.kind == Kind::Oversize || self.shadow.objects.len_of(&entry.hash) > FILE_BYTES_MAX as u64 {
            return Ok(None);
        }
        let bytes = self.shadow.objects.get(&entry.hash)?.unwrap_or_default();
        if bytes.len() > FILE_BYTES_MAX || bytes.contains(&0) {
            return Ok(None);
        }
        Ok(String::from_utf8(bytes).ok())
    }

    fn push_ignores(&mut self, entries: &[Entry], path: &str) {
        let file =
            entries.iter().find(|entry| entry.name.as_bytes() == b".gitignore" && entry.kind == Kind::File);
        let Some(Ok(Some(text))) = file.map(|entry| self.content(Some(entry))) else { return };
        if self.ignores.len() >= IGNORE_FILES_MAX {
            return;
        }
        let mut builder = GitignoreBuilder::new(Path::new("/").join(path));
        for line in text.lines() {
            // A line that is no pattern ignores nothing.
            let _ = builder.add_line(None, line);
        }
        self.ignores.extend(builder.build());
    }

    fn is_ignored(&self, path: &str, is_directory: bool) -> bool {
        let path = Path::new("/").join(path);
        for ignore in self.ignores.iter().rev() {
            match ignore.matched(&path, is_directory) {
                ignore::Match::None => {}
                ignore::Match::Ignore(_) => return true,
                ignore::Match::Whitelist(_) => return false,
            }
        }
        false
    }
}

fn git_mode(entry: &Entry) -> u32 {
    match entry.kind {
        Kind::Link => 0o120_000,
        _ if entry.mode & 0o100 != 0 => 0o100_755,
        _ => 0o100_644,
    }
}

/// Entries of two directories, paired by name, in order.
fn paired<'e>(old: &'e [Entry], new: &'e [Entry]) -> Vec<(Option<&'e Entry>, Option<&'e Entry>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    let mut pairs = Vec::new();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return pairs,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => a.name.cmp(&b.name),
        };
        pairs.push(match order {
            std::cmp::Ordering::Less => (old.next(), None),
            std::cmp::Ordering::Greater => (None, new.next()),
            std::cmp::Ordering::Equal => (old.next(), new.next()),
        });
    }
}
