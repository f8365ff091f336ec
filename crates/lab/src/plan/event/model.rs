//! What the event model plays, and what comes of it.

use std::collections::BTreeMap;

use crate::plan::trace::Trace;
use crate::plan::work::Component;

/// What is played.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) traces: Vec<Trace>,
    /// Slots by component; what is not here has no limit.
    pub(crate) slots: BTreeMap<Component, f64>,
    /// How much a second by component, with what one visit takes.
    pub(crate) rates: Vec<(Component, f64, f64)>,
    /// Visits of the API when a unit comes: how many, how long. Nobody waits for them.
    pub(crate) accepted: (usize, f64),
    /// The same when it begins to run: where, how many, how long.
    pub(crate) aside: Vec<(Component, usize, f64)>,
    /// When each unit arrives, and on which thread.
    pub(crate) arrivals: Vec<(f64, usize)>,
    /// What breaks when, in order of time.
    pub(crate) shocks: Vec<(f64, Shock)>,
    /// From when to when use is measured.
    pub(crate) window: (f64, f64),
    /// How long a unit waits for room in the model before it is parked.
    pub(crate) patience_s: f64,
    /// Nothing is played after this.
    pub(crate) until_s: f64,
}

/// Something that changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shock {
    /// This share of a component's slots is left.
    Left(Component, f64),
    /// A component takes so many times as long.
    Pace(Component, f64),
    /// One in so many of those that a component serves starts its step again after so many seconds.
    Cut(Component, usize, f64),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Played {
    /// When each unit arrived and was told of its end.
    pub(crate) ends: Vec<(f64, Option<f64>)>,
    /// Mean number in use in the window, by component.
    pub(crate) in_use: BTreeMap<Component, f64>,
}
