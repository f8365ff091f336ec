//! One lane: a deployment with one key, its breaker, ramp, limits and streams.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evenkeel_core::Mono;
use evenkeel_core::control::breaker::{Breaker, Gate, Phase, Started};
use evenkeel_core::control::limiter::Limiter;
use evenkeel_core::control::ramp::Ramp;
use evenkeel_core::message::Usage;

use super::event::{AttemptKey, CallKey, PermitKey};
use super::peers::Heard;
use super::plan::{LanePlan, Plan};
use super::summary::Summary;
use crate::classify::Hints;

/// Whether a call could start on a lane now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// It can.
    Now,
    /// It can, as the probe.
    Probe,
    /// Not before this instant: paused by the provider, or out of rate.
    Paced(Mono),
    /// All streams are taken.
    Full,
    /// The breaker is open until this instant.
    Open(Mono),
    /// A probe is out.
    Probing,
    /// Disabled until this instant.
    Disabled(Mono),
    /// Drained by an operator.
    Drained,
}

/// Why a lane is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dead {
    /// The key is refused.
    Auth,
    /// The account is out of credit.
    Quota,
    /// The model is not known.
    Model,
}

/// One stream, from its request to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// For the breaker.
    pub(super) started: Started,
    /// Whose.
    pub(super) call: CallKey,
    /// Input tokens reserved.
    pub(super) tokens: u64,
    /// The last sign of life: start, headers or content.
    pub(super) signed_at: Mono,
    /// Whether content came.
    pub(super) has_content: bool,
    /// Whether it tries a recovering lane while a sound one stands by.
    pub(super) is_trial: bool,
}

/// Who holds the one place for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prober {
    /// A permit that has not been used yet.
    Permit(PermitKey),
    /// An attempt.
    Attempt(AttemptKey),
}

/// One lane.
#[derive(Debug)]
pub(super) struct Lane {
    /// Its breaker.
    pub(super) breaker: Breaker,
    /// Its adaptive limit and rate.
    pub(super) ramp: Ramp,
    /// Calls and tokens per minute.
    pub(super) limiter: Limiter,
    /// Paused by the provider.
    pub(super) throttled_until: Option<Mono>,
    /// Pauses in a row, for providers that name no time.
    pub(super) n_throttled: u32,
    /// Disabled.
    pub(super) disabled: Option<(Mono, Dead)>,
    /// Drained.
    pub(super) drained: bool,
    /// Streams.
    pub(super) flights: BTreeMap<AttemptKey, Flight>,
    /// Places kept for permits.
    pub(super) n_reserved: u32,
    /// The probe's place.
    pub(super) prober: Option<Prober>,
    /// Complete answers in a row since the ramp began.
    pub(super) n_proven: u32,
    /// What the other replicas say of it.
    pub(super) heard: Heard,
    /// The last headers or content on any stream.
    pub(super) signed_at: Mono,
    /// When the last good time ended, for the ramp.
    pub(super) good_until: Mono,
    /// When to look for silence next.
    pub(super) silence_check: Option<Mono>,
    /// Learnt time to first content.
    pub(super) first_content: Option<Duration>,
    /// Learnt bytes per input token.
    pub(super) bytes_per_token: f64,
    /// Counters.
    pub(super) counters: Counters,
}

/// What a lane counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Attempts by outcome.
    pub(super) outcomes: BTreeMap<&'static str, u64>,
    /// Probes started.
    pub(super) n_probes: u64,
    /// Permits handed out.
    pub(super) n_permits: u64,
    /// Second attempts that were started here because a first one was late elsewhere.
    pub(super) n_hedges: u64,
    /// Of these, how many had content first.
    pub(super) n_hedges_won: u64,
    /// Time to first content.
    pub(super) first_content: Summary,
    /// Tokens of complete answers.
    pub(super) usage: Usage,
    /// What all attempts cost, in millionths of a US dollar.
    pub(super) cost_micro_usd: u64,
    /// The last results: whether each was refused as malformed.
    pub(super) refusals: VecDeque<bool>,
}

/// Silence on all streams of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Since when.
    pub(super) since: Mono,
    /// From when on it counts, if nothing is heard until then.
    pub(super) at: Mono,
}

/// Before anything is learnt: a careful guess for English and code.
const BYTES_PER_TOKEN: f64 = 3.6;

/// How long a suspect lane is asked only when no other is ready.
const SUSPECT_FOR: Duration = Duration::from_secs(5);

impl Lane {
    /// A lane that knows nothing yet.
    #[must_use]
    pub(super) fn new(plan: &Plan, lane: &LanePlan, now: Mono) -> Self {
        Self {
            breaker: Breaker::new(plan.breaker_settings(), now),
            ramp: Ramp::new(plan.ramp_settings(lane.limits), now),
            limiter: Limiter::new(lane.limits.calls_per_min, lane.limits.input_tokens_per_min, now),
            throttled_until: None,
            n_throttled: 0,
            disabled: None,
            drained: lane.drained,
            flights: BTreeMap::new(),
            n_reserved: 0,
            prober: None,
            n_proven: 0,
            heard: Heard::default(),
            signed_at: now,
            good_until: now,
            silence_check: None,
            first_content: None,
            bytes_per_token: BYTES_PER_TOKEN,
            counters: Counters::default(),
        }
    }

