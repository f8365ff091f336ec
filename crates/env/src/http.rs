//! The HTTP client: hyper-util's pooled client over our connector, with TLS where the URL says so.

mod body;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{Request, Response, Uri};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioIo, TokioTimer};
use tower_service::Service;

pub use body::Body;

use crate::Env;
use crate::call::Calls;
use crate::net::{Net, Stream};
use crate::spawn::Spawn;

/// A pooled HTTP/1.1 client. Cheap to clone. It never retries and follows no redirects.
///
/// Each host has a pool of its own. One pool for all would close idle connections in the order of a
/// table that is another in every process, and a simulation could not be repeated.
#[derive(Clone)]
pub struct Client {
    calls: Option<Arc<dyn Calls>>,
    connector: HttpsConnector<Connector>,
    builder: legacy::Builder,
    pools: Arc<Mutex<BTreeMap<String, Pool>>>,
}

type Pool = legacy::Client<HttpsConnector<Connector>, Full<Bytes>>;

/// How a client treats its connections.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Bounds resolving, TCP and TLS.
    pub connect_timeout: Duration,
    /// Connections unused for this long are closed; `None`: none is used twice.
    pub idle_max: Option<Duration>,
    /// Bytes of a response that a connection may hold before they are taken.
    pub buffer_max: Option<usize>,
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection: refused, unresolvable, TLS failed, or not in time.
    #[error("connect to {host}: {cause}")]
    Connect {
        /// Host and port.
        host: String,
        /// The innermost cause.
        cause: String,
        /// Nobody listens there.
        refused: bool,
    },
    /// The connection broke before the response's headers.
    #[error("no response from {host}: {cause}")]
    Broken {
        /// Host and port.
        host: String,
        /// The innermost cause.
        cause: String,
        /// Whether any of the request may have left: a connection that was closed while it was not
        /// used takes nothing.
        sent: bool,
    },
}

impl Client {
    /// A client over the environment's network. `connect_timeout` bounds resolving, TCP and TLS.
    #[must_use]
    pub fn new(env: &Env, connect_timeout: Duration) -> Self {
        let idle_max = Some(Duration::from_secs(20));
        Self::with(env, ClientOptions { connect_timeout, idle_max, buffer_max: None })
    }

    /// A client over the environment's network with these options.
    #[must_use]
    pub fn with(env: &Env, options: ClientOptions) -> Self {
        let ClientOptions { connect_timeout, idle_max, buffer_max } = options;
        let connector = Connector { net: env.net.clone(), timeout: connect_timeout };
        // The provider is named here, not installed globally: replicas in one process share nothing.
        let tls = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())
            .expect("ring offers the default protocol versions")
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let mut builder = legacy::Client::builder(Exec(env.spawner.clone()));
        builder.pool_timer(TokioTimer::new()).timer(TokioTimer::new()).retry_canceled_requests(false);
        match idle_max {
            Some(idle_max) => builder.pool_idle_timeout(idle_max),
            None => builder.pool_max_idle_per_host(0),
        };
        if let Some(bytes) = buffer_max {
            builder.http1_max_buf_size(bytes);
        }
        Self { calls: env.net.calls(), connector: tls, builder, pools: Arc::default() }
    }

    /// Sends one request and waits for the response's headers. Dropping the future, or the
    /// response's body before its end, closes the connection. Sets no timeout besides connect.
    pub fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, ClientError>> {
        let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        if let Some(calls) = &self.calls {
            let answer = calls.call(request);
            return Box::pin(async move { answer.await.map_err(|error| uncalled(host, &error)) });
        }
        let response = self.pool(&host).request(request.map(Full::new));
        Box::pin(async move {
            response.await.map(|response| response.map(Body::from)).map_err(|error| {
                let cause = innermost(&error);
                if error.is_connect() {
                    ClientError::Connect { host, cause, refused: is_refused(&error) }
                } else {
                    ClientError::Broken { host, cause, sent: !is_unsent(&error) }
                }
            })
        })
    }
}

impl Client {
    fn pool(&self, host: &str) -> Pool {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(host) {
            return pool.clone();
        }
        let pool: Pool = self.builder.build(self.connector.clone());
        pools.insert(host.to_owned(), pool.clone());
        pool
    }
}

fn uncalled(host: String, error: &io::Error) -> ClientError {
    let cause = error.to_string();
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ClientError::Connect { host, cause, refused: true },
        _ => ClientError::Broken { host, cause, sent: true },
    }
}

fn chain<'a>(
    error: &'a dyn std::error::Error,
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |error| error.source())
}

fn is_refused(error: &dyn std::error::Error) -> bool {
    chain(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
}

/// hyper gives such a request back untouched and calls it canceled, or its connection closed.
fn is_unsent(error: &dyn std::error::Error) -> bool {
    chain(error)
        .filter_map(|cause| cause.downcast_ref::<hyper::Error>())
        .any(|cause| cause.is_canceled() || cause.is_closed())
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Runs hyper's own tasks on our spawner.
#[derive(Clone)]
pub struct Exec(pub Arc<dyn Spawn>);

impl<F> hyper::rt::Executor<F> for Exec
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn("hyper", Box::pin(future));
    }
}

#[derive(Clone)]
struct Connector {
    net: Arc<dyn Net>,
    timeout: Duration,
}

impl Service<Uri> for Connector {
    type Response = Io;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Io>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { net, timeout } = self.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().to_owned();
            let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
            match tokio::time::timeout(timeout, net.connect(host, port)).await {
                Ok(stream) => Ok(Io(TokioIo::new(stream?))),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connect timed out")),
            }
        })
    }
}

/// A stream of ours as hyper wants it.
struct Io(TokioIo<Box<dyn Stream>>);

impl Connection for Io {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
