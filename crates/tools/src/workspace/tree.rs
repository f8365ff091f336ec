//! A directory as an object: its entries in the order of their names. A snapshot's id is the hash
//! of its root directory, so equal workspaces have equal ids.

use std::ffi::CString;

use super::objects::Hash;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A regular file; the hash is of its content.
    File,
    /// A symbolic link; the hash is of its target.
    Link,
    /// A directory; the hash is of its tree.
    Directory,
    /// A file too large to be kept; the hash is of its size and times.
    Oversize,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: CString,
    pub(super) kind: Kind,
    /// Permission bits; zero for links, which have none.
    pub(super) mode: u32,
    pub(super) hash: Hash,
}

const KINDS: [(u8, Kind); 4] =
    [(b'f', Kind::File), (b'l', Kind::Link), (b'd', Kind::Directory), (b'o', Kind::Oversize)];

/// The bytes of a directory. Entries must be sorted by name.
pub(super) fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = b"evenkeel tree 1\n".to_vec();
    for entry in entries {
        let mark = KINDS.iter().find(|(_, kind)| *kind == entry.kind).map_or(b'f', |(mark, _)| *mark);
        bytes.push(mark);
        bytes.extend(entry.mode.to_le_bytes());
        bytes.extend(entry.hash);
        bytes.extend(entry.name.as_bytes_with_nul());
    }
    bytes
}

/// The entries of a directory; `None` if the bytes are not one.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut rest = bytes.strip_prefix(b"evenkeel tree 1\n")?;
    let mut entries = Vec::new();
    while let Some((mark, after)) = rest.split_first() {
        let kind = KINDS.iter().find(|(known, _)| known == mark)?.1;
        let (mode, after) = after.split_first_chunk::<4>()?;
        let (hash, after) = after.split_first_chunk::<32>()?;
        let end = after.iter().position(|byte| *byte == 0)?;
        let name = CString::new(after.get(..end)?).ok()?;
        rest = after.get(end + 1..)?;
        entries.push(Entry { name, kind, mode: u32::from_le_bytes(*mode), hash: *hash });
    }
    Some(entries)
}

/// A hash as the text of a snapshot's id.
pub(super) fn hex(hash: &Hash) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

/// The hash of a snapshot's id.
pub(super) fn parse_hex(text: &str) -> Option<Hash> {
    blake3::Hash::from_hex(text).ok().map(|hash| *hash.as_bytes())
}
