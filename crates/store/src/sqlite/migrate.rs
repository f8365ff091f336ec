//! The schema and its versions.
//!
//! Migrations are embedded, numbered from 1 and never changed once released; the file's
//! `user_version` is the number of the last one applied. They run at start, under the lock of the
//! data directory, all in one transaction.

use std::path::Path;

use evenkeel_core::{Code, Error, Origin};
use rusqlite::Connection;

use super::fault::faulty;
use crate::rows::{Fault, Rowed};

const MIGRATIONS: [&str; 3] = [
    include_str!("../migrations/0001_first.sql"),
    include_str!("../migrations/0002_policies.sql"),
    include_str!("../migrations/0003_approvals.sql"),
];

/// Marks the file as ours: "EVKL".
const APPLICATION_ID: i32 = 0x4556_4b4c;

/// Brings the schema to this version.
pub(super) fn run(conn: &mut Connection, file: &Path) -> Result<(), Error> {
    let found = pragma(conn, "user_version")?;
    let newest = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    check_ours(conn, file, found)?;
    if found > newest {
        return Err(Error::new(
            Code::StoreNewer,
            Origin::Store,
            format!("The store {} has schema version {found}; this Evenkeel knows {newest}.", file.display()),
            "Start the version of Evenkeel that wrote it, or a later one.",
        ));
    }
    let done = usize::try_from(found).unwrap_or(0);
    if found < newest { apply(conn, done, newest).map_err(Error::from) } else { Ok(()) }
}

fn apply(conn: &mut Connection, done: usize, newest: i64) -> Rowed<()> {
    let tx = conn.transaction().map_err(faulty)?;
    for sql in MIGRATIONS.iter().skip(done) {
        tx.execute_batch(sql).map_err(faulty)?;
    }
    tx.pragma_update(None, "user_version", newest).map_err(faulty)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(faulty)?;
    tx.commit().map_err(faulty)
}

/// A database of somebody else is left alone.
fn check_ours(conn: &Connection, file: &Path, version: i64) -> Result<(), Error> {
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|error| Error::from(faulty(error)))?;
    let ours = pragma(conn, "application_id")? == i64::from(APPLICATION_ID);
    if ours || (tables == 0 && version == 0) {
        return Ok(());
    }
    Err(Fault::Corrupt(format!("{} is a database, but not of Evenkeel", file.display())).into())
}

fn pragma(conn: &Connection, name: &str) -> Result<i64, Error> {
    conn.pragma_query_value(None, name, |row| row.get(0)).map_err(|error| Error::from(faulty(error)))
}
