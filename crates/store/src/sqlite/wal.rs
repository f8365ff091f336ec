//! The write-ahead log: how large it is, and when it is moved into the main file.
//!
//! SQLite's own checkpoint would run inside some unlucky commit; here it runs between two batches,
//! after their replies. A passive checkpoint suffices as long as readers are short: once all is
//! moved the next commit starts the log anew. When a reader was in the way and the log has grown
//! past its cap, a truncating checkpoint waits for the readers, whose age is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;

use super::fault::faulty;
use crate::rows::Rowed;

/// Watches one connection's commits.
pub(super) struct WalWatch {
    pages: Arc<AtomicU64>,
    page_bytes: u64,
}

impl WalWatch {
    /// Starts to watch. Takes the place of SQLite's own automatic checkpoint.
    pub(super) fn install(conn: &mut Connection, page_bytes: u64) -> Rowed<Self> {
        let pages = Arc::new(AtomicU64::new(0));
        let seen = pages.clone();
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: std::ffi::c_int| {
            seen.store(u64::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(hook)).map_err(faulty)?;
        Ok(Self { pages, page_bytes })
    }

    /// Bytes in the log after the last commit or checkpoint.
    pub(super) fn bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed).saturating_mul(self.page_bytes)
    }

    /// Moves the log into the main file; with `truncate` also waits for readers and empties it.
    pub(super) fn checkpoint(&self, conn: &Connection, truncate: bool) -> Rowed<()> {
        let sql = if truncate { "PRAGMA wal_checkpoint(TRUNCATE)" } else { "PRAGMA wal_checkpoint(PASSIVE)" };
        let (in_log, moved): (i64, i64) =
            conn.query_row(sql, [], |row| Ok((row.get(1)?, row.get(2)?))).map_err(faulty)?;
        let left = u64::try_from(in_log.saturating_sub(moved)).unwrap_or(0);
        self.pages.store(left, Ordering::Relaxed);
        Ok(())
    }
}
