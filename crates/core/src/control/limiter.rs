//! Admission: who may start a call now, and who is next.
//!
//! A provider grants streams, calls a minute and input tokens a minute. Asking for more costs twice:
//! the refused call, and the limit that the refusal also counts against. So a call takes from all
//! three before it starts. Tokens are not known before the answer; an estimate is reserved and the
//! difference settled afterwards, so that many calls at once cannot pass the limit together. The
//! buckets hold two seconds, because providers may enforce a minute's limit by the second.
//!
//! What does not start waits in one queue per route, in an order that is fair: a person before a
//! batch, a run that has begun before one that has not, then the tenant that was served least for
//! its weight, then first come. A tenant that floods waits behind itself.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::Mono;
use crate::id::TenantId;
use crate::run::Class;

/// A token bucket over monotonic time.
///
/// What holds: level <= capacity. The level may be negative after a debt (a settled reservation);
/// nothing is ready until it is paid.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_s: f64,
    capacity: f64,
    level: f64,
    at: Mono,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(per_s: f64, capacity: f64, now: Mono) -> Self {
        Self { per_s: per_s.max(1e-6), capacity, level: capacity, at: now }
    }

    /// A full bucket of a limit per minute that holds two seconds (and at least one).
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
    pub fn per_minute(per_min: u64, now: Mono) -> Self {
        let per_s = per_min as f64 / 60.0;
        Self::new(per_s, (per_s * 2.0).max(1.0), now)
    }

    /// What is in it.
    #[must_use]
    pub fn level(&self, now: Mono) -> f64 {
        let flowed = now.since(self.at).as_secs_f64() * self.per_s;
        (self.level + flowed).min(self.capacity)
    }

    /// When `n` can be taken. More than the capacity is ready when the bucket is full.
    #[must_use]
    pub fn ready_at(&self, now: Mono, n: f64) -> Mono {
        let missing = n.min(self.capacity) - self.level(now);
        if missing <= 1e-9 {
            return now;
        }
        // Rounded up, so that what is announced as ready is ready.
        now.after(Duration::from_secs_f64((missing / self.per_s).min(1e9)) + Duration::from_millis(1))
    }

    /// Takes `n`, into debt if need be.
    pub fn take(&mut self, now: Mono, n: f64) {
        self.level = self.level(now) - n;
        self.at = self.at.max(now);
        self.assert_invariants();
    }

    /// Puts `n` back.
    pub fn give(&mut self, now: Mono, n: f64) {
        self.take(now, -n);
    }

    /// Changes the rate and the capacity; what is in it stays, up to the capacity.
    pub fn set_rate(&mut self, now: Mono, per_s: f64, capacity: f64) {
        self.level = self.level(now).min(capacity);
        self.at = self.at.max(now);
        self.per_s = per_s.max(1e-6);
        self.capacity = capacity;
        self.assert_invariants();
    }

    /// The provider says that only so much is left. It can lower the level, never raise it.
    pub fn lower_to(&mut self, now: Mono, remaining: f64) {
        self.level = self.level(now).min(remaining);
        self.at = self.at.max(now);
    }

    /// The provider says that its limit per minute is lower than configured.
    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
    pub fn lower_rate(&mut self, now: Mono, per_min: u64) {
        let per_s = per_min as f64 / 60.0;
        if per_min > 0 && per_s < self.per_s {
            self.set_rate(now, per_s, (per_s * 2.0).max(1.0));
        }
    }

    fn assert_invariants(&mut self) {
        self.level = self.level.min(self.capacity);
        debug_assert!(self.level.is_finite(), "{self:?}");
    }
}

/// What a deployment grants per minute. Streams are counted by its owner, who knows them.
#[derive(Clone, Debug)]
pub struct Limiter {
    /// Calls.
    pub calls: TokenBucket,
    /// Input tokens.
    pub tokens: TokenBucket,
}

impl Limiter {
    /// Full buckets.
    #[must_use]
    pub fn new(calls_per_min: u64, input_tokens_per_min: u64, now: Mono) -> Self {
        Self {
            calls: TokenBucket::per_minute(calls_per_min, now),
            tokens: TokenBucket::per_minute(input_tokens_per_min, now),
        }
    }

    /// When a call with this estimate of input tokens may start.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "tokens of one call are far below 2^53")]
    pub fn ready_at(&self, now: Mono, tokens: u64) -> Mono {
        self.calls.ready_at(now, 1.0).max(self.tokens.ready_at(now, tokens as f64))
    }

    /// The call starts: reserves its estimate.
    #[expect(clippy::cast_precision_loss, reason = "tokens of one call are far below 2^53")]
    pub fn reserve(&mut self, now: Mono, tokens: u64) {
        self.calls.take(now, 1.0);
        self.tokens.take(now, tokens as f64);
    }

