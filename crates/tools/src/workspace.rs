//! Workspaces: a run's files on this machine, their snapshots, and the diff.
//!
//! ```text
//! <root>/<thread>/tree      the files, mounted into the sandbox as /workspace
//!                 objects   contents of all snapshots (see `objects`)
//!                 bases/    the first snapshot of each run
//! ```
//! A snapshot is a tree of hashes in a store of our own, not a commit of git's: no program runs on
//! what untrusted commands wrote, the workspace's own `.git` is kept like any other file (git
//! refuses to), and an unchanged workspace costs a look at its files' times. The id is the hash of
//! the content, so equal workspaces have equal ids. Contents are durable before an id is returned.
//!
//! Work that blocks runs on threads of its own, one piece at a time for each workspace.

mod diff;
mod objects;
mod shadow;
mod source;
mod tree;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_core::id::{RunId, SnapshotId, ThreadId};
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_core::run::Repository;
use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::blocking::Blocking;
use crate::forge::Hosts;
use objects::Hash;
use shadow::Shadow;

/// Threads for copies, snapshots and diffs.
const N_THREADS: usize = 3;

/// Shadows that are kept open; others are opened again from their files.
const OPEN_MAX: usize = 256;

/// Which repositories a run may name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AllowedSources {
    /// Directories of this machine under which a repository may lie; empty allows none.
    pub directories: Vec<PathBuf>,
    /// Schemes of URLs that may be cloned: `https`, `file`.
    pub url_schemes: Vec<String>,
    /// Largest repository in bytes.
    pub bytes_max: u64,
    /// Most files and directories in a repository.
    pub files_max: u64,
    /// Seconds that a clone may take.
    pub clone_s_max: u64,
}

impl Default for AllowedSources {
    fn default() -> Self {
        Self {
            directories: Vec::new(),
            url_schemes: vec!["https".to_owned()],
            bytes_max: 4 << 30,
            files_max: 500_000,
            clone_s_max: 300,
        }
    }
}

/// Workspaces with their snapshots under one directory.
pub struct ShadowWorkspaces {
    root: PathBuf,
    allowed: Arc<AllowedSources>,
    hosts: Arc<Hosts>,
    pool: Blocking,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    open: BTreeMap<ThreadId, Arc<Place>>,
    /// Counts uses, for giving up the one that was used the longest time ago.
    clock: u64,
}

/// One thread's workspace.
struct Place {
    directory: PathBuf,
    used_at: Mutex<u64>,
    shadow: Mutex<Option<Shadow>>,
    /// Held while the workspace is made.
    making: tokio::sync::Mutex<()>,
}

impl Place {
    fn tree(&self) -> PathBuf {
        self.directory.join("tree")
    }

    /// Works with the shadow, opened if need be. After a failure it is opened anew: what it holds
    /// in memory may be more than what is in its files.
    fn with<T>(&self, work: impl FnOnce(&mut Shadow) -> io::Result<T>) -> io::Result<T> {
        let mut guard = self.shadow.lock().unwrap_or_else(PoisonError::into_inner);
        // One that cannot be read on has been taken away, and is opened as it is now.
        let known = guard.take().and_then(|mut shadow| shadow.objects.refresh().is_ok().then_some(shadow));
        let mut shadow = match known {
            Some(shadow) => shadow,
            None => Shadow::open(&self.directory, &self.tree())?,
        };
        let done = work(&mut shadow);
        if done.is_ok() {
            *guard = Some(shadow);
        }
        done
    }

    fn snapshot(&self) -> io::Result<SnapshotId> {
        let id = self.with(Shadow::snapshot).map(|hash| SnapshotId(tree::hex(&hash)))?;
        self.remember(&id)?;
        Ok(id)
    }

