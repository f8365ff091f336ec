//! Watches the store's engine: whether it can still be trusted, and whether it is closed.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::BoxFuture;
use evenkeel_core::port::store::{Op, Reply, Store};
use evenkeel_env::{Env, Task, watch};
use tokio::sync::oneshot;

/// Time for the last holders of the engine to let go of it.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// What a process keeps to know of its engine; it does not keep the engine open.
pub(super) struct EngineKeeper {
    closed: oneshot::Receiver<()>,
    failed: watch::Receiver<Option<Error>>,
    watching: Task,
}

impl EngineKeeper {
    /// Watches `engine`, whose `failure` resolves when nothing it says can be trusted any more. The
    /// engine is used through what is returned and by nobody else.
    pub(super) fn new(
        env: &Env,
        engine: Arc<dyn Store>,
        failure: BoxFuture<'static, Error>,
    ) -> (Self, Arc<dyn Store>) {
        let (let_go, closed) = oneshot::channel();
        let (fail, failed) = watch::channel(None);
        let watching = async move {
            let error = failure.await;
            tracing::error!(code = %error.code, "{} {}", error.message, error.remedy);
            fail.send_replace(Some(error));
        };
        let watching = env.spawner.spawn("store watch", Box::pin(watching));
        (Self { closed, failed, watching }, Arc::new(Held { engine, _let_go: let_go }))
    }

    /// Why the engine can no longer be trusted, if so.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failed.borrow().clone()
    }

    /// Resolves when the engine can no longer be trusted.
    pub(super) async fn failed(&self) {
        let mut failed = self.failed.clone();
        if failed.wait_for(Option::is_some).await.is_err() {
            // The watch has ended without a failure: there will be none.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the engine is closed, so that the same files can be opened again. Called after
    /// everything that held it was dropped; stopped tasks let go at their next turn.
    pub(super) async fn closed(self) {
        self.watching.abort();
        // The sender is never used; that it is gone says that the engine is closed.
        if tokio::time::timeout(CLOSE_MAX, self.closed).await.is_err() {
            tracing::warn!("the store is still held by something that has not stopped");
        }
    }
}

/// The engine with a sign that it was closed.
struct Held {
    /// Dropped first: closing is done when the last holder's drop of it returns.
    engine: Arc<dyn Store>,
    _let_go: oneshot::Sender<()>,
}

impl Store for Held {
    fn apply(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        self.engine.apply(op)
    }
}
