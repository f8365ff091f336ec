//! Slots: the bounded, tenant-fair, deadline-aware queue in front of every component.
//!
//! A component with `limit` slots serves at most that many callers at once. When it is full,
//! callers wait in their tenant's own line; a freed slot goes to the lines in turn, so one tenant
//! that floods waits behind itself. A caller names the longest time it would wait; when that is
//! over it gets `overloaded` with an honest `Retry-After`. Nothing accepted is failed by slots:
//! durable work waits in the store and comes back.
//!
//! What holds: `in_use <= limit`; a waiter that is dropped leaves its line; a slot handed to a
//! waiter that was dropped in the same moment is passed on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::id::TenantId;
use evenkeel_core::{Code, Error, Origin};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Slots of one component. Cheap to clone.
#[derive(Clone)]
pub struct Slots {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    limit: usize,
    n_waiting_max: usize,
    in_use: usize,
    in_use_peak: usize,
    n_taken: u64,
    /// Seconds that slots were held, up to `counted`: the integral of `in_use`.
    held_total: Duration,
    counted: Option<Instant>,
    /// Lines by tenant; a tenant without waiters has no entry.
    lines: BTreeMap<TenantId, VecDeque<Waiter>>,
    /// The tenant served last; the next slot goes to the one after it.
    served_last: Option<TenantId>,
    next_waiter: u64,
    n_waiting: usize,
    n_waited: u64,
    n_refused: u64,
    wait_total: Duration,
    wait_max: Duration,
}

struct Waiter {
    id: u64,
    wake: oneshot::Sender<Slot>,
}

/// One slot; dropping it gives it back.
pub struct Slot {
    shared: Option<Arc<Shared>>,
}

/// What the gauges show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SlotGauges {
    /// The component's name in `[limits]`.
    pub component: &'static str,
    /// Slots in use.
    pub in_use: usize,
    /// The most that were in use at once.
    pub in_use_peak: usize,
    /// The limit.
    pub limit: usize,
    /// Slots taken so far.
    pub n_taken: u64,
    /// Seconds that slots were held in all, those in use now included. Over a span of time this is
    /// the mean number in use times the span; divided by the slots taken it is the mean service time.
    pub held_total_s: f64,
    /// Callers that wait now.
    pub waiting: usize,
    /// Callers that had to wait so far.
    pub n_waited: u64,
    /// Callers that were refused so far.
    pub n_refused: u64,
    /// Seconds waited in all.
    pub wait_total_s: f64,
    /// The longest wait in seconds.
    pub wait_max_s: f64,
}

impl Slots {
    /// `limit` slots for the named component, with at most `n_waiting_max` callers in line.
    #[must_use]
    pub fn new(name: &'static str, limit: usize, n_waiting_max: usize) -> Self {
        let state = State { limit: limit.max(1), n_waiting_max, ..State::default() };
        Self { shared: Arc::new(Shared { name, state: Mutex::new(state) }) }
    }

    /// Takes a slot, waiting at most `wait_max` in the tenant's line.
    ///
    /// # Errors
    /// `overloaded` when the line is full or the wait is over.
    pub async fn acquire(&self, tenant: &TenantId, wait_max: Duration) -> Result<Slot, Error> {
        let (id, waker) = {
            let mut state = self.shared.lock();
            if state.in_use < state.limit && state.n_waiting == 0 {
                state.take();
                return Ok(Slot { shared: Some(self.shared.clone()) });
            }
            if state.n_waiting >= state.n_waiting_max || wait_max.is_zero() {
                state.n_refused += 1;
                return Err(self.overloaded(wait_max));
            }
            state.join(tenant)
        };
        let mut line = InLine { shared: &self.shared, tenant, id, begun: Instant::now(), served: false };
        match tokio::time::timeout(wait_max, waker).await {
            Ok(Ok(slot)) => {
                line.served = true;
                Ok(slot)
            }
            _ => {
                self.shared.lock().n_refused += 1;
                Err(self.overloaded(wait_max))
            }
        }
    }

