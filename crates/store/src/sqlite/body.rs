//! How values are written into columns: JSON bodies, blobs, integers.
//!
//! A body of at most [`packed::INLINE_MAX`] bytes is TEXT in its row. A longer one is moved into `blobs`,
//! compressed and named by its hash, and the row holds the hash as a BLOB; reading undoes both. So
//! rows stay short and an equal body is stored once.

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::fault::faulty;
use crate::packed;
pub(super) use crate::packed::{hash_of, int, uint};
use crate::rows::{Fault, Rowed};

/// A body as its column holds it.
pub(super) enum Body {
    Inline(String),
    Moved([u8; 32]),
}

impl ToSql for Body {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Inline(json) => ToSqlOutput::Borrowed(ValueRef::Text(json.as_bytes())),
            Self::Moved(hash) => ToSqlOutput::Owned(Value::Blob(hash.to_vec())),
        })
    }
}

/// Makes the column value of a body, storing its blob if it is long.
pub(super) fn write<T: Serialize>(conn: &Connection, value: &T) -> Rowed<Body> {
    let json = packed::json(value)?;
    if json.len() <= packed::INLINE_MAX {
        return Ok(Body::Inline(json));
    }
    put_blob(conn, json.as_bytes()).map(Body::Moved)
}

/// Notes that a thread names the blob of a body that was moved out of its row.
pub(super) fn name_moved(conn: &Connection, thread_n: u64, body: &Body) -> Rowed<()> {
    match body {
        Body::Inline(_) => Ok(()),
        Body::Moved(hash) => name_blob(conn, thread_n, hash),
    }
}

/// Notes that a thread names a blob: it stays as long as the thread.
pub(super) fn name_blob(conn: &Connection, thread_n: u64, hash: &[u8; 32]) -> Rowed<()> {
    conn.prepare_cached("INSERT OR IGNORE INTO blob_names (blob, thread) VALUES (?1, ?2)")
        .map_err(faulty)?
        .execute(params![hash, int(thread_n)])
        .map(drop)
        .map_err(faulty)
}

/// Reads the body in column `idx`.
pub(super) fn read<T: DeserializeOwned>(conn: &Connection, row: &Row<'_>, idx: usize) -> Rowed<T> {
    let undecodable = |error: serde_json::Error| Fault::Corrupt(format!("a body does not decode: {error}"));
    match row.get_ref(idx).map_err(faulty)? {
        ValueRef::Text(json) => serde_json::from_slice(json).map_err(undecodable),
        ValueRef::Blob(hash) => {
            let bytes =
                blob(conn, hash)?.ok_or_else(|| Fault::Corrupt("a moved body is missing".to_owned()))?;
            serde_json::from_slice(&bytes).map_err(undecodable)
        }
        _ => Err(Fault::Corrupt("a body is neither text nor a reference".to_owned())),
    }
}

/// Stores bytes under their hash; equal bytes are stored once.
pub(super) fn put_blob(conn: &Connection, bytes: &[u8]) -> Rowed<[u8; 32]> {
    let hash = packed::hash(bytes);
    let mut known = conn.prepare_cached("SELECT 1 FROM blobs WHERE id = ?1").map_err(faulty)?;
    if known.exists(params![hash]).map_err(faulty)? {
        return Ok(hash);
    }
    let packed = packed::pack(bytes);
    conn.prepare_cached("INSERT INTO blobs (id, size, packed, bytes) VALUES (?1, ?2, ?3, ?4)")
        .map_err(faulty)?
        .execute(params![hash, int(bytes.len() as u64), packed.is_some(), packed.as_deref().unwrap_or(bytes)])
        .map_err(faulty)?;
    Ok(hash)
}

/// Reads bytes by their hash.
pub(super) fn blob(conn: &Connection, hash: &[u8]) -> Rowed<Option<Vec<u8>>> {
    let mut select =
        conn.prepare_cached("SELECT size, packed, bytes FROM blobs WHERE id = ?1").map_err(faulty)?;
    let stored: Option<(i64, bool, Vec<u8>)> = select
        .query_row(params![hash], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()
        .map_err(faulty)?;
    let Some((size, packed, bytes)) = stored else {
        return Ok(None);
    };
    if !packed {
        return Ok(Some(bytes));
    }
    packed::unpack(&bytes, size).map(Some)
}
