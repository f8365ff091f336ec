//! Reads policy files again when they change.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_env::Env;

use super::Policy;
use crate::blocking::Blocking;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);

/// What tells a changed file from the one that was read: its number on the disk, size and time.
type Stamp = Vec<Option<(u64, u64, i64, i64)>>;

/// Watches until the policy is gone.
pub(crate) fn start(env: &Env, policy: &Arc<Policy>, pool: &Blocking) {
    if policy.files().is_empty() {
        return;
    }
    let watching = watch(Arc::downgrade(policy), stamp(policy), pool.clone());
    drop(env.spawner.spawn("policy-watch", Box::pin(watching)));
}

async fn watch(policy: Weak<Policy>, mut seen: Stamp, pool: Blocking) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(policy) = policy.upgrade() else { return };
        let before = seen.clone();
        let Ok(now) = pool.run(move || refresh(&policy, before)).await else { return };
        seen = now;
    }
}

/// Reads the files again if they changed; the stamp is taken first, so that a change in between is
/// seen the next time.
fn refresh(policy: &Policy, before: Stamp) -> Stamp {
    let now = stamp(policy);
    if now == before {
        return before;
    }
    match policy.reload() {
        Ok(()) => tracing::info!(n_policies = policy.ids().len(), "policies were read again"),
        Err(error) => tracing::error!(%error, "changed policies are not in force; the ones before stay"),
    }
    now
}

fn stamp(policy: &Policy) -> Stamp {
    policy.files().iter().map(|path| stamp_of(path)).collect()
}

fn stamp_of(path: &Path) -> Option<(u64, u64, i64, i64)> {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).ok()?;
    Some((data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
}
