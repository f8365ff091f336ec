//! What a command writes, read as fast as it comes and kept up to a limit.
//!
//! Reading never stops before the hard cap, so that a command that writes more than is kept still
//! goes on; memory is bounded by what is kept. Beyond the hard cap the command has to be ended.

use std::io;
use std::os::fd::OwnedFd;

use tokio::net::unix::pipe::Receiver;

use crate::wire::{Failure, Step};

/// A command may write this many times what is kept before it is ended.
const HARD_CAP_FACTOR: u64 = 8;

const CHUNK: usize = 32 << 10;

/// Both outputs of one command.
pub(super) struct Capture {
    stdout: Source,
    stderr: Source,
    chunk: Box<[u8]>,
    keep: usize,
    n_kept: usize,
    n_dropped: u64,
}

struct Source {
    pipe: Option<Receiver>,
    kept: Vec<u8>,
}

impl Capture {
    /// Reads from both pipes and keeps `keep` bytes of them together.
    pub(super) fn new(stdout: OwnedFd, stderr: OwnedFd, keep: usize) -> Result<Self, Failure> {
        Ok(Self {
            stdout: Source::new(stdout)?,
            stderr: Source::new(stderr)?,
            chunk: vec![0; CHUNK].into_boxed_slice(),
            keep,
            n_kept: 0,
            n_dropped: 0,
        })
    }

    /// Whether anything can still come.
    pub(super) fn is_open(&self) -> bool {
        self.stdout.pipe.is_some() || self.stderr.pipe.is_some()
    }

    /// Whether the command wrote so much that it has to be ended.
    pub(super) fn is_flooded(&self) -> bool {
        self.n_dropped > (self.keep as u64).saturating_mul(HARD_CAP_FACTOR - 1)
    }

    /// Waits until something comes or ends, and takes it. Dropping the future loses nothing.
    pub(super) async fn read_some(&mut self) {
        tokio::select! {
            biased;
            () = self.stderr.ready() => self.take(Which::Stderr),
            () = self.stdout.ready() => self.take(Which::Stdout),
        };
    }

    /// Takes what is in the pipes now. Complete when no process holds their other ends.
    ///
    /// It asks the pipes themselves: the runtime may not have noticed yet that the last bytes are
    /// there, and would then say that there are none.
    pub(super) fn drain(mut self) -> (Vec<u8>, Vec<u8>, u64) {
        for which in [Which::Stdout, Which::Stderr] {
            let Some(pipe) = self.source(which).pipe.take() else { continue };
            let Ok(pipe) = pipe.into_nonblocking_fd() else { continue };
            loop {
                match rustix::io::read(&pipe, &mut self.chunk[..]) {
                    Ok(n) if n > 0 && !self.is_flooded() => self.keep(which, n),
                    Err(rustix::io::Errno::INTR) => {}
                    // The end, or nothing left while somebody still holds the other end.
                    _ => break,
                }
            }
        }
        (self.stdout.kept, self.stderr.kept, self.n_dropped)
    }

    /// Takes one chunk, if there is one.
    fn take(&mut self, which: Which) {
        let source = match which {
            Which::Stdout => &mut self.stdout,
            Which::Stderr => &mut self.stderr,
        };
        let Some(pipe) = &source.pipe else { return };
        match pipe.try_read(&mut self.chunk) {
            Ok(n) if n > 0 => self.keep(which, n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The end, or a pipe that cannot be read any more, which is the same to us.
            _ => source.pipe = None,
        }
    }

    /// Keeps what fits of the first `n` bytes of the chunk.
    fn keep(&mut self, which: Which, n: usize) {
        let n_keep = n.min(self.keep - self.n_kept);
        let source = match which {
            Which::Stdout => &mut self.stdout,
            Which::Stderr => &mut self.stderr,
        };
        source.kept.extend_from_slice(&self.chunk[..n_keep]);
        self.n_kept += n_keep;
        self.n_dropped += (n - n_keep) as u64;
    }

    fn source(&mut self, which: Which) -> &mut Source {
        match which {
            Which::Stdout => &mut self.stdout,
            Which::Stderr => &mut self.stderr,
        }
    }
}

#[derive(Clone, Copy)]
enum Which {
    Stdout,
    Stderr,
}

impl Source {
    fn new(pipe: OwnedFd) -> Result<Self, Failure> {
        let pipe = Receiver::from_owned_fd(pipe).step("open an output pipe")?;
        Ok(Self { pipe: Some(pipe), kept: Vec::new() })
    }

    /// Waits for readiness; for ever when the pipe has ended.
    async fn ready(&self) {
        match &self.pipe {
            Some(pipe) => {
                // An error here shows again at the read that follows.
                let _ = pipe.readable().await;
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests;
