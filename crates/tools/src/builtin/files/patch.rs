//! `apply_patch`: a patch read into changes of whole files, then applied to what is there.
//!
//! Both accepted forms are read into the same hunks and placed by their content, not by trusting
//! line numbers: models count lines badly and quote them well. Lines that a hunk keeps stay as the
//! file has them, endings included.

#[cfg(test)]
mod fuzz;
mod parse;

use std::collections::BTreeMap;

use super::change::{Change, current};
use super::read::text_of;
use super::text::{Line, lines, nearest, usual_ending};
use crate::beneath::{Refusal, Root};

use parse::{Action, FilePatch, Hunk, Kind};

/// What a patch would change, in the order in which it names the files.
pub(super) fn plan_patch(root: &Root, patch: &str) -> Result<Vec<Change>, Refusal> {
    let mut plan = Plan { root, changes: Vec::new(), places: BTreeMap::new() };
    for file in parse::parse(patch)? {
        plan.add(file)?;
    }
    // A file that the patch both adds and deletes is no change.
    plan.changes.retain(|change| change.before.is_some() || change.after.is_some());
    if plan.changes.is_empty() {
        return Err(Refusal::new("The patch changes no file."));
    }
    Ok(plan.changes)
}

/// The paths that a patch names, as written.
pub(super) fn paths(patch: &str) -> Result<Vec<String>, Refusal> {
    let mut paths = Vec::new();
    for file in parse::parse(patch)? {
        if let Action::Update { move_to: Some(target), .. } = &file.action {
            paths.push(target.clone());
        }
        paths.push(file.path);
    }
    Ok(paths)
}

struct Plan<'r> {
    root: &'r Root,
    changes: Vec<Change>,
    /// Where each path stands in `changes`: a patch may touch a file twice.
    places: BTreeMap<String, usize>,
}

impl Plan<'_> {
    fn change(&mut self, written: &str) -> Result<usize, Refusal> {
        let resolved = self.root.resolve(written)?;
        if let Some(place) = self.places.get(&resolved.path) {
            return Ok(*place);
        }
        self.changes.push(current(self.root, &resolved.path, resolved.exists)?);
        self.places.insert(resolved.path, self.changes.len() - 1);
        Ok(self.changes.len() - 1)
    }

    fn get(&mut self, place: usize) -> &mut Change {
        self.changes.get_mut(place).expect("places point into changes, which only grows")
    }

    fn add(&mut self, file: FilePatch) -> Result<(), Refusal> {
        let place = self.change(&file.path)?;
        let change = self.get(place);
        match file.action {
            Action::Add(content) => {
                if change.after.is_some() {
                    return Err(Refusal(format!(
                        "{} exists already; update it instead of adding it.",
                        file.path
                    )));
                }
                change.after = Some(content.into_bytes());
            }
            Action::Delete => {
                if change.after.take().is_none() {
                    return Err(Refusal(format!("There is no {} to delete.", file.path)));
                }
            }
            Action::Update { hunks, move_to } => {
                let Some(bytes) = &change.after else {
                    return Err(Refusal(format!("There is no {} to update.", file.path)));
                };
                let text = text_of(bytes, &file.path)?;
                change.after = Some(patched(text, &hunks, &file.path)?.into_bytes());
                if let Some(target) = move_to {
                    self.rename(place, &target)?;
                }
            }
        }
        if let Some(mode) = file.mode {
            self.get(place).mode = mode;
        }
        Ok(())
    }

    fn rename(&mut self, from: usize, target: &str) -> Result<(), Refusal> {
        let to = self.change(target)?;
        if to == from {
            return Ok(());
        }
        if self.get(to).after.is_some() {
            return Err(Refusal(format!("{target} exists already; nothing can be moved there.")));
        }
        let source = self.get(from);
        let (content, mode) = (source.after.take(), source.mode);
        let target = self.get(to);
        target.after = content;
        target.mode = mode;
        Ok(())
    }
}

