//! What each fault does to a load: the backlog that builds up, the time until it is gone, and how far
//! the 99th percentile grows.
//!
//! A fault takes away a share of a component, makes one slower, or throws work back to the beginning
//! of its step. From that follow a rate that can still be carried and a longer time for each unit, and
//! with Little's law the rest. Beside it the event model plays the same fault, and with `--check` the
//! real code does. Each fault is looked at alone.

use evenkeel_env::Env;
use serde::Serialize;

use super::capacity;
use super::event::Shock;
use super::measure;
use super::verify::{Figure, Known, latency};
use super::work::{Component, Demand};
use crate::link;
use crate::provider::Fault;
use crate::scenario::{Action, Link, PlannedFault, Scenario, Target};

/// A lease of a replica that falls silent lapses after about so many seconds.
const LEASE_S: f64 = 4.5;
/// The claims of a replica that refuses connections are taken over after about so many seconds.
const TAKEOVER_S: f64 = 1.0;
/// A broken call is made again after about so many seconds.
const AGAIN_S: f64 = 0.3;
/// A provider that is back is noticed after about so many seconds.
const PROBE_S: f64 = 1.0;
/// A provider that is so many times as slow as usual counts as late, and the other one is asked.
const LATE: f64 = 4.0;

/// One fault and what it does.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Effect {
    /// In the words of the file.
    pub(crate) fault: String,
    /// Tasks or turns a second that can be carried while it lasts; none if as many as without it.
    pub(crate) carries_per_s: Option<f64>,
    /// Units more than before, seconds until they are gone, 99th percentile.
    pub(crate) figures: Vec<Figure>,
    /// What is not reckoned, in words.
    pub(crate) note: Option<&'static str>,
}

/// What a fault does, in the words of the event model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Impact {
    /// The share of a component that is left.
    left: Option<(Component, f64)>,
    /// A component takes so many times as long.
    pace: Option<(Component, f64)>,
    /// One in so many of those at work begins its step again after so many seconds.
    cut: Option<(Component, usize, f64)>,
    /// Seconds after its end until its end has an effect.
    after_s: f64,
    note: Option<&'static str>,
}

impl Impact {
    /// What this fault does to this topology; `store_s` is the time of an operation of the store.
    pub(crate) fn of(fault: &PlannedFault, scenario: &Scenario, n: usize, store_s: f64, call_s: f64) -> Self {
        let others = 1.0 - 1.0 / n as f64;
        let replica = |cut_after_s: f64| Self {
            left: Some((Component::Harness, others)),
            cut: Some((Component::Harness, n, cut_after_s)),
            ..Self::default()
        };
        let slower = |place, own_s: f64, more_s: f64| Self {
            pace: (own_s > 0.0).then(|| (place, 1.0 + more_s / own_s)),
            ..Self::default()
        };
        match (&fault.action, &fault.target) {
            (Action::Provider(fault), Target::Provider(name)) => Self::of_provider(fault, name, scenario),
            (Action::Kill { down_s, .. }, _) => replica(if n > 1 { TAKEOVER_S } else { *down_s }),
            (Action::Stop, _) => replica(if n > 1 { LEASE_S } else { fault.for_s }),
            (Action::SlowStore { factor, base_ms }, _) => {
                let counts_s = store_s.max(*base_ms as f64 / 1_000.0);
                slower(Component::Store, store_s, (factor - 1.0) * counts_s)
            }
            (Action::RestartStore { .. }, _) => Self {
                left: Some((Component::Store, 0.0)),
                after_s: PROBE_S,
                note: Some("runs whose claim lapses meanwhile begin their step again"),
                ..Self::default()
            },
            (Action::RollingRestart { .. }, _) => {
                Self { left: Some((Component::Harness, others)), ..Self::default() }
            }
            (Action::Link(link::Fault::Delay { ms }), Target::Link(Link::Store(_))) => {
                slower(Component::Store, store_s, 2.0 * *ms as f64 / 1_000.0)
            }
            (Action::Link(link::Fault::Delay { ms }), Target::Link(Link::Providers(_))) => {
                slower(Component::Model, call_s, 2.0 * *ms as f64 / 1_000.0)
            }
            (Action::Link(_), Target::Link(Link::Store(Some(_)))) if n > 1 => replica(LEASE_S),
            (Action::Link(_), Target::Link(Link::Store(_))) => {
                Self { left: Some((Component::Store, 0.0)), after_s: PROBE_S, ..Self::default() }
            }
            _ => Self { note: Some("not reckoned: clients come back by themselves"), ..Self::default() },
        }
    }

