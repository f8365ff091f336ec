//! The proxy of one command.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::port::runner::HostRule;
use evenkeel_env::net::{Net, Stream};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::address::{self, Kind};
use super::head::{HEAD_BYTES_MAX, Request, Target};
use super::refusal::Refusal;
use super::{Counters, receive_listener};

/// Connections of one command at once; further ones wait in the socket's queue.
const CONNECTIONS_MAX: usize = 64;

/// Refusals that are told to the caller by name.
const TOLD_MAX: usize = 10;

/// Time to send a head, to look a name up, and to connect to one address.
const HEAD_TIME: Duration = Duration::from_secs(10);
const LOOKUP_TIME: Duration = Duration::from_secs(5);
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Whose command it is, for the log.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) tenant: TenantId,
    pub(crate) run: RunId,
}

/// The proxy of one command. Everything ends when [`Proxy::serve`] is dropped.
pub(crate) struct Proxy<'a> {
    net: &'a dyn Net,
    counters: &'a Counters,
    rules: Vec<HostRule>,
    label: Label,
    refused: Mutex<BTreeSet<String>>,
}

impl<'a> Proxy<'a> {
    pub(crate) fn new(net: &'a dyn Net, counters: &'a Counters, rules: Vec<HostRule>, label: Label) -> Self {
        Self { net, counters, rules, label, refused: Mutex::default() }
    }

    /// What was refused, for the caller.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Serves on the socket that comes through the channel. Ends only when there is none.
    pub(crate) async fn serve(&self, channel: UnixStream) {
        match receive_listener(&channel).await {
            Ok(listener) => self.accept(listener).await,
            // The sandbox failed before it got that far, and tells why itself.
            Err(error) => tracing::debug!(%error, "no proxy socket came"),
        }
    }

    #[expect(
        clippy::disallowed_types,
        reason = "the socket was opened inside the sandbox and only comes here"
    )]
    async fn accept(&self, listener: OwnedFd) {
        let listener = std::net::TcpListener::from(listener);
        let listener =
            match listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener)) {
                Ok(listener) => listener,
                Err(error) => return tracing::warn!(%error, "the proxy socket cannot be used"),
            };
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if open.len() < CONNECTIONS_MAX => match accepted {
                    Ok((client, _)) => open.push(self.connection(client)),
                    // No descriptors left, for example: others end first.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                Some(()) = open.next(), if !open.is_empty() => {}
            }
        }
    }

    /// Serves one connection. How it breaks later is the command's and the host's affair.
    pub(super) async fn connection<S: Stream>(&self, mut client: S) {
        let (request, rest) = match timeout(HEAD_TIME, read_head(&mut client)).await {
            Ok(Ok(Some(read))) => read,
            Ok(Ok(None)) | Err(_) => return,
            Ok(Err(refusal)) => return self.refuse(&mut client, "the request", &refusal).await,
        };
        let target = request.target().clone();
        let host = match self.reach(&target).await {
            Ok(host) => host,
            Err(refusal) => return self.refuse(&mut client, &target.to_string(), &refusal).await,
        };
        let _ = match request {
            Request::Connect(_) => tunnel(client, host, &rest).await,
            Request::Plain { head, body_bytes, .. } => plain(client, host, &head, &rest, body_bytes).await,
        };
    }

    /// Judges the host and its addresses, and connects to one of those that were judged.
    async fn reach(&self, target: &Target) -> Result<Box<dyn Stream>, Refusal> {
        let rule = self.rules.iter().find(|rule| rule.covers(&target.host, target.port));
        let rule = rule.ok_or(Refusal::Unlisted)?;
        let addresses = self.addresses(&target.host).await?;
        let is_forbidden = |address: &&IpAddr| match address::kind(**address) {
            Kind::Public => false,
            Kind::Private => !rule.private,
            Kind::Special => true,
        };
        if let Some(address) = addresses.iter().find(is_forbidden) {
            return Err(Refusal::ForbiddenAddress(*address));
        }
        let mut failure = "there is no address".to_owned();
        for address in addresses {
            match timeout(CONNECT_TIME, self.net.connect(address.to_string(), target.port)).await {
                Ok(Ok(stream)) => {
                    self.counters.connected.fetch_add(1, Ordering::Relaxed);
                    self.log(&target.to_string(), "connected", &address);
                    return Ok(stream);
                }
                Ok(Err(error)) => failure = error.to_string(),
                Err(_) => failure = format!("nothing within {} s", CONNECT_TIME.as_secs()),
            }
        }
        Err(Refusal::Unreachable(failure))
    }

    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, Refusal> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        match timeout(LOOKUP_TIME, self.net.resolve(host.to_owned())).await {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(Refusal::Unresolved(error.to_string())),
            Err(_) => Err(Refusal::Unresolved(format!("nothing within {} s", LOOKUP_TIME.as_secs()))),
        }
    }

    async fn refuse<S: Stream>(&self, client: &mut S, host: &str, refusal: &Refusal) {
        refusal.count(self.counters);
        self.log(host, refusal.outcome(), &refusal.why());
        {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            if refused.len() < TOLD_MAX {
                refused.insert(format!("{host}: {}", refusal.why()));
            }
        }
        let _ = client.write_all(refusal.answer(host).as_bytes()).await;
        let _ = client.shutdown().await;
        // What is still unread would make the kernel reset the connection and lose the answer.
        let mut unread = [0; 4096];
        let emptied = async { while matches!(client.read(&mut unread).await, Ok(n) if n > 0) {} };
        let _ = timeout(Duration::from_secs(1), emptied).await;
    }

    fn log(&self, host: &str, outcome: &str, detail: &dyn std::fmt::Display) {
        let Label { tenant, run } = &self.label;
        tracing::info!(%tenant, %run, host, outcome, %detail, "network attempt of a command");
    }
}

