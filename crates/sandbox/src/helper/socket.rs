//! Frames and descriptors on a blocking socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;

use crate::wire::{FRAME_MAX, Failure, KILL, Step};

/// Descriptors that one frame may carry: a command's pipes, its proxy channel and its workspace.
const FDS_MAX: usize = 5;

/// Waits for a frame; `None` when the other side closed.
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> Result<Option<(T, Vec<OwnedFd>)>, Failure> {
    let mut fds = Vec::new();
    let mut length = KILL;
    // An empty frame here was meant for a command that has just ended.
    while length == KILL {
        if !fill(&socket, &mut length, &mut fds)? {
            return Ok(None);
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_MAX {
        return Err(format!("a frame of {length} bytes")).step("hear from the launcher");
    }
    let mut body = vec![0; length];
    if !fill(&socket, &mut body, &mut fds)? {
        return Ok(None);
    }
    let value = serde_json::from_slice(&body).step("understand the launcher")?;
    Ok(Some((value, fds)))
}

/// Fills the buffer and collects descriptors; false when the other side closed.
fn fill(socket: &impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<bool, Failure> {
    let mut n_filled = 0;
    while let Some(rest) = buffer.get_mut(n_filled..).filter(|rest| !rest.is_empty()) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let n = match recvmsg(socket, &mut [IoSliceMut::new(rest)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(Errno::INTR) => continue,
            // The server may be gone with unread data: that is an end like any other.
            Err(Errno::CONNRESET) => 0,
            Err(error) => return Err(error).step("hear from the launcher"),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if n == 0 {
            return Ok(false);
        }
        n_filled += n;
    }
    Ok(true)
}

/// Takes the request to end a command, or the close that means the same. True if it was a close.
pub(super) fn receive_kill(socket: impl AsFd) -> bool {
    let mut frame = KILL;
    !fill(&socket, &mut frame, &mut Vec::new()).unwrap_or(false)
}

/// Sends a frame; descriptors go with its first byte.
pub(super) fn deliver(socket: impl AsFd, frame: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let mut n_sent = 0;
    while let Some(rest) = frame.get(n_sent..).filter(|rest| !rest.is_empty()) {
        match sendmsg(&socket, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
            Ok(n) => {
                n_sent += n;
                control.clear();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).step("send a frame"),
        }
    }
    Ok(())
}