    /// The call ended: pays or returns the difference between estimate and use.
    #[expect(clippy::cast_precision_loss, reason = "tokens of one call are far below 2^53")]
    pub fn settle(&mut self, now: Mono, reserved: u64, used: u64) {
        self.tokens.give(now, reserved as f64 - used as f64);
    }
}

/// Somebody's claim on the next free place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Interactive before batch.
    pub class: Class,
    /// A run that has begun before one that has not.
    pub begun: bool,
    /// Who pays.
    pub tenant: TenantId,
}

impl Claim {
    fn band(&self) -> (Class, bool) {
        (self.class, !self.begun)
    }
}

/// The weighted-fair queue of one route.
///
/// | call | effect |
/// |---|---|
/// | [`push`](Self::push) | waits in its band and its tenant's line |
/// | [`next`](Self::next) | who is served next, without serving |
/// | [`serve`](Self::serve) | serves it and charges its tenant |
/// | [`remove`](Self::remove) | leaves without being served |
///
/// What holds: a tenant's virtual time never falls; within a band no tenant is served while another
/// that waits has the smaller virtual time; an item is in the queue at most once.
#[derive(Clone, Debug)]
pub struct FairQueue<T> {
    bands: BTreeMap<(Class, bool), BTreeMap<TenantId, VecDeque<T>>>,
    /// Service received, divided by weight.
    served: BTreeMap<TenantId, f64>,
    weights: BTreeMap<String, u32>,
    /// Virtual time of the last service: a tenant that comes back starts here, not in the past.
    now: f64,
    len: usize,
}

impl<T: Clone + PartialEq> FairQueue<T> {
    /// An empty queue; tenants without a weight have 1.
    #[must_use]
    pub fn new(weights: BTreeMap<String, u32>) -> Self {
        Self { bands: BTreeMap::new(), served: BTreeMap::new(), weights, now: 0.0, len: 0 }
    }

    /// Items that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waits at the end of its line.
    pub fn push(&mut self, claim: &Claim, item: T) {
        let lines = self.bands.entry(claim.band()).or_default();
        lines.entry(claim.tenant.clone()).or_default().push_back(item);
        let now = self.now;
        let served = self.served.entry(claim.tenant.clone()).or_insert(now);
        *served = served.max(now);
        self.len += 1;
    }

    /// Those who would be served next, best first: the heads of all lines, at most `max`.
    #[must_use]
    pub fn next(&self, max: usize) -> Vec<T> {
        let mut heads = Vec::new();
        for lines in self.bands.values() {
            let mut tenants: Vec<_> = lines.iter().collect();
            tenants.sort_by(|(a, _), (b, _)| self.time_of(a).total_cmp(&self.time_of(b)).then(a.cmp(b)));
            heads.extend(tenants.into_iter().filter_map(|(_, line)| line.front().cloned()));
            if heads.len() >= max {
                break;
            }
        }
        heads.truncate(max);
        heads
    }

    /// Serves an item and charges its tenant.
    pub fn serve(&mut self, claim: &Claim, item: &T) {
        if !self.remove(claim, item) {
            return;
        }
        let weight = self.weights.get(claim.tenant.as_str()).copied().unwrap_or(1).max(1);
        let served = self.served.entry(claim.tenant.clone()).or_insert(self.now);
        self.now = self.now.max(*served);
        *served += 1.0 / f64::from(weight);
        self.forget();
    }

    /// Leaves without being served; whether it was there.
    pub fn remove(&mut self, claim: &Claim, item: &T) -> bool {
        let Some(lines) = self.bands.get_mut(&claim.band()) else {
            return false;
        };
        let Some(line) = lines.get_mut(&claim.tenant) else {
            return false;
        };
        let Some(at) = line.iter().position(|waiting| waiting == item) else {
            return false;
        };
        line.remove(at);
        if line.is_empty() {
            lines.remove(&claim.tenant);
        }
        if lines.is_empty() {
            self.bands.remove(&claim.band());
        }
        self.len -= 1;
        self.assert_invariants();
        true
    }

    fn time_of(&self, tenant: &TenantId) -> f64 {
        self.served.get(tenant).copied().unwrap_or(self.now)
    }

    /// Tenants whose credit is used up need no entry: they would start at `now` anyway.
    fn forget(&mut self) {
        let now = self.now;
        if self.served.len() > 1024 {
            self.served.retain(|_, served| *served > now);
        }
    }

    fn assert_invariants(&self) {
        let counted: usize = self.bands.values().flat_map(BTreeMap::values).map(VecDeque::len).sum();
        debug_assert_eq!(counted, self.len);
    }
}

#[cfg(test)]
mod tests;
