//! The network of a virtual run: connections between simulated processes, in memory.
//!
//! It looks like the loopback of one machine: ports, a queue of connections in front of each
//! listener, refusal where nobody listens, a bounded buffer in each direction, an orderly end when a
//! side is closed or its process is killed. What a link does to bytes on top of that (delay, hold,
//! cut) is done by the same proxy as in live runs.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use evenkeel_env::call::{Call, Calls};
use evenkeel_env::http::Body;
use evenkeel_env::{Accepted, Listener, Net, Stream};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

use super::Depth;
use super::log::{Log, fingerprint};

/// Connections that wait to be accepted, per listener; beyond it they are refused.
const BACKLOG: usize = 4_096;
/// Bytes on their way in one direction of a connection.
const BUFFER: usize = 256 << 10;
/// The first port that is given to whoever asks for any.
const FIRST_PORT: u16 = 20_000;

type Arrival = (Accepted, SocketAddr);

/// All listeners and connections of a run.
pub(super) struct Network {
    state: Mutex<State>,
    log: Log,
    /// How long bytes, calls and requests for connections are on their way.
    hop: Duration,
    depth: Depth,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<u16, (u64, mpsc::Sender<Arrival>)>,
    n_listeners: u64,
    next_port: u16,
    /// Connections and calls.
    n_arrivals: u64,
}

impl Network {
    /// A network on which everything takes `hop`.
    pub(super) fn new(log: &Log, hop: Duration, depth: Depth) -> Arc<Self> {
        let state = State { next_port: FIRST_PORT, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), log: log.clone(), hop, depth })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network as one process sees it.
#[derive(Clone)]
pub(super) struct HostNet {
    pub(super) network: Arc<Network>,
    pub(super) name: Arc<str>,
}

impl HostNet {
    async fn open(&self, port: u16) -> io::Result<Box<dyn Stream>> {
        let network = &self.network;
        let n = self.arrive().await;
        let (ours, theirs) = pair(network, n);
        if !self.offer(n, port, Accepted::Connection(Box::new(theirs))) {
            network.log.line(&self.name, format_args!("c{n} to {port} refused"));
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        network.log.line(&self.name, format_args!("c{n} to {port}"));
        Ok(Box::new(ours))
    }

    async fn ask(self, request: Request<Bytes>) -> io::Result<Response<Body>> {
        let (log, name) = (&self.network.log, &self.name);
        let port = request.uri().port_u16().unwrap_or(80);
        let n = self.arrive().await;
        let path = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
        let asked = format!("{} {path} {}", request.method(), fingerprint(request.body()));
        let (call, answer) = Call::new(request);
        if !self.offer(n, port, Accepted::Call(call)) {
            log.line(name, format_args!("r{n} to {port} refused"));
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        log.line(name, format_args!("r{n} to {port} {asked}"));
        let answer = answer.head().await;
        match &answer {
            Ok(response) => log.line(name, format_args!("r{n} is told {}", response.status().as_u16())),
            Err(_) => log.line(name, format_args!("r{n} breaks")),
        }
        answer
    }

    /// The number of a connection or call, when it has arrived.
    async fn arrive(&self) -> u64 {
        // Nobody has a connection in the moment in which it asks for one.
        tokio::task::yield_now().await;
        if !self.network.hop.is_zero() {
            sleep(self.network.hop).await;
        }
        let mut state = self.network.state();
        state.n_arrivals += 1;
        state.n_arrivals
    }

    /// Whether somebody listens who has room for it.
    fn offer(&self, n: u64, port: u16, accepted: Accepted) -> bool {
        let listener = self.network.state().listeners.get(&port).map(|(_, queue)| queue.clone());
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(n % 40_000).unwrap_or(0) + 25_000));
        listener.is_some_and(|listener| listener.try_send((accepted, peer)).is_ok())
    }

