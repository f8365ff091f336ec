//! The server's side of streamable HTTP: a built-in server for clients on this machine.
//!
//! It has no keys of its own, so it listens on loopback only, and refuses what a web page sends:
//! a `Host` that is not this machine, an `Origin` that is not either.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::{Code, Error, Origin};
use evenkeel_env::Env;
use evenkeel_env::net::Stream;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

use crate::builtin::Server;

/// Connections at once; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

/// Web pages that may use a server: those of this machine.
const ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

type Service = StreamableHttpService<Server, LocalSessionManager>;

/// Serves until the process ends. `ready` is called with the address once it listens.
pub(super) async fn serve(
    env: &Env,
    server: Server,
    address: SocketAddr,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), Error> {
    if !address.ip().is_loopback() {
        return Err(Error::new(
            Code::AddressRefused,
            Origin::Ours,
            format!("{address} can be reached from other machines, and this server asks for no key."),
            "Listen on 127.0.0.1 and put something that asks for keys in front.",
        ));
    }
    let mut listener = env.net.listen(address).await.map_err(|error| in_use(address, &error))?;
    ready(listener.local_address().unwrap_or(address));
    let cancel = CancellationToken::new();
    let service = service(server, cancel.clone());
    let _end = cancel.clone().drop_guard();
    let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        let Ok((stream, _)) = listener.accept().await else { continue };
        let service = service.clone();
        let cancel = cancel.clone();
        let connection = async move {
            // A server that ends takes its connections with it.
            let _ = cancel.run_until_cancelled(connection(stream, service)).await;
            drop(slot);
        };
        drop(env.spawner.spawn("mcp-connection", Box::pin(connection)));
    }
}

fn service(server: Server, cancel: CancellationToken) -> Service {
    let mut config = StreamableHttpServerConfig::default().with_allowed_origins(ORIGINS);
    config.cancellation_token = cancel;
    StreamableHttpService::new(move || Ok(server.clone()), Arc::new(LocalSessionManager::default()), config)
}

async fn connection(stream: Box<dyn Stream>, service: Service) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "an MCP connection ended");
    }
}

fn in_use(address: SocketAddr, error: &std::io::Error) -> Error {
    Error::new(
        Code::AddressInUse,
        Origin::Ours,
        format!("{address} cannot be listened on: {error}."),
        "Choose another port, or 0 for a free one.",
    )
}
