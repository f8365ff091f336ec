//! The snapshot of the machine.

use std::collections::BTreeMap;

use evenkeel_core::control::breaker::Phase;
use evenkeel_core::{Mono, Wall};

use super::machine::Machine;
use super::snapshot::{DeploymentSnapshot, RouteSnapshot, RouterSnapshot, TransitionSnapshot};

/// The same instant on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Instant {
    /// Monotonic.
    pub mono: Mono,
    /// Wall.
    pub wall: Wall,
}

impl Instant {
    /// Another monotonic instant on the wall clock.
    #[must_use]
    pub fn wall_of(self, at: Mono) -> Wall {
        if at >= self.mono {
            self.wall.after(self.mono.until(at))
        } else {
            Wall(self.wall.ms().saturating_sub(self.mono.ms() - at.ms()))
        }
    }
}

impl Machine {
    /// Everything at one instant.
    pub fn snapshot(&mut self, now: Instant) -> RouterSnapshot {
        let deployments = (0..self.lanes.len())
            .map(|idx| (self.plan.lanes[idx].name.clone(), self.deployment_snapshot(now, idx)))
            .collect();
        let routes = self.plan.routes.iter().zip(&self.routes).map(|(plan, route)| {
            let names =
                |tier: &Vec<usize>| tier.iter().map(|idx| self.plan.lanes[*idx].name.clone()).collect();
            let snapshot = RouteSnapshot {
                parked: route.n_parked as u64,
                waiting: route.queue.len() as u64,
                permits_outstanding: route.n_permits as u64,
                tiers: plan.tiers.iter().map(names).collect(),
            };
            (plan.name.clone(), snapshot)
        });
        RouterSnapshot {
            at: now.wall,
            routes: routes.collect(),
            deployments,
            retry_budget_level: self.budget.available(now.mono),
            wasted_tokens: owned(&self.wasted_tokens),
            truncated_streams: self.n_truncated,
            calls: owned(&self.verdicts),
            transitions: self.transition_snapshots(now),
        }
    }

    /// Learnt bytes per input token of a lane.
    #[must_use]
    pub fn bytes_per_token(&self, lane: usize) -> f64 {
        self.lanes[lane].bytes_per_token
    }

    fn deployment_snapshot(&mut self, now: Instant, idx: usize) -> DeploymentSnapshot {
        let plan = &self.plan.lanes[idx];
        let lane = &mut self.lanes[idx];
        let seconds = |d: Option<std::time::Duration>| d.map(|d| d.as_secs_f64());
        let next_probe = match lane.breaker.phase() {
            Phase::Open { until } => Some(now.wall_of(until)),
            _ => None,
        };
        DeploymentSnapshot {
            provider: plan.provider.clone(),
            model: plan.target.model.clone(),
            state: lane.breaker.phase().as_str().to_owned(),
            since: now.wall_of(lane.breaker.since()),
            reason: lane.breaker.reason().as_str().to_owned(),
            next_probe,
            throttled_until: lane.throttled_until.filter(|at| *at > now.mono).map(|at| now.wall_of(at)),
            disabled_until: lane.disabled.filter(|(at, _)| *at > now.mono).map(|(at, _)| now.wall_of(at)),
            drained: lane.drained,
            limit: lane.ramp.limit(now.mono),
            limit_configured: plan.limits.streams,
            in_flight: u32::try_from(lane.flights.len()).unwrap_or(u32::MAX),
            permits_outstanding: lane.n_reserved,
            outcomes: owned(&lane.counters.outcomes),
            probes: lane.counters.n_probes,
            permits: lane.counters.n_permits,
            hedges: lane.counters.n_hedges,
            hedges_won: lane.counters.n_hedges_won,
            first_content_ms: lane.counters.first_content.snapshot(),
            seconds_to_detect: seconds(lane.breaker.detected_after()),
            seconds_to_recover: seconds(lane.breaker.recovered_after()),
            n_opened: lane.breaker.n_opened(),
            bytes_per_token: lane.bytes_per_token,
            input_tokens: lane.counters.usage.input_tokens,
            cached_input_tokens: lane.counters.usage.cached_input_tokens,
            output_tokens: lane.counters.usage.output_tokens,
            cost_micro_usd: lane.counters.cost_micro_usd,
            refusals_alarm: lane.refusals_alarm(),
        }
    }

    fn transition_snapshots(&self, now: Instant) -> Vec<TransitionSnapshot> {
        let snapshot =
            |(lane, transition): &(usize, evenkeel_core::control::breaker::Transition)| TransitionSnapshot {
                at: now.wall_of(transition.at),
                deployment: self.plan.lanes[*lane].name.clone(),
                from: transition.from.as_str().to_owned(),
                to: transition.to.as_str().to_owned(),
                reason: transition.reason.as_str().to_owned(),
            };
        self.transitions.iter().map(snapshot).collect()
    }
}

fn owned(counts: &BTreeMap<&'static str, u64>) -> BTreeMap<String, u64> {
    counts.iter().map(|(word, n)| ((*word).to_owned(), *n)).collect()
}
