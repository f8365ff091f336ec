//! One command, from the request to the reply.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;

use evenkeel_core::port::runner::LimitHit;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Sender;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};

use super::capture::Capture;
use super::keepers::Keeper;
use crate::wire::{FRAME_MAX, Failure, KILL, Reply, Request, Step, frame};

/// How long a killed sandbox may take to be gone before its keeper is given up.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// How a command ended, and what it wrote.
pub(super) struct Ending {
    pub(super) reply: Reply,
    /// The limit for which the launcher ended it.
    pub(super) limit: Option<LimitHit>,
    /// Stdout, stderr, and the number of bytes thrown away.
    pub(super) output: (Vec<u8>, Vec<u8>, u64),
}

/// What serves a command's network while it runs.
pub(super) struct Serving<F> {
    /// The keeper's end of the channel on which the socket of the proxy comes.
    pub(super) channel: Option<OwnedFd>,
    pub(super) proxy: F,
}

/// Runs one command on a keeper. After an error, or when dropped before its end, the keeper must
/// not be used again: dropping it ends everything.
pub(super) async fn run(
    keeper: &mut Keeper,
    request: &Request,
    stdin: Vec<u8>,
    serving: Serving<impl Future<Output = ()>>,
) -> Result<Ending, Failure> {
    let deadline = Instant::now() + Duration::from_millis(request.limits.wall_ms);
    let (stdin_read, stdin_write) = pipe()?;
    let (stdout_read, stdout_write) = pipe()?;
    let (stderr_read, stderr_write) = pipe()?;
    let mut fds = vec![stdin_read.as_fd(), stdout_write.as_fd(), stderr_write.as_fd()];
    fds.extend(serving.channel.as_ref().map(AsFd::as_fd));
    keeper.send(&frame(request)?, &fds).await?;
    drop((stdin_read, stdout_write, stderr_write, serving.channel));

    let mut capture = Capture::new(stdout_read, stderr_read, request.limits.output_bytes)?;
    let (mut read_half, mut write_half) = keeper.split();
    let mut reply = pin!(read_reply(&mut read_half));
    let mut feeding = pin!(feed(stdin_write, stdin));
    let mut fed = false;
    let mut proxy = pin!(serving.proxy);
    let mut served = false;
    let mut limit = None;
    let mut timer = pin!(sleep_until(deadline));
    let reply = loop {
        tokio::select! {
            biased;
            reply = &mut reply => break reply?,
            () = &mut timer => {
                if limit.is_some() {
                    return Err("processes do not end after SIGKILL").step("end a command");
                }
                limit = Some(LimitHit::Time);
                kill(&mut write_half).await?;
                timer.as_mut().reset(Instant::now() + KILL_GRACE);
            }
            // A flood is not read any further: its writers block until they are dead.
            () = capture.read_some(), if capture.is_open() && !capture.is_flooded() => {
                if capture.is_flooded() && limit.is_none() {
                    limit = Some(LimitHit::Output);
                    kill(&mut write_half).await?;
                    timer.as_mut().reset(Instant::now() + KILL_GRACE);
                }
            }
            () = &mut feeding, if !fed => fed = true,
            () = &mut proxy, if !served => served = true,
        }
    };
    Ok(Ending { reply, limit, output: capture.drain() })
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    pipe_with(PipeFlags::CLOEXEC).step("make a pipe")
}

async fn kill(write_half: &mut WriteHalf<'_>) -> Result<(), Failure> {
    write_half.write_all(&KILL).await.step("tell the keeper to end a command")
}

/// Writes all of stdin and closes it. A command that does not read it is no error.
async fn feed(pipe: OwnedFd, bytes: Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    if let Ok(mut pipe) = Sender::from_owned_fd(pipe) {
        let _ = pipe.write_all(&bytes).await;
    }
}

async fn read_reply(read_half: &mut ReadHalf<'_>) -> Result<Reply, Failure> {
    let length = read_half.read_u32_le().await.step("hear from the keeper")? as usize;
    if length > FRAME_MAX {
        return Err(format!("a frame of {length} bytes")).step("hear from the keeper");
    }
    let mut body = vec![0; length];
    read_half.read_exact(&mut body).await.step("hear from the keeper")?;
    serde_json::from_slice(&body).step("understand the keeper")
}
