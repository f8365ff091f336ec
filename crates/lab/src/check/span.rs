//! The spans that a log makes: one for each attempt at a model call, one for each tool call.
//!
//! Traces are made from the log alone, with ids that follow from the step and the number of the
//! attempt. So whether each attempt has one span of its own, with an end, can be judged by the log.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::id::{CallId, EffectId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::run::Attempt;

/// What is wrong with the spans of one run, given its events in order.
pub(super) fn wrong<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<String> {
    let mut numbers: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut begun: BTreeMap<&EffectId, &CallId> = BTreeMap::new();
    let mut wrong = Vec::new();
    for event in events {
        let attempts: &[Attempt] = match &event.body {
            EventBody::AssistantMessage { attempts, .. } => {
                wrong.extend(without_answer(event.step, attempts));
                attempts
            }
            EventBody::ModelAttempts { attempts } => attempts,
            EventBody::EffectIntended(intent) => {
                begun.insert(&intent.effect, &intent.call_id);
                continue;
            }
            EventBody::EffectSettled(result) => {
                let other = begun.get(&result.effect).filter(|call| ***call != result.call_id);
                wrong.extend(
                    other.map(|call| format!("The span of call {call} is ended by call {}.", result.call_id)),
                );
                continue;
            }
            _ => continue,
        };
        for attempt in attempts {
            if !numbers.insert((event.step, attempt.attempt)) {
                wrong.push(format!("Attempt {} of step {} has two spans.", attempt.attempt, event.step));
            }
            if attempt.outcome.is_empty() || attempt.first_content_ms.is_some_and(|ms| ms > attempt.ms) {
                wrong.push(format!("Attempt {} of step {} has no end.", attempt.attempt, event.step));
            }
        }
    }
    wrong
}

/// A reply comes from the last of its attempts, and from no other. One that was cut has none.
fn without_answer(step: u32, attempts: &[Attempt]) -> Option<String> {
    let n_ok = attempts.iter().filter(|attempt| attempt.outcome == "ok").count();
    let from_last = attempts.last().is_none_or(|last| last.outcome == "ok" && n_ok == 1);
    (!from_last).then(|| format!("The reply of step {step} has {n_ok} attempts that answered."))
}
