//! Puts a unified diff in git's form on files in memory.

use anyhow::{Context as _, bail, ensure};

use super::rehearse::Files;

/// The files after the diff.
///
/// # Errors
/// If the diff is empty, is of another form, or does not fit the files.
pub(super) fn apply(mut files: Files, diff: &str) -> anyhow::Result<Files> {
    ensure!(!diff.trim().is_empty(), "The run changed nothing.");
    let mut lines = diff.lines().peekable();
    let mut path = String::new();
    while let Some(line) = lines.next() {
        if let Some(names) = line.strip_prefix("diff --git a/") {
            path = names.split_once(" b/").context("a diff names two files")?.1.to_owned();
        } else if line.starts_with("deleted file mode") {
            files.remove(&path);
        } else if line.starts_with("@@ ") {
            let old = files.remove(&path).unwrap_or_default();
            let mut file = Patching { old: old.split_inclusive('\n').collect(), at: 0, new: String::new() };
            let mut head = line;
            loop {
                let (start, mut n_old, mut n_new) = hunk(head)?;
                file.copy_to(if n_old == 0 { start } else { start.saturating_sub(1) });
                let mut last = ' ';
                while n_old + n_new > 0 || lines.peek().is_some_and(|line| line.starts_with('\\')) {
                    let line = lines.next().context("a hunk ends too early")?;
                    let (kind, text) = split(line);
                    match kind {
                        '\\' if last == '+' => drop(file.new.pop()),
                        '\\' => {}
                        '+' => {
                            file.new.push_str(text);
                            file.new.push('\n');
                            n_new -= 1;
                        }
                        '-' | ' ' => {
                            file.old_line(text, kind == ' ').with_context(|| format!("put on {path}"))?;
                            n_old -= 1;
                            n_new -= usize::from(kind == ' ');
                        }
                        other => bail!("a line of a hunk begins with {other:?}"),
                    }
                    last = kind;
                }
                match lines.next_if(|line| line.starts_with("@@ ")) {
                    Some(next) => head = next,
                    None => break,
                }
            }
            file.copy_to(usize::MAX);
            files.insert(path.clone(), file.new);
        }
    }
    Ok(files)
}

struct Patching<'a> {
    old: Vec<&'a str>,
    at: usize,
    new: String,
}

impl Patching<'_> {
    fn copy_to(&mut self, line: usize) {
        while self.at < line.min(self.old.len()) {
            self.new.push_str(self.old[self.at]);
            self.at += 1;
        }
    }

    fn old_line(&mut self, text: &str, keep: bool) -> anyhow::Result<()> {
        let old = self.old.get(self.at).context("the file is too short")?;
        ensure!(old.trim_end_matches('\n') == text, "line {} is another", self.at + 1);
        if keep {
            self.new.push_str(old);
        }
        self.at += 1;
        Ok(())
    }
}

/// Kind and text of a line; an empty one is an empty line that stays.
fn split(line: &str) -> (char, &str) {
    let mut chars = line.chars();
    let kind = chars.next().unwrap_or(' ');
    (kind, chars.as_str())
}

/// Where a hunk begins in the old file, and how many lines it has on each side.
fn hunk(head: &str) -> anyhow::Result<(usize, usize, usize)> {
    let range = |text: &str| -> Option<(usize, usize)> {
        let (start, n) = text.split_once(',').unwrap_or((text, "1"));
        Some((start.parse().ok()?, n.parse().ok()?))
    };
    let mut words = head.split(' ').skip(1);
    let old = words.next().and_then(|word| range(word.strip_prefix('-')?));
    let new = words.next().and_then(|word| range(word.strip_prefix('+')?));
    let (old, new) = old.zip(new).with_context(|| format!("{head:?} is no hunk"))?;
    Ok((old.0, old.1, new.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, diff: &str, new: &str) {
        let files = Files::from([("f".to_owned(), old.to_owned())]);
        let diff = format!("diff --git a/f b/f\n--- a/f\n+++ b/f\n{diff}");
        assert_eq!(apply(files, &diff).unwrap()["f"], new);
    }

    #[test]
    fn hunks_with_and_without_a_last_newline() {
        check("a\nb\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n", "a\nB\nc\n");
        check("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+B\n", "a\nB\n");
        check("a\nb\n", "@@ -2 +2 @@\n-b\n+B\n\\ No newline at end of file\n", "a\nB");
        check("a\nb\nc\nd\n", "@@ -1 +1 @@\n-a\n+A\n@@ -4 +4,2 @@\n d\n+e\n", "A\nb\nc\nd\ne\n");
    }

    #[test]
    fn new_files_are_made_and_what_does_not_fit_is_refused() {
        let diff =
            "diff --git a/g b/g\nnew file mode 100644\n--- /dev/null\n+++ b/g\n@@ -0,0 +1,2 @@\n+x\n+y\n";
        assert_eq!(apply(Files::new(), diff).unwrap()["g"], "x\ny\n");
        let files = Files::from([("f".to_owned(), "a\n".to_owned())]);
        assert!(apply(files, "diff --git a/f b/f\n@@ -1 +1 @@\n-b\n+c\n").is_err());
        assert!(apply(Files::new(), "").is_err());
    }
}
