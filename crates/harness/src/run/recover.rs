//! How an effect that a crash left without a result is settled.
//!
//! When the process died, either calls that may run side by side were under way, which are pure, or
//! exactly one other: each call that must run alone gets its intent only when everything before it
//! is settled. Its intent names the workspace as it was at that moment, so going back to it never
//! undoes an earlier call of the same step.

use evenkeel_core::id::SnapshotId;
use evenkeel_core::journal::{EffectClass, EffectIntent};
use evenkeel_core::port::tools::GuardState;

/// What to do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    /// Run it again with the same effect id.
    Rerun,
    /// Put the workspace back, then run it again.
    RestoreAndRerun(SnapshotId),
    /// It took effect; only its result was lost.
    AlreadyApplied,
    /// Do not run it; the model is told.
    Unknown(&'static str),
}

/// Shown for a guarded call that had taken effect.
pub(crate) const APPLIED: &str = "Done. The change was in place when the run resumed after an interruption.";
const UNKNOWN: &str = "Outcome unknown: the run was interrupted while this call ran, and it is not safe to repeat. \
     Check what it did before you go on.";
const NEITHER: &str = "Outcome unknown: the run was interrupted while this call ran, and the file is neither as it \
     was before nor as it should be after. Read the file before you go on.";

/// Whether the guarded files must be looked at to decide.
pub(crate) fn asks_guards(intent: &EffectIntent) -> bool {
    intent.class == EffectClass::Guarded && !intent.guards.is_empty()
}

/// How to settle an intent without a result. `guards` is where its files stand, if asked for.
pub(crate) fn settlement(intent: &EffectIntent, guards: Option<GuardState>) -> Settlement {
    match (intent.class, guards, &intent.snapshot) {
        (EffectClass::Pure | EffectClass::Idempotent, ..) => Settlement::Rerun,
        (EffectClass::Guarded, Some(GuardState::Before), _) => Settlement::Rerun,
        (EffectClass::Guarded, Some(GuardState::After), _) => Settlement::AlreadyApplied,
        (EffectClass::Guarded, Some(GuardState::Other), _) => Settlement::Unknown(NEITHER),
        (EffectClass::Workspace, _, Some(snapshot)) => Settlement::RestoreAndRerun(snapshot.clone()),
        (EffectClass::Guarded | EffectClass::Workspace | EffectClass::Unsafe, ..) => {
            Settlement::Unknown(UNKNOWN)
        }
    }
}
