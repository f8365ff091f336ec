//! Reads the two forms of patches: unified diffs, and `*** Begin Patch`.
//!
//! Lines are read without their ends. A line that ends with CR LF in a patch whose own lines end with
//! LF is a line of a text with CR LF; where the whole patch has CR LF it says nothing.

use crate::beneath::Refusal;

/// What a patch does to one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilePatch {
    pub(super) path: String,
    pub(super) action: Action,
    /// Permission bits for a file whose header names them.
    pub(super) mode: Option<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Add(String),
    Delete,
    Update { hunks: Vec<Hunk>, move_to: Option<String> },
}

/// Lines to keep, remove and add, at one place.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hunk {
    /// The line number that its header claims, from 1.
    pub(super) line: Option<usize>,
    /// A line that comes before it.
    pub(super) anchor: Option<String>,
    /// It stands at the end of the file.
    pub(super) at_end: bool,
    /// Whether the file ends with a newline afterwards, if the patch says so.
    pub(super) final_newline: Option<bool>,
    /// Its lines end with CR LF.
    pub(super) crlf: bool,
    pub(super) lines: Vec<(Kind, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Keep,
    Remove,
    Add,
}

/// All files of a patch.
pub(super) fn parse(patch: &str) -> Result<Vec<FilePatch>, Refusal> {
    let lines: Vec<&str> = patch.lines().collect();
    let returns: Vec<bool> = patch.split('\n').map(|line| line.ends_with('\r')).collect();
    let begin = lines.iter().position(|line| line.trim_end() == "*** Begin Patch");
    match begin {
        Some(begin) => {
            let says_nothing = returns.get(begin).copied().unwrap_or(false);
            let returns = returns.iter().skip(begin + 1).map(|returns| *returns && !says_nothing);
            begun(lines.get(begin + 1..).unwrap_or_default(), returns)
        }
        None => unified(&lines, &returns),
    }
}

fn begun(lines: &[&str], crlf: impl Iterator<Item = bool>) -> Result<Vec<FilePatch>, Refusal> {
    let mut files: Vec<FilePatch> = Vec::new();
    for (idx, (line, crlf)) in lines.iter().zip(crlf).enumerate() {
        if line.trim_end() == "*** End Patch" {
            return Ok(files);
        }
        if let Some(header) = line.strip_prefix("*** ").filter(|header| !header.starts_with("End of File")) {
            begun_header(header.trim_end(), &mut files)?;
            continue;
        }
        let fault = |why: &str| Refusal(format!("Line {} of the patch: {why}.", idx + 2));
        let Some(file) = files.last_mut() else {
            return Err(fault("expected `*** Add File: `, `*** Update File: ` or `*** Delete File: `"));
        };
        match &mut file.action {
            Action::Add(content) => {
                let added =
                    line.strip_prefix('+').ok_or_else(|| fault("lines of an added file begin with `+`"))?;
                content.push_str(added);
                content.push_str(if crlf { "\r\n" } else { "\n" });
            }
            Action::Delete => return Err(fault("nothing can follow `*** Delete File`")),
            Action::Update { hunks, .. } => {
                begun_line(line, hunks).map_err(fault)?;
                hunks.iter_mut().last().into_iter().for_each(|hunk| hunk.crlf |= crlf);
            }
        }
    }
    Err(Refusal::new("The patch has no `*** End Patch`: it may have been cut off. Nothing was changed."))
}

fn begun_header(header: &str, files: &mut Vec<FilePatch>) -> Result<(), Refusal> {
    let new = |path: &str, action| FilePatch { path: path.trim().to_owned(), action, mode: None };
    if let Some(path) = header.strip_prefix("Add File:") {
        files.push(new(path, Action::Add(String::new())));
    } else if let Some(path) = header.strip_prefix("Delete File:") {
        files.push(new(path, Action::Delete));
    } else if let Some(path) = header.strip_prefix("Update File:") {
        files.push(new(path, Action::Update { hunks: Vec::new(), move_to: None }));
    } else if let Some(path) = header.strip_prefix("Move to:") {
        match files.last_mut().map(|file| &mut file.action) {
            Some(Action::Update { move_to, .. }) => *move_to = Some(path.trim().to_owned()),
            _ => return Err(Refusal::new("`*** Move to` must follow `*** Update File`.")),
        }
    } else {
        return Err(Refusal(format!("The patch has an unknown header: *** {header}.")));
    }
    Ok(())
}

