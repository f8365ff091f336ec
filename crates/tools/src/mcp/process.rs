//! The process of a tool server, and everything that it started.
//!
//! A server has a process group of its own, which is killed when the server is given up, and also when
//! it ends by itself: what it left behind may hold its pipes, and then no call would ever learn that
//! nobody is there to answer. A group is only ever killed while its first process has not been reaped,
//! since its number could belong to another group afterwards.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_env::{Env, Task};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

/// What a server said before it ended is read for this long, should something outside of its group
/// hold its pipes.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A server's process; its group is killed when this is dropped.
pub(super) struct Process {
    group: Arc<Group>,
    watch: Option<Task>,
    /// Reaped once it is dropped, not before.
    _child: Child,
}

/// The group, until its number may not be used any more.
struct Group(Mutex<Option<Pid>>);

impl Group {
    fn kill(&self) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn first(&self) -> Option<Pid> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// A child that leads its own group.
    pub(super) fn of(child: Child) -> Self {
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Self { group: Arc::new(Group(Mutex::new(pid))), watch: None, _child: child }
    }

    /// The same, whose end ends its group, and then its session. A kernel that cannot tell of the end
    /// leaves that to the pipes.
    pub(super) fn watched(mut self, env: &Env, close: impl FnOnce() + Send + 'static) -> Self {
        let Some(end) = self.group.first().and_then(end_of) else { return self };
        let group = self.group.clone();
        let watch = async move {
            if end.readable().await.is_ok() {
                group.kill();
                tokio::time::sleep(LAST_WORDS).await;
                close();
            }
        };
        self.watch = Some(env.spawner.spawn("mcp-server-end", Box::pin(watch)));
        self
    }
}

/// Something that can be read once the process has ended; it is not reaped by that.
#[expect(deprecated, reason = "its successor is unsafe, for descriptors that could be closed elsewhere")]
fn end_of(pid: Pid) -> Option<AsyncFd<OwnedFd>> {
    AsyncFd::new(pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?).ok()
}

impl Drop for Process {
    fn drop(&mut self) {
        self.group.kill();
        self.group.forget();
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}
