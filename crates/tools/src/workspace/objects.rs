//! The objects of one workspace's snapshots: contents by hash in append-only files.
//!
//! ```text
//! objects/<number>   one file for each writer
//! file   = group*
//! group  = object* commit          made durable before the next group begins
//! object = kind(1: R raw, Z zstd) hash(32) stored_len(8) bytes
//! commit = 'C' hash of the group's bytes before it (32) zero(8)
//! ```
//! What holds: an object that is in the index can be read back, because every read compares the
//! hash; a torn tail (a crash while a group was written) counts for nothing, back to the last commit
//! whose group is whole. Earlier groups need no look: they were durable before the next one began.
//! One file rather than one per object: a snapshot that adds fifty files costs one write and one sync.
//!
//! Several servers may share the directory, and one that lost a run without noticing may still write
//! while its successor does. So no two write to one file: a writer holds its file's lock as long as the
//! file is open, and takes another file when somebody else has that. Everybody reads all files
//! ([`Objects::refresh`]).

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
    part: u32,
    at: u64,
    stored_len: u64,
    compressed: bool,
}

/// One of the files.
struct Part {
    file: File,
    /// Bytes that are whole groups and in the index.
    known: u64,
}

/// The open files and their index.
pub(super) struct Objects {
    directory: PathBuf,
    parts: BTreeMap<u32, Part>,
    index: BTreeMap<Hash, Place>,
    /// The one that is written to.
    own: Option<Own>,
}

/// The file of this writer.
struct Own {
    number: u32,
    /// Holds the lock.
    file: File,
    /// Where the next byte goes.
    end: u64,
    /// Bytes before `end` that are not in the file yet.
    pending: Vec<u8>,
    /// Hash of the bytes of the group that is being written; `None` if it has none.
    group: Option<blake3::Hasher>,
}