    /// Takes a slot if one is free now and nobody waits.
    #[must_use]
    pub fn try_acquire(&self) -> Option<Slot> {
        let mut state = self.shared.lock();
        if state.in_use < state.limit && state.n_waiting == 0 {
            state.take();
            return Some(Slot { shared: Some(self.shared.clone()) });
        }
        None
    }

    /// Slots that are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        let state = self.shared.lock();
        state.limit.saturating_sub(state.in_use)
    }

    /// What the gauges show now.
    #[must_use]
    pub fn gauges(&self) -> SlotGauges {
        let mut state = self.shared.lock();
        state.count_held();
        SlotGauges {
            component: self.shared.name,
            in_use: state.in_use,
            in_use_peak: state.in_use_peak,
            limit: state.limit,
            n_taken: state.n_taken,
            held_total_s: state.held_total.as_secs_f64(),
            waiting: state.n_waiting,
            n_waited: state.n_waited,
            n_refused: state.n_refused,
            wait_total_s: state.wait_total.as_secs_f64(),
            wait_max_s: state.wait_max.as_secs_f64(),
        }
    }

    fn overloaded(&self, wait: Duration) -> Error {
        Error::new(
            Code::Overloaded,
            Origin::Ours,
            format!("All slots of component {} are in use.", self.shared.name),
            "Try again later, or raise its limit under [limits].",
        )
        .retry_after(wait.clamp(Duration::from_secs(1), Duration::from_secs(30)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Brings `held_total` up to now; before every change of `in_use`.
    fn count_held(&mut self) {
        let now = Instant::now();
        if let Some(counted) = self.counted.replace(now) {
            let n = u32::try_from(self.in_use).unwrap_or(u32::MAX);
            self.held_total += now.duration_since(counted) * n;
        }
    }

    fn take(&mut self) {
        self.count_held();
        self.n_taken += 1;
        self.in_use += 1;
        self.in_use_peak = self.in_use_peak.max(self.in_use);
    }

    fn join(&mut self, tenant: &TenantId) -> (u64, oneshot::Receiver<Slot>) {
        let (wake, waker) = oneshot::channel();
        let id = self.next_waiter;
        self.next_waiter += 1;
        self.n_waiting += 1;
        self.n_waited += 1;
        self.lines.entry(tenant.clone()).or_default().push_back(Waiter { id, wake });
        (id, waker)
    }

    /// The waiter whose turn it is: the first of the tenant after the one served last.
    fn pop(&mut self) -> Option<Waiter> {
        let after = self.served_last.as_ref().and_then(|last| {
            self.lines.range((std::ops::Bound::Excluded(last.clone()), std::ops::Bound::Unbounded)).next()
        });
        let tenant = after.or_else(|| self.lines.iter().next()).map(|(tenant, _)| tenant.clone())?;
        let line = self.lines.get_mut(&tenant)?;
        let waiter = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&tenant);
        }
        self.served_last = Some(tenant);
        self.n_waiting -= 1;
        waiter
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        loop {
            let waiter = {
                let mut state = shared.lock();
                match state.pop() {
                    Some(waiter) => {
                        state.n_taken += 1;
                        waiter
                    }
                    None => {
                        state.count_held();
                        state.in_use -= 1;
                        return;
                    }
                }
            };
            let Err(mut returned) = waiter.wake.send(Slot { shared: Some(shared.clone()) }) else {
                return;
            };
            // The waiter was dropped in this moment; its slot goes to the next one, here.
            returned.shared = None;
        }
    }
}

/// A place in line; leaves it when the caller goes away.
struct InLine<'a> {
    shared: &'a Shared,
    tenant: &'a TenantId,
    id: u64,
    begun: Instant,
    served: bool,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let waited = self.begun.elapsed();
        let mut state = self.shared.lock();
        state.wait_total += waited;
        state.wait_max = state.wait_max.max(waited);
        if self.served {
            return;
        }
        let Some(line) = state.lines.get_mut(self.tenant) else {
            return;
        };
        let before = line.len();
        line.retain(|waiter| waiter.id != self.id);
        let left = before - line.len();
        if line.is_empty() {
            state.lines.remove(self.tenant);
        }
        state.n_waiting -= left;
    }
}

#[cfg(test)]
mod tests;
