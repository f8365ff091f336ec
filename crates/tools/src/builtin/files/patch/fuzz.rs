//! Patches: any text is a patch or refused, nothing of it lies outside, and what diff wrote is applied.

use std::path::Path;

use proptest::prelude::*;

use super::parse::{Action, parse};
use super::plan_patch;
use crate::beneath::Root;
use crate::blocking::Cancel;
use crate::builtin::files::apply;
use crate::fuzzing::{fuzz, inputs};

const CORPUS: &[&str] = &[
    "*** Begin Patch\n*** Update File: a.txt\n@@ one\n two\n-three\n+3\n*** End of File\n*** End Patch\n",
    "*** Begin Patch\n*** Add File: new/b.txt\n+x\n+y\n*** Delete File: a.txt\n*** End Patch",
    "*** Begin Patch\n*** Update File: a.txt\n*** Move to: out/c.txt\n@@\n one\n+1.5\n*** End Patch",
    "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n\\ No newline at end of file\n",
    "diff --git a/a.txt b/d.txt\nrename from a.txt\nrename to d.txt\n--- a/a.txt\n+++ b/d.txt\n@@ -2 +2 @@\n-two\n+zwei\n",
    "--- /dev/null\n+++ b/../../escape\n@@ -0,0 +1 @@\n+x\n--- a/crlf.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-eins\n-zwei\n",
    "diff --git a/s.sh b/s.sh\nnew file mode 104755\n--- /dev/null\n+++ b/s.sh\n@@ -0,0 +1 @@\n+#!/bin/sh\n",
];

const WORDS: &[&str] = &[
    "*** Begin Patch\n",
    "*** End Patch\n",
    "*** Update File: ",
    "*** Add File: ",
    "*** Delete File: ",
    "*** Move to: ",
    "*** End of File\n",
    "@@\n",
    "@@ -1,3 +1,3 @@\n",
    "@@ -0,0 +1 @@\n",
    "@@ -99999999999999999999,1 +1 @@\n",
    "--- a/",
    "+++ b/",
    "--- ",
    "+++ ",
    "/dev/null\n",
    "a.txt\n",
    "crlf.txt\n",
    "new\n",
    "out/x\n",
    "link\n",
    "../x\n",
    "/etc/passwd\n",
    "/workspace/a.txt\n",
    ".\n",
    "\n",
    "\r\n",
    " one\n",
    "-two\n",
    "+2\n",
    " three",
    "\\ No newline at end of file\n",
    "rename from ",
    "rename to ",
    "new file mode 777\n",
    "GIT binary patch\n",
    "diff --git a/a.txt b/a.txt\n",
    "\0",
    "ä",
    " ",
    "+",
    "-",
];

/// A workspace with a way out, and what is outside.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(bench.outside()).unwrap();
        std::fs::write(bench.outside().join("x"), "outside").unwrap();
        bench
    }

    fn outside(&self) -> std::path::PathBuf {
        self.dir.path().join("outside")
    }

    /// The workspace as it is before each patch.
    fn fresh(&self) -> std::path::PathBuf {
        let tree = self.dir.path().join("tree");
        if tree.exists() {
            std::fs::remove_dir_all(&tree).unwrap();
        }
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("a.txt"), "one\ntwo\nthree").unwrap();
        std::fs::write(tree.join("crlf.txt"), "eins\r\nzwei\r\n").unwrap();
        std::os::unix::fs::symlink("../outside", tree.join("out")).unwrap();
        std::os::unix::fs::symlink("../outside/x", tree.join("link")).unwrap();
        tree
    }

    fn is_outside_untouched(&self) -> bool {
        let names = std::fs::read_dir(self.outside()).unwrap().count();
        let beside = std::fs::read_dir(self.dir.path()).unwrap().count();
        (names, beside) == (1, 2) && std::fs::read(self.outside().join("x")).unwrap() == b"outside"
    }
}

