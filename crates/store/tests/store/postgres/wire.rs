//! A proxy in front of the database that can lose what passes, or change what the server says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use evenkeel_env::{Env, Stream, Task};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};

/// What is lost next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lose {
    /// The statement: it never reaches the server.
    Statement = 1,
    /// The answer: the server has carried the statement out.
    Answer = 2,
}

/// Words of the server, and what arrives in their place: as long as they are.
pub(crate) type Forgery = (Vec<u8>, Vec<u8>);

/// The proxy; it ends when this is dropped.
pub(crate) struct Wire {
    pub(crate) port: u16,
    lose: Arc<AtomicU8>,
    task: Task,
}

impl Wire {
    pub(crate) async fn start(env: &Env, to: u16) -> Self {
        Self::forging(env, to, Vec::new()).await
    }

    /// A proxy that changes these words of the server.
    pub(crate) async fn forging(env: &Env, to: u16, forgeries: Vec<Forgery>) -> Self {
        let forgeries = Arc::new(forgeries);
        let mut listener = env.net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let port = listener.local_address().unwrap().port();
        let lose = Arc::new(AtomicU8::new(0));
        let (world, loses) = (env.clone(), lose.clone());
        let task = env.spawner.spawn(
            "wire",
            Box::pin(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let Ok(server) = world.net.connect("127.0.0.1".to_owned(), to).await else { continue };
                    world
                        .spawner
                        .spawn("wire pair", Box::pin(pair(client, server, loses.clone(), forgeries.clone())));
                }
            }),
        );
        Self { port, lose, task }
    }

    /// Breaks the connection at the next statement that writes.
    pub(crate) fn lose(&self, what: Lose) {
        self.lose.store(what as u8, Ordering::SeqCst);
    }

    /// Whether it has broken one since.
    pub(crate) fn has_lost(&self) -> bool {
        self.lose.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pair(
    client: Box<dyn Stream>,
    server: Box<dyn Stream>,
    lose: Arc<AtomicU8>,
    forgeries: Arc<Vec<Forgery>>,
) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let armed = AtomicU8::new(0);
    tokio::select! {
        () = statements(&mut from_client, &mut to_server, &lose, &armed) => {}
        () = answers(&mut from_server, &mut to_client, &armed, &forgeries) => {}
    }
}

async fn statements(
    from: &mut ReadHalf<Box<dyn Stream>>,
    to: &mut WriteHalf<Box<dyn Stream>>,
    lose: &AtomicU8,
    armed: &AtomicU8,
) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let n = from.read(&mut bytes).await.unwrap_or(0);
        let passing = &bytes[..n];
        // Every write of a batch begins so.
        let is_write = passing.windows(12).any(|part| part == b"write_check(");
        if is_write {
            match lose.swap(0, Ordering::SeqCst) {
                1 => return,
                2 => armed.store(1, Ordering::SeqCst),
                _ => {}
            }
        }
        if n == 0 || to.write_all(passing).await.is_err() {
            return;
        }
    }
}

async fn answers(
    from: &mut ReadHalf<Box<dyn Stream>>,
    to: &mut WriteHalf<Box<dyn Stream>>,
    armed: &AtomicU8,
    forgeries: &[Forgery],
) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let n = from.read(&mut bytes).await.unwrap_or(0);
        for (said, forged) in forgeries {
            while let Some(at) = bytes[..n].windows(said.len()).position(|part| part == said) {
                bytes[at..at + said.len()].copy_from_slice(forged);
            }
        }
        let is_lost = armed.load(Ordering::SeqCst) == 1;
        if n == 0 || is_lost || to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}
