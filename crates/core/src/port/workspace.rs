//! The workspace port: a run's files, their snapshots by content, and the diff.

use std::path::PathBuf;

use futures_util::future::BoxFuture;

use crate::Error;
use crate::id::{RunId, SnapshotId, ThreadId};
use crate::run::Repository;

/// Workspaces on this machine. Snapshots live in a store of their own beside the workspace: a
/// snapshot is a tree of hashes, and holds the workspace's `.git` as it holds every other directory.
/// The host runs no program over what a run wrote.
pub trait Workspaces: Send + Sync {
    /// Makes the workspace of a thread from its repository, or finds the one made before.
    /// Returns its path and its first snapshot.
    ///
    /// # Errors
    /// `repository-unreadable`, `workspace-failed`.
    fn open(
        &self,
        thread: ThreadId,
        run: RunId,
        repository: Repository,
    ) -> BoxFuture<'_, Result<(PathBuf, SnapshotId), Error>>;

    /// Snapshots the workspace as it is. Cheap when nothing changed (the same id again).
    ///
    /// # Errors
    /// `workspace-failed`.
    fn snapshot(&self, thread: ThreadId) -> BoxFuture<'_, Result<SnapshotId, Error>>;

    /// Puts the workspace back to a snapshot, byte for byte, extra files removed.
    ///
    /// # Errors
    /// `workspace-failed`.
    fn restore(&self, thread: ThreadId, snapshot: SnapshotId) -> BoxFuture<'_, Result<(), Error>>;

    /// Unified diff from `from` to the workspace as it is.
    ///
    /// # Errors
    /// `workspace-failed`.
    fn diff(&self, thread: ThreadId, from: SnapshotId) -> BoxFuture<'_, Result<String, Error>>;

    /// Removes the workspace and its snapshots.
    ///
    /// # Errors
    /// `workspace-failed`.
    fn remove(&self, thread: ThreadId) -> BoxFuture<'_, Result<(), Error>>;
}
