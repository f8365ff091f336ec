//! The sockets: one listener, and for each connection or call two directions.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_env::call::Call;
use evenkeel_env::{Accepted, Env, Listener, Stream, Task, watch};
use http::{Request, Uri};
use tokio::time::timeout;

use super::rule::{Direction, Fault, Opening, Rules};
use super::way::{From, FromCall, To, ToCall, Way};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(50);

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
                    Some(listener) => listener.accept_any().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.rules.changed() => if changed.is_err() { return },
                accepted = accepted => if let Ok((accepted, _)) = accepted { self.pass(accepted) },
            }
        }
    }

    fn pass(&self, accepted: Accepted) {
        if self.rules.borrow().opening() == Opening::Ends {
            return;
        }
        let passage = Passage { env: self.env.clone(), port: self.port, rules: self.rules.clone() };
        let spawner = self.env.spawner.clone();
        spawner.spawn(
            "link",
            Box::pin(async move {
                let mut cut = passage.rules.clone();
                let passing = async {
                    match accepted {
                        Accepted::Connection(client) => passage.connection(client).await,
                        Accepted::Call(call) => passage.call(call).await,
                    }
                };
                tokio::select! {
                    biased;
                    // The sender of a proxy that was dropped is gone: the connection ends as well.
                    _ = cut.wait_for(|rules| rules.opening() == Opening::Ends) => {}
                    // An end that broke is closed by dropping both.
                    _ = passing => {}
                }
            }),
        );
    }
}

/// One connection or call through the link.
struct Passage {
    env: Env,
    port: u16,
    rules: watch::Receiver<Rules>,
}

impl Passage {
    /// Passes bytes both ways until both ends have closed, or one of them broke.
    async fn connection(self, client: Box<dyn Stream>) -> io::Result<()> {
        let connect = self.env.net.connect(Ipv4Addr::LOCALHOST.to_string(), self.port);
        let Ok(target) = timeout(CONNECT_WITHIN, connect).await else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        let (client_read, client_write) = tokio::io::split(client);
        let (target_read, target_write) = tokio::io::split(target?);
        let requests = self.way(Direction::Requests).pass(From::new(client_read), To(target_write));
        let answers = self.way(Direction::Answers).pass(From::new(target_read), To(client_write));
        futures_util::future::try_join(requests, answers).await.map(drop)
    }

    /// Passes a request on and its answer back, unless who asked leaves.
    async fn call(self, mut call: Call) -> io::Result<()> {
        let calls = self.env.net.calls().ok_or(io::ErrorKind::Unsupported)?;
        let (mut head, body) = std::mem::take(&mut call.request).into_parts();
        head.uri = on_port(&head.uri, self.port)?;
        let asking = async {
            self.way(Direction::Requests).pass_whole(body.len()).await?;
            calls.call(Request::from_parts(head, body)).await
        };
        let answer = tokio::select! {
            biased;
            () = call.left() => return Ok(()),
            answer = asking => answer?,
        };
        let (head, body) = answer.into_parts();
        let to = ToCall::Waiting(Some(Box::new((call, head))));
        self.way(Direction::Answers).pass(FromCall::new(body), to).await
    }

    fn way(&self, direction: Direction) -> Way {
        Way::new(&self.env, direction, &self.rules)
    }
}

fn on_port(uri: &Uri, port: u16) -> io::Result<Uri> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("http://{}:{port}{path}", Ipv4Addr::LOCALHOST).parse().map_err(io::Error::other)
}
