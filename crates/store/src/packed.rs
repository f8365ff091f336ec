//! How large values are kept in an engine of rows: out of their row, compressed, named by their hash.
//!
//! A JSON body of at most [`INLINE_MAX`] bytes stays in its row. A longer one becomes a blob, so
//! that rows stay short and an equal body is stored once.

use evenkeel_core::id::BlobId;
use serde::Serialize;

use crate::rows::{Fault, Rowed};

/// Longer bodies are moved out of their row.
pub(crate) const INLINE_MAX: usize = 8 * 1024;

/// Compression pays from here; shorter blobs are kept as they are.
const PACK_MIN: usize = 256;

/// The level at which zstd packs: its own default, about 300 MB/s.
const PACK_LEVEL: i32 = 3;

/// The BLAKE3 hash that names a blob.
pub(crate) type Hash = [u8; 32];

/// A body as JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Rowed<String> {
    serde_json::to_string(value).map_err(|error| Fault::Misused(format!("body is not JSON: {error}")))
}

/// The hash of bytes.
pub(crate) fn hash(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// The bytes compressed, if that makes them shorter.
pub(crate) fn pack(bytes: &[u8]) -> Option<Vec<u8>> {
    let packed = if bytes.len() >= PACK_MIN { zstd::bulk::compress(bytes, PACK_LEVEL).ok() } else { None };
    packed.filter(|packed| packed.len() < bytes.len())
}

/// The inverse of [`pack`], for bytes of this length.
pub(crate) fn unpack(packed: &[u8], size: i64) -> Rowed<Vec<u8>> {
    let size = usize::try_from(size).map_err(|_| Fault::Corrupt("a blob has no size".to_owned()))?;
    zstd::bulk::decompress(packed, size)
        .map_err(|error| Fault::Corrupt(format!("a blob does not unpack: {error}")))
}

/// The hash that a blob id spells; `None` if it is not the id of any blob.
pub(crate) fn hash_of(id: &BlobId) -> Option<Hash> {
    let hash = blake3::Hash::from_hex(id.as_str()).ok()?;
    // Only the canonical lower-case spelling is an id.
    (hash.to_hex().as_str() == id.as_str()).then(|| *hash.as_bytes())
}

/// The id of the blob that this hash names.
pub(crate) fn id_of(hash: Hash) -> BlobId {
    BlobId(blake3::Hash::from_bytes(hash).to_hex().to_string())
}

/// SQL's integers are signed; instants and counts beyond 2^63 are kept as the largest.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The inverse of [`int`].
pub(crate) fn uint(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
