//! What the other replicas find: an outage is shared, and so are its probes.
//!
//! Each replica judges for itself, because the way to a provider may be broken for one of them
//! only. What a peer tells therefore never opens a breaker and never closes one. It makes a lane
//! suspect when a peer has cut it off, so that less is forgiven. It leaves the probes of a lane that
//! is open everywhere to the replica that goes first among those that probe. And when a peer finds
//! a lane back, the next call here is the probe.
//!
//! Without news, with a slow or dead store or after the prober's end, each goes on by itself: a
//! deferred probe waits [`DEFER`] longer, not for ever.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_core::Mono;
use evenkeel_core::control::breaker::{Phase, Reason};
use evenkeel_core::id::ReplicaId;
use evenkeel_core::port::model::{Health, PeerHealth};

use super::lane::Lane;
use super::machine::Machine;

/// How long a probe is left to a peer after its last word: two heartbeats and a half.
const DEFER: Duration = Duration::from_millis(2_500);

/// A probe that nobody has made for so long after it was due is not made here: there is no call
/// that wants the lane.
const OVERDUE: Duration = Duration::from_secs(2);

/// What the peers last said of one lane.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Those that have cut it off.
    cut: BTreeSet<ReplicaId>,
    /// Whether one that goes first asks it from time to time.
    pub(super) is_probed_elsewhere: bool,
}

/// What follows from a change of what the peers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// One more of them has cut it off.
    Cut,
    /// One of them found it back.
    Back,
}

impl Heard {
    /// Takes in the last words of all living peers.
    fn take(&mut self, lane: &str, peers: &[PeerHealth]) -> Option<News> {
        let said = peers.iter().filter_map(|peer| {
            let health = peer.health.iter().find(|health| health.deployment == lane)?;
            Some((peer, health))
        });
        let mut now = Self::default();
        let mut news = None;
        for (peer, health) in said {
            match (self.cut.contains(&peer.replica), health.cut) {
                (true, false) => news = Some(News::Back),
                (false, true) => news = news.or(Some(News::Cut)),
                _ => {}
            }
            if health.cut {
                now.cut.insert(peer.replica);
            }
            now.is_probed_elsewhere |= peer.goes_first && health.probes;
        }
        *self = now;
        news
    }
}

impl Machine {
    /// How this replica finds each lane, for its peers.
    #[must_use]
    pub fn health(&self, now: Mono) -> Vec<Health> {
        let lanes = self.plan.lanes.iter().zip(&self.lanes);
        let health = |(plan, lane): (&super::plan::LanePlan, &Lane)| Health {
            deployment: plan.name.clone(),
            cut: matches!(lane.breaker.phase(), Phase::Open { .. } | Phase::HalfOpen),
            probes: lane.probes(now),
        };
        lanes.map(health).collect()
    }

    pub(super) fn heard(&mut self, now: Mono, peers: &[PeerHealth]) {
        if !self.protects() {
            return;
        }
        for idx in 0..self.lanes.len() {
            let lane = &mut self.lanes[idx];
            let news = lane.heard.take(&self.plan.lanes[idx].name, peers);
            if lane.heard.is_probed_elsewhere && news != Some(News::Back) {
                lane.breaker.defer(now.after(DEFER));
            }
            let transition = match news {
                Some(News::Cut) => lane.breaker.suspect(now, Reason::Peer),
                Some(News::Back) => lane.breaker.probe_now(now, Reason::Peer),
                None => None,
            };
            self.changed(now, idx, transition, now);
        }
    }
}

impl Lane {
    /// Whether it is this replica that asks it from time to time.
    fn probes(&self, now: Mono) -> bool {
        let is_disabled = self.disabled.is_some_and(|(until, _)| until > now);
        if self.drained || is_disabled || self.heard.is_probed_elsewhere {
            return false;
        }
        match self.breaker.phase() {
            Phase::HalfOpen => true,
            Phase::Open { until } => now < until.after(OVERDUE),
            Phase::Closed | Phase::Suspect | Phase::Ramping => false,
        }
    }
}