#[test]
fn fuzz_patches() {
    let bench = Bench::new();
    fuzz("patch", &inputs(CORPUS, WORDS), |bytes| {
        let patch = String::from_utf8_lossy(&bytes);
        if let Ok(files) = parse(&patch) {
            let size = |action: &Action| match action {
                Action::Add(content) => content.len(),
                Action::Delete => 0,
                Action::Update { hunks, .. } => {
                    hunks.iter().flat_map(|hunk| &hunk.lines).map(|(_, line)| line.len()).sum()
                }
            };
            let held: usize = files.iter().map(|file| file.path.len() + size(&file.action)).sum();
            prop_assert!(held <= 2 * patch.len() + 1, "{held} bytes from {}", patch.len());
            prop_assert!(files.iter().all(|file| file.mode.is_none_or(|mode| mode <= 0o777)), "{files:?}");
        }
        let tree = bench.fresh();
        let root = Root::open(&tree).unwrap();
        let planned = plan_patch(&root, &patch);
        prop_assert!(bench.is_outside_untouched());
        let changes = match planned {
            Ok(changes) => changes,
            Err(refusal) => {
                prop_assert!(refusal.0.len() <= patch.len() + 4_096, "{} bytes of refusal", refusal.0.len());
                return Ok(());
            }
        };
        for change in &changes {
            let path = Path::new(&change.path);
            let is_inside = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            prop_assert!(is_inside && !path.starts_with("out"), "{change:?}");
            let (before, after) = (change.before.as_deref(), change.after.as_deref().unwrap_or_default());
            let n_before = before.map_or(0, <[u8]>::len);
            prop_assert!(after.len() <= 2 * (n_before + patch.len()) + 64, "{} bytes", after.len());
        }
        let applied = apply(&root, &changes, &Cancel::default());
        prop_assert!(bench.is_outside_untouched());
        if applied.is_ok() {
            for change in &changes {
                prop_assert_eq!(std::fs::read(tree.join(&change.path)).ok(), change.after.clone());
            }
        }
        Ok(())
    });
}

/// Lines that look like parts of a patch, and lines that are there twice.
const LINES: &[&str] = &[
    "a",
    "b",
    "a",
    "",
    " ",
    "\tc",
    "x ",
    "x",
    "-- a",
    "++ b",
    "- c",
    "+ d",
    "@@ -1 +1 @@",
    "*** End Patch",
    "*** Begin Patch",
    "*** Update File: f",
    "\\ No newline at end of file",
    "diff --git a/f b/f",
    "ä😀",
];

/// A text before and after, with one kind of line end.
fn texts() -> impl Strategy<Value = (String, String)> {
    let lines = || prop::collection::vec(prop::sample::select(LINES), 0..24);
    let edits =
        prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(LINES), 0..3), 0..5);
    (lines(), edits, any::<bool>(), any::<(bool, bool)>()).prop_map(|(old, edits, crlf, ends)| {
        let mut new = old.clone();
        for (at, line, kind) in edits {
            let at = at.index(new.len() + 1);
            match kind {
                0 => new.insert(at, line),
                1 if at < new.len() => drop(new.remove(at)),
                _ if at < new.len() => new[at] = line,
                _ => {}
            }
        }
        let end = if crlf { "\r\n" } else { "\n" };
        let text = |lines: &[&str], ends: bool| {
            let mut text = lines.join(end);
            if ends && !lines.is_empty() {
                text.push_str(end);
            }
            text
        };
        (text(&old, ends.0), text(&new, ends.1))
    })
}

fn patched(tree: &Path, old: &str, patch: &str) -> Result<Option<Vec<u8>>, String> {
    std::fs::write(tree.join("f"), old).unwrap();
    let changes = plan_patch(&Root::open(tree).unwrap(), patch).map_err(|refusal| refusal.0)?;
    assert_eq!(changes.len(), 1, "{changes:?}");
    Ok(changes[0].after.clone())
}

#[test]
fn fuzz_diffs_are_applied_exactly() {
    let dir = tempfile::tempdir().unwrap();
    fuzz("patch-diffs", &(texts(), 0..4_usize), |((old, new), context)| {
        if old == new {
            return Ok(());
        }
        let mut options = diffy::DiffOptions::new();
        options.set_context_len(context).set_original_filename("a/f").set_modified_filename("b/f");
        let patch = options.create_patch(&old, &new).to_string();
        let after = patched(dir.path(), &old, &patch);
        prop_assert_eq!(after, Ok(Some(new.into_bytes())), "{}", patch);
        Ok(())
    });
}

#[test]
fn fuzz_whole_files_in_the_other_form_are_applied_exactly() {
    let dir = tempfile::tempdir().unwrap();
    fuzz("patch-begun", &texts(), |(old, new)| {
        // This form cannot say whether the last line ends.
        if old == new
            || old.is_empty()
            || [&old, &new].iter().any(|text| !text.is_empty() && !text.ends_with('\n'))
        {
            return Ok(());
        }
        let rows =
            |text: &str, mark: char| text.lines().map(|line| format!("{mark}{line}\n")).collect::<String>();
        let (removed, added) = (rows(&old, '-'), rows(&new, '+'));
        let patch = format!("*** Begin Patch\n*** Update File: f\n@@\n{removed}{added}*** End Patch\n");
        let after = patched(dir.path(), &old, &patch);
        prop_assert_eq!(after, Ok(Some(new.into_bytes())), "{}", patch);
        Ok(())
    });
}
