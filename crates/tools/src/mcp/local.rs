//! Built-in servers inside this process, each behind an in-memory pipe.

use evenkeel_core::Error;
use evenkeel_env::Env;
use rmcp::service::RoleServer;
use rmcp::transport::IntoTransport;

use super::lost;
use super::session::{Session, handshake};
use crate::builtin::Server;

/// Bytes that a pipe holds before its writer waits.
const PIPE: usize = 16 << 10;

/// Serves until the other side closes. Compiled once for each kind of transport.
pub(super) async fn serve<T, E, A>(server: Server, transport: T) -> Result<(), Error>
where
    T: IntoTransport<RoleServer, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let running = rmcp::service::serve_server(server, transport).await;
    let running = running.map_err(|error| lost("client", error))?;
    running.waiting().await.map_err(|error| lost("client", error))?;
    Ok(())
}

/// Starts a built-in server and opens a session with it.
pub(crate) async fn open(env: &Env, name: &str, server: Server) -> Result<Session, Error> {
    let (ours, theirs) = tokio::io::duplex(PIPE);
    let task = env.spawner.spawn(
        "mcp-server",
        Box::pin(async move {
            if let Err(error) = serve(server, theirs).await {
                tracing::debug!(%error, "a built-in tool server ended");
            }
        }),
    );
    // The server ends when its pipe closes, so the task needs no owner.
    drop(task);
    handshake(name, ours).await
}
