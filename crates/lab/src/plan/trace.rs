//! Recorded runs as visits of components, one after the other: what the event model plays back.
//!
//! The journal says when each model attempt and each tool call began and how long it took. What lies
//! between them is operations of the store, as far as there is time for them, and otherwise a pause
//! that holds nothing but the harness. The wait for a thread that is busy is left out: the model has
//! threads of its own.

use std::collections::BTreeMap;

use evenkeel_core::Wall;
use evenkeel_core::id::{CallId, RunId};
use evenkeel_core::journal::{Event, EventBody};

use super::work::{self, Component};
use crate::check::History;

/// One visit, or a pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Visit {
    /// Where; nowhere in a pause.
    pub(crate) at: Option<Component>,
    pub(crate) seconds: f64,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Trace {
    pub(crate) visits: Vec<Visit>,
}

/// All runs of a history, in the order in which they were accepted. `store_s` is the mean time of an
/// operation of the store, `n_store` how many of them one run makes.
pub(crate) fn all(history: &History, store_s: f64, n_store: f64) -> Vec<Trace> {
    let mut runs: BTreeMap<RunId, Vec<&Event>> = BTreeMap::new();
    for event in work::events(history) {
        runs.entry(event.run).or_default().push(event);
    }
    runs.into_values().map(|events| Reading::default().read(&events).filled(store_s, n_store)).collect()
}

/// A run that is being read: gaps are still without their operations.
#[derive(Default)]
struct Reading {
    visits: Vec<Visit>,
    tools: BTreeMap<CallId, Component>,
    /// Up to when it was read.
    now_ms: Option<u64>,
}

impl Reading {
    fn read(mut self, events: &[&Event]) -> Self {
        for event in events {
            match &event.body {
                EventBody::RunClaimed { .. } => self.now_ms = Some(event.at.ms()),
                EventBody::AssistantMessage { attempts, .. } | EventBody::ModelAttempts { attempts } => {
                    for attempt in attempts {
                        self.pause_until(attempt.started_at);
                        self.visit(Component::Model, attempt.ms);
                    }
                }
                EventBody::EffectIntended(intent) => {
                    let is_command = intent.tool == "bash" || intent.tool.starts_with("git_");
                    let place = if is_command { Component::Sandbox } else { Component::Tools };
                    self.tools.insert(intent.call_id.clone(), place);
                }
                EventBody::EffectSettled(result) => {
                    let place = self.tools.get(&result.call_id).copied().unwrap_or(Component::Tools);
                    self.visit(Component::Policy, 0);
                    self.visit(place, result.ms);
                }
                _ => {}
            }
            self.pause_until(event.at);
        }
        self
    }

    fn visit(&mut self, place: Component, ms: u64) {
        self.visits.push(Visit { at: Some(place), seconds: ms as f64 / 1_000.0 });
        self.now_ms = self.now_ms.map(|now_ms| now_ms + ms);
    }

    /// Time passes up to this instant, unless it is over already.
    fn pause_until(&mut self, at: Wall) {
        let Some(now_ms) = self.now_ms else { return };
        if at.ms() > now_ms {
            self.visits.push(Visit { at: None, seconds: (at.ms() - now_ms) as f64 / 1_000.0 });
            self.now_ms = Some(at.ms());
        }
    }

    /// Puts the store's operations into the gaps, where there is time for them.
    fn filled(self, store_s: f64, n_store: f64) -> Trace {
        let n_gaps = self.visits.iter().filter(|visit| visit.at.is_none()).count();
        let each = (n_store / n_gaps.max(1) as f64).round() as usize;
        let mut visits = Vec::new();
        for visit in self.visits {
            if visit.at.is_some() || store_s <= 0.0 {
                visits.push(visit);
                continue;
            }
            let n = each.min((visit.seconds / store_s) as usize);
            let operation = Visit { at: Some(Component::Store), seconds: store_s };
            visits.extend(std::iter::repeat_n(operation, n));
            let rest = visit.seconds - n as f64 * store_s;
            visits.extend((rest > 0.0).then_some(Visit { at: None, seconds: rest }));
        }
        Trace { visits }
    }
}
