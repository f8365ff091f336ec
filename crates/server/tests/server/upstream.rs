//! A replica that misbehaves on command, down to the bytes on its connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use evenkeel_env::{Env, Stream, Task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, broadcast};

/// What it does with a request that is no probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// Answers 200.
    Answer,
    /// Refuses, and says that it drains.
    RefuseDraining,
    /// Refuses for another reason.
    Refuse,
    /// Closes the connection in the middle of the headers.
    BreakInHeaders,
    /// Closes the connection without a byte.
    Break,
    /// Hands the request to this address, and closes the connection when the answer is there.
    Lose(SocketAddr),
    /// Says nothing.
    Hang,
    /// Answers with what [`Upstream::emit`] gives it, piece by piece.
    StreamSlowly,
    /// Answers with as much as is taken.
    Flood,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    pub(crate) line: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Came {
    pub(crate) fn header(&self, name: &str) -> String {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    }
}

/// The replica.
pub(crate) struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Task,
}

struct Shared {
    env: Env,
    does: Does,
    hangs: AtomicBool,
    drains: AtomicBool,
    requests: Mutex<Vec<Came>>,
    pieces: broadcast::Sender<String>,
    left: Notify,
    n_flooded: AtomicUsize,
    connections: Mutex<Vec<Task>>,
}

impl Upstream {
    pub(crate) async fn start(does: Does) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), does).await
    }

    pub(crate) async fn start_at(address: SocketAddr, does: Does) -> Self {
        let env = Env::seeded(1);
        let mut listener = env.net.listen(address).await.unwrap();
        let address = listener.local_address().unwrap();
        let shared = Arc::new(Shared {
            env: env.clone(),
            does,
            hangs: AtomicBool::new(false),
            drains: AtomicBool::new(false),
            requests: Mutex::default(),
            pieces: broadcast::Sender::new(64),
            left: Notify::new(),
            n_flooded: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        let serving = shared.clone();
        let accept = async move {
            while let Ok((io, _)) = listener.accept().await {
                let connection = serving.clone().serve(io);
                let task = serving.env.spawner.spawn("upstream connection", Box::pin(connection));
                serving.connections.lock().unwrap().push(task);
            }
        };
        let accepting = env.spawner.spawn("upstream", Box::pin(accept));
        Self { address, shared, accepting }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests that were no probes.
    pub(crate) fn requests(&self) -> Vec<Came> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Its process ends: nobody listens, every connection breaks.
    pub(crate) fn stop(&self) {
        self.accepting.abort();
        self.shared.connections.lock().unwrap().drain(..).for_each(|task| task.abort());
    }

    /// From now on it does not even answer probes.
    pub(crate) fn hang(&self) {
        self.shared.hangs.store(true, Ordering::Relaxed);
    }

    /// From now on it tells probes that it drains.
    pub(crate) fn drain(&self) {
        self.shared.drains.store(true, Ordering::Relaxed);
    }

    /// The next piece of every open stream.
    pub(crate) fn emit(&self, piece: &str) {
        self.shared.pieces.send(piece.to_owned()).unwrap();
    }

    /// Ready when the other side of a stream has left.
    pub(crate) async fn left(&self) {
        self.shared.left.notified().await;
    }

    pub(crate) fn n_flooded(&self) -> usize {
        self.shared.n_flooded.load(Ordering::Relaxed)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, mut io: Box<dyn Stream>) {
        let mut buffer = Vec::new();
        while let Some(came) = read_request(&mut io, &mut buffer).await {
            let is_probe = came.line.contains(" /readyz ");
            if self.hangs.load(Ordering::Relaxed) {
                self.requests.lock().unwrap().extend((!is_probe).then_some(came));
                std::future::pending::<()>().await;
                return;
            }
            if is_probe {
                let answer = if self.drains.load(Ordering::Relaxed) {
                    whole("503 Service Unavailable", "", "{\"checks\":{\"draining\":true}}")
                } else {
                    whole("200 OK", "", "{\"checks\":{\"draining\":false}}")
                };
                if io.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
                continue;
            }
            self.requests.lock().unwrap().push(came.clone());
            if let Does::Lose(to) = self.does {
                return self.hand_on(to, &came).await;
            }
            if !self.act(&mut io).await {
                return;
            }
        }
    }

    /// Carries out what it does. Replies whether the connection stays.
    async fn act(&self, io: &mut Box<dyn Stream>) -> bool {
        let answer = match self.does {
            Does::Answer => whole("200 OK", "", "{}"),
            Does::RefuseDraining => whole("503 Service Unavailable", "x-evenkeel-draining: 1\r\n", "{}"),
            Does::Refuse => whole("503 Service Unavailable", "retry-after: 7\r\n", "{}"),
            Does::BreakInHeaders => {
                let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-ty").await;
                return false;
            }
            Does::Break | Does::Lose(_) => return false,
            Does::Hang => std::future::pending().await,
            Does::StreamSlowly => {
                self.stream(io).await;
                self.left.notify_one();
                return false;
            }
            Does::Flood => {
                self.flood(io).await;
                self.left.notify_one();
                return false;
            }
        };
        io.write_all(answer.as_bytes()).await.is_ok()
    }

    async fn hand_on(&self, to: SocketAddr, came: &Came) {
        let mut io = self.env.net.connect(to.ip().to_string(), to.port()).await.unwrap();
        let key = came.header("idempotency-key");
        let head = format!(
            "{}\r\nhost: x\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n",
            came.line,
            came.body.len()
        );
        io.write_all(format!("{head}{}", came.body).as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        io.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }

    async fn stream(&self, io: &mut Box<dyn Stream>) {
        let mut pieces = self.pieces.subscribe();
        if io.write_all(CHUNKED.as_bytes()).await.is_err() {
            return;
        }
        let mut nothing = [0; 1];
        loop {
            tokio::select! {
                piece = pieces.recv() => {
                    let Ok(piece) = piece else { return };
                    let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
                    if io.write_all(chunk.as_bytes()).await.is_err() {
                        return;
                    }
                }
                // The other side sends nothing more; a read that ends says that it has left.
                _ = io.read(&mut nothing) => return,
            }
        }
    }

    async fn flood(&self, io: &mut Box<dyn Stream>) {
        let piece = "x".repeat(16 << 10);
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        let mut bytes = CHUNKED.as_bytes();
        while io.write_all(bytes).await.is_ok() {
            self.n_flooded.fetch_add(bytes.len(), Ordering::Relaxed);
            bytes = chunk.as_bytes();
        }
    }
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n";

fn whole(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// The next request of a connection, with a body of the announced length.
async fn read_request(io: &mut Box<dyn Stream>, buffer: &mut Vec<u8>) -> Option<Came> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        fill(io, buffer).await?;
    };
    let head = String::from_utf8(buffer.drain(..head_end + 4).collect()).unwrap();
    let mut lines = head.trim_end().lines();
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, value)| value.parse::<usize>().unwrap());
    while buffer.len() < length {
        fill(io, buffer).await?;
    }
    let body = String::from_utf8(buffer.drain(..length).collect()).unwrap();
    Some(Came { line, headers, body })
}

async fn fill(io: &mut Box<dyn Stream>, buffer: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 4096];
    let n = io.read(&mut piece).await.ok().filter(|n| *n > 0)?;
    buffer.extend_from_slice(&piece[..n]);
    Some(())
}
