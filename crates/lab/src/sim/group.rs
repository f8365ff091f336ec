//! The tasks of one simulated process, as a group that can be killed and stopped.
//!
//! ```text
//!   running --stop--> stopped --go on--> running
//!      \                  |
//!       +------kill-------+--> killed (for good; a restart is a new group)
//! ```
//! A killed group runs no line of its code any more: its tasks are dropped, which closes what they
//! held, as the kernel closes what a dead process held. A stopped group is not polled; time goes on
//! around it, and what is sent to it waits.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use evenkeel_env::{Spawn, Task, TokioSpawn};
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// A simulated process.
pub(super) struct Group {
    state: Mutex<State>,
    emptied: Notify,
}

#[derive(Default)]
struct State {
    mode: Mode,
    next_id: u64,
    tasks: BTreeMap<u64, Option<AbortHandle>>,
    /// Tasks that were due while the group was stopped.
    parked: BTreeMap<u64, Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Running,
    Stopped,
    Killed,
}

impl Group {
    /// A running process without tasks.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), emptied: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SIGSTOP.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        if state.mode == Mode::Running {
            state.mode = Mode::Stopped;
        }
    }

    /// SIGCONT.
    pub(super) fn go_on(&self) {
        let due = {
            let mut state = self.state();
            if state.mode != Mode::Stopped {
                return;
            }
            state.mode = Mode::Running;
            std::mem::take(&mut state.parked)
        };
        due.into_values().for_each(Waker::wake);
    }

    /// SIGKILL; returns when nothing of it is left.
    pub(super) async fn kill(&self) {
        let tasks: Vec<AbortHandle> = {
            let mut state = self.state();
            state.mode = Mode::Killed;
            state.parked.clear();
            state.tasks.values().flatten().cloned().collect()
        };
        tasks.iter().for_each(AbortHandle::abort);
        loop {
            let emptied = self.emptied.notified();
            if self.state().tasks.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn enter(&self) -> u64 {
        let mut state = self.state();
        state.next_id += 1;
        let id = state.next_id;
        state.tasks.insert(id, None);
        id
    }

    fn leave(&self, id: u64) {
        let mut state = self.state();
        state.tasks.remove(&id);
        state.parked.remove(&id);
        if state.tasks.is_empty() {
            self.emptied.notify_waiters();
        }
    }
}

/// Starts tasks in a group.
pub(super) struct GroupSpawn(pub(super) Arc<Group>);

impl Spawn for GroupSpawn {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task {
        let id = self.0.enter();
        let task =
            TokioSpawn.spawn(name, Box::pin(Gated { group: self.0.clone(), id, future: Some(future) }));
        let mut state = self.0.state();
        let killed = state.mode == Mode::Killed;
        if let Some(handle) = state.tasks.get_mut(&id) {
            *handle = Some(task.abort_handle());
        }
        drop(state);
        if killed {
            task.abort();
        }
        task
    }

    fn thread(&self, name: &'static str, _body: Box<dyn FnOnce() + Send>) -> std::thread::JoinHandle<()> {
        panic!("a simulation has one thread, and {name} asked for another");
    }

    fn runs_inline(&self) -> bool {
        true
    }
}

/// A task that runs only while its group does.
struct Gated {
    group: Arc<Group>,
    id: u64,
    future: Option<BoxFuture<'static, ()>>,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mode = {
            let mut state = self.group.state();
            if state.mode == Mode::Stopped {
                state.parked.insert(self.id, cx.waker().clone());
            }
            state.mode
        };
        match (mode, &mut self.future) {
            (Mode::Stopped, _) => Poll::Pending,
            (Mode::Running, Some(future)) => future.as_mut().poll(cx),
            (Mode::Killed, _) | (_, None) => Poll::Ready(()),
        }
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        // What it held is closed before the group counts as empty.
        self.future = None;
        self.group.leave(self.id);
    }
}