    /// Whether a call of about this many input tokens could start now.
    pub(super) fn ready(&mut self, now: Mono, tokens: u64) -> Ready {
        if self.drained {
            return Ready::Drained;
        }
        if let Some((until, _)) = self.disabled.filter(|(until, _)| *until > now) {
            return Ready::Disabled(until);
        }
        if let Some(until) = self.throttled_until.filter(|until| *until > now) {
            return Ready::Paced(until);
        }
        match self.breaker.gate(now) {
            Gate::Shut(until) => Ready::Open(until),
            Gate::Probing => Ready::Probing,
            Gate::Probe => Ready::Probe,
            Gate::Flow if self.in_use() >= self.ramp.limit(now) => Ready::Full,
            Gate::Flow => {
                let at = self.limiter.ready_at(now, tokens).max(self.ramp.ready_at(now));
                if at > now { Ready::Paced(at) } else { Ready::Now }
            }
        }
    }

    /// When the answer of [`Lane::ready`] may change by time alone.
    pub(super) fn next_change(&mut self, now: Mono) -> Option<Mono> {
        match self.ready(now, 0) {
            Ready::Probe | Ready::Probing | Ready::Drained => None,
            // Ready for a small call, and still somebody waits: for tokens, or for a permit of a
            // suspect lane to be used.
            Ready::Now => Some(now.after(Duration::from_millis(50))),
            Ready::Full => self.ramp.next_growth(now).map(|at| at.max(now.after(Duration::from_millis(1)))),
            Ready::Paced(at) | Ready::Open(at) | Ready::Disabled(at) => Some(at),
        }
    }

    /// Streams and promised places.
    #[must_use]
    pub(super) fn in_use(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX).saturating_add(self.n_reserved)
    }

    /// Whom to prefer among lanes of a tier: sound before suspect, then the least loaded.
    pub(super) fn rank(&mut self, now: Mono, proofs: u32) -> (u8, f64) {
        let health = match self.breaker.phase() {
            _ if self.is_sound(now, proofs) => 0,
            Phase::Suspect => 2,
            _ => 1,
        };
        (health, f64::from(self.in_use()) / f64::from(self.ramp.limit(now)))
    }

    /// Whether calls may rely on it: nothing speaks against it, or it came back and has proved it.
    #[must_use]
    pub(super) fn is_sound(&self, now: Mono, proofs: u32) -> bool {
        match self.breaker.phase() {
            Phase::Closed => true,
            // Nobody would ever learn of a suspect lane that is never asked: it is avoided for a while.
            Phase::Suspect => now.since(self.breaker.since()) >= SUSPECT_FOR,
            Phase::Ramping => self.n_proven >= proofs,
            Phase::Open { .. } | Phase::HalfOpen => false,
        }
    }

    /// Whether a recovering lane that is ready should be tried by a call that could go elsewhere:
    /// as the probe, or in the ramp with one more trial at a time for each that went well.
    #[must_use]
    pub(super) fn wants_trial(&self) -> bool {
        let n_trials = || self.flights.values().filter(|flight| flight.is_trial).count();
        match self.breaker.phase() {
            Phase::Open { .. } => true,
            Phase::Ramping => n_trials() <= self.n_proven as usize,
            Phase::Closed | Phase::Suspect | Phase::HalfOpen => false,
        }
    }

    /// An estimate of input tokens.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of a size"
    )]
    pub(super) fn tokens_of(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.bytes_per_token).ceil() as u64
    }

    /// Learns from a complete answer.
    #[expect(clippy::cast_precision_loss, reason = "an estimate of a size")]
    pub(super) fn learn_tokens(&mut self, bytes: u64, usage: Usage) {
        if !usage.estimated && usage.input_tokens > 0 {
            let seen = (bytes as f64 / usage.input_tokens as f64).clamp(1.0, 12.0);
            self.bytes_per_token += 0.1 * (seen - self.bytes_per_token);
        }
    }

    /// Learns how long the first content takes.
    pub(super) fn learn_first_content(&mut self, took: Duration) {
        self.counters.first_content.add(took);
        self.first_content = Some(match self.first_content {
            None => took,
            Some(known) => known.mul_f64(0.8) + took.mul_f64(0.2),
        });
    }

    /// Headers can lower limits, never raise them.
    pub(super) fn hear(&mut self, now: Mono, hints: &Hints) {
        for (bucket, hint) in
            [(&mut self.limiter.calls, hints.calls), (&mut self.limiter.tokens, hints.tokens)]
        {
            if let Some(limit) = hint.limit {
                bucket.lower_rate(now, limit);
            }
            #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^53")]
            if let Some(remaining) = hint.remaining {
                bucket.lower_to(now, remaining as f64);
            }
        }
    }

    /// Since when all streams are silent, if there was no sign of life for at least `patience` and
    /// at least `n_min` streams have waited for half of that or longer.
    #[must_use]
    pub(super) fn silent_since(&self, n_min: u32, patience: Duration) -> Option<Silence> {
        let patience = patience.max(self.first_content.unwrap_or_default() * 2);
        let mut signs: Vec<Mono> = self.flights.values().map(|flight| flight.signed_at).collect();
        signs.sort_unstable();
        let since = *signs.first()?;
        let last = *signs.get((n_min as usize).saturating_sub(1))?;
        // Streams that began after the last sign tell of the lane only from their start on.
        let whole = self.signed_at.max(since).after(patience);
        Some(Silence { since, at: whole.max(last.after(patience / 2)) })
    }

    /// Keeps the last results for the alarm on refusals.
    pub(super) fn count(&mut self, outcome: &'static str, is_refusal: bool) {
        *self.counters.outcomes.entry(outcome).or_default() += 1;
        self.counters.refusals.push_back(is_refusal);
        if self.counters.refusals.len() > 20 {
            self.counters.refusals.pop_front();
        }
    }

    /// More than half of the last results (at least four) were refused as malformed.
    #[must_use]
    pub(super) fn refusals_alarm(&self) -> bool {
        let last = &self.counters.refusals;
        last.len() >= 4 && last.iter().filter(|refused| **refused).count() * 2 > last.len()
    }
}
