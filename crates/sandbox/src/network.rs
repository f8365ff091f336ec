//! The network of a command that has one: a proxy that reaches only the hosts on its list.
//!
//! The network namespace of a sandbox holds a loopback device and nothing else, with a list as
//! without one. For a list, pid 1 opens a socket on that device and hands it out to the server,
//! which accepts on it: the command finds a proxy at [`PROXY_PORT`], nothing of the host becomes
//! visible inside, and no process in between has to be trusted. The proxy speaks HTTP `CONNECT` and
//! plain HTTP.
//!
//! What holds:
//! - A name is looked up by the proxy, never inside, and the connection goes to the very address
//!   that was checked. One forbidden address among a name's addresses refuses the name.
//! - No connection to loopback, link-local (cloud metadata) or otherwise special addresses, listed
//!   or not; to private ranges only for a host that the list calls private.
//! - A request whose parts disagree about its host is refused, not interpreted.
//! - One connection carries one plain request, of the length that its head says.
//! - Everything ends with the command. Every attempt is logged and counted, also what was refused.

mod address;
mod head;
mod proxy;
mod refusal;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;

pub(crate) use proxy::{Label, Proxy};

/// Where a command finds its proxy.
pub(crate) const PROXY_PORT: u16 = 3128;

/// How the attempts to reach a host went since the launcher started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Connections that were made.
    pub connected: u64,
    /// Attempts to reach a host that is not on the list.
    pub unlisted: u64,
    /// Attempts to reach a listed name with an address that is never reached.
    pub forbidden_address: u64,
    /// Listed hosts that could not be looked up or did not answer.
    pub unreachable: u64,
    /// Requests that were not understood, or whose parts disagree.
    pub malformed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    connected: AtomicU64,
    unlisted: AtomicU64,
    forbidden_address: AtomicU64,
    unreachable: AtomicU64,
    malformed: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> NetworkCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NetworkCounts {
            connected: of(&self.connected),
            unlisted: of(&self.unlisted),
            forbidden_address: of(&self.forbidden_address),
            unreachable: of(&self.unreachable),
            malformed: of(&self.malformed),
        }
    }
}

/// Waits for the socket that pid 1 opens.
async fn receive_listener(channel: &UnixStream) -> std::io::Result<OwnedFd> {
    channel
        .async_io(Interest::READABLE, || {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
            let fds = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            fds.flatten().next().ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
        })
        .await
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