fn patched(text: &str, hunks: &[Hunk], path: &str) -> Result<String, Refusal> {
    let original = lines(text);
    // A text that has no ends of lines takes those of the patch.
    let has_ends = original.iter().any(|line| !line.ending.is_empty());
    let is_crlf = !has_ends && hunks.iter().any(|hunk| hunk.crlf);
    let usual = if is_crlf { "\r\n" } else { usual_ending(&original) };
    let mut ends_with_newline = original.last().is_none_or(|line| !line.ending.is_empty());
    let mut result: Vec<Line<'_>> = Vec::with_capacity(original.len());
    // The first line of the original that no hunk has passed yet.
    let mut cursor = 0;
    for (idx, hunk) in hunks.iter().enumerate() {
        let start = place(&original, cursor, hunk).ok_or_else(|| misplaced(text, hunk, idx, path))?;
        result.extend(original.iter().skip(cursor).take(start - cursor));
        cursor = start;
        for (kind, line) in &hunk.lines {
            match kind {
                Kind::Keep => {
                    result.extend(original.get(cursor));
                    cursor += 1;
                }
                Kind::Remove => cursor += 1,
                Kind::Add => {
                    let before = result.last().map(|line| line.ending).filter(|ending| !ending.is_empty());
                    result.push(Line { text: line, ending: before.unwrap_or(usual) });
                }
            }
        }
        if let Some(newline) = hunk.final_newline.filter(|_| cursor >= original.len()) {
            ends_with_newline = newline;
        }
    }
    result.extend(original.iter().skip(cursor));
    Ok(joined(&result, usual, ends_with_newline))
}

fn joined(lines: &[Line<'_>], usual: &str, ends_with_newline: bool) -> String {
    let mut text = String::new();
    for (idx, line) in lines.iter().enumerate() {
        text.push_str(line.text);
        if idx + 1 < lines.len() || ends_with_newline {
            text.push_str(if line.ending.is_empty() { usual } else { line.ending });
        }
    }
    text
}

/// The line at which a hunk's kept and removed lines stand, at or after `cursor`: exactly, or else
/// but for white space at the ends of lines. With several, the one nearest to the hunk's own line
/// number, or else the first.
fn place(original: &[Line<'_>], cursor: usize, hunk: &Hunk) -> Option<usize> {
    let from = match &hunk.anchor {
        Some(anchor) => anchored(original, cursor, anchor)? + 1,
        None => cursor,
    };
    let wanted: Vec<&str> =
        hunk.lines.iter().filter(|(kind, _)| *kind != Kind::Add).map(|(_, line)| line.as_str()).collect();
    if wanted.is_empty() {
        let at = match (hunk.line, &hunk.anchor) {
            (Some(line), _) => line,
            (None, Some(_)) => from,
            (None, None) => original.len(),
        };
        return Some(at.clamp(cursor, original.len()));
    }
    let same: [fn(&str, &str) -> bool; 2] = [|a, b| a == b, |a, b| a.trim_end() == b.trim_end()];
    // An anchor may be part of the hunk's own context, so a second look starts at the cursor.
    for start in [from, cursor] {
        for same in same {
            let found = candidates(original, start, &wanted, hunk.at_end, same);
            let hint = hunk.line.map(|line| line.saturating_sub(1));
            let best = match hint {
                Some(hint) => found.into_iter().min_by_key(|at| at.abs_diff(hint)),
                None => found.into_iter().next(),
            };
            if best.is_some() {
                return best;
            }
        }
    }
    None
}

fn anchored(original: &[Line<'_>], cursor: usize, anchor: &str) -> Option<usize> {
    let after = |test: &dyn Fn(&str) -> bool| {
        original.iter().enumerate().skip(cursor).find(|(_, line)| test(line.text)).map(|(idx, _)| idx)
    };
    after(&|line| line.trim() == anchor).or_else(|| after(&|line| line.contains(anchor)))
}

fn candidates(
    original: &[Line<'_>],
    start: usize,
    wanted: &[&str],
    at_end: bool,
    same: fn(&str, &str) -> bool,
) -> Vec<usize> {
    let Some(last) = original.len().checked_sub(wanted.len()) else {
        return Vec::new();
    };
    let first = if at_end { last.max(start) } else { start };
    (first..=last)
        .filter(|at| original.iter().skip(*at).zip(wanted).all(|(line, wanted)| same(line.text, wanted)))
        .collect()
}

fn misplaced(text: &str, hunk: &Hunk, idx: usize, path: &str) -> Refusal {
    let wanted: Vec<&str> =
        hunk.lines.iter().filter(|(kind, _)| *kind != Kind::Add).map(|(_, line)| line.as_str()).collect();
    let wanted = wanted.join("\n");
    let near = match nearest(text, &wanted) {
        Some((line, shown)) => format!(" The nearest match begins at line {line}:\n{shown}\n"),
        None => String::new(),
    };
    Refusal(format!(
        "Hunk {} for {path} does not fit: its kept and removed lines are not in the file in this order.{near} \
         Nothing was changed.",
        idx + 1
    ))
}