fn begun_line(line: &str, hunks: &mut Vec<Hunk>) -> Result<(), &'static str> {
    if let Some(anchor) = line.strip_prefix("@@") {
        let anchor = anchor.trim();
        let line = hunk_line(anchor);
        let anchor = Some(anchor.to_owned()).filter(|anchor| !anchor.is_empty() && line.is_none());
        hunks.push(Hunk { anchor, line, ..Hunk::default() });
        return Ok(());
    }
    if hunks.is_empty() {
        hunks.push(Hunk::default());
    }
    let hunk = hunks.last_mut().ok_or("no hunk is open")?;
    if line.trim_end() == "*** End of File" {
        hunk.at_end = true;
        return Ok(());
    }
    hunk.lines.push(hunk_text(line).ok_or("lines of a hunk begin with ` `, `-` or `+`")?);
    Ok(())
}

/// A line of a hunk; an empty one is an empty line that is kept.
fn hunk_text(line: &str) -> Option<(Kind, String)> {
    let kinds = [(' ', Kind::Keep), ('-', Kind::Remove), ('+', Kind::Add)];
    if line.is_empty() {
        return Some((Kind::Keep, String::new()));
    }
    kinds.iter().find_map(|(mark, kind)| line.strip_prefix(*mark).map(|text| (*kind, text.to_owned())))
}

/// The old line number in `-12,3 +12,4 @@ ...`.
fn hunk_line(header: &str) -> Option<usize> {
    let numbers = header.trim_start().strip_prefix('-')?;
    numbers.split([',', ' ']).next()?.parse().ok()
}

/// The numbers of old and new lines that a hunk's header claims.
fn hunk_counts(header: &str) -> Option<(usize, usize)> {
    let mut ranges = header.split_whitespace();
    let count = |range: &str| match range.split_once(',') {
        Some((_, count)) => count.parse().ok(),
        None => Some(1),
    };
    Some((count(ranges.next()?)?, count(ranges.next()?)?))
}

/// A file of a unified diff as it is read.
#[derive(Default)]
struct Unified {
    old: Option<String>,
    new: Option<String>,
    rename_to: Option<String>,
    rename_from: Option<String>,
    mode: Option<u32>,
    hunks: Vec<Hunk>,
}

fn unified(lines: &[&str], returns: &[bool]) -> Result<Vec<FilePatch>, Refusal> {
    let mut files = Vec::new();
    let mut file = Unified::default();
    let mut idx = 0;
    while let Some(line) = lines.get(idx) {
        idx += 1;
        if line.starts_with("diff --git ") {
            files.extend(std::mem::take(&mut file).finish()?);
        } else if let Some(path) = line.strip_prefix("--- ") {
            if file.old.is_some() || !file.hunks.is_empty() {
                files.extend(std::mem::take(&mut file).finish()?);
            }
            file.old = Some(header_path(path));
        } else if let Some(path) = line.strip_prefix("+++ ") {
            file.new = Some(header_path(path));
        } else if let Some(header) = line.strip_prefix("@@") {
            let (mut hunk, n_lines) = unified_hunk(header, lines.get(idx..).unwrap_or_default());
            let says_nothing = returns.get(idx - 1).copied().unwrap_or(false);
            hunk.crlf = !says_nothing && returns.iter().skip(idx).take(n_lines).any(|returns| *returns);
            file.hunks.push(hunk);
            idx += n_lines;
        } else if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
            return Err(Refusal::new("The patch holds a binary file; only text can be patched."));
        } else {
            file.header(line);
        }
    }
    files.extend(file.finish()?);
    if files.is_empty() {
        return Err(Refusal::new(
            "This is not a patch: it has neither `*** Begin Patch` nor the `---`, `+++` and `@@` lines of a unified diff.",
        ));
    }
    Ok(files)
}

fn header_path(path: &str) -> String {
    path.split('\t').next().unwrap_or(path).trim_end().trim_matches('"').to_owned()
}