    /// Notes the newest snapshot: what the workspace is made from when its tree has gone.
    fn remember(&self, id: &SnapshotId) -> io::Result<()> {
        let path = self.newest_path();
        if std::fs::read(&path).is_ok_and(|known| known == id.as_str().as_bytes()) {
            return Ok(());
        }
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, id.as_str())?;
        std::fs::rename(&temporary, &path)
    }

    fn newest(&self) -> Option<Hash> {
        tree::parse_hex(std::fs::read_to_string(self.newest_path()).ok()?.trim())
    }

    fn newest_path(&self) -> PathBuf {
        self.directory.join("newest")
    }

    /// Makes the tree as it was at its newest snapshot, in `half`. False if there is none.
    fn make_again(&self, half: &Path) -> io::Result<bool> {
        let Some(newest) = self.newest() else { return Ok(false) };
        // What is held in memory is about files that are gone.
        *self.shadow.lock().unwrap_or_else(PoisonError::into_inner) = None;
        std::fs::create_dir(half)?;
        Shadow::open(&self.directory, half)?.restore(&newest)?;
        Ok(true)
    }

    /// The first snapshot of a run: taken once, then remembered, also over a crash.
    fn base(&self, run: RunId) -> io::Result<SnapshotId> {
        let path = self.directory.join("bases").join(run.to_string());
        if let Ok(text) = std::fs::read_to_string(&path)
            && tree::parse_hex(text.trim()).is_some()
        {
            return Ok(SnapshotId(text.trim().to_owned()));
        }
        let id = self.snapshot()?;
        std::fs::create_dir_all(self.directory.join("bases"))?;
        let temporary = path.with_extension("tmp");
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(id.as_str().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        Ok(id)
    }
}

impl ShadowWorkspaces {
    /// Workspaces under `root`, made from the `allowed` repositories, with a login where one of the
    /// `hosts` wants one.
    #[must_use]
    pub fn new(env: &Env, root: PathBuf, allowed: AllowedSources, hosts: Arc<Hosts>) -> Arc<Self> {
        let pool = Blocking::start(env, "workspaces", N_THREADS);
        Arc::new(Self { root, allowed: Arc::new(allowed), hosts, pool, places: Mutex::default() })
    }

    fn place(&self, thread: ThreadId) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.clock += 1;
        let clock = places.clock;
        let directory = self.root.join(thread.to_string());
        let place = places.open.entry(thread).or_insert_with(|| {
            Arc::new(Place {
                directory,
                used_at: Mutex::new(clock),
                shadow: Mutex::new(None),
                making: tokio::sync::Mutex::new(()),
            })
        });
        *place.used_at.lock().unwrap_or_else(PoisonError::into_inner) = clock;
        let place = place.clone();
        if places.open.len() > OPEN_MAX {
            places.give_up_one();
        }
        place
    }

    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.pool.run(work).await;
        let done = done.map_err(|_| Error::internal(format!("A thread that should {what} failed.")))?;
        done.map_err(|error| workspace_failed(what, &error))
    }

    async fn make(&self, place: &Arc<Place>, repository: Repository) -> Result<(), Error> {
        let _making = place.making.lock().await;
        let (tree, half) = (place.tree(), place.directory.join("tree.half"));
        let (exists, cleared) = (tree.clone(), half.clone());
        // What a crash left half made is made again.
        let exists = self
            .blocking("prepare the workspace", move || {
                if exists.is_dir() {
                    return Ok(true);
                }
                remove_all(&cleared)?;
                std::fs::create_dir_all(cleared.parent().unwrap_or(&cleared))?;
                Ok(false)
            })
            .await?;
        if exists {
            return Ok(());
        }
        let (again, into) = (place.clone(), half.clone());
        if !self.blocking("make the workspace again", move || again.make_again(&into)).await? {
            self.fill(place, &half, repository).await?;
        }
        self.blocking("prepare the workspace", move || std::fs::rename(&half, &tree)).await
    }

    async fn fill(&self, place: &Place, half: &Path, repository: Repository) -> Result<(), Error> {
        let (half, allowed) = (half.to_owned(), self.allowed.clone());
        match repository {
            Repository::Empty => self.blocking("make a directory", move || std::fs::create_dir(&half)).await,
            Repository::Directory(written) => {
                let copied = self.blocking("copy the repository", move || {
                    Ok(source::allowed_directory(&written, &allowed)
                        .and_then(|from| source::copy(&from, &half, &allowed)))
                });
                copied.await?
            }
            Repository::Url(url) => {
                let home = place.directory.join("home");
                let (checked, made, rules) = (url.clone(), home.clone(), allowed.clone());
                let check = self.blocking("make a directory", move || {
                    std::fs::create_dir_all(&made)?;
                    Ok(source::allowed_url(&checked, &rules))
                });
                check.await??;
                let way = self.hosts.way(&url).await;
                let way = way.map_err(|error| workspace_failed("open a way to the repository", &error))?;
                source::clone(&url, &half, &home, &allowed, way.as_ref()).await
            }
        }
    }
}

