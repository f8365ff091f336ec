//! How long an attempt may take.

use std::time::Duration;

use evenkeel_core::Mono;

use super::event::CallKey;
use super::lane::Ready;
use super::machine::Machine;
use crate::stream::watch::Limits;

impl Machine {
    /// How long an attempt may take. A probe has less time at first, so that silence does not hide
    /// a recovery; each failed probe gives the next one more, so that a slow one can succeed.
    pub(super) fn limits(&mut self, now: Mono, key: CallKey, lane_idx: usize, probes: Option<u32>) -> Limits {
        let config = self.plan.settings.timeouts;
        let plan = &self.plan.lanes[lane_idx];
        let tokens = self.lanes[lane_idx].tokens_of(self.calls[&key].arrival.input_bytes);
        let patience = if plan.reasoning { 4 } else { 1 };
        #[expect(clippy::cast_precision_loss, reason = "an estimate of a size")]
        let for_input = config.first_content_per_20k_tokens.0.mul_f64(tokens as f64 / 20_000.0);
        let learnt = self.lanes[lane_idx].first_content.unwrap_or_default() * 4;
        let ceiling = config.first_content_max.0 * patience;
        let has_other = self.has_other(now, key, lane_idx);
        let mut first_content = ((config.first_content.0 + for_input) * patience).max(learnt);
        if !has_other {
            first_content *= 2;
        }
        let mut headers = (config.headers.0 + for_input) * patience;
        first_content = first_content.min(ceiling.max(config.first_content.0));
        if has_other && let Some(usual) = self.lanes[lane_idx].counters.first_content.usual() {
            // Waiting longer than this lane ever needs is worse than asking the other one.
            let impatient = (usual * 4).max(config.first_content_elsewhere_min.0) * patience + for_input;
            headers = headers.min(impatient);
            first_content = first_content.min(impatient);
        }
        if let Some(n_failed) = probes {
            let growth = 1.5f64.powi(i32::try_from(n_failed.min(20)).unwrap_or(20));
            let least = Duration::from_secs(3).max(learnt) * patience;
            let probe = (least + for_input).mul_f64(growth);
            headers = headers.min(probe);
            first_content = first_content.min(probe);
        }
        let left = now.until(self.calls[&key].arrival.deadline);
        Limits {
            headers,
            first_content,
            idle: config.idle.0,
            idle_with_pings: config.idle_with_pings.0,
            attempt: config.attempt.0.min(left),
            tokens_per_s_min: has_other.then_some(config.tokens_per_s_min),
            slow_after: config.slow_after.0,
        }
    }

    fn has_other(&mut self, now: Mono, key: CallKey, lane_idx: usize) -> bool {
        let call = &self.calls[&key];
        let others: Vec<usize> = (0..self.tiers_allowed(call))
            .flat_map(|tier| self.candidates(call, tier).collect::<Vec<_>>())
            .filter(|other| *other != lane_idx)
            .collect();
        others.into_iter().any(|other| self.lanes[other].ready(now, 0) == Ready::Now)
    }
}
