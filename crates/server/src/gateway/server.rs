//! Connections: accepting, the limits of HTTP itself, the orderly end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use evenkeel_core::id::TenantId;
use evenkeel_env::call::Call;
use evenkeel_env::slots::Slot;
use evenkeel_env::{Accepted, Listener, watch};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tower::ServiceExt;

use super::{proxy, route};
use crate::app::Shared;

/// The pause after a failed accept (no descriptors left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a request's line and headers.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Serving,
    /// No new connections; those that are open end after their current request.
    Stopping,
    /// All connections end now.
    Aborting,
}

/// Tells the connections to end.
#[derive(Clone)]
pub(crate) struct Stopping(Arc<watch::Sender<Phase>>);

impl Default for Stopping {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }
}

impl Stopping {
    /// No new connections; the open ones end after their current request.
    pub(crate) fn stop(&self) {
        self.0.send_modify(|phase| *phase = (*phase).max(Phase::Stopping));
    }

    /// Every connection ends now.
    pub(crate) fn abort(&self) {
        self.0.send_replace(Phase::Aborting);
    }
}

/// Accepts until told to stop, then waits for the open connections.
pub(crate) async fn serve(shared: Arc<Shared>, mut listener: Box<dyn Listener>, stopping: Stopping) {
    let service = route::service(&shared);
    let mut phase = stopping.0.subscribe();
    let (alive, mut all_gone) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase > Phase::Serving) => break,
            accepted = accept(&shared, listener.as_mut()) => accepted,
        };
        match accepted {
            Ok((accepted, client, slot)) => {
                let connection = Connection { shared: shared.clone(), client, slot, phase: phase.clone() };
                let (service, alive) = (service.clone(), alive.clone());
                let serving = async move {
                    match accepted {
                        Accepted::Connection(io) => connection.serve(io, service).await,
                        Accepted::Call(call) => connection.answer(call, service).await,
                    }
                    drop(alive);
                };
                shared.env.spawner.spawn("connection", Box::pin(serving));
            }
            Err(error) => {
                tracing::warn!(%error, "accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    drop(alive);
    // Ends when the last connection has dropped its sender; nobody sends.
    let _ = all_gone.recv().await;
}

/// Takes a connection only when there is a slot for it: beyond the limit clients wait in the
/// system's own queue.
async fn accept(shared: &Shared, listener: &mut dyn Listener) -> io::Result<(Accepted, SocketAddr, Slot)> {
    let slot = loop {
        let wait = Duration::from_secs(3600);
        if let Ok(slot) = shared.slots.gateway.acquire(&TenantId::from(""), wait).await {
            break slot;
        }
    };
    let (accepted, client) = listener.accept_any().await?;
    Ok((accepted, client, slot))
}

struct Connection {
    shared: Arc<Shared>,
    client: SocketAddr,
    slot: Slot,
    phase: watch::Receiver<Phase>,
}

impl Connection {
    async fn serve(mut self, io: Box<dyn evenkeel_env::Stream>, service: axum::Router) {
        let limits = &self.shared.config.limits.gateway;
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout.0)
            .max_headers(limits.headers_max)
            .max_buf_size(HEAD_BYTES_MAX)
            // The date comes from the injected clock, see `route`.
            .auto_date_header(false);
        let client = proxy::Client(self.client.ip());
        let service = service.map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(client);
            request.map(Body::new)
        });
        let stall_max = self.shared.config.gateway.client_stall.0;
        let io = TokioIo::new(Unstalled { io, stall_max, stalled: None });
        let mut connection = std::pin::pin!(builder.serve_connection(io, TowerToHyperService::new(service)));
        let mut asked_to_end = false;
        loop {
            let wanted = if asked_to_end { Phase::Aborting } else { Phase::Stopping };
            tokio::select! {
                biased;
                phase = self.phase.wait_for(|phase| *phase >= wanted) => {
                    if asked_to_end || phase.is_err() || phase.is_ok_and(|phase| *phase == Phase::Aborting) {
                        break;
                    }
                    connection.as_mut().graceful_shutdown();
                    asked_to_end = true;
                }
                served = connection.as_mut() => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "connection ended");
                    }
                    break;
                }
            }
        }
        drop(self.slot);
    }

    /// The one request of a call. The limits of HTTP itself have no meaning here.
    async fn answer(mut self, call: Call, service: axum::Router) {
        let client = proxy::Client(self.client.ip());
        let answering = call.answer(|mut request| {
            request.extensions_mut().insert(client);
            async move {
                let Ok(response) = service.oneshot(request.map(Body::from)).await;
                response
            }
        });
        tokio::select! {
            biased;
            _ = self.phase.wait_for(|phase| *phase == Phase::Aborting) => {}
            () = answering => {}
        }
        drop(self.slot);
    }
}

/// A stream that fails when its peer takes nothing for too long.
struct Unstalled {
    io: Box<dyn evenkeel_env::Stream>,
    stall_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Unstalled {
    /// Passes the result of a write on, or gives up on a peer that has taken nothing for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let stall_max = self.stall_max;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall_max)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Unstalled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Unstalled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.judge(cx, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_flush(cx);
        self.judge(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
