//! The sockets: one listener, and for each connection two directions.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use evenkeel_core::Mono;
use evenkeel_env::{Env, Listener, Stream, Task, watch};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::rule::{Direction, Fault, Opening, Pace, Rules, Step};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(50);
const CHUNK: usize = 16 << 10;
/// Chunks on their way in one direction at most; behind them the sender feels the slowness.
const ON_THE_WAY: usize = 64;

/// A connection that can be broken. It ends with this value.
pub(crate) struct Proxy {
    env: Env,
    address: SocketAddr,
    rules: watch::Sender<Rules>,
    accepting: Task,
}

impl Proxy {
    /// Listens on a free port of the loopback for connections to `port` of the loopback.
    pub(crate) async fn start(env: &Env, port: u16) -> anyhow::Result<Arc<Self>> {
        let listener = listen(env, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
        let listener = listener.context("listen for a link of the lab")?;
        let address = listener.local_address().context("learn the address of a link")?;
        let (rules, watched) = watch::channel(Rules::default());
        let accept = Accept { env: env.clone(), address, port, rules: watched };
        let accepting = env.spawner.spawn("link-accept", Box::pin(accept.all(listener)));
        Ok(Arc::new(Self { env: env.clone(), address, rules, accepting }))
    }

    /// The port to connect to.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Breaks something, until it is healed by the number that is returned.
    pub(crate) fn set(&self, fault: Fault) -> u64 {
        let mut id = 0;
        self.rules.send_modify(|rules| id = rules.add(fault));
        tracing::debug!(port = self.port(), fault = fault.name(), at = self.env.mono().0, "link broken");
        id
    }

    /// Takes one fault back.
    pub(crate) fn heal(&self, id: u64) {
        self.rules.send_modify(|rules| rules.remove(id));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn listen(env: &Env, address: SocketAddr) -> io::Result<Box<dyn Listener>> {
    env.net.listen(address).await
}

struct Accept {
    env: Env,
    address: SocketAddr,
    port: u16,
    rules: watch::Receiver<Rules>,
}

impl Accept {
    async fn all(mut self, listener: Box<dyn Listener>) {
        let mut listener = Some(listener);
        loop {
            if !self.rules.borrow_and_update().listens() {
                // Closed for as long as connections are to be refused.
                listener = None;
            } else if listener.is_none() {
                listener = listen(&self.env, self.address).await.ok();
                if listener.is_none() {
                    tokio::time::sleep(LISTEN_AGAIN_AFTER).await;
                    continue;
                }
            }
            let accepted = async {
                match &mut listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.rules.changed() => if changed.is_err() { return },
                accepted = accepted => if let Ok((stream, _)) = accepted { self.pass(stream) },
            }
        }
    }

    fn pass(&self, client: Box<dyn Stream>) {
        if self.rules.borrow().opening() == Opening::Ends {
            return;
        }
        let (env, port, rules) = (self.env.clone(), self.port, self.rules.clone());
        let spawner = self.env.spawner.clone();
        spawner.spawn(
            "link",
            Box::pin(async move {
                let connect = env.net.connect(Ipv4Addr::LOCALHOST.to_string(), port);
                let Ok(Ok(target)) = timeout(CONNECT_WITHIN, connect).await else { return };
                both(&env, client, target, rules).await;
            }),
        );
    }
}

/// Passes bytes both ways until both ends have closed, or one of them broke.
async fn both(env: &Env, client: Box<dyn Stream>, target: Box<dyn Stream>, rules: watch::Receiver<Rules>) {
    let (client_read, client_write) = tokio::io::split(client);
    let (target_read, target_write) = tokio::io::split(target);
    let way = |direction| Way { env: env.clone(), direction, rules: rules.clone(), pace: Pace::default() };
    let requests = way(Direction::Requests).pass(client_read, target_write);
    let answers = way(Direction::Answers).pass(target_read, client_write);
    let mut cut = rules.clone();
    let passing = async { futures_util::future::try_join(requests, answers).await.map(drop) };
    tokio::select! {
        biased;
        // The sender of a proxy that was dropped is gone: the connection ends as well.
        _ = cut.wait_for(|rules| rules.opening() == Opening::Ends) => {}
        // An end that broke is closed by dropping both.
        _ = passing => {}
    }
}

struct Way {
    env: Env,
    direction: Direction,
    rules: watch::Receiver<Rules>,
    pace: Pace,
}

impl Way {
    async fn pass(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        let mut on_the_way: VecDeque<(Mono, Bytes)> = VecDeque::new();
        let mut open = true;
        while open || !on_the_way.is_empty() {
            let now = self.env.mono();
            let due = on_the_way.front().map(|(at, _)| at.since(now));
            let may_read = open && on_the_way.len() < ON_THE_WAY;
            buffer.reserve(CHUNK);
            tokio::select! {
                biased;
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                    if let Some((_, bytes)) = on_the_way.pop_front() {
                        self.released(&mut to, &bytes).await?;
                    }
                }
                read = from.read_buf(&mut buffer), if may_read => match read? {
                    0 => open = false,
                    _ => {
                        let bytes = buffer.split().freeze();
                        let after = self.after(bytes.len()).await?;
                        if after.is_zero() && on_the_way.is_empty() {
                            to.write_all(&bytes).await?;
                        } else {
                            on_the_way.push_back((self.env.mono().after(after), bytes));
                        }
                    }
                },
            }
        }
        to.shutdown().await
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

    /// Passes bytes whose time has come, unless something holds them by now.
    async fn released(&mut self, to: &mut (impl AsyncWrite + Unpin), bytes: &Bytes) -> io::Result<()> {
        self.after(0).await?;
        to.write_all(bytes).await
    }
}