const TOO_LONG: Refusal = Refusal::Malformed("the head of the request is too long");

/// The request, and what came after its head; nothing when the client went first.
async fn read_head<S: Stream>(client: &mut S) -> Result<Option<(Request, Vec<u8>)>, Refusal> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(at + 4);
            // What is too long is so however it came, also all at once.
            let is_short = bytes.len() <= HEAD_BYTES_MAX;
            return if is_short { Ok(Some((Request::parse(&bytes)?, rest))) } else { Err(TOO_LONG) };
        }
        if bytes.len() >= HEAD_BYTES_MAX {
            return Err(TOO_LONG);
        }
        match client.read_buf(&mut bytes).await {
            Ok(n) if n > 0 => {}
            _ => return Ok(None),
        }
    }
}

async fn tunnel<S: Stream>(mut client: S, mut host: Box<dyn Stream>, rest: &[u8]) -> std::io::Result<()> {
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    host.write_all(rest).await?;
    copy_bidirectional(&mut client, &mut host).await?;
    Ok(())
}

/// One request and its answer. What the client sends beyond the request's length is never read on,
/// so that no second request hides behind the first.
async fn plain<S: Stream>(
    client: S,
    host: Box<dyn Stream>,
    head: &str,
    rest: &[u8],
    body_bytes: u64,
) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_host, mut to_host) = tokio::io::split(host);
    let body_bytes_usize = usize::try_from(body_bytes).unwrap_or(usize::MAX);
    let begun = rest.get(..body_bytes_usize.min(rest.len())).unwrap_or_default();
    let sending = async {
        to_host.write_all(head.as_bytes()).await?;
        to_host.write_all(begun).await?;
        let mut more = (&mut from_client).take(body_bytes - begun.len() as u64);
        copy(&mut more, &mut to_host).await?;
        to_host.flush().await
    };
    let answering = async {
        copy(&mut from_host, &mut to_client).await?;
        to_client.shutdown().await
    };
    // A host may answer before it has read everything; its answer ends the exchange.
    let mut sending = std::pin::pin!(sending);
    let mut answering = std::pin::pin!(answering);
    tokio::select! {
        answered = &mut answering => answered,
        sent = &mut sending => {
            sent?;
            answering.await
        }
    }
}