    fn bind(&self, address: SocketAddr) -> io::Result<MemListener> {
        let mut state = self.network.state();
        let mut port = address.port();
        if port == 0 {
            while state.listeners.contains_key(&state.next_port) {
                state.next_port += 1;
            }
            port = state.next_port;
            state.next_port += 1;
        } else if state.listeners.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.n_listeners += 1;
        let id = state.n_listeners;
        let (queue, accepted) = mpsc::channel(BACKLOG);
        state.listeners.insert(port, (id, queue));
        drop(state);
        self.network.log.line(&self.name, format_args!("listens on {port}"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(MemListener { network: self.network.clone(), name: self.name.clone(), id, address, accepted })
    }
}

impl Net for HostNet {
    fn connect(&self, _host: String, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(self.open(port))
    }

    fn resolve(&self, _host: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        Box::pin(std::future::ready(Ok(vec![Ipv4Addr::LOCALHOST.into()])))
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        let listener = self.bind(address).map(|listener| Box::new(listener) as Box<dyn Listener>);
        Box::pin(std::future::ready(listener))
    }

    fn calls(&self) -> Option<Arc<dyn Calls>> {
        (self.network.depth == Depth::Direct).then(|| Arc::new(self.clone()) as Arc<dyn Calls>)
    }
}

impl Calls for HostNet {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'static, io::Result<Response<Body>>> {
        Box::pin(self.clone().ask(request))
    }
}

struct MemListener {
    network: Arc<Network>,
    name: Arc<str>,
    id: u64,
    address: SocketAddr,
    accepted: mpsc::Receiver<Arrival>,
}

impl Listener for MemListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Box<dyn Stream>, SocketAddr)>> {
        Box::pin(async move {
            loop {
                // A call breaks where nobody answers calls.
                if let (Accepted::Connection(stream), peer) = self.accept_any().await? {
                    return Ok((stream, peer));
                }
            }
        })
    }

    fn accept_any(&mut self) -> BoxFuture<'_, io::Result<Arrival>> {
        Box::pin(async move { self.accepted.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into()) })
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl Drop for MemListener {
    fn drop(&mut self) {
        let port = self.address.port();
        let mut state = self.network.state();
        if state.listeners.get(&port).is_some_and(|(id, _)| *id == self.id) {
            state.listeners.remove(&port);
        }
        drop(state);
        self.network.log.line(&self.name, format_args!("listens on {port} no more"));
    }
}

/// Both ends of a new connection.
fn pair(network: &Arc<Network>, n: u64) -> (End, End) {
    let (there, back) = (Pipe::new(), Pipe::new());
    let end = |read: &Arc<Pipe>, write: &Arc<Pipe>, side| End {
        network: network.clone(),
        connection: n,
        side,
        read: read.clone(),
        write: write.clone(),
        due: None,
    };
    (end(&back, &there, '>'), end(&there, &back, '<'))
}

/// One direction of a connection.
struct Pipe(Mutex<Way>);

#[derive(Default)]
struct Way {
    on_the_way: VecDeque<(Instant, Bytes)>,
    n_bytes: usize,
    /// The writer will write no more.
    ended: bool,
    /// The reader is gone.
    deaf: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        let reader = {
            let mut way = self.way();
            way.ended = true;
            way.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }

    fn turn_deaf(&self) {
        let writer = {
            let mut way = self.way();
            way.deaf = true;
            way.on_the_way.clear();
            way.writer.take()
        };
        writer.into_iter().for_each(Waker::wake);
    }
}

/// One end of a connection.
struct End {
    network: Arc<Network>,
    connection: u64,
    side: char,
    read: Arc<Pipe>,
    write: Arc<Pipe>,
    /// When the next bytes arrive.
    due: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let read = self.read.clone();
            let mut way = read.way();
            let Some((at, bytes)) = way.on_the_way.front_mut() else {
                if way.ended {
                    return Poll::Ready(Ok(()));
                }
                way.reader = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let at = *at;
            if at <= Instant::now() {
                let n = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes.slice(..n));
                bytes.advance(n);
                if bytes.is_empty() {
                    way.on_the_way.pop_front();
                }
                way.n_bytes -= n;
                let writer = way.writer.take();
                drop(way);
                writer.into_iter().for_each(Waker::wake);
                return Poll::Ready(Ok(()));
            }
            drop(way);
            let due = self.due.insert(Box::pin(tokio::time::sleep_until(at)));
            if due.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut way = self.write.way();
        if way.deaf || way.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = BUFFER.saturating_sub(way.n_bytes);
        if room == 0 && !bytes.is_empty() {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let taken = Bytes::copy_from_slice(&bytes[..bytes.len().min(room)]);
        let n = taken.len();
        way.n_bytes += n;
        let print = fingerprint(&taken);
        way.on_the_way.push_back((Instant::now() + self.network.hop, taken));
        let reader = way.reader.take();
        drop(way);
        self.network.log.line("net", format_args!("c{}{} {n} {print}", self.connection, self.side));
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.write.end();
        self.read.turn_deaf();
        self.network.log.line("net", format_args!("c{}{} closed", self.connection, self.side));
    }
}
