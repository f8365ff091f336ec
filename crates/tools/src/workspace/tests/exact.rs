//! Any changes between two snapshots are undone exactly, whatever became of files and directories.

use std::path::Path;

use proptest::prelude::*;

use super::{set_mode, write};
use crate::workspace::shadow::{Shadow, open_root, remove};

#[derive(Clone, Debug)]
enum Change {
    Write(usize, String),
    Remove(usize),
    Link(usize, String),
    Mode(usize, u32),
    Directory(usize),
}

/// Names that are files in one state and directories in another.
const PATHS: &[&str] = &["a", "a/b", "a/b/c", "d", "d/e", "ü/x", ".git/config", ".gitignore", "d/e/f", "z"];

fn change() -> impl Strategy<Value = Change> {
    let path = 0..PATHS.len();
    prop_oneof![
        4 => (path.clone(), "[a-z\n]{0,40}").prop_map(|(path, text)| Change::Write(path, text)),
        2 => path.clone().prop_map(Change::Remove),
        1 => (path.clone(), "[a-z./]{1,8}").prop_map(|(path, target)| Change::Link(path, target)),
        1 => (path.clone(), prop_oneof![Just(0o600), Just(0o755), Just(0o444), Just(0o700)])
            .prop_map(|(path, mode)| Change::Mode(path, mode)),
        1 => path.prop_map(Change::Directory),
    ]
}

fn clear(root: &Path, path: &str) {
    use std::os::fd::AsFd;
    let Ok(parent) = open_root(root.join(path).parent().unwrap()) else { return };
    let name = std::ffi::CString::new(Path::new(path).file_name().unwrap().to_str().unwrap()).unwrap();
    remove(parent.as_fd(), &name).unwrap();
}

/// Makes every step of the path a directory that is no link.
fn make_way(root: &Path, path: &str) {
    let mut at = root.to_owned();
    for part in Path::new(path).parent().unwrap().components() {
        at.push(part);
        if at.is_symlink() || at.is_file() {
            std::fs::remove_file(&at).unwrap();
        }
        let _ = std::fs::create_dir(&at);
    }
}

fn apply(root: &Path, change: &Change) {
    let of = |idx: &usize| *PATHS.get(*idx).unwrap();
    match change {
        Change::Write(idx, text) => {
            make_way(root, of(idx));
            clear(root, of(idx));
            write(root, of(idx), text);
        }
        Change::Remove(idx) => clear(root, of(idx)),
        Change::Link(idx, target) => {
            make_way(root, of(idx));
            clear(root, of(idx));
            std::os::unix::fs::symlink(target, root.join(of(idx))).unwrap();
        }
        Change::Mode(idx, mode) => {
            let path = root.join(of(idx));
            if path.is_file() && !path.is_symlink() {
                set_mode(&path, *mode);
            }
        }
        Change::Directory(idx) => {
            make_way(root, of(idx));
            clear(root, of(idx));
            std::fs::create_dir(root.join(of(idx))).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_snapshot_can_be_restored(states in prop::collection::vec(prop::collection::vec(change(), 0..8), 2..5)) {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let mut shadow = Shadow::open(directory.path(), &tree).unwrap();
        let mut taken = Vec::new();
        for state in &states {
            state.iter().for_each(|change| apply(&tree, change));
            taken.push(shadow.snapshot().unwrap());
        }
        // With what is remembered, and from the files alone.
        for snapshot in taken.iter().chain(taken.iter().rev()) {
            shadow.restore(snapshot).unwrap();
            let mut again = Shadow::open(directory.path(), &tree).unwrap();
            prop_assert_eq!(again.snapshot().unwrap(), *snapshot);
        }
    }
}