    fn of_provider(fault: &Fault, name: &str, scenario: &Scenario) -> Self {
        let streams = |all: bool| -> f64 {
            let wanted = scenario.provider.iter().filter(|provider| all || provider.name != name);
            wanted.map(|provider| f64::from(provider.limits.streams)).sum()
        };
        let others = streams(false) / streams(true);
        let is_first = scenario.provider.first().is_some_and(|first| first.name == name);
        let goes_away = fault.is_outage() || matches!(fault, Fault::OutOfCredit | Fault::BadKey);
        match fault {
            _ if !is_first => Self { left: Some((Component::Model, others)), ..Self::default() },
            _ if goes_away => Self {
                left: Some((Component::Model, others)),
                cut: Some((Component::Model, 1, AGAIN_S)),
                after_s: if others > 0.0 { 0.0 } else { PROBE_S },
                ..Self::default()
            },
            Fault::Slow { factor } if *factor < LATE || others == 0.0 => {
                Self { pace: Some((Component::Model, *factor)), ..Self::default() }
            }
            Fault::Slow { .. } => Self {
                left: Some((Component::Model, others)),
                note: Some("calls that are late are asked of the other provider"),
                ..Self::default()
            },
            Fault::Acceleration { .. } => Self {
                note: Some("not reckoned: the allowance is for the time after an outage"),
                ..Self::default()
            },
            fault => Self {
                pace: Some((Component::Model, 1.0 + fault.share())),
                note: Some("each call that fails counts as one more of the same length"),
                ..Self::default()
            },
        }
    }

    /// The demands while it lasts. A slot of the harness is held for as long as all visits take.
    fn during(&self, known: &Known<'_>) -> Vec<Demand> {
        let run_s = known.service_s(Component::Harness).unwrap_or_default();
        let held_longer = 1.0 + if run_s > 0.0 { known.longer_s(self) / run_s } else { 0.0 };
        let changed = |demand: &Demand| {
            let mut demand = *demand;
            if let Some((_, share)) = self.left.filter(|(place, _)| *place == demand.component) {
                demand.limit *= share;
            }
            match self.pace {
                Some((place, factor)) if place == demand.component && demand.of.is_held() => {
                    demand.cost *= factor;
                }
                _ if demand.component == Component::Harness => demand.cost *= held_longer,
                _ => {}
            }
            demand
        };
        known.work.demands.iter().map(changed).collect()
    }

    /// The same in the event model's words, from one second to another.
    fn shocks(&self, from_s: f64, to_s: f64) -> Vec<(f64, Shock)> {
        let to_s = to_s + self.after_s;
        let mut shocks = Vec::new();
        if let Some((place, share)) = self.left {
            shocks.extend([(from_s, Shock::Left(place, share)), (to_s, Shock::Left(place, 1.0))]);
        }
        if let Some((place, factor)) = self.pace {
            shocks.extend([(from_s, Shock::Pace(place, factor)), (to_s, Shock::Pace(place, 1.0))]);
        }
        shocks.extend(self.cut.map(|(place, one_in, after_s)| (from_s, Shock::Cut(place, one_in, after_s))));
        shocks
    }
}

/// How a load came through a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wave {
    /// Units more than at most before it.
    pub(crate) backlog: f64,
    /// Seconds after its end until that is gone.
    pub(crate) drain_s: f64,
    /// 99th percentile of all units, in seconds.
    pub(crate) p99_s: f64,
}

impl Wave {
    /// From when each unit was asked for and told; `usual` units are there without any fault.
    pub(crate) fn of(ends: &[(f64, Option<f64>)], (from_s, to_s): (f64, f64), usual: f64) -> Self {
        let mut steps: Vec<(f64, i64)> = ends.iter().map(|(asked_s, _)| (*asked_s, 1)).collect();
        steps.extend(ends.iter().filter_map(|(_, told_s)| Some(((*told_s)?, -1))));
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut there, mut before, mut peak, mut over_until) = (0, usual.ceil() as i64, 0, to_s);
        for (at_s, step) in steps {
            there += step;
            if at_s < from_s {
                before = before.max(there);
                continue;
            }
            peak = peak.max(there);
            if there > before {
                over_until = f64::INFINITY;
            } else if over_until.is_infinite() {
                over_until = at_s;
            }
        }
        Self {
            backlog: (peak - before).max(0) as f64,
            drain_s: (over_until - to_s).max(0.0),
            p99_s: latency(ends).p99,
        }
    }
}

/// The effect of one fault; with a patience also in the real code.
pub(crate) async fn of(
    env: &Env,
    known: &Known<'_>,
    fault: &PlannedFault,
    patience_s: Option<f64>,
) -> anyhow::Result<Effect> {
    let question = known.question;
    let mut scenario = question.scenario.without_faults();
    scenario.faults.push(fault.clone());
    let (n, rate) = (question.replicas, scenario.traffic.rate_per_s);
    let service_s = |component| known.service_s(component).unwrap_or_default();
    let impact = Impact::of(fault, &scenario, n, service_s(Component::Store), service_s(Component::Model));
    let spans = fault.spans();
    let span = (fault.at_s, spans.last().map_or(fault.at_s, |(_, to_s)| *to_s));
    let usual = rate * known.base.p50;
    let carries = capacity::first(&impact.during(known)).map(|first| first.at_per_s);
    let law = law(known, &impact, &spans, carries);
    let shocks = spans.iter().flat_map(|(from_s, to_s)| impact.shocks(*from_s, *to_s)).collect();
    let played = known.model(&scenario, (0.0, scenario.traffic.duration_s), shocks).play();
    let model = Wave::of(&played.ends, span, usual);
    let affordable = patience_s.is_some_and(|patience_s| known.would_take_s(&scenario) <= patience_s);
    let real = if affordable {
        let run = measure(env, question, &scenario, Vec::new()).await?;
        let s = |ms: u64| ms as f64 / 1_000.0;
        let ends: Vec<_> = run.report.ends.iter().map(|end| (s(end.asked_ms), end.told_ms.map(s))).collect();
        Some(Wave::of(&ends, span, usual))
    } else {
        None
    };
    let figure = |name: &str, of: fn(&Wave) -> f64| {
        Figure::new(name.to_owned(), of(&law), Some(of(&model)), real.as_ref().map(of))
    };
    let figures = vec![
        figure("backlog", |wave| wave.backlog),
        figure("gone after, s", |wave| wave.drain_s),
        figure("p99 time, s", |wave| wave.p99_s),
    ];
    let for_s = if spans.len() > 1 {
        format!("{} times {} s", spans.len(), fault.for_s)
    } else {
        format!("{} s", fault.for_s)
    };
    Ok(Effect {
        fault: format!("{} {}, {for_s}", fault.target_name(), fault.kind()),
        carries_per_s: carries.filter(|carries| *carries < known.end()),
        figures,
        note: impact.note,
    })
}

