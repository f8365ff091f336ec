//! `--check`: what was computed beside what runs show, at multiples of the asked rate.
//!
//! In each run the load stands still for a while before it is looked at, and is looked at for whole
//! rounds of the task list. Beside Little's law stand the event model, at every rate, and the real code
//! in virtual time, where that takes no longer than the patience that was given.

use std::time::Duration;

use anyhow::Context as _;
use evenkeel_core::Generator;
use evenkeel_env::Env;
use evenkeel_model::config::{ParkConfig, RouterSettings};
use serde::Serialize;

use super::capacity;
use super::event::{Model, Shock};
use super::trace::{self, Trace, Visit};
use super::work::{Component, Demand, Limited, Of, Work};
use super::{Question, Run, measure};
use crate::live;
use crate::live::usage::{CALLS, COMMITS, Reading, STREAMS, TOKENS_IN};
use crate::report::Latency;
use crate::scenario::Scenario;
use crate::task;

/// The load is looked at for at least so many seconds.
const LOOK_S: f64 = 12.0;

/// By then every queue is empty.
const PLAYED_OUT_S: f64 = 100_000.0;

/// What one multiple of the rate has shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Checked {
    pub(crate) multiple: f64,
    pub(crate) rate_per_s: f64,
    pub(crate) load_s: f64,
    pub(crate) n_units: usize,
    /// Real seconds that the real code took; none where it would have taken too long.
    pub(crate) real_wall_s: Option<f64>,
    pub(crate) figures: Vec<Figure>,
}

/// One figure by its sources.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) law: f64,
    pub(crate) model: Option<f64>,
    pub(crate) real: Option<f64>,
    /// In percent of the real figure, or without one of the event model's.
    pub(crate) law_error: Option<f64>,
    /// In percent of the real figure.
    pub(crate) model_error: Option<f64>,
}

impl Figure {
    pub(crate) fn new(name: String, law: f64, model: Option<f64>, real: Option<f64>) -> Self {
        let error =
            |value: f64, of: Option<f64>| of.filter(|of| *of > 0.0).map(|of| (value - of) / of * 100.0);
        let model_error = model.and_then(|model| error(model, real));
        Self { law_error: error(law, real.or(model)), name, law, model, real, model_error }
    }
}

/// A load and when it is looked at.
struct Load {
    scenario: Scenario,
    window: (f64, f64),
}

impl Load {
    /// The file's load at this rate without its faults.
    fn at(scenario: &Scenario, rate_per_s: f64, base: Latency) -> Self {
        let mut scenario = scenario.without_faults();
        let round_s = match &scenario.traffic.tasks {
            _ if scenario.is_chat() => LOOK_S,
            tasks if tasks.is_empty() => task::all().len() as f64 / rate_per_s,
            tasks => tasks.len() as f64 / rate_per_s,
        };
        let warm_s = base.p99.ceil();
        let end_s = warm_s + (LOOK_S / round_s).ceil() * round_s;
        scenario.traffic.rate_per_s = rate_per_s;
        scenario.traffic.duration_s = end_s;
        // Whoever waits in a queue that grows is waited for: virtual time costs little.
        scenario.traffic.settle_s = PLAYED_OUT_S;
        Self { scenario, window: (warm_s, end_s) }
    }
}

/// What is known before: the work, the recorded runs, and what a unit costs the machine.
pub(crate) struct Known<'a> {
    pub(crate) question: &'a Question,
    pub(crate) work: &'a Work,
    pub(crate) run: &'a Run,
    pub(crate) base: Latency,
}

