//! `edit_file`: replacing text that occurs once, keeping everything else byte for byte.

use super::super::Args;
use super::change::{Change, current};
use super::read::text_of;
use super::text::{Unified, lines, nearest, usual_ending, with_endings_of};
use crate::beneath::{Refusal, Root};

pub(super) fn plan_edit(root: &Root, args: &Args<'_>) -> Result<Change, Refusal> {
    let resolved = root.resolve(args.text("path"))?;
    if !resolved.exists {
        return Err(Refusal(format!("There is no {}. Use write_file for a new file.", resolved.path)));
    }
    let change = current(root, &resolved.path, true)?;
    let bytes = change.before.as_deref().unwrap_or_default();
    check_hash(bytes, args.optional_text("expected_hash"), &change.path)?;
    let text = text_of(bytes, &change.path)?;
    let (old, new) = (args.text("old_text"), args.text("new_text"));
    let after = replaced(text, old, new, args.flag("replace_all"), &change.path)?;
    Ok(Change { after: Some(after.into_bytes()), ..change })
}

fn check_hash(bytes: &[u8], expected: Option<&str>, path: &str) -> Result<(), Refusal> {
    let Some(expected) = expected.map(str::trim).filter(|expected| !expected.is_empty()) else {
        return Ok(());
    };
    let hash = blake3::hash(bytes).to_hex().to_string();
    if expected.len() >= 8 && hash.starts_with(&expected.to_ascii_lowercase()) {
        return Ok(());
    }
    let short: String = hash.chars().take(16).collect();
    Err(Refusal(format!(
        "{path} is not as expected: its hash is {short}, not {expected}. It changed since it was read; read it again."
    )))
}

fn replaced(text: &str, old: &str, new: &str, all: bool, path: &str) -> Result<String, Refusal> {
    if old.is_empty() {
        return Err(Refusal::new(
            "old_text is empty. Give the text to replace, or use write_file for the whole file.",
        ));
    }
    let (old, new) = (old.replace("\r\n", "\n"), new.replace("\r\n", "\n"));
    if old == new {
        return Err(Refusal::new("old_text and new_text are the same; nothing would change."));
    }
    let unified = Unified::of(text);
    let found = unified.find_all(&old);
    if found.is_empty() {
        return Err(not_found(&unified.text, &old, path));
    }
    if found.len() > 1 && !all {
        return Err(several(&unified.text, &found, path));
    }
    let usual = usual_ending(&lines(text));
    let mut result = String::with_capacity(text.len() + new.len());
    let mut done = 0;
    for range in found {
        let (start, end) = (unified.original(range.start), unified.original(range.end));
        result.push_str(text.get(done..start).unwrap_or_default());
        result.push_str(&with_endings_of(text.get(start..end).unwrap_or_default(), &new, usual));
        done = end;
    }
    result.push_str(text.get(done..).unwrap_or_default());
    Ok(result)
}

fn several(text: &str, found: &[std::ops::Range<usize>], path: &str) -> Refusal {
    let at: Vec<String> = found.iter().take(10).map(|range| line_of(text, range.start).to_string()).collect();
    Refusal(format!(
        "old_text occurs {} times in {path} (lines {}{}). Add lines around it until it occurs once, or set replace_all.",
        found.len(),
        at.join(", "),
        if found.len() > 10 { ", ..." } else { "" },
    ))
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// What the model needs when its text is not there: the nearest place, and what differs.
pub(super) fn not_found(text: &str, old: &str, path: &str) -> Refusal {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let spaces =
        if squeezed(text).contains(&squeezed(old)) { " It is there with other white space." } else { "" };
    match nearest(text, old) {
        Some((line, shown)) => Refusal(format!(
            "old_text is not in {path}.{spaces} The nearest match begins at line {line}:\n{shown}\nCopy the text \
             exactly as it stands in the file, without line numbers."
        )),
        None => Refusal(format!("old_text is not in {path}, and nothing like it. Read the file again.")),
    }
}
