//! Permits: how parked runs come back.
//!
//! Waking is pull, not a timer. A lane that wants a probe hands out exactly one permit; a lane with
//! free streams hands out one per free stream at the pace of its ramp; sound lanes go first. Each permit wakes one parked
//! run, and its call starts on that lane without further questions. A permit is a lease: unused, it
//! comes back when its token is dropped or its time is over, and with it the place it had kept.

use evenkeel_core::Mono;
use evenkeel_core::control::breaker::Phase;

use super::event::{Action, AttemptKey, CallKey, PermitKey, Place};
use super::lane::{Prober, Ready};
use super::machine::{Held, Machine, Timer};
use super::place::{Flown, Trial};

/// How long later tiers wait after a permit of theirs was of no use to the run it woke.
const BOUNCE: std::time::Duration = std::time::Duration::from_secs(2);

impl Machine {
    /// Hands out one permit for a route, if somebody is parked and a lane has a place.
    pub(super) fn grant(&mut self, now: Mono, route_idx: usize) -> bool {
        let route = &self.routes[route_idx];
        if route.n_parked <= route.n_permits {
            return false;
        }
        let plan = &self.plan.routes[route_idx];
        let later = plan.fallback && route.later_tiers_from <= now;
        let n_tiers = if later { plan.tiers.len() } else { 1 };
        let lanes: Vec<usize> = plan.tiers.iter().take(n_tiers).flatten().copied().collect();
        let (sound, others): (Vec<_>, Vec<_>) = lanes.into_iter().partition(|lane| self.is_sound(now, *lane));
        for lane in sound.into_iter().chain(others) {
            match self.lanes[lane].ready(now, 0) {
                Ready::Probe => {
                    self.grant_probe(now, Place { route: route_idx, lane });
                    return true;
                }
                // A suspect lane is asked by one parked run at a time.
                Ready::Now
                    if self.lanes[lane].breaker.phase() != Phase::Suspect
                        || self.lanes[lane].n_reserved == 0 =>
                {
                    self.lanes[lane].ramp.take(now);
                    self.lanes[lane].limiter.calls.take(now, 1.0);
                    self.hand_out(now, Place { route: route_idx, lane });
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    fn grant_probe(&mut self, now: Mono, place: Place) {
        let transition = self.lanes[place.lane].breaker.begin_probe(now);
        self.changed(now, place.lane, transition, now);
        self.lanes[place.lane].counters.n_probes += 1;
        // It starts whatever the pace says; it pays all the same.
        self.lanes[place.lane].ramp.take(now);
        self.lanes[place.lane].limiter.calls.take(now, 1.0);
        let permit = self.hand_out(now, place);
        self.lanes[place.lane].prober = Some(Prober::Permit(permit));
    }

    fn hand_out(&mut self, now: Mono, place: Place) -> PermitKey {
        let permit = PermitKey(self.fresh_key());
        let until = now.after(self.plan.settings.permit_lease.0);
        self.permits.insert(permit, Held { place, until });
        self.routes[place.route].n_permits += 1;
        self.lanes[place.lane].n_reserved += 1;
        self.lanes[place.lane].counters.n_permits += 1;
        self.timers.insert((until, Timer::Permit(permit)));
        self.actions.push(Action::Grant(permit, place));
        permit
    }

    /// Whether the permit is still good.
    #[must_use]
    pub fn has_permit(&self, permit: PermitKey) -> bool {
        self.permits.contains_key(&permit)
    }

    /// Takes the permit out of the books, if it is still there.
    fn take_permit(&mut self, permit: PermitKey) -> Option<Place> {
        let place = self.permits.remove(&permit)?.place;
        self.routes[place.route].n_permits -= 1;
        self.lanes[place.lane].n_reserved -= 1;
        Some(place)
    }

    /// A waker took the permit: it has the whole lease to wake a run with it.
    pub(super) fn renew_permit(&mut self, now: Mono, permit: PermitKey) {
        let until = now.after(self.plan.settings.permit_lease.0);
        if let Some(held) = self.permits.get_mut(&permit) {
            held.until = until;
            self.timers.insert((until, Timer::Permit(permit)));
        }
    }

    /// A lease ends, unless it was renewed since the timer was set.
    pub(super) fn lease_over(&mut self, now: Mono, at: Mono, permit: PermitKey) {
        if self.permits.get(&permit).is_some_and(|held| held.until <= at) {
            self.return_permit(now, permit);
        }
    }

    /// An unused permit comes back, and with it its place.
    pub(super) fn return_permit(&mut self, now: Mono, permit: PermitKey) {
        let Some(place) = self.take_permit(permit) else {
            return;
        };
        let lane = &mut self.lanes[place.lane];
        lane.ramp.give_back(now);
        lane.limiter.calls.give(now, 1.0);
        if lane.prober == Some(Prober::Permit(permit)) {
            lane.prober = None;
            let term = lane.breaker.term();
            let transition = lane.breaker.return_probe(now, term);
            self.changed(now, place.lane, transition, now);
        }
    }

    /// A lane that is cut off takes its promises back.
    pub(super) fn revoke_permits(&mut self, lane: usize) {
        let revoked: Vec<PermitKey> = self
            .permits
            .iter()
            .filter(|(_, held)| held.place.lane == lane)
            .map(|(permit, _)| *permit)
            .collect();
        for permit in revoked {
            self.take_permit(permit);
        }
    }

    /// The same for a lane that is only paused or drained: a probe's place comes back too.
    pub(super) fn return_permits(&mut self, now: Mono, lane: usize) {
        let promised: Vec<PermitKey> = self
            .permits
            .iter()
            .filter(|(_, held)| held.place.lane == lane)
            .map(|(permit, _)| *permit)
            .collect();
        for permit in promised {
            self.return_permit(now, permit);
        }
    }

    /// Starts a woken call on the lane of its permit. False when the permit is void or of no use.
    pub(super) fn start_with_permit(&mut self, now: Mono, key: CallKey) -> bool {
        let call = &self.calls[&key];
        let Some(permit) = call.permit else {
            return false;
        };
        let Some(place) = self.permits.get(&permit).map(|held| held.place) else {
            self.forget_permit(key);
            return false;
        };
        let n_tiers = self.tiers_allowed(call);
        let tiers = &self.plan.routes[call.arrival.route].tiers;
        let is_allowed = tiers.iter().take(n_tiers).flatten().any(|lane| *lane == place.lane);
        let window = self.plan.lanes[place.lane].context_tokens;
        let fits = self.lanes[place.lane].tokens_of(call.arrival.input_bytes) <= window + window / 5;
        self.forget_permit(key);
        if !is_allowed || !fits || self.calls[&key].arrival.deadline <= now {
            self.return_permit(now, permit);
            self.routes[place.route].later_tiers_from = now.after(BOUNCE);
            return false;
        }
        self.take_permit(permit);
        self.start_promised(now, key, permit, place.lane);
        true
    }

    fn forget_permit(&mut self, key: CallKey) {
        if let Some(call) = self.calls.get_mut(&key) {
            call.permit = None;
        }
    }

    /// The place was paid for when the permit was handed out; only tokens are reserved now.
    fn start_promised(&mut self, now: Mono, key: CallKey, permit: PermitKey, lane_idx: usize) {
        let attempt = AttemptKey(self.fresh_key());
        let bytes = self.calls[&key].arrival.input_bytes;
        let n_probes = self.lanes[lane_idx].breaker.n_probes();
        let lane = &mut self.lanes[lane_idx];
        let is_probe = lane.prober == Some(Prober::Permit(permit));
        if is_probe {
            lane.prober = Some(Prober::Attempt(attempt));
        }
        let tokens = lane.tokens_of(bytes);
        lane.limiter.reserve(now, tokens);
        lane.limiter.calls.give(now, 1.0);
        let probes = is_probe.then_some(n_probes);
        self.fly(now, key, attempt, Flown { lane: lane_idx, tokens, trial: Trial::No, probes });
    }
}