/// Compares at one multiple of the asked rate.
pub(crate) async fn at(
    env: &Env,
    known: &Known<'_>,
    multiple: f64,
    patience_s: f64,
) -> anyhow::Result<Checked> {
    let question = known.question;
    let rate_per_s = question.scenario.traffic.rate_per_s * multiple;
    let Load { scenario, window } = Load::at(&question.scenario, rate_per_s, known.base);
    let n_units = scenario.traffic.n_tasks();
    let model = known.model(&scenario, window, Vec::new());
    let played = model.play();
    let real = if known.would_take_s(&scenario) <= patience_s {
        let looks = [window.0, window.1].map(Duration::from_secs_f64).into();
        Some(measure(env, question, &scenario, looks).await?)
    } else {
        None
    };
    let used = real.as_ref().map(Run::window).transpose()?;
    let mut figures = Vec::new();
    // No collector stands behind a run of the lab, and slots do not say whose thread is at work.
    let is_measured = |demand: &&Demand| demand.cost > 0.0 && !matches!(demand.of, Of::Spans | Of::HotThread);
    for demand in known.work.demands.iter().filter(is_measured) {
        let name = format!("{} {}", demand.component.name(), demand.of.words());
        let law = known.law(demand, rate_per_s) * demand.of.per_s();
        let is_modelled = demand.of.is_held() && demand.component != Component::Gateway;
        let model = played.in_use.get(&demand.component).filter(|_| is_modelled);
        let real = used.as_ref().map(|used| real_figure(used, demand, &scenario));
        figures.push(Figure::new(
            name,
            law,
            model.map(|in_use| (in_use + demand.idle).min(demand.limit)),
            real,
        ));
    }
    let modelled = latency(&played.ends);
    let measured = real.as_ref().map(|run| run.report.latency_s);
    let over_s = known.over(rate_per_s) * scenario.traffic.duration_s;
    for (name, share, of) in [
        ("median time, s", 0.5, (|latency| latency.p50) as fn(Latency) -> f64),
        ("p99 time, s", 0.99, |latency| latency.p99),
    ] {
        let law = of(known.base) + over_s * share;
        figures.push(Figure::new(name.to_owned(), law, Some(of(modelled)), measured.map(of)));
    }
    let real_wall_s = real.map(|run| run.wall_s);
    Ok(Checked { multiple, rate_per_s, load_s: scenario.traffic.duration_s, n_units, real_wall_s, figures })
}

/// Times of units by when they were asked for and told.
pub(crate) fn latency(ends: &[(f64, Option<f64>)]) -> Latency {
    Latency::of(ends.iter().filter_map(|(asked_s, told_s)| Some((*told_s)? - asked_s)).collect())
}

/// What the real code used of a limit, in the limit's unit.
fn real_figure(used: &Reading, demand: &Demand, scenario: &Scenario) -> f64 {
    let of = |name: &str| used.of(name);
    let sum = |prefix: &str| {
        let each = scenario.provider.iter().map(|provider| of(&format!("{prefix}{}", provider.name)));
        each.fold((0.0, 0.0), |(n, held_s), used| (n + used.n, held_s + used.held_s))
    };
    let total = match demand.of {
        Of::Streams => sum(STREAMS).1,
        Of::Calls if demand.component == Component::Model => sum(STREAMS).0,
        Of::Calls => of(CALLS).n,
        Of::TokensIn => sum(TOKENS_IN).0,
        Of::Commits => of(COMMITS).n,
        Of::Slots | Of::Connections | Of::HotThread | Of::Spans => of(demand.component.name()).held_s,
    };
    total / used.at_s * demand.of.per_s()
}

impl Run {
    /// What was used between the two looks of a check.
    fn window(&self) -> anyhow::Result<Reading> {
        let [_, _, from, to, ..] = self.usage.as_slice() else {
            anyhow::bail!("the run ended before it was looked at");
        };
        let used = to.since(from);
        used.complete.then_some(used).context("a process did not say what it had done when it was asked")
    }
}

