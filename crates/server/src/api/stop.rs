//! Stopping runs for any reason: the intent is stored first, then whoever runs it is told.

use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::port::store::{Cancel, Cancelled, ListRuns};
use evenkeel_core::run::{Run, RunState};

use crate::app::Shared;

/// The states of a run that has not ended.
pub(super) const OPEN: [RunState; 4] =
    [RunState::Queued, RunState::Running, RunState::Waiting, RunState::Cancelling];

/// Stores the intent to stop `run` and passes it on.
pub(super) async fn stop(shared: &Shared, run: &Run, cancel: Cancel) -> Result<Cancelled, Error> {
    let cancelled = shared.store.cancel(cancel).await?;
    if cancelled != Cancelled::NotFound {
        hint(shared, &[run.id]);
        if run.owner.is_some() {
            shared.hint(run.owner);
        }
        // Ended at once: the thread may be free for its next turn.
        shared.dispatch.nudge();
        shared.hub.touch(run.thread);
    }
    Ok(cancelled)
}

/// Stops those of these runs that this process runs. Only a hint: owners find it in the store as well.
pub(super) fn hint(shared: &Shared, runs: &[RunId]) {
    runs.iter().for_each(|run| shared.dispatch.cancel(*run));
}

/// Ends everything that is open on a thread, at once.
pub(super) async fn all_of(shared: &Shared, tenant: &TenantId, thread: ThreadId) -> Result<(), Error> {
    for run in open_runs(shared, tenant, Some(thread), &OPEN).await? {
        let cancel = Cancel { tenant: tenant.clone(), run: run.id, force: true, undo: false };
        stop(shared, &run, cancel).await?;
    }
    Ok(())
}

/// The runs in these states, newest first: what waits is stopped before what it waits for, so that
/// nothing begins in between.
pub(super) async fn open_runs(
    shared: &Shared,
    tenant: &TenantId,
    thread: Option<ThreadId>,
    states: &[RunState],
) -> Result<Vec<Run>, Error> {
    let mut all = Vec::new();
    loop {
        let request = ListRuns {
            tenant: Some(tenant.clone()),
            thread,
            states: states.to_vec(),
            limit: 1000,
            offset: u32::try_from(all.len()).unwrap_or(u32::MAX),
        };
        let page = shared.store.list_runs(request).await?;
        let full = page.len() == 1000;
        all.extend(page);
        if !full {
            return Ok(all);
        }
    }
}