/// What follows from Little's law: what cannot be carried waits, and what takes longer is there longer.
fn law(known: &Known<'_>, impact: &Impact, spans: &[(f64, f64)], carries: Option<f64>) -> Wave {
    let traffic = &known.question.scenario.traffic;
    let (rate, base, end) = (traffic.rate_per_s, known.base, known.end());
    let carries = carries.unwrap_or(f64::INFINITY).min(rate);
    let for_s = spans.iter().map(|(from_s, to_s)| to_s - from_s).fold(0.0, f64::max) + impact.after_s;
    let arrives_s = spans.first().map_or(0.0, |(from_s, _)| (traffic.duration_s - from_s).clamp(0.0, for_s));
    // Whoever is there for only a part of the fault is slower only for that part.
    let longer_s = known.longer_s(impact);
    let longer_s = longer_s * (for_s / (base.p50 + longer_s)).min(1.0);
    let redo_s = impact.cut.map_or(0.0, |_| known.service_s(Component::Model).unwrap_or_default());
    let waits = (rate - carries) * arrives_s;
    let stops = carries <= 0.0;
    // Where all stands still, what was cut waits with the rest.
    let (n_hit, after_s) = match impact.cut {
        Some((_, one_in, after_s)) if !stops => (rate * base.p50 / one_in as f64, after_s + redo_s),
        _ => (0.0, 0.0),
    };
    let stands_s = waits / end + if stops { for_s + redo_s } else { 0.0 };
    let n_late = if waits + longer_s > 0.0 { rate * for_s } else { n_hit } * spans.len() as f64;
    let is_seen = n_late >= 0.01 * traffic.n_tasks() as f64;
    // The longest units have the most that takes longer.
    let late_s = stands_s + after_s + longer_s * base.p99 / base.p50;
    Wave {
        backlog: waits + carries * longer_s + n_hit * after_s / base.p50,
        // Whoever is slower at the end has on average half of it behind.
        drain_s: longer_s / 2.0 + if waits > 0.0 { waits / (end - rate).max(0.001) + base.p50 } else { 0.0 },
        p99_s: base.p99 + if is_seen { late_s } else { 0.0 },
    }
}

impl Known<'_> {
    /// How much longer a unit takes through all of it.
    fn longer_s(&self, impact: &Impact) -> f64 {
        let Some((place, factor)) = impact.pace else { return 0.0 };
        let costs =
            self.work.demands.iter().filter(|demand| demand.component == place && demand.of.is_held());
        costs.map(|demand| demand.cost * (factor - 1.0)).sum()
    }
}

/// Faults that every plan should know, for `--faults`.
pub(crate) fn standard(scenario: &Scenario, n_replicas: usize) -> Vec<PlannedFault> {
    let at_s = (scenario.traffic.duration_s / 3.0).floor();
    let fault = |for_s, target, action| PlannedFault { at_s, for_s, repeat: None, target, action };
    let first = scenario.provider.first().map(|provider| Target::Provider(provider.name.clone()));
    let process = if n_replicas > 1 { Target::Replica(1) } else { Target::Process };
    let mut faults: Vec<PlannedFault> = first
        .into_iter()
        .flat_map(|first| {
            [
                fault(30.0, first.clone(), Action::Provider(Fault::Down)),
                fault(30.0, first, Action::Provider(Fault::Slow { factor: 2.0 })),
            ]
        })
        .collect();
    faults.extend([
        fault(5.0, process, Action::Kill { times: 1, down_s: 5.0 }),
        fault(30.0, Target::Store, Action::SlowStore { factor: 2.0, base_ms: 2 }),
        fault(5.0, Target::Store, Action::RestartStore { down_s: 5.0 }),
    ]);
    // The file's own are looked at as they stand there.
    let is_there = |one: &PlannedFault| {
        scenario.faults.iter().any(|own| own.target == one.target && own.kind() == one.kind())
    };
    faults.retain(|one| !is_there(one));
    faults
}
