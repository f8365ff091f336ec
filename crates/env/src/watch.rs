//! A value that is watched: whoever waits is told of its newest state.
//!
//! It stands for `tokio::sync::watch`, which draws a random number to choose the list in which a
//! waiter stands, and therefore wakes waiters in another order at every run. Here they are woken in
//! the order in which they began to wait, so that a simulation of one seed can be repeated.
//!
//! What holds: a receiver never misses the newest value, though it may miss those between; a change
//! that was made before a receiver began to wait is seen without waiting; the end of the sender wakes
//! everybody.

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::Notify;

/// Changes the value. Its end is the end of all waiting.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Looks at the value and waits for changes. Each clone has its own view of what it has seen.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The value, held still for as long as this lives: never keep it over an await.
pub struct Ref<'a, T>(RwLockReadGuard<'a, State<T>>);

/// The sender is gone, and the value is not what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody will change the value any more")]
pub struct Closed;

struct Shared<T> {
    state: RwLock<State<T>>,
    changed: Notify,
}

struct State<T> {
    value: T,
    version: u64,
    closed: bool,
}

/// A watched value, and its first receiver.
#[must_use]
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// A watched value that nobody watches yet.
    #[must_use]
    pub fn new(value: T) -> Self {
        let state = State { value, version: 0, closed: false };
        Self { shared: Arc::new(Shared { state: RwLock::new(state), changed: Notify::new() }) }
    }

    /// Changes the value and wakes everybody.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.shared.write(|state| {
            change(&mut state.value);
            state.version += 1;
        });
    }

    /// Changes the value, and wakes everybody if `change` says that there is something to see; gives
    /// what it said.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut state.value);
        state.version += u64::from(changed);
        drop(state);
        if changed {
            self.shared.changed.notify_waiters();
        }
        changed
    }

    /// Replaces the value, wakes everybody, and gives the old one.
    pub fn send_replace(&self, value: T) -> T {
        let mut value = value;
        self.send_modify(|old| std::mem::swap(old, &mut value));
        value
    }

    /// The value now.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.read()
    }

    /// A receiver that has seen the value as it is now.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        let seen = self.shared.read().0.version;
        Receiver { shared: self.shared.clone(), seen }
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.write(|state| state.closed = true);
    }
}

impl<T> Receiver<T> {
    /// The value now; it still counts as not seen.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.read()
    }

    /// The value now, which then counts as seen.
    #[must_use]
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let now = self.shared.read();
        self.seen = now.0.version;
        now
    }

    /// The value as it is now counts as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.read().0.version;
    }

    /// Waits until there is a value that was not seen, which then counts as seen.
    ///
    /// # Errors
    /// [`Closed`] when the sender is gone and everything was seen.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let changed = self.shared.changed.notified();
            {
                let now = self.shared.read();
                if now.0.version != self.seen {
                    self.seen = now.0.version;
                    return Ok(());
                }
                if now.0.closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
    }

    /// Waits until the value is as wanted; it then counts as seen.
    ///
    /// # Errors
    /// [`Closed`] when the sender is gone and the last value is another.
    pub async fn wait_for(&mut self, wanted: impl Fn(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        let Self { shared, seen } = self;
        loop {
            let changed = shared.changed.notified();
            {
                let now = shared.read();
                *seen = now.0.version;
                if wanted(&now.0.value) {
                    return Ok(now);
                }
                if now.0.closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Shared<T> {
    fn read(&self) -> Ref<'_, T> {
        Ref(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut State<T>)) {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_waiters();
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

#[cfg(test)]
mod tests;
