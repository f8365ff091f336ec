//! The objects of one workspace's snapshots: contents by hash in one append-only file.
//!
//! ```text
//! file   = group*
//! group  = object* commit          made durable before the next group begins
//! object = kind(1: R raw, Z zstd) hash(32) stored_len(8) bytes
//! commit = 'C' hash of the group's bytes before it (32) zero(8)
//! ```
//! What holds: an object that is in the index can be read back, because every read compares the
//! hash; a torn tail (a crash while a group was written) is cut off when the file is opened, back
//! to the last commit whose group is whole. Earlier groups need no look: they were durable before
//! the next one began. One file rather than one per object: a snapshot that adds fifty files costs
//! one write and one sync.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A BLAKE3 hash.
pub(super) type Hash = [u8; 32];

const HEADER: u64 = 41;

/// Larger contents are stored as they are, in one pass, without being held in memory.
const WHOLE_BYTES_MAX: u64 = 8 << 20;

/// Bytes that are collected before they are written.
const PENDING_MAX: usize = 4 << 20;

/// Buffer for contents that are not held in memory.
const CHUNK: usize = 256 << 10;

/// Where an object's bytes lie.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    stored_len: u64,
    compressed: bool,
}

/// The open file and its index.
pub(super) struct Objects {
    file: File,
    index: BTreeMap<Hash, Place>,
    /// Where the next byte goes.
    end: u64,
    /// Bytes before `end` that are not in the file yet.
    pending: Vec<u8>,
    /// Hash of the bytes of the group that is being written; `None` if it has none.
    group: Option<blake3::Hasher>,
}

