//! `read_file`.

use std::fs::File;
use std::io::Read;

use rustix::fs::Stat;
use serde_json::json;

use super::super::{Args, Outcome};
use super::FILE_BYTES_MAX;
use crate::beneath::{Refusal, Root, refusal};

/// Lines returned when no limit is asked for.
const LINES: usize = 2000;

/// Characters of one line that are shown.
const LINE_CHARS_MAX: usize = 2000;

pub(super) fn read_file(root: &Root, args: &Args<'_>) -> Result<Outcome, Refusal> {
    let resolved = root.resolve(args.text("path"))?;
    let (bytes, _) = content(root, &resolved.path)?;
    let text = text_of(&bytes, &resolved.path)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let n_lines = text.lines().count();
    let (offset, limit) = (args.count("offset", 1).max(1), args.count("limit", LINES));
    if offset > n_lines.max(1) {
        return Err(Refusal(format!("{} has {n_lines} lines; there is no line {offset}.", resolved.path)));
    }
    let mut shown = String::new();
    let mut n_shown = 0;
    for (idx, line) in text.lines().enumerate().skip(offset - 1).take(limit) {
        shown.push_str(&format!("{:>6}\t", idx + 1));
        push_line(&mut shown, line);
        n_shown += 1;
    }
    let hash = blake3::hash(&bytes).to_hex().to_string();
    let last = offset - 1 + n_shown;
    let short: String = hash.chars().take(16).collect();
    if n_lines == 0 {
        shown.push_str(&format!("[{} is empty; hash {short}]", resolved.path));
    } else {
        let more = if last < n_lines { "; more with offset" } else { "" };
        shown.push_str(&format!(
            "[{}: lines {offset}-{last} of {n_lines}{more}; hash {short}]",
            resolved.path
        ));
    }
    Ok(Outcome::ok(
        shown,
        json!({"path": resolved.path, "lines": n_lines, "bytes": bytes.len(), "hash": hash}),
    ))
}

fn push_line(shown: &mut String, line: &str) {
    match line.char_indices().nth(LINE_CHARS_MAX) {
        None => shown.push_str(line),
        Some(_) => {
            shown.extend(line.chars().take(LINE_CHARS_MAX));
            let n_more = line.chars().count() - LINE_CHARS_MAX;
            shown.push_str(&format!(" [{n_more} more characters]"));
        }
    }
    shown.push('\n');
}

/// The content of a regular file of bearable size.
pub(super) fn content(root: &Root, path: &str) -> Result<(Vec<u8>, Stat), Refusal> {
    let (file, stat) = root.read(path)?;
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > FILE_BYTES_MAX {
        return Err(too_large(path, size));
    }
    Ok((bytes_of(file, path)?, stat))
}

fn bytes_of(file: File, path: &str) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    // Files of /proc-like systems report no size, and any file may grow while it is read.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| {
        refusal(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO), path)
    })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(too_large(path, bytes.len() as u64));
    }
    Ok(bytes)
}

fn too_large(path: &str, size: u64) -> Refusal {
    Refusal(format!(
        "{path} is too large: {size} bytes, the limit is {FILE_BYTES_MAX}. Use grep, or head in bash."
    ))
}

/// The content as text.
pub(super) fn text_of<'a>(bytes: &'a [u8], path: &str) -> Result<&'a str, Refusal> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Refusal(format!(
            "{path} is not UTF-8 text (byte {}); it cannot be shown or edited.",
            error.valid_up_to()
        ))
    })?;
    if text.contains('\0') {
        return Err(Refusal(format!("{path} is a binary file; it cannot be shown or edited.")));
    }
    Ok(text)
}