impl Places {
    fn give_up_one(&mut self) {
        let used_at = |place: &Place| *place.used_at.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is in use is never given up: two shadows of one workspace would not agree.
        let idle = self.open.iter().filter(|(_, place)| Arc::strong_count(place) == 1);
        let oldest = idle.min_by_key(|(_, place)| used_at(place)).map(|(thread, _)| *thread);
        if let Some(thread) = oldest {
            self.open.remove(&thread);
        }
    }
}

fn remove_all(path: &Path) -> io::Result<()> {
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let parent = match shadow::open_root(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let name = std::ffi::CString::new(name.as_bytes())?;
    shadow::remove(parent.as_fd(), &name)
}

fn workspace_failed(what: &str, error: &io::Error) -> Error {
    let failed = Error::new(
        Code::WorkspaceFailed,
        Origin::Ours,
        format!("Could not {what}: {error}."),
        "Check the free space and the permissions of the data directory.",
    );
    // A missing or damaged snapshot does not come back; a full disk does.
    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) {
        failed
    } else {
        failed.retryable()
    }
}

fn hash_of(snapshot: &SnapshotId) -> io::Result<Hash> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("{snapshot} is not a snapshot's id"));
    tree::parse_hex(snapshot.as_str()).ok_or_else(bad)
}

impl Workspaces for ShadowWorkspaces {
    fn open(
        &self,
        thread: ThreadId,
        run: RunId,
        repository: Repository,
    ) -> BoxFuture<'_, Result<(PathBuf, SnapshotId), Error>> {
        Box::pin(async move {
            let place = self.place(thread);
            self.make(&place, repository).await?;
            let tree = place.tree();
            let base = self.blocking("take the first snapshot", move || place.base(run)).await?;
            Ok((tree, base))
        })
    }

    fn snapshot(&self, thread: ThreadId) -> BoxFuture<'_, Result<SnapshotId, Error>> {
        let place = self.place(thread);
        Box::pin(self.blocking("take a snapshot", move || place.snapshot()))
    }

    fn restore(&self, thread: ThreadId, snapshot: SnapshotId) -> BoxFuture<'_, Result<(), Error>> {
        let place = self.place(thread);
        Box::pin(self.blocking("restore the workspace", move || {
            let target = hash_of(&snapshot)?;
            place.with(|shadow| shadow.restore(&target))
        }))
    }

    fn diff(&self, thread: ThreadId, from: SnapshotId) -> BoxFuture<'_, Result<String, Error>> {
        let place = self.place(thread);
        Box::pin(self.blocking("compare the workspace", move || {
            let from = hash_of(&from)?;
            place.with(|shadow| {
                let to = shadow.snapshot()?;
                diff::diff(shadow, &from, &to)
            })
        }))
    }

    fn remove(&self, thread: ThreadId) -> BoxFuture<'_, Result<(), Error>> {
        let place = self.place(thread);
        Box::pin(async move {
            let removed = self.blocking("remove the workspace", move || {
                let mut shadow = place.shadow.lock().unwrap_or_else(PoisonError::into_inner);
                *shadow = None;
                remove_all(&place.directory)
            });
            removed.await?;
            self.places.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&thread);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
