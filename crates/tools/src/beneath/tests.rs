use super::{Root, split};

#[test]
fn links_inside_the_workspace_are_followed_to_their_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir_all(path.join("a/b")).unwrap();
    std::fs::write(path.join("a/b/f"), "x").unwrap();
    std::os::unix::fs::symlink("a/b", path.join("short")).unwrap();
    let root = Root::open(path).unwrap();
    let resolve = |written: &str| root.resolve(written).map(|resolved| (resolved.path, resolved.exists));
    let inside = |path: &str, exists| Ok((path.to_owned(), exists));
    assert_eq!(resolve("short/f"), inside("a/b/f", true));
    assert_eq!(resolve("short/new/deep"), inside("a/b/new/deep", false));
    assert_eq!(resolve("short/../b/f"), inside("a/b/f", true));
    assert_eq!(resolve("."), inside("", true));
    assert_eq!(resolve("/workspace"), inside("", true));
    assert_eq!(resolve(&format!("{}/a", path.display())), inside("a", true));
    assert!(resolve("a/../../x").is_err());
    assert!(resolve("nothing/..").is_err());
    assert!(resolve("a\0b").is_err());
    assert!(resolve("a/b/f/g").is_err());
}

/// A link put in place of a directory after the path was resolved is not followed.
#[test]
fn a_resolved_path_is_opened_without_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tree");
    std::fs::create_dir_all(path.join("d")).unwrap();
    std::fs::write(path.join("d/f"), "inside").unwrap();
    std::fs::create_dir(directory.path().join("outside")).unwrap();
    std::fs::write(directory.path().join("outside/f"), "outside").unwrap();
    let root = Root::open(&path).unwrap();
    let resolved = root.resolve("d/f").unwrap();
    std::fs::remove_dir_all(path.join("d")).unwrap();
    std::os::unix::fs::symlink("../outside", path.join("d")).unwrap();
    assert!(root.read(&resolved.path).is_err());
    assert!(root.parent(&resolved.path, true).is_err());
    assert_eq!(split("a/b/c"), ("a/b", "c"));
}
