//! A serving process: its address and its orderly end.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::Error;
use evenkeel_env::{Listener, Task, watch};

use super::Shared;
use super::engine::EngineKeeper;
use crate::gateway::server::{self, Stopping};

/// A serving process. Dropping it stops serving at once, as a crash would; [`Running::shutdown`] is
/// the orderly end.
pub struct Running {
    shared: Arc<Shared>,
    address: SocketAddr,
    stopping: Stopping,
    ended: watch::Receiver<bool>,
    serving: Task,
    /// What runs beside the connections.
    beside: Vec<Task>,
    keeper: Option<EngineKeeper>,
}

impl Running {
    pub(super) fn begin(shared: Arc<Shared>, listener: Box<dyn Listener>, address: SocketAddr) -> Self {
        let stopping = Stopping::default();
        let (end, ended) = watch::channel(false);
        let serve = server::serve(shared.clone(), listener, stopping.clone());
        let serving = shared.env.spawner.spawn(
            "serve",
            Box::pin(async move {
                serve.await;
                end.send_replace(true);
            }),
        );
        let poll = shared.hub.clone().poll();
        let mut beside = vec![shared.env.spawner.spawn("look for events", Box::pin(poll))];
        let hints = shared.hints.clone().run();
        beside.push(shared.env.spawner.spawn("hint replicas", Box::pin(hints)));
        beside.extend(shared.balancer.iter().flat_map(|balancer| balancer.start()));
        Self { shared, address, stopping, ended, serving, beside, keeper: None }
    }

    /// The same with a watch over the store's engine.
    pub(super) fn keeping(mut self, keeper: EngineKeeper) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// The address that is listened on, with the port that was picked.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The orderly end: admits nothing new and says so, hands runs back at their step boundaries,
    /// ends streams so that clients resume elsewhere, lets requests under way finish. Bounded by
    /// `server.drain_timeout`; what is left then is taken over from the store like after a crash.
    pub async fn shutdown(mut self) {
        let limit = self.shared.config.server.drain_timeout.0;
        tracing::info!(limit_s = limit.as_secs(), "draining");
        self.shared.drain();
        if tokio::time::timeout(limit, self.shared.dispatch.drain()).await.is_err() {
            tracing::warn!(
                "runs were still at work when the drain timeout passed; they resume after a restart"
            );
        }
        self.shared.hub.close();
        self.stopping.stop();
        let mut ended = self.ended.clone();
        if tokio::time::timeout(limit, ended.wait_for(|ended| *ended)).await.is_err() {
            tracing::warn!("connections were still open when the drain timeout passed");
        }
        self.shared.exporter.flush().await;
        let keeper = self.keeper.take();
        drop(self);
        if let Some(keeper) = keeper {
            keeper.closed().await;
        }
        tracing::info!("stopped");
    }

    /// Waits until an operator asks for the orderly end through the API.
    pub async fn drain_asked(&self) {
        self.shared.drain_asked().await;
    }

    /// Waits until it can no longer serve: the listener has ended, or the store can no longer be
    /// trusted and the process should be started again. See [`Running::failure`].
    pub async fn wait(&self) {
        let mut ended = self.ended.clone();
        let failed = async {
            match &self.keeper {
                Some(keeper) => keeper.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = failed => {}
            // An error means that the task is gone, which is an end as well.
            _ = ended.wait_for(|ended| *ended) => {}
        }
    }

    /// Why the store can no longer be trusted, if so.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.keeper.as_ref().and_then(EngineKeeper::failure)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
        self.beside.iter().for_each(Task::abort);
        self.stopping.abort();
    }
}