impl Known<'_> {
    /// The rate at which the first limit is full.
    pub(crate) fn end(&self) -> f64 {
        capacity::first(&self.work.demands).map_or(f64::INFINITY, |first| first.at_per_s)
    }

    /// How much more arrives than leaves, as a share of what leaves.
    fn over(&self, rate_per_s: f64) -> f64 {
        (rate_per_s / self.end() - 1.0).max(0.0)
    }

    fn model_is_first(&self) -> bool {
        capacity::first(&self.work.demands).is_some_and(|first| first.component == Component::Model)
    }

    /// Real seconds that the real code would take for a load.
    pub(crate) fn would_take_s(&self, load: &Scenario) -> f64 {
        self.run.wall_s / self.run.n_units as f64 * load.traffic.n_tasks() as f64
    }

    /// Mean seconds of a visit.
    pub(crate) fn service_s(&self, component: Component) -> Option<f64> {
        self.work.demands.iter().filter(|demand| demand.component == component).find_map(Demand::service_s)
    }

    /// What is needed of a limit. All that arrives is accepted, but no more than the first limit lets
    /// through is at work; who waits for that waits in the harness, which is then full.
    fn law(&self, demand: &Demand, rate_per_s: f64) -> f64 {
        let over = self.over(rate_per_s);
        let gateway: Vec<Demand> = self
            .work
            .demands
            .iter()
            .filter(|demand| demand.component == Component::Gateway)
            .copied()
            .collect();
        let enters = capacity::first(&gateway).map_or(rate_per_s, |first| first.at_per_s.min(rate_per_s));
        match demand.component {
            Component::Gateway | Component::Api => demand.needed(enters),
            // A full model parks whoever has waited for it, without a slot.
            Component::Harness if over > 0.0 && self.model_is_first() => {
                let waits = rate_per_s * patience_s(&self.question.scenario);
                (demand.needed(rate_per_s / (1.0 + over)) + waits).min(demand.limit)
            }
            Component::Harness if over > 0.0 => demand.limit,
            _ => demand.needed(rate_per_s / (1.0 + over)),
        }
    }

    /// The event model of a load.
    pub(crate) fn model(&self, load: &Scenario, window: (f64, f64), shocks: Vec<(f64, Shock)>) -> Model {
        let Question { scenario, keys, replicas, seed } = self.question;
        let limits = Limited { scenario, keys, replicas: *replicas };
        let demand = |component, of| {
            self.work.demands.iter().find(|demand| demand.component == component && demand.of == of)
        };
        let visits = |component, of| demand(component, of).map_or(0.0, |demand| demand.visits);
        let service_s =
            |component| demand(component, Of::Slots).and_then(Demand::service_s).unwrap_or_default();
        let (store_s, n_store) = (service_s(Component::Store), visits(Component::Store, Of::Slots));
        let mut traces = trace::all(&self.run.report.history, store_s, n_store);
        for visit in traces.iter_mut().flat_map(|trace| &mut trace.visits) {
            let named = visit.at.and_then(|component| keys.service_ms.get(component.name()));
            visit.seconds = named.map_or(visit.seconds, |ms| ms / 1_000.0);
        }
        let n_aside = (n_store - mean(&traces, Component::Store, |_| 1.0)).max(0.0).round() as usize;
        // Some commands hold a slot of the tools and one of the sandboxes.
        let tools_aside_s = demand(Component::Tools, Of::Slots).map_or(0.0, |demand| demand.cost)
            - mean(&traces, Component::Tools, |visit| visit.seconds);
        let n_api = visits(Component::Api, Of::Slots).round() as usize;
        let calls = visits(Component::Model, Of::Calls).max(f64::MIN_POSITIVE);
        let mut rates = vec![
            (
                Component::Gateway,
                limits.of(Component::Gateway, Of::Calls),
                visits(Component::Gateway, Of::Calls),
            ),
            (Component::Model, limits.of(Component::Model, Of::Calls), 1.0),
            (
                Component::Model,
                limits.of(Component::Model, Of::TokensIn),
                visits(Component::Model, Of::TokensIn) / calls,
            ),
        ];
        if n_store > 0.0 && keys.commits_per_s.is_some() {
            let commits = visits(Component::Store, Of::Commits) / n_store;
            rates.push((Component::Store, limits.of(Component::Store, Of::Commits), commits));
        }
        let slots =
            Component::ALL.into_iter().filter(|one| !matches!(one, Component::Gateway | Component::Tracing));
        let of = |component| if component == Component::Model { Of::Streams } else { Of::Slots };
        let traffic = &load.traffic;
        let arrivals = if load.is_chat() {
            let generator = Generator::from_seed(*seed).part("live").part("chat");
            live::chat_arrivals(traffic, &load.chat, &generator)
        } else {
            (0..traffic.n_tasks()).map(|task| (task as f64 / traffic.rate_per_s, task)).collect()
        };
        Model {
            slots: slots.map(|component| (component, limits.of(component, of(component)))).collect(),
            traces,
            rates,
            aside: vec![(Component::Store, n_aside, store_s), (Component::Tools, 1, tools_aside_s)],
            accepted: (n_api, service_s(Component::Api)),
            arrivals,
            shocks,
            window,
            patience_s: patience_s(load),
            until_s: traffic.duration_s.max(load.last_heal_s()) + traffic.settle_s,
        }
    }
}

/// How long a call waits for room in the model before its run is parked: the router's own bounds.
fn patience_s(scenario: &Scenario) -> f64 {
    let span = if scenario.is_chat() {
        ParkConfig::default().interactive_max
    } else {
        RouterSettings::default().batch_wait
    };
    span.0.as_secs_f64()
}

/// The mean over the recorded runs of a sum over their visits of a component.
fn mean(traces: &[Trace], component: Component, of: fn(&Visit) -> f64) -> f64 {
    let visits = traces.iter().flat_map(|trace| &trace.visits);
    let all: f64 = visits.filter(|visit| visit.at == Some(component)).map(of).sum();
    all / traces.len().max(1) as f64
}
