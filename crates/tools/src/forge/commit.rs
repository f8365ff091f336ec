//! The commit: a run's diff on top of the branch, or of the base where there is no branch yet, made
//! in a clone of its own and pushed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::forge::Delivery;

use super::broker::Broker;
use super::{is_branch, later, never};
use crate::git::Git;

/// One call of git, the forge's answers included.
const GIT_MAX: Duration = Duration::from_secs(300);
/// How far back a run's own commit is looked for.
const DEPTH: &str = "--depth=100";
/// The line by which a run's commit is known.
const TRAILER: &str = "Evenkeel-Run";
/// Characters of a title.
const TITLE_MAX: usize = 72;

/// A commit that the forge has shown.
pub(super) struct Made {
    pub(super) commit: String,
    /// The branch that it started from.
    pub(super) base: String,
}

/// A clone for one delivery.
pub(super) struct Clone<'a> {
    directory: PathBuf,
    delivery: &'a Delivery,
    branch: &'a str,
    way: &'a Broker,
}

impl<'a> Clone<'a> {
    pub(super) fn new(folder: &Path, delivery: &'a Delivery, branch: &'a str, way: &'a Broker) -> Self {
        Self { directory: folder.join(delivery.run.to_string()), delivery, branch, way }
    }

    /// Makes the commit and pushes it, unless that was done before.
    pub(super) async fn make(&self) -> Result<Made, Error> {
        self.prepare()
            .await
            .map_err(|error| later(format!("A folder for the clone cannot be made: {error}.")))?;
        self.git(&["init", "--quiet", "--template=", "."]).await?;
        let (base, exists) = self.look().await?;
        let from = if exists { self.branch } else { base.as_str() };
        self.git(&["fetch", "--quiet", "--no-tags", DEPTH, self.way.url(), &format!("refs/heads/{from}")])
            .await?;
        let commit = match self.made_before().await? {
            Some(commit) if exists => commit,
            _ => self.commit_and_push().await?,
        };
        Ok(Made { commit, base })
    }

    /// An empty folder, whatever a process that died has left there.
    async fn prepare(&self) -> std::io::Result<()> {
        self.remove().await;
        tokio::fs::create_dir_all(&self.directory).await
    }

    /// Removes it, off the threads that drive runs; what cannot be removed is in nobody's way.
    pub(super) async fn remove(&self) {
        let _ = tokio::fs::remove_dir_all(&self.directory).await;
    }

    /// The base, and whether the branch is there.
    async fn look(&self) -> Result<(String, bool), Error> {
        let heads = self.git(&["ls-remote", "--symref", self.way.url(), "HEAD", "refs/heads/*"]).await?;
        let default =
            heads.lines().find_map(|line| line.strip_prefix("ref: refs/heads/")?.strip_suffix("\tHEAD"));
        let base = self.delivery.wanted.base.as_deref().or(default);
        let has = |name: &str| heads.lines().any(|line| line.ends_with(&format!("\trefs/heads/{name}")));
        match base {
            Some(base) if is_branch(base) && has(base) => Ok((base.to_owned(), has(self.branch))),
            Some(base) => Err(never(
                format!("The repository has no branch {base:?} to start from."),
                "Name a branch that exists as deliver.base.",
            )),
            None => Err(never(
                "The repository has no default branch.".to_owned(),
                "Name the branch to start from as deliver.base.",
            )),
        }
    }

    /// This run's commit, if it is among the last ones of what was fetched.
    async fn made_before(&self) -> Result<Option<String>, Error> {
        let trailer = format!("--grep={TRAILER}: {}", self.delivery.run);
        let log =
            self.git(&["log", "-n", "1", "--format=%H", "--fixed-strings", &trailer, "FETCH_HEAD"]).await?;
        Ok(log.lines().next().map(str::to_owned))
    }

    async fn commit_and_push(&self) -> Result<String, Error> {
        self.git(&["checkout", "--quiet", "--detach", "FETCH_HEAD"]).await?;
        self.apply().await?;
        self.commit().await?;
        let commit = self.git(&["rev-parse", "HEAD"]).await?.trim().to_owned();
        let target = format!("HEAD:refs/heads/{}", self.branch);
        // Without force: what came to the branch meanwhile stays, and the next try is on top of it.
        self.git(&["push", "--quiet", self.way.url(), &target]).await?;
        self.read_back(&commit).await?;
        Ok(commit)
    }

    async fn apply(&self) -> Result<(), Error> {
        let git = self.call(&["apply", "--index", "--binary", "--whitespace=nowarn", "-"]);
        let applied = git.input(self.delivery.diff.as_bytes()).run().await;
        applied.map(drop).map_err(|why| {
            never(
                format!("What the run changed does not fit branch {} any more: {why}.", self.branch),
                "Start the run again from the branch as it is now; the run's diff is kept.",
            )
        })
    }

    /// Always the same commit for the same run and the same branch.
    async fn commit(&self) -> Result<(), Error> {
        let date = format!("{} +0000", self.delivery.at_s);
        let git = self
            .call(&["-c", "user.name=Evenkeel", "-c", "user.email=evenkeel@localhost"])
            .args(["commit", "--quiet", "--no-verify", "--cleanup=verbatim", "--file=-"])
            .env("GIT_AUTHOR_DATE", &date)
            .env("GIT_COMMITTER_DATE", &date)
            .input(message(self.delivery));
        git.run().await.map(drop).map_err(|why| later(format!("The commit cannot be made: {why}.")))
    }

    /// A push that was answered is one that happened only when the branch shows it.
    async fn read_back(&self, commit: &str) -> Result<(), Error> {
        let name = format!("refs/heads/{}", self.branch);
        let shown = self.git(&["ls-remote", self.way.url(), &name]).await?;
        match shown.split_whitespace().next() {
            Some(shown) if shown == commit => Ok(()),
            _ => Err(later(format!("The forge took the push of {} and does not show it.", self.branch))),
        }
    }

    fn call(&self, args: &[&str]) -> Git {
        Git::new(&self.directory, "http", GIT_MAX).args(args)
    }

    /// Runs git; what fails here may succeed later. The address of the broker is in no message.
    async fn git(&self, args: &[&str]) -> Result<String, Error> {
        self.call(args).run().await.map_err(|why| {
            let what = args.first().copied().unwrap_or_default();
            let why = why.replace(self.way.url(), &self.delivery.url);
            self.way.trouble().unwrap_or_else(|| later(format!("git {what} failed: {why}.")))
        })
    }
}

/// A delivery that was given up in between leaves no clone.
impl Drop for Clone<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The title, the run's answer, and the line by which it is found again.
fn message(delivery: &Delivery) -> String {
    let title = title(delivery);
    let text = delivery.text.trim();
    let body = if text.is_empty() || text == title { String::new() } else { format!("{text}\n\n") };
    format!("{title}\n\n{body}{TRAILER}: {}\n", delivery.run)
}

/// What was asked for, or the first line of the run's answer.
pub(super) fn title(delivery: &Delivery) -> String {
    let given = delivery.wanted.title.as_deref().unwrap_or(&delivery.text);
    let line = given.lines().find(|line| !line.trim().is_empty()).unwrap_or("Changes of a run").trim();
    if line.chars().count() <= TITLE_MAX {
        return line.to_owned();
    }
    let start: String = line.chars().take(TITLE_MAX - 3).collect();
    format!("{}...", start.trim_end())
}
