//! The lock file: one process at a time has a data directory open.
//!
//! The lock is the kernel's (`flock`), so it ends with the process, however that ends. What is
//! written into the file only tells a person who holds it.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use evenkeel_core::{Code, Error, Origin, Wall};
use rustix::fs::{FlockOperation, flock};

/// The file's name in the data directory.
pub(super) const FILE: &str = "evenkeel.lock";

/// The lock; dropping it gives it back.
pub(super) struct Lock {
    _file: File,
}

/// Takes the lock of a data directory.
pub(super) fn take(dir: &Path, now: Wall) -> Result<Lock, Error> {
    let path = dir.join(FILE);
    let failed = |error: std::io::Error| super::unusable(&path, &error);
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use(dir, &mut file)),
        Err(errno) => return Err(failed(errno.into())),
    }
    let holder = format!("pid {} since {}\n", std::process::id(), now.iso());
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
    file.write_all(holder.as_bytes()).map_err(failed)?;
    Ok(Lock { _file: file })
}

fn in_use(dir: &Path, file: &mut File) -> Error {
    let mut holder = String::new();
    // The holder may be about to write its name; then it stays unnamed.
    let named = file.read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
    let holder = if named { holder.trim() } else { "unknown pid" };
    Error::new(
        Code::StoreInUse,
        Origin::Store,
        format!("The data directory {} is open in another process ({holder}).", dir.display()),
        "Stop that process, or start this one with another --data-dir.",
    )
}
