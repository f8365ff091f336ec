mod exact;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::id::{RunId, SnapshotId, ThreadId};
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_core::run::Repository;
use evenkeel_env::Env;
use expect_test::expect;

use super::{AllowedSources, ShadowWorkspaces};
use crate::forge::{GitConfig, Hosts};

/// Workspaces in a temporary directory, and a place for repositories beside them.
struct Bench {
    directory: Arc<tempfile::TempDir>,
    env: Env,
    workspaces: Arc<ShadowWorkspaces>,
    thread: ThreadId,
    run: RunId,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("repositories")).unwrap();
        let env = Env::seeded(7);
        let (thread, run) =
            (ThreadId::new(env.wall(), &env.generator), RunId::new(env.wall(), &env.generator));
        let workspaces = Self::start(&env, directory.path());
        Self { directory: Arc::new(directory), env, workspaces, thread, run }
    }

    /// Another server that shares the directory.
    fn beside(&self) -> Self {
        let workspaces = Self::start(&self.env, self.directory.path());
        Self { directory: self.directory.clone(), env: self.env.clone(), workspaces, ..*self }
    }

    fn start(env: &Env, directory: &Path) -> Arc<ShadowWorkspaces> {
        let allowed = AllowedSources {
            directories: vec![directory.join("repositories")],
            url_schemes: vec!["file".to_owned()],
            ..AllowedSources::default()
        };
        let hosts = Hosts::new(env, &GitConfig::default(), Arc::new(|_| None)).unwrap();
        ShadowWorkspaces::new(env, directory.join("workspaces"), allowed, hosts)
    }

    /// As after the process was started again.
    fn restart(&mut self) {
        self.workspaces = Self::start(&self.env, self.directory.path());
    }

    fn repository(&self) -> PathBuf {
        self.directory.path().join("repositories/one")
    }

    async fn open(&self, repository: Repository) -> Result<(PathBuf, SnapshotId), Error> {
        self.workspaces.open(self.thread, self.run, repository).await
    }

    async fn open_empty(&self) -> (PathBuf, SnapshotId) {
        self.open(Repository::Empty).await.unwrap()
    }

    async fn snapshot(&self) -> SnapshotId {
        self.workspaces.snapshot(self.thread).await.unwrap()
    }

    async fn restore(&self, snapshot: &SnapshotId) {
        self.workspaces.restore(self.thread, snapshot.clone()).await.unwrap();
    }

    async fn diff(&self, from: &SnapshotId) -> String {
        self.workspaces.diff(self.thread, from.clone()).await.unwrap()
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn an_unchanged_workspace_has_the_same_snapshot_and_adds_nothing() {
    let mut bench = Bench::new();
    let (tree, base) = bench.open_empty().await;
    write(&tree, "a/b", "text");
    let first = bench.snapshot().await;
    let objects = bench.directory.path().join("workspaces").join(bench.thread.to_string()).join("objects/0");
    let size = std::fs::metadata(&objects).unwrap().len();
    assert_ne!(first, base);
    assert_eq!(bench.snapshot().await, first);
    bench.restart();
    assert_eq!(bench.snapshot().await, first);
    assert_eq!(std::fs::metadata(&objects).unwrap().len(), size);
}

/// A change that keeps size and modification time is still seen.
#[tokio::test]
async fn a_change_that_hides_its_time_is_seen() {
    let bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    for round in 0..20 {
        write(&tree, "f", &format!("{round:04}"));
        let times = std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        std::fs::File::options().write(true).open(tree.join("f")).unwrap().set_times(times).unwrap();
        let before = bench.snapshot().await;
        write(&tree, "f", &format!("{:04}", round + 100));
        std::fs::File::options().write(true).open(tree.join("f")).unwrap().set_times(times).unwrap();
        assert_ne!(bench.snapshot().await, before, "round {round}");
    }
}

#[tokio::test]
async fn restoring_is_exact() {
    let mut bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    write(&tree, "keep", "keep");
    write(&tree, "run.sh", "#!/bin/sh\n");
    set_mode(&tree.join("run.sh"), 0o755);
    write(&tree, ".git/HEAD", "ref: refs/heads/main\n");
    write(&tree, ".gitignore", "ignored\n");
    write(&tree, "ignored/x", "also kept");
    std::fs::create_dir(tree.join("empty")).unwrap();
    set_mode(&tree.join("empty"), 0o555);
    std::os::unix::fs::symlink("../outside", tree.join("link")).unwrap();
    write(&tree, "big", &"0123456789".repeat(1_000_000));
    let good = bench.snapshot().await;

    write(&tree, "run.sh", "changed");
    set_mode(&tree.join("run.sh"), 0o600);
    std::fs::remove_file(tree.join("keep")).unwrap();
    write(&tree, "keep/now/a/directory", "x");
    std::fs::remove_dir(tree.join("empty")).unwrap();
    write(&tree, "empty", "now a file");
    std::fs::remove_file(tree.join("link")).unwrap();
    std::os::unix::fs::symlink("elsewhere", tree.join("link")).unwrap();
    write(&tree, "extra/deep/file", "x");
    set_mode(&tree.join("extra/deep"), 0o000);
    write(&tree, ".git/HEAD", "ref: refs/heads/other\n");
    std::fs::remove_dir_all(tree.join("ignored")).unwrap();
    std::fs::write(tree.join("big"), "small").unwrap();
    bench.restart();
    bench.restore(&good).await;
    assert_eq!(bench.snapshot().await, good);

    let mode = |path: &str| std::fs::symlink_metadata(tree.join(path)).unwrap().permissions().mode() & 0o7777;
    let read = |path: &str| std::fs::read_to_string(tree.join(path)).unwrap();
    assert_eq!((read("keep").as_str(), mode("run.sh"), mode("empty")), ("keep", 0o755, 0o555));
    assert_eq!(
        (read("ignored/x").as_str(), read(".git/HEAD").as_str()),
        ("also kept", "ref: refs/heads/main\n")
    );
    assert_eq!(std::fs::read_link(tree.join("link")).unwrap(), Path::new("../outside"));
    assert!(!tree.join("extra").exists() && tree.join("empty").is_dir());
    assert_eq!(read("big").len(), 10_000_000);
}

/// A link that a command left does not lead a restore out of the workspace.
#[tokio::test]
async fn restoring_follows_no_link() {
    let bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    write(&tree, "d/f", "inside");
    let good = bench.snapshot().await;
    let outside = bench.directory.path().join("outside");
    write(&outside, "f", "outside");
    std::fs::remove_dir_all(tree.join("d")).unwrap();
    std::os::unix::fs::symlink(&outside, tree.join("d")).unwrap();
    bench.restore(&good).await;
    assert_eq!(std::fs::read_to_string(outside.join("f")).unwrap(), "outside");
    assert_eq!(std::fs::read_to_string(tree.join("d/f")).unwrap(), "inside");
}

/// What a crash left half written is cut off; what was said to be kept is kept.
#[tokio::test]
async fn a_torn_end_loses_nothing_that_was_promised() {
    let mut bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    write(&tree, "f", "promised");
    let good = bench.snapshot().await;
    let objects = bench.directory.path().join("workspaces").join(bench.thread.to_string()).join("objects/0");
    let whole = std::fs::read(&objects).unwrap();
    write(&tree, "f", "not promised");
    bench.snapshot().await;
    let longer = std::fs::read(&objects).unwrap();
    for end in [whole.len(), whole.len() + 1, whole.len() + 60, longer.len() - 41, longer.len() - 1] {
        std::fs::write(&objects, longer.get(..end).unwrap()).unwrap();
        bench.restart();
        bench.restore(&good).await;
        assert_eq!(std::fs::read_to_string(tree.join("f")).unwrap(), "promised");
        write(&tree, "f", "again");
        let again = bench.snapshot().await;
        bench.restart();
        bench.restore(&again).await;
        assert_eq!(std::fs::read_to_string(tree.join("f")).unwrap(), "again");
    }
    let mut damaged = longer.clone();
    *damaged.get_mut(whole.len() + 45).unwrap() ^= 1;
    std::fs::write(&objects, damaged).unwrap();
    bench.restart();
    bench.restore(&good).await;
}

/// Several servers share the directory: a run goes from one to the other and back, and one that lost a
/// run without noticing goes on writing.
#[tokio::test]
async fn two_servers_keep_the_snapshots_of_both() {
    let first = Bench::new();
    let second = first.beside();
    let (tree, base) = first.open_empty().await;
    assert_eq!(second.open_empty().await, (tree.clone(), base.clone()));
    let mut taken = Vec::new();
    for round in 0..6 {
        for bench in [&first, &second, &second, &first] {
            let text = format!("{} {round}", taken.len());
            write(&tree, "f", &text);
            taken.push((bench.snapshot().await, text));
        }
    }
    for bench in [&first, &second, &first.beside()] {
        for (snapshot, text) in &taken {
            bench.restore(snapshot).await;
            assert_eq!(std::fs::read_to_string(tree.join("f")).unwrap(), *text);
        }
        assert!(bench.diff(&base).await.contains("+23 5"));
    }
    let objects = tree.parent().unwrap().join("objects");
    assert_eq!(std::fs::read_dir(objects).unwrap().count(), 2, "one file for each writer");
}

/// What the server knows of files that are gone is not taken for what is kept.
#[tokio::test]
async fn snapshots_go_on_after_their_files_were_removed() {
    let mut bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    write(&tree, "f", "text");
    bench.snapshot().await;
    std::fs::remove_dir_all(tree.parent().unwrap().join("objects")).unwrap();
    let kept = bench.snapshot().await;
    bench.restart();
    write(&tree, "f", "other");
    bench.restore(&kept).await;
    assert_eq!(std::fs::read_to_string(tree.join("f")).unwrap(), "text");
}

#[tokio::test]
async fn a_run_finds_its_first_snapshot_again() {
    let mut bench = Bench::new();
    let (tree, base) = bench.open_empty().await;
    write(&tree, "f", "changed by the run");
    bench.restart();
    assert_eq!(bench.open_empty().await, (tree, base.clone()));
    // The next run of the thread begins with what this one left.
    bench.run = RunId::new(bench.env.wall(), &bench.env.generator);
    let (_, next) = bench.open_empty().await;
    assert_ne!(next, base);
    assert_eq!(bench.diff(&next).await, "");
}

#[tokio::test]
async fn the_diff_shows_what_changed() {
    let bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    write(&tree, "a.txt", "one\ntwo\nthree\n");
    write(&tree, "gone.txt", "gone\n");
    write(&tree, "run.sh", "x\n");
    write(&tree, "bin", "\0a");
    write(&tree, ".gitignore", "target/\n*.log\n!keep.log\n");
    write(&tree, ".git/index", "1");
    let base = bench.snapshot().await;
    write(&tree, "a.txt", "one\n2\nthree");
    std::fs::remove_file(tree.join("gone.txt")).unwrap();
    set_mode(&tree.join("run.sh"), 0o755);
    write(&tree, "bin", "\0b");
    write(&tree, "new/file.txt", "new\n");
    write(&tree, "target/out", "built");
    write(&tree, "x.log", "log");
    write(&tree, "keep.log", "kept\n");
    write(&tree, ".git/index", "2");
    std::os::unix::fs::symlink("a.txt", tree.join("link")).unwrap();
    expect![[r#"
        diff --git a/a.txt b/a.txt
        --- a/a.txt
        +++ b/a.txt
        @@ -1,3 +1,3 @@
         one
        -two
        -three
        +2
        +three
        \ No newline at end of file
        diff --git a/bin b/bin
        Binary files a/bin and b/bin differ
        diff --git a/gone.txt b/gone.txt
        deleted file mode 100644
        --- a/gone.txt
        +++ /dev/null
        @@ -1 +0,0 @@
        -gone
        diff --git a/keep.log b/keep.log
        new file mode 100644
        --- /dev/null
        +++ b/keep.log
        @@ -0,0 +1 @@
        +kept
        diff --git a/link b/link
        new file mode 120000
        --- /dev/null
        +++ b/link
        @@ -0,0 +1 @@
        +a.txt
        \ No newline at end of file
        diff --git a/new/file.txt b/new/file.txt
        new file mode 100644
        --- /dev/null
        +++ b/new/file.txt
        @@ -0,0 +1 @@
        +new
        diff --git a/run.sh b/run.sh
        old mode 100644
        new mode 100755
    "#]]
    .assert_eq(&bench.diff(&base).await);
    bench.restore(&base).await;
    assert_eq!(bench.diff(&base).await, "");
}

#[tokio::test]
async fn a_directory_is_copied_without_its_credentials() {
    let bench = Bench::new();
    let repository = bench.repository();
    write(&repository, "src/main.rs", "fn main() {}\n");
    write(
        &repository,
        ".git/config",
        "[remote \"origin\"]\n\turl = https://user:canary-token@example.com/x.git\n[http]\n\textraheader = Authorization: canary\n",
    );
    std::os::unix::fs::symlink("/etc/passwd", repository.join("link")).unwrap();
    write(&repository, "sub/.git", "gitdir: ../../elsewhere\n");
    let (tree, _) = bench.open(Repository::Directory(repository.display().to_string())).await.unwrap();
    assert_eq!(
        std::fs::read_to_string(tree.join(".git/config")).unwrap(),
        "[remote \"origin\"]\n\turl = https://example.com/x.git\n[http]\n"
    );
    assert!(tree.join("link").is_symlink() && tree.join("sub").is_dir() && !tree.join("sub/.git").exists());
    // The original is left alone.
    write(&tree, "src/main.rs", "changed");
    assert_eq!(std::fs::read_to_string(repository.join("src/main.rs")).unwrap(), "fn main() {}\n");
}

#[tokio::test]
async fn a_url_is_cloned() {
    let bench = Bench::new();
    let repository = bench.repository();
    write(&repository, "a.txt", "hello\n");
    let script = "git init -q -b main . && git add -A && git -c user.name=n -c user.email=e commit -q -m m && \
                  printf '#!/bin/sh\\ntouch /tmp/evenkeel-hook-ran' > .git/hooks/post-checkout && chmod +x .git/hooks/post-checkout";
    let status = evenkeel_env::process::command("/bin/sh")
        .args(["-c", script])
        .current_dir(&repository)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .status();
    assert!(status.await.unwrap().success());
    let (tree, _) = bench.open(Repository::Url(format!("file://{}", repository.display()))).await.unwrap();
    assert_eq!(std::fs::read_to_string(tree.join("a.txt")).unwrap(), "hello\n");
    assert!(tree.join(".git/HEAD").exists() && !Path::new("/tmp/evenkeel-hook-ran").exists());
}

/// Programs that a repository can name in its own configuration and hooks, each of which would
/// leave a mark if anything outside of the sandbox ran git with it.
#[tokio::test]
async fn nothing_planted_in_a_repository_runs_outside() {
    let bench = Bench::new();
    let mark = bench.directory.path().join("mark");
    let (tree, base) = bench.open_empty().await;
    let program = format!("touch {}", mark.display());
    let config = format!(
        "[core]\n\tfsmonitor = {program}\n\tpager = {program}\n\thooksPath = .git/hooks\n\tsshCommand = {program}\n\
         [diff]\n\texternal = {program}\n[filter \"x\"]\n\tclean = {program}\n\tsmudge = {program}\n\
         [submodule \"x\"]\n\turl = ext::sh -c {program}\n[include]\n\tpath = /etc/passwd\n"
    );
    write(&tree, ".git/config", &config);
    write(&tree, ".git/HEAD", "ref: refs/heads/main\n");
    write(&tree, ".gitattributes", "* filter=x diff=x\n");
    write(&tree, ".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = ext::sh -c touch\n");
    for hook in ["pre-commit", "post-checkout", "post-index-change", "reference-transaction"] {
        write(&tree, &format!(".git/hooks/{hook}"), &format!("#!/bin/sh\n{program}\n"));
        set_mode(&tree.join(".git/hooks").join(hook), 0o755);
    }
    write(&tree, "f", "x\n");
    let planted = bench.snapshot().await;
    assert!(bench.diff(&base).await.contains("+x"));
    bench.restore(&base).await;
    bench.restore(&planted).await;
    assert!(tree.join(".git/hooks/pre-commit").exists() && !mark.exists());
}

#[tokio::test]
async fn what_may_not_be_used_is_refused_with_a_remedy() {
    let bench = Bench::new();
    let file = |path: &str| format!("file://{}/repositories/{path}", bench.directory.path().display());
    let mut table = String::new();
    for repository in [
        Repository::Directory("relative".to_owned()),
        Repository::Directory("/etc".to_owned()),
        Repository::Directory(bench.directory.path().join("repositories/../..").display().to_string()),
        Repository::Directory(bench.directory.path().join("repositories/none").display().to_string()),
        Repository::Url("https://example.com/x".to_owned()),
        Repository::Url("ext::sh -c touch% /tmp/x".to_owned()),
        Repository::Url("git@example.com:x.git".to_owned()),
        Repository::Url("file://user:canary@host/x".to_owned()),
        Repository::Url("https://canary@host/x".to_owned()),
        Repository::Url("file:///etc".to_owned()),
        Repository::Url("--upload-pack=touch /tmp/x".to_owned()),
    ] {
        let error = bench.open(repository).await.unwrap_err();
        let message = error.message.replace(&bench.directory.path().display().to_string(), "DIR");
        assert!(!message.contains("canary"));
        table.push_str(&format!("{} {message}\n", error.code));
    }
    expect![[r#"
        repository-unreadable The repository directory "relative" is not an absolute path.
        repository-unreadable The repository directory /etc is not under a directory that runs may use.
        repository-unreadable The repository directory DIR/repositories/../.. is not under a directory that runs may use.
        repository-unreadable The repository directory DIR/repositories/none cannot be read: No such file or directory (os error 2).
        repository-unreadable The repository URL "https://example.com/x" has no scheme that is allowed (file).
        repository-unreadable The repository URL "ext::sh -c touch% /tmp/x" has no scheme that is allowed (file).
        repository-unreadable The repository URL "git@example.com:x.git" has no scheme that is allowed (file).
        repository-unreadable The repository URL holds a user name or a password.
        repository-unreadable The repository URL holds a user name or a password.
        repository-unreadable The repository directory /etc is not under a directory that runs may use.
        repository-unreadable The repository URL "--upload-pack=touch /tmp/x" has no scheme that is allowed (file).
    "#]].assert_eq(&table);
    let error = bench.open(Repository::Url(file("none"))).await.unwrap_err();
    assert_eq!(error.code.as_str(), "repository-unreadable");
    // A failure leaves nothing that looks like a workspace.
    std::fs::create_dir(bench.repository()).unwrap();
    bench.open(Repository::Directory(bench.repository().display().to_string())).await.unwrap();
}

#[tokio::test]
async fn a_removed_workspace_is_gone() {
    let bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    write(&tree, "d/f", "x");
    set_mode(&tree.join("d"), 0o000);
    bench.workspaces.remove(bench.thread).await.unwrap();
    assert!(!tree.parent().unwrap().exists());
    let (tree, _) = bench.open_empty().await;
    assert_eq!(std::fs::read_dir(tree).unwrap().count(), 0);
}

/// An old thread whose workspace was removed goes on with what it had, not with a fresh copy of its
/// repository (OpenHands#12684, #6382).
#[tokio::test]
async fn a_workspace_that_is_gone_comes_back_as_it_was() {
    let mut bench = Bench::new();
    write(&bench.repository(), "kept", "from the repository\n");
    let repository = Repository::Directory(bench.repository().display().to_string());
    let (tree, _) = bench.open(repository.clone()).await.unwrap();
    write(&tree, "made/by", "the run\n");
    std::fs::remove_file(tree.join("kept")).unwrap();
    let newest = bench.snapshot().await;
    for restarted in [false, true] {
        std::fs::remove_dir_all(&tree).unwrap();
        if restarted {
            bench.restart();
        }
        let (again, _) = bench.open(repository.clone()).await.unwrap();
        assert_eq!(std::fs::read_to_string(again.join("made/by")).unwrap(), "the run\n");
        assert!(!again.join("kept").exists());
        assert_eq!(bench.snapshot().await, newest);
    }
}

#[tokio::test]
async fn an_unknown_snapshot_is_an_error_and_changes_nothing() {
    let bench = Bench::new();
    let (tree, _) = bench.open_empty().await;
    write(&tree, "f", "x");
    for id in ["nonsense".to_owned(), "0".repeat(64)] {
        let error = bench.workspaces.restore(bench.thread, SnapshotId(id)).await.unwrap_err();
        assert_eq!(error.code.as_str(), "workspace-failed");
    }
    assert_eq!(std::fs::read_to_string(tree.join("f")).unwrap(), "x");
}
