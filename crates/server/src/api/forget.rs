//! Threads that a run made for itself alone: removed some time after the run's end.
//!
//! The time lets a client that lost its connection come back for the result. The wait lives in the
//! process that accepted the run; a thread whose process ended in between stays.

use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_core::Error;
use evenkeel_core::port::store::RunRef;
use evenkeel_core::run::Run;

use super::threads;
use crate::app::Shared;

/// The first look whether the run has ended, and the longest time between two.
const LOOK_FIRST: Duration = Duration::from_secs(2);
const LOOK_MAX: Duration = Duration::from_secs(60);

/// Removes the thread of this run when the run has ended and `server.stateless_keep` has passed.
/// Holds nothing of the server while it waits, so that it never keeps one from ending.
pub(super) fn after_end(shared: &Arc<Shared>, run: &Run) {
    let keep = shared.config.server.stateless_keep.0;
    let (weak, run) = (Arc::downgrade(shared), run.clone());
    let forget = async move {
        let mut pause = LOOK_FIRST;
        loop {
            tokio::time::sleep(pause).await;
            match has_ended(&weak, &run).await {
                Some(Ok(true)) => break,
                Some(Ok(false) | Err(_)) => pause = (pause * 2).min(LOOK_MAX),
                None => return,
            }
        }
        tokio::time::sleep(keep).await;
        let Some(shared) = weak.upgrade() else { return };
        if let Err(error) = threads::remove(&shared, &run.tenant, run.thread).await {
            tracing::warn!(code = %error.code, thread = %run.thread, "remove the thread of an ended run");
        }
    };
    shared.env.spawner.spawn("forget a thread", Box::pin(forget));
}

/// Whether the run has ended; `None` when the server has.
async fn has_ended(shared: &Weak<Shared>, run: &Run) -> Option<Result<bool, Error>> {
    let store = shared.upgrade()?.store.clone();
    let found = store.get_run(RunRef { tenant: run.tenant.clone(), run: run.id }).await;
    Some(found.map(|found| found.is_none_or(|run| run.state.is_terminal())))
}
