//! The checks in front of every fenced write, each alone.
//!
//! They overlap on purpose: with one of them gone the others hide it in nearly every history. So
//! each is a value of its own that the memory engine can be built without, and the suites show for
//! each that it refuses what it must with the others off.

use evenkeel_core::port::store::Fence;
use evenkeel_core::run::RunState;

use super::Context;
use crate::record::{RunRow, ThreadRow};
use crate::rows::Rowed;

/// Which checks are on. Durable engines use [`Guards::ALL`], or [`Guards::PLAIN`] for the comparison
/// of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    /// The fence's epoch must be the thread's.
    pub epoch: bool,
    /// The turn's version must be the thread's.
    pub version: bool,
    /// The run must be owned, and be the active one of its thread.
    pub status: bool,
    /// A turn has its thread alone; see `plain`.
    pub alone: bool,
}

impl Guards {
    /// Every check.
    pub const ALL: Self = Self { epoch: true, version: true, status: true, alone: true };
    /// No check: only for proving that one of them alone does its work.
    pub const NONE: Self = Self { epoch: false, version: false, status: false, alone: true };
    /// As a platform without any protection: the last write wins.
    pub const PLAIN: Self = Self { epoch: false, version: false, status: false, alone: false };

    fn admits(self, fence: &Fence, thread: &ThreadRow, run: &RunRow) -> bool {
        (!self.epoch || fence.epoch == thread.epoch)
            && (!self.status || (is_held(run.state) && thread.active == Some(run.id)))
    }
}

/// Whether a run in this state has an owner.
pub(super) fn is_held(state: RunState) -> bool {
    matches!(state, RunState::Running | RunState::Cancelling)
}

/// The rows behind a fence if it still holds, else `None`: a later claim took over, or the run has
/// ended, or this tenant has no such run.
pub(super) fn holder(ctx: &mut Context<'_>, fence: &Fence) -> Rowed<Option<(ThreadRow, RunRow)>> {
    let Some(thread) = ctx.rows.thread(&fence.tenant, fence.thread)? else {
        return Ok(None);
    };
    let Some(run) = ctx.rows.run(&fence.tenant, fence.run)? else {
        return Ok(None);
    };
    let holds = run.thread_n == thread.n && ctx.guards.admits(fence, &thread, &run);
    Ok(holds.then_some((thread, run)))
}
