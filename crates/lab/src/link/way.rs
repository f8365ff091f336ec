//! One direction through a link: bytes that are delayed, held or lost as the rules say.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use evenkeel_core::Mono;
use evenkeel_env::call::{Answer, Call};
use evenkeel_env::http::Body;
use evenkeel_env::{Env, watch};
use http::response::Parts;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::rule::{Direction, Pace, Rules, Step};

const CHUNK: usize = 16 << 10;
/// Chunks on their way in one direction at most; behind them the sender feels the slowness.
const ON_THE_WAY: usize = 64;

/// Where bytes come from. A read that is given up has taken nothing.
pub(super) trait Source: Send {
    /// The next bytes; none at the orderly end.
    fn read(&mut self) -> impl Future<Output = io::Result<Option<Bytes>>> + Send;
}

/// Where bytes go.
pub(super) trait Sink: Send {
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// The orderly end.
    fn end(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until nobody takes bytes any more, if that shows without writing.
    fn left(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// One direction of one connection or call.
pub(super) struct Way {
    env: Env,
    direction: Direction,
    rules: watch::Receiver<Rules>,
    pace: Pace,
}

impl Way {
    pub(super) fn new(env: &Env, direction: Direction, rules: &watch::Receiver<Rules>) -> Self {
        Self { env: env.clone(), direction, rules: rules.clone(), pace: Pace::default() }
    }

    /// Passes everything on.
    pub(super) async fn pass(mut self, mut from: impl Source, mut to: impl Sink) -> io::Result<()> {
        let mut on_the_way: VecDeque<(Mono, Bytes)> = VecDeque::new();
        let mut open = true;
        while open || !on_the_way.is_empty() {
            let now = self.env.mono();
            let due = on_the_way.front().map(|(at, _)| at.since(now));
            let may_read = open && on_the_way.len() < ON_THE_WAY;
            tokio::select! {
                biased;
                () = to.left() => return Err(io::ErrorKind::BrokenPipe.into()),
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                    if let Some((_, bytes)) = on_the_way.pop_front() {
                        // Unless something holds them by now.
                        self.after(0).await?;
                        to.write(bytes).await?;
                    }
                }
                read = from.read(), if may_read => match read? {
                    None => open = false,
                    Some(bytes) => {
                        let after = self.after(bytes.len()).await?;
                        if after.is_zero() && on_the_way.is_empty() {
                            to.write(bytes).await?;
                        } else {
                            on_the_way.push_back((self.env.mono().after(after), bytes));
                        }
                    }
                },
            }
        }
        to.end().await
    }

    /// Waits until `n_bytes` have passed.
    pub(super) async fn pass_whole(&mut self, n_bytes: usize) -> io::Result<()> {
        let after = self.after(n_bytes).await?;
        if !after.is_zero() {
            tokio::time::sleep(after).await;
            self.after(0).await?;
        }
        Ok(())
    }

    /// How long the next bytes take, once nothing holds them.
    async fn after(&mut self, n_bytes: usize) -> io::Result<Duration> {
        loop {
            let now = self.env.mono();
            let step = self.rules.borrow_and_update().step(self.direction, n_bytes, now, &mut self.pace);
            match step {
                Step::PassAfter(after) => return Ok(after),
                Step::End => return Err(io::ErrorKind::ConnectionReset.into()),
                Step::Wait => {
                    if self.rules.changed().await.is_err() {
                        return Err(io::ErrorKind::ConnectionReset.into());
                    }
                }
            }
        }
    }
}

/// The reading half of a connection.
pub(super) struct From<R> {
    half: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin + Send> From<R> {
    pub(super) fn new(half: R) -> Self {
        Self { half, buffer: BytesMut::with_capacity(CHUNK) }
    }
}

impl<R: AsyncRead + Unpin + Send> Source for From<R> {
    async fn read(&mut self) -> io::Result<Option<Bytes>> {
        self.buffer.reserve(CHUNK);
        let n = self.half.read_buf(&mut self.buffer).await?;
        Ok((n > 0).then(|| self.buffer.split().freeze()))
    }
}

/// The writing half of a connection.
pub(super) struct To<W>(pub(super) W);

impl<W: AsyncWrite + Unpin + Send> Sink for To<W> {
    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.0.write_all(&bytes).await
    }

    async fn end(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

/// The answer to a call: its head, which takes part as no bytes, then its body.
pub(super) struct FromCall {
    body: Body,
    began: bool,
}

impl FromCall {
    pub(super) fn new(body: Body) -> Self {
        Self { body, began: false }
    }
}

impl Source for FromCall {
    async fn read(&mut self) -> io::Result<Option<Bytes>> {
        if !self.began {
            self.began = true;
            return Ok(Some(Bytes::new()));
        }
        match self.body.frame().await {
            Some(frame) => frame.map(|frame| frame.into_data().ok()),
            None => Ok(None),
        }
    }
}

/// A call that is answered: the first bytes stand for its head.
pub(super) enum ToCall {
    Waiting(Option<Box<(Call, Parts)>>),
    Began(Option<Answer>),
}

impl Sink for ToCall {
    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        match self {
            Self::Waiting(waiting) => {
                let answer = waiting.take().map(|waiting| *waiting).and_then(|(call, head)| call.begin(head));
                let answer = answer.ok_or(io::ErrorKind::BrokenPipe)?;
                *self = Self::Began(Some(answer));
                Ok(())
            }
            Self::Began(Some(answer)) => answer.give(bytes).await,
            Self::Began(None) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    async fn end(&mut self) -> io::Result<()> {
        if let Self::Began(answer) = self
            && let Some(answer) = answer.take()
        {
            answer.end().await;
        }
        Ok(())
    }

    async fn left(&mut self) {
        match self {
            Self::Waiting(Some(waiting)) => waiting.0.left().await,
            Self::Began(Some(answer)) => answer.left().await,
            Self::Waiting(None) | Self::Began(None) => {}
        }
    }
}
