//! The network seam: connecting and listening.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::call::{Call, Calls};

/// Any duplex byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects and listens.
pub trait Net: Send + Sync {
    /// Opens a connection to `host:port`. Sets no timeout of its own: callers do.
    fn connect(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;

    /// Every address of a name. Sets no timeout of its own.
    fn resolve(&self, host: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>>;

    /// Listens on `address`; port 0 picks a free one.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;

    /// What carries requests without connections, if this network does: only in the simulation.
    fn calls(&self) -> Option<Arc<dyn Calls>> {
        None
    }
}

/// What arrives at a listener.
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, on its way to the task that serves it")]
pub enum Accepted {
    /// A connection.
    Connection(Box<dyn Stream>),
    /// A request without one.
    Call(Call),
}

/// Accepts connections.
pub trait Listener: Send + Sync {
    /// Waits for the next connection.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Box<dyn Stream>, SocketAddr)>>;

    /// Waits for the next connection or call, for servers that answer both.
    fn accept_any(&mut self) -> BoxFuture<'_, io::Result<(Accepted, SocketAddr)>> {
        Box::pin(async move {
            let (stream, peer) = self.accept().await?;
            Ok((Accepted::Connection(stream), peer))
        })
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// If the operating system does not know it.
    fn local_address(&self) -> io::Result<SocketAddr>;
}

/// Real TCP.
pub struct TcpNet;

#[expect(clippy::disallowed_types, reason = "this is the seam")]
impl Net for TcpNet {
    fn connect(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn resolve(&self, host: String) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = tokio::net::TcpListener::bind(address).await?;
            Ok(Box::new(TcpAccept(listener)) as Box<dyn Listener>)
        })
    }
}

#[expect(clippy::disallowed_types, reason = "this is the seam")]
struct TcpAccept(tokio::net::TcpListener);

impl Listener for TcpAccept {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Box<dyn Stream>, SocketAddr)>> {
        Box::pin(async move {
            let (stream, peer) = self.0.accept().await?;
            stream.set_nodelay(true)?;
            Ok((Box::new(stream) as Box<dyn Stream>, peer))
        })
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}
