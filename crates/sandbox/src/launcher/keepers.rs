//! The keepers that are ready, and the nursery that makes new ones.

use std::collections::{BTreeSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_env::spawn::Spawn;
use evenkeel_env::{Env, process};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::process::Child;

use crate::config::{Degradable, HelperProgram, Isolation, SandboxConfig};
use crate::wire::{Failure, HELPER_ARGUMENT, Raise, Step, frame};

/// Keepers made ready while starting; more are made as more commands run at once.
const N_AT_START: usize = 2;

/// The pool. Idle keepers serve again; a keeper that was interrupted never comes back.
///
/// As many wait as have a command, up to the number that is kept warm: a keeper whose command has just
/// ended is making its next sandbox, and another one should serve the next command.
pub(super) struct Keepers {
    spawner: Arc<dyn Spawn>,
    program: HelperProgram,
    isolation: Isolation,
    allow_degraded: BTreeSet<Degradable>,
    read_only_paths: Vec<PathBuf>,
    n_warm: usize,
    next_slot: AtomicU32,
    /// The one that has waited longest is in front: it has had most time to make its next sandbox.
    idle: Mutex<VecDeque<Keeper>>,
    /// One share is ours, and each keeper has one.
    living: Arc<()>,
    /// Being made ahead.
    n_coming: AtomicUsize,
    nursery: tokio::sync::Mutex<Option<Nursery>>,
}

/// A connection to a process that runs one command at a time.
pub(super) struct Keeper {
    socket: UnixStream,
    _living: Arc<()>,
}

/// The helper process that forks keepers. It ends when its socket closes.
struct Nursery {
    socket: UnixStream,
    /// Held so that the runtime reaps it.
    _child: Child,
}

impl Keepers {
    pub(super) fn new(env: &Env, config: &SandboxConfig) -> Arc<Self> {
        Arc::new(Self {
            spawner: env.spawner.clone(),
            program: config.helper.clone(),
            isolation: config.isolation,
            allow_degraded: config.allow_degraded.clone(),
            read_only_paths: config.read_only_paths.clone(),
            n_warm: config.warm,
            next_slot: AtomicU32::new(0),
            idle: Mutex::default(),
            living: Arc::new(()),
            n_coming: AtomicUsize::new(0),
            nursery: tokio::sync::Mutex::new(None),
        })
    }

    /// Makes the first keepers ready in the background.
    pub(super) fn warm_up(self: &Arc<Self>) {
        for _ in 0..N_AT_START.min(self.n_warm) {
            self.make_ahead();
        }
    }

    /// A ready keeper, or a new one.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Keeper, Failure> {
        let keeper = match self.pop_living() {
            Some(keeper) => keeper,
            None => self.raise().await?,
        };
        let n_idle = self.idle().len();
        let n_busy = (Arc::strong_count(&self.living) - 1).saturating_sub(n_idle);
        if n_idle + self.n_coming.load(Ordering::Relaxed) < n_busy.min(self.n_warm) {
            self.make_ahead();
        }
        Ok(keeper)
    }

    fn pop_living(&self) -> Option<Keeper> {
        std::iter::from_fn(|| self.pop()).find(Keeper::is_alive)
    }

    /// Makes one more in the background.
    fn make_ahead(self: &Arc<Self>) {
        let keepers = self.clone();
        keepers.n_coming.fetch_add(1, Ordering::Relaxed);
        let making = async move {
            match keepers.raise().await {
                Ok(keeper) => keepers.give_back(keeper),
                Err(failure) => tracing::warn!(%failure, "sandbox keeper not made ready"),
            }
            keepers.n_coming.fetch_sub(1, Ordering::Relaxed);
        };
        self.spawner.spawn("sandbox-warm-up", Box::pin(making));
    }

    /// Takes a keeper back that has replied.
    pub(super) fn give_back(&self, keeper: Keeper) {
        let mut idle = self.idle();
        if idle.len() < self.n_warm {
            idle.push_back(keeper);
        }
    }

    fn pop(&self) -> Option<Keeper> {
        self.idle().pop_front()
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Keeper>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn raise(&self) -> Result<Keeper, Failure> {
        let slot = self.next_slot.fetch_add(1, Ordering::Relaxed);
        let raise = Raise {
            slot,
            isolation: self.isolation,
            allow_degraded: self.allow_degraded.clone(),
            read_only_paths: self.read_only_paths.clone(),
        };
        let frame = frame(&raise)?;
        let (ours, theirs) = socket_pair()?;
        let mut nursery = self.nursery.lock().await;
        // Taken out while it is spoken to: if this future is dropped in the middle of a frame, the
        // nursery is given up with it.
        if let Some(running) = nursery.take()
            && send(&running.socket, &frame, &[theirs.as_fd()]).await.is_ok()
        {
            *nursery = Some(running);
            return Ok(Keeper { socket: ours, _living: self.living.clone() });
        }
        // There is none yet, or it died: its keepers live on, a new one makes the next.
        let started = Nursery::start(&self.program)?;
        send(&started.socket, &frame, &[theirs.as_fd()]).await?;
        *nursery = Some(started);
        Ok(Keeper { socket: ours, _living: self.living.clone() })
    }
}

impl Keeper {
    /// Sends a frame; descriptors go with its first byte.
    pub(super) async fn send(&mut self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        send(&self.socket, frame, fds).await
    }

    pub(super) fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.socket.split()
    }

    /// An idle keeper says nothing; one that can be read has died.
    fn is_alive(&self) -> bool {
        let nothing = self.socket.try_read(&mut [0; 1]);
        matches!(nothing, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

impl Nursery {
    fn start(program: &HelperProgram) -> Result<Self, Failure> {
        let (ours, theirs) = socket_pair()?;
        let child = process::command(program.path())
            .arg(HELPER_ARGUMENT)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            // It ends by itself when the socket closes, after everything below it has.
            .kill_on_drop(false)
            .spawn()
            .step("start the sandbox helper")?;
        Ok(Self { socket: ours, _child: child })
    }
}

/// Our end for the runtime, theirs blocking.
pub(super) fn socket_pair() -> Result<(UnixStream, OwnedFd), Failure> {
    let (ours, theirs) = StdUnixStream::pair().step("make a socket")?;
    ours.set_nonblocking(true).step("make a socket")?;
    Ok((UnixStream::from_std(ours).step("make a socket")?, theirs.into()))
}

async fn send(socket: &UnixStream, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    let sent = socket
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(fds));
            let bytes = [std::io::IoSlice::new(frame)];
            Ok(sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)?)
        })
        .await
        .step("send to the sandbox helper")?;
    let mut rest = frame.get(sent..).unwrap_or_default();
    while !rest.is_empty() {
        socket.writable().await.step("send to the sandbox helper")?;
        match socket.try_write(rest) {
            Ok(n) => rest = rest.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).step("send to the sandbox helper"),
        }
    }
    Ok(())
}