impl Objects {
    /// Opens the file, or makes it, and cuts off a torn tail.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut objects = Self { file, index: BTreeMap::new(), end: 0, pending: Vec::new(), group: None };
        objects.load()?;
        Ok(objects)
    }

    fn load(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        let mut groups: Vec<(u64, u64, Hash)> = Vec::new();
        let mut objects: Vec<(Hash, Place)> = Vec::new();
        let (mut at, mut begun) = (0, 0);
        while at + HEADER <= length {
            let (kind, hash, stored_len) = self.header(at)?;
            let after = at.saturating_add(HEADER).saturating_add(stored_len);
            match kind {
                b'C' if stored_len == 0 => {
                    groups.push((begun, at, hash));
                    begun = after;
                }
                b'R' | b'Z' if after <= length => {
                    objects.push((hash, Place { at: at + HEADER, stored_len, compressed: kind == b'Z' }));
                }
                _ => break,
            }
            at = after;
        }
        while let Some((begun, commit, hash)) = groups.pop() {
            if self.hash_of(begun, commit)? == hash {
                self.end = commit + HEADER;
                break;
            }
        }
        self.index = objects.into_iter().filter(|(_, place)| place.at < self.end).collect();
        if self.end < length {
            self.file.set_len(self.end)?;
        }
        Ok(())
    }

    fn header(&self, at: u64) -> io::Result<(u8, Hash, u64)> {
        let mut header = [0u8; HEADER as usize];
        self.file.read_exact_at(&mut header, at)?;
        let [kind, rest @ ..] = header;
        let (mut hash, mut length) = ([0u8; 32], [0u8; 8]);
        hash.copy_from_slice(rest.get(..32).unwrap_or(&[0; 32]));
        length.copy_from_slice(rest.get(32..).unwrap_or(&[0; 8]));
        Ok((kind, hash, u64::from_le_bytes(length)))
    }

    fn hash_of(&mut self, from: u64, to: u64) -> io::Result<Hash> {
        self.file.seek(SeekFrom::Start(from))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader((&mut self.file).take(to - from))?;
        Ok(*hasher.finalize().as_bytes())
    }

    /// Stores bytes; what is there already is not stored again.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<Hash> {
        let hash = *blake3::hash(bytes).as_bytes();
        if !self.index.contains_key(&hash) {
            let small = zstd::bulk::compress(bytes, 1).ok().filter(|small| small.len() < bytes.len());
            match small {
                Some(small) => self.append(hash, &small, true)?,
                None => self.append(hash, bytes, false)?,
            }
        }
        Ok(hash)
    }

    /// Stores the content of a file of `size` bytes.
    pub(super) fn put_file(&mut self, file: &mut File, size: u64) -> io::Result<Hash> {
        if size <= WHOLE_BYTES_MAX {
            let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
            file.read_to_end(&mut bytes)?;
            return self.put(&bytes);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&mut *file)?;
        let hash = *hasher.finalize().as_bytes();
        if !self.index.contains_key(&hash) {
            file.seek(SeekFrom::Start(0))?;
            self.append_stream(hash, file, size)?;
        }
        Ok(hash)
    }

    fn append(&mut self, hash: Hash, stored: &[u8], compressed: bool) -> io::Result<()> {
        let at = self.begin(hash, if compressed { b'Z' } else { b'R' }, stored.len() as u64)?;
        self.write(stored)?;
        self.index.insert(hash, Place { at, stored_len: stored.len() as u64, compressed });
        Ok(())
    }

    fn append_stream(&mut self, hash: Hash, file: &mut File, size: u64) -> io::Result<()> {
        // With nothing pending, going back is only a matter of `end`.
        self.flush()?;
        let begun = (self.end, self.group.clone());
        let at = self.begin(hash, b'R', size)?;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0u8; CHUNK];
        let mut left = size;
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let buffer = chunk.get_mut(..wanted).unwrap_or_default();
            file.read_exact(buffer)?;
            hasher.update(buffer);
            self.write(buffer)?;
            left -= wanted as u64;
        }
        if *hasher.finalize().as_bytes() != hash {
            self.pending.clear();
            (self.end, self.group) = begun;
            return Err(io::Error::other("the file changed while it was read"));
        }
        self.index.insert(hash, Place { at, stored_len: size, compressed: false });
        Ok(())
    }

    fn begin(&mut self, hash: Hash, kind: u8, stored_len: u64) -> io::Result<u64> {
        self.group.get_or_insert_with(blake3::Hasher::new);
        self.write(&[kind])?;
        self.write(&hash)?;
        self.write(&stored_len.to_le_bytes())?;
        Ok(self.end)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        self.end += bytes.len() as u64;
        if let Some(group) = &mut self.group {
            group.update(bytes);
        }
        if self.pending.len() >= PENDING_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.end - self.pending.len() as u64)?;
        self.pending.clear();
        Ok(())
    }

    /// Makes everything stored so far durable. Costs nothing if nothing was added.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        let Some(group) = self.group.take() else {
            return Ok(());
        };
        let hash = *group.finalize().as_bytes();
        self.write(b"C")?;
        self.write(&hash)?;
        self.write(&0u64.to_le_bytes())?;
        self.flush()?;
        self.file.sync_data()
    }

    /// The object's bytes; `None` if there is no such object. Only for what was committed.
    pub(super) fn get(&self, hash: &Hash) -> io::Result<Option<Vec<u8>>> {
        let Some(mut reader) = self.reader(hash)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        check(&bytes, hash)?;
        Ok(Some(bytes))
    }

    /// Bytes that an object takes here; zero if there is no such object.
    pub(super) fn len_of(&self, hash: &Hash) -> u64 {
        self.index.get(hash).map_or(0, |place| place.stored_len)
    }

    /// Writes an object's bytes into a file; false if there is no such object.
    pub(super) fn copy_to(&self, hash: &Hash, file: &mut File) -> io::Result<bool> {
        let Some(place) = self.index.get(hash) else {
            return Ok(false);
        };
        if place.stored_len <= WHOLE_BYTES_MAX {
            let bytes = self.get(hash)?.unwrap_or_default();
            file.write_all(&bytes)?;
            return Ok(true);
        }
        let mut hasher = blake3::Hasher::new();
        let mut reader = self.range(*place);
        let mut chunk = vec![0u8; CHUNK];
        loop {
            let n_bytes = reader.read(&mut chunk)?;
            let read = chunk.get(..n_bytes).unwrap_or_default();
            if read.is_empty() {
                break;
            }
            hasher.update(read);
            file.write_all(read)?;
        }
        if hasher.finalize().as_bytes() != hash {
            return Err(damaged());
        }
        Ok(true)
    }

    fn reader(&self, hash: &Hash) -> io::Result<Option<Box<dyn Read + '_>>> {
        let Some(place) = self.index.get(hash) else {
            return Ok(None);
        };
        let range = self.range(*place);
        Ok(Some(if place.compressed {
            Box::new(zstd::stream::read::Decoder::with_buffer(BufReader::new(range))?)
        } else {
            Box::new(range)
        }))
    }

    fn range(&self, place: Place) -> Range<'_> {
        Range { file: &self.file, at: place.at, end: place.at + place.stored_len }
    }
}

fn check(bytes: &[u8], hash: &Hash) -> io::Result<()> {
    if blake3::hash(bytes).as_bytes() == hash { Ok(()) } else { Err(damaged()) }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a stored content is damaged")
}

/// A part of the file, read without moving its position.
struct Range<'f> {
    file: &'f File,
    at: u64,
    end: u64,
}

impl Read for Range<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let n_bytes = self.file.read_at(buffer.get_mut(..left).unwrap_or_default(), self.at)?;
        self.at += n_bytes as u64;
        Ok(n_bytes)
    }
}