fn unified_hunk(header: &str, lines: &[&str]) -> (Hunk, usize) {
    let mut hunk = Hunk { line: hunk_line(header), ..Hunk::default() };
    let (mut n_old, mut n_new) = hunk_counts(header).unwrap_or((usize::MAX, usize::MAX));
    let mut n_read = 0;
    for (idx, line) in lines.iter().enumerate() {
        let complete = n_old == 0 && n_new == 0;
        if let Some(marker) = line.strip_prefix('\\') {
            let new_side = !matches!(hunk.lines.last(), Some((Kind::Remove, _)));
            if marker.contains("No newline") {
                hunk.final_newline = Some(!new_side);
            }
            n_read = idx + 1;
            continue;
        }
        // `-- a` that is removed before `++ b` that is added looks like the next file. It is one where a
        // hunk follows, unless exactly these two lines were to come still.
        let begins =
            |ahead: usize, mark: &str| lines.get(idx + ahead).is_some_and(|line| line.starts_with(mark));
        let is_awaited = n_old == 1 && n_new == 1;
        let next_file =
            begins(0, "--- ") && begins(1, "+++ ") && (complete || begins(2, "@@") && !is_awaited);
        let header = line.starts_with("@@") || line.starts_with("diff --git ") || next_file;
        // Wrong counts are forgiven; a blank line after a complete hunk is not part of it.
        if header || (complete && line.is_empty()) {
            break;
        }
        let Some((kind, text)) = hunk_text(line) else { break };
        n_old = n_old.saturating_sub(usize::from(kind != Kind::Add));
        n_new = n_new.saturating_sub(usize::from(kind != Kind::Remove));
        hunk.lines.push((kind, text));
        n_read = idx + 1;
    }
    (hunk, n_read)
}

impl Unified {
    fn header(&mut self, line: &str) {
        if let Some(path) = line.strip_prefix("rename to ") {
            self.rename_to = Some(header_path(path));
        } else if let Some(path) = line.strip_prefix("rename from ") {
            self.rename_from = Some(header_path(path));
        } else if let Some(mode) =
            line.strip_prefix("new file mode ").or_else(|| line.strip_prefix("new mode "))
        {
            self.mode = u32::from_str_radix(mode.trim(), 8).ok().map(|mode| mode & 0o777);
        }
    }

    fn finish(self) -> Result<Option<FilePatch>, Refusal> {
        let prefixed = [&self.old, &self.new]
            .into_iter()
            .flatten()
            .all(|path| path == "/dev/null" || path.starts_with("a/") || path.starts_with("b/"));
        let clean = |path: String| match path.split_once('/') {
            Some((_, rest)) if prefixed && path != "/dev/null" => rest.to_owned(),
            _ => path,
        };
        let (mode, hunks) = (self.mode, self.hunks);
        match (self.old.map(clean), self.new.map(clean)) {
            (None, None) => Ok(self.rename_from.map(|path| FilePatch {
                path,
                action: Action::Update { hunks, move_to: self.rename_to },
                mode,
            })),
            (Some(old), Some(new)) if old == "/dev/null" => {
                Ok(Some(FilePatch { path: new, action: Action::Add(added(&hunks)), mode }))
            }
            (Some(old), Some(new)) if new == "/dev/null" => {
                Ok(Some(FilePatch { path: old, action: Action::Delete, mode: None }))
            }
            (Some(old), Some(new)) => {
                let move_to = (old != new).then_some(new);
                Ok(Some(FilePatch { path: old, action: Action::Update { hunks, move_to }, mode }))
            }
            _ => Err(Refusal::new("A file of the patch has only one of the lines `---` and `+++`.")),
        }
    }
}

fn added(hunks: &[Hunk]) -> String {
    let mut content = String::new();
    let ending = if hunks.iter().any(|hunk| hunk.crlf) { "\r\n" } else { "\n" };
    for (_, line) in hunks.iter().flat_map(|hunk| &hunk.lines).filter(|(kind, _)| *kind == Kind::Add) {
        content.push_str(line);
        content.push_str(ending);
    }
    if hunks.iter().any(|hunk| hunk.final_newline == Some(false)) {
        content.truncate(content.len().saturating_sub(ending.len()));
    }
    content
}
