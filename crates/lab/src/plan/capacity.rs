//! Little's law: what each component needs at a rate, what it has, and where it ends.

use serde::Serialize;

use super::work::{Component, Demand, Of};

/// One limit of one component at the asked rate. Amounts are in the unit of the limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) component: Component,
    pub(crate) of: Of,
    /// Visits a second.
    pub(crate) arrivals_per_s: f64,
    /// Mean time of a visit; none where the limit is one of a rate.
    pub(crate) service_ms: Option<f64>,
    /// In use at once, or used in the time that the limit is written for.
    pub(crate) needed: f64,
    pub(crate) limit: f64,
    /// The share of the limit that is needed.
    pub(crate) used: f64,
    /// The share that is free.
    pub(crate) headroom: f64,
    /// The rate at which nothing of it is free; none if no rate needs any.
    pub(crate) saturates_at_per_s: Option<f64>,
}

/// All limits at one rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Capacity {
    pub(crate) rate_per_s: f64,
    pub(crate) components: Vec<Row>,
    /// What saturates first.
    pub(crate) first: Option<First>,
    /// The share of the tightest limit that is free; negative if it is too small.
    pub(crate) headroom: f64,
}

/// What saturates first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct First {
    pub(crate) component: Component,
    pub(crate) of: Of,
    pub(crate) at_per_s: f64,
}

impl Capacity {
    /// What these demands need at this rate.
    pub(crate) fn at(rate_per_s: f64, demands: &[Demand]) -> Self {
        let components: Vec<Row> = demands.iter().map(|demand| Row::at(rate_per_s, demand)).collect();
        let headroom = components.iter().map(|row| row.headroom).fold(1.0, f64::min);
        Self { rate_per_s, components, first: first(demands), headroom }
    }
}

/// What saturates first, and where.
pub(crate) fn first(demands: &[Demand]) -> Option<First> {
    let ends = demands.iter().filter_map(|demand| {
        let at_per_s = demand.saturates_at()?;
        Some(First { component: demand.component, of: demand.of, at_per_s })
    });
    ends.filter(|end| end.at_per_s.is_finite()).min_by(|a, b| a.at_per_s.total_cmp(&b.at_per_s))
}

impl Row {
    fn at(rate_per_s: f64, demand: &Demand) -> Self {
        let needed = demand.needed(rate_per_s);
        let used = needed / demand.limit;
        Self {
            component: demand.component,
            of: demand.of,
            arrivals_per_s: rate_per_s * demand.visits,
            service_ms: demand.service_s().map(|seconds| seconds * 1_000.0),
            needed: needed * demand.of.per_s(),
            limit: demand.limit * demand.of.per_s(),
            used,
            headroom: 1.0 - used,
            saturates_at_per_s: demand.saturates_at(),
        }
    }
}