impl Objects {
    /// Opens the files of a directory, which is made if it is not there.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let (parts, index) = (BTreeMap::new(), BTreeMap::new());
        let mut objects = Self { directory: directory.to_owned(), parts, index, own: None };
        objects.refresh()?;
        Ok(objects)
    }

    /// Takes in what others have written since the last look.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if self.own.as_ref().is_some_and(|own| own.number == number) {
                continue;
            }
            if !self.parts.contains_key(&number) {
                let file = File::open(self.directory.join(&name))?;
                self.parts.insert(number, Part { file, known: 0 });
            }
            self.load(number)?;
        }
        Ok(())
    }

    /// Reads on in a file from where it is known. What is not whole yet is read again the next time.
    fn load(&mut self, number: u32) -> io::Result<()> {
        let Some(part) = self.parts.get_mut(&number) else { return Ok(()) };
        let length = part.file.metadata()?.len();
        let mut groups: Vec<(u64, u64, Hash)> = Vec::new();
        let mut objects: Vec<(Hash, Place)> = Vec::new();
        let (mut at, mut begun) = (part.known, part.known);
        while at.saturating_add(HEADER) <= length {
            let (kind, hash, stored_len) = header(&part.file, at)?;
            let after = at.saturating_add(HEADER).saturating_add(stored_len);
            match kind {
                b'C' if stored_len == 0 => {
                    groups.push((begun, at, hash));
                    begun = after;
                }
                b'R' | b'Z' if after <= length => {
                    let place = Place { part: number, at: at + HEADER, stored_len, compressed: kind == b'Z' };
                    objects.push((hash, place));
                }
                _ => break,
            }
            at = after;
        }
        while let Some((begun, commit, hash)) = groups.pop() {
            if hash_of(&part.file, begun, commit)? == hash {
                part.known = commit + HEADER;
                break;
            }
        }
        let known = part.known;
        self.index.extend(objects.into_iter().filter(|(_, place)| place.at < known));
        Ok(())
    }

    /// The file to write to: the newest, if nobody else has it, or a new one.
    fn own(&mut self) -> io::Result<&mut Own> {
        let own = match self.own.take() {
            Some(own) => own,
            None => {
                let newest = self.parts.keys().next_back().copied();
                let taken = newest.map(|number| self.take(number)).transpose()?.flatten();
                taken.map_or_else(|| self.take_new(), Ok)?
            }
        };
        Ok(self.own.insert(own))
    }

    /// Takes a file, and cuts off its torn tail. `None` if somebody has it.
    fn take(&mut self, number: u32) -> io::Result<Option<Own>> {
        let path = self.directory.join(number.to_string());
        let file = File::options().read(true).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever had it may have written more before it let go.
        self.load(number)?;
        let end = self.parts.get(&number).map_or(0, |part| part.known);
        if end < file.metadata()?.len() {
            file.set_len(end)?;
        }
        Ok(Some(Own { number, file, end, pending: Vec::new(), group: None }))
    }

    fn take_new(&mut self) -> io::Result<Own> {
        loop {
            let number = self.parts.keys().next_back().map_or(0, |newest| newest.saturating_add(1));
            let path = self.directory.join(number.to_string());
            match File::options().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            self.parts.insert(number, Part { file: File::open(&path)?, known: 0 });
            // Somebody may have been quicker, also with a file that was made here.
            if let Some(own) = self.take(number)? {
                return Ok(own);
            }
        }
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
        let own = self.own()?;
        let stored_len = stored.len() as u64;
        let at = own.begin(hash, if compressed { b'Z' } else { b'R' }, stored_len)?;
        own.write(stored)?;
        let part = own.number;
        self.index.insert(hash, Place { part, at, stored_len, compressed });
        Ok(())
    }

    fn append_stream(&mut self, hash: Hash, file: &mut File, size: u64) -> io::Result<()> {
        let own = self.own()?;
        // With nothing pending, going back is only a matter of `end`.
        own.flush()?;
        let begun = (own.end, own.group.clone());
        let at = own.begin(hash, b'R', size)?;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0u8; CHUNK];
        let mut left = size;
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let buffer = chunk.get_mut(..wanted).unwrap_or_default();
            file.read_exact(buffer)?;
            hasher.update(buffer);
            own.write(buffer)?;
            left -= wanted as u64;
        }
        if *hasher.finalize().as_bytes() != hash {
            own.pending.clear();
            (own.end, own.group) = begun;
            return Err(io::Error::other("the file changed while it was read"));
        }
        let part = own.number;
        self.index.insert(hash, Place { part, at, stored_len: size, compressed: false });
        Ok(())
    }

    /// Makes everything stored so far durable. Costs nothing if nothing was added.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        let Some(own) = &mut self.own else { return Ok(()) };
        own.commit()?;
        if let Some(part) = self.parts.get_mut(&own.number) {
            part.known = own.end;
        }
        Ok(())
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
        let mut reader = self.range(*place)?;
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
        let range = self.range(*place)?;
        Ok(Some(if place.compressed {
            Box::new(zstd::stream::read::Decoder::with_buffer(BufReader::new(range))?)
        } else {
            Box::new(range)
        }))
    }

    fn range(&self, place: Place) -> io::Result<Range<'_>> {
        let part = self.parts.get(&place.part).ok_or_else(damaged)?;
        Ok(Range { file: &part.file, at: place.at, end: place.at + place.stored_len })
    }
}

impl Own {
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

    fn commit(&mut self) -> io::Result<()> {
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
}

fn header(file: &File, at: u64) -> io::Result<(u8, Hash, u64)> {
    let mut header = [0u8; HEADER as usize];
    file.read_exact_at(&mut header, at)?;
    let [kind, rest @ ..] = header;
    let (mut hash, mut length) = ([0u8; 32], [0u8; 8]);
    hash.copy_from_slice(rest.get(..32).unwrap_or(&[0; 32]));
    length.copy_from_slice(rest.get(32..).unwrap_or(&[0; 8]));
    Ok((kind, hash, u64::from_le_bytes(length)))
}

fn hash_of(file: &File, from: u64, to: u64) -> io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(Range { file, at: from, end: to })?;
    Ok(*hasher.finalize().as_bytes())
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
