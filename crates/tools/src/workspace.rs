//! Workspaces: a run's files on this machine, their snapshots, and the diff.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_core::id::{RunId, SnapshotId, ThreadId};
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_core::run::Repository;
use evenkeel_env::Env;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

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
    _root: PathBuf,
}

impl ShadowWorkspaces {
    /// Workspaces under `root`, made from the `allowed` repositories.
    #[must_use]
    pub fn new(_env: &Env, root: PathBuf, _allowed: AllowedSources) -> Arc<Self> {
        Arc::new(Self { _root: root })
    }
}

fn unbuilt() -> Error {
    Error::internal("Workspaces are not built yet.")
}

impl Workspaces for ShadowWorkspaces {
    fn open(
        &self,
        _thread: ThreadId,
        _run: RunId,
        _repository: Repository,
    ) -> BoxFuture<'_, Result<(PathBuf, SnapshotId), Error>> {
        Box::pin(async { Err(unbuilt()) })
    }

    fn snapshot(&self, _thread: ThreadId) -> BoxFuture<'_, Result<SnapshotId, Error>> {
        Box::pin(async { Err(unbuilt()) })
    }

    fn restore(&self, _thread: ThreadId, _snapshot: SnapshotId) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Err(unbuilt()) })
    }

    fn diff(&self, _thread: ThreadId, _from: SnapshotId) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async { Err(unbuilt()) })
    }

    fn remove(&self, _thread: ThreadId) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Err(unbuilt()) })
    }
}
