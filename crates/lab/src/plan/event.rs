//! The event model: recorded runs played through queues with the limits of the file, for rates that
//! the real code cannot run in reasonable time.
//!
//! ```text
//!   arrive --thread free--> gateway's rate --> harness slot --> visit, visit, ... --> told
//!                                                 |   ^
//!                                                 +---+  parked: the model is down
//! ```
//! Each component is a queue, first come first served, in front of as many servers as it has slots; a
//! rate lets through what it grants and makes the rest wait. A unit holds a slot of the harness while
//! it makes its visits, as a run does. Nothing is drawn: the recorded runs are played in turn, and the
//! same question has the same answer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::trace::{Trace, Visit};
use super::work::Component;

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
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Played {
    /// When each unit arrived and was told of its end.
    pub(crate) ends: Vec<(f64, Option<f64>)>,
    /// Mean number in use in the window, by component.
    pub(crate) in_use: BTreeMap<Component, f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Looks,
    Shock(usize),
    Arrives(usize),
    /// A unit of this epoch has been let through by the rates in front of its place.
    Enters(usize, u32),
    /// Its visit is over.
    Leaves(usize, u32),
    /// A visit that nobody waits for is over.
    Ends(usize),
}

/// Who stands in a queue: a unit in an epoch, or a visit that nobody waits for and how long it takes.
#[derive(Clone, Copy, Debug)]
enum Who {
    Unit(usize, u32),
    Aside(f64),
}

#[derive(Default)]
struct Station {
    slots: f64,
    left: f64,
    pace: f64,
    busy: usize,
    line: VecDeque<Who>,
    held_s: f64,
    counted_s: f64,
}

impl Station {
    fn free(&self) -> bool {
        (self.busy as f64) < (self.slots * self.left).floor()
    }

    fn count(&mut self, now_s: f64) {
        self.held_s += self.busy as f64 * (now_s - self.counted_s);
        self.counted_s = now_s;
    }
}

/// What a component grants each second, with a second's worth in advance.
struct Gate {
    place: Component,
    per_s: f64,
    takes: f64,
    level: f64,
    at_s: f64,
}

impl Gate {
    /// How long a visit must wait.
    fn take(&mut self, now_s: f64) -> f64 {
        self.level = (self.level + (now_s - self.at_s) * self.per_s).min(self.per_s);
        self.at_s = now_s;
        self.level -= self.takes;
        (-self.level / self.per_s).max(0.0)
    }
}

#[derive(Clone, Default)]
struct Unit {
    trace: usize,
    next: usize,
    epoch: u32,
    /// Has a slot of the harness, and had one before.
    runs: bool,
    has_begun: bool,
    /// Is served there now.
    at: Option<usize>,
}

const HARNESS: usize = Component::Harness as usize;

struct Play<'a> {
    model: &'a Model,
    now_s: f64,
    heap: BinaryHeap<Reverse<(u64, u64, Happens)>>,
    n_events: u64,
    stations: Vec<Station>,
    gates: Vec<Gate>,
    units: Vec<Unit>,
    /// Units on each thread, the one at work first.
    threads: BTreeMap<usize, VecDeque<usize>>,
    looks: Vec<Vec<f64>>,
    told: Vec<Option<f64>>,
}

impl Model {
    /// Plays it to its end.
    pub(crate) fn play(&self) -> Played {
        let station = |component: &Component| Station {
            slots: self.slots.get(component).copied().unwrap_or(f64::INFINITY),
            left: 1.0,
            pace: 1.0,
            ..Station::default()
        };
        let gate = |&(place, per_s, takes): &(Component, f64, f64)| Gate {
            place,
            per_s,
            takes,
            level: per_s,
            at_s: 0.0,
        };
        let unit = |idx: usize| Unit { trace: idx % self.traces.len().max(1), ..Unit::default() };
        let mut play = Play {
            model: self,
            now_s: 0.0,
            heap: BinaryHeap::new(),
            n_events: 0,
            stations: Component::ALL.iter().map(station).collect(),
            gates: self.rates.iter().map(gate).collect(),
            units: (0..self.arrivals.len()).map(unit).collect(),
            threads: BTreeMap::new(),
            looks: Vec::new(),
            told: vec![None; self.arrivals.len()],
        };
        play.all();
        let ends = self.arrivals.iter().map(|(at_s, _)| *at_s).zip(play.told).collect();
        let span_s = self.window.1 - self.window.0;
        let mean = |component: Component| match play.looks.as_slice() {
            [first, .., last] => (last[component as usize] - first[component as usize]) / span_s,
            _ => 0.0,
        };
        Played { ends, in_use: Component::ALL.into_iter().map(|one| (one, mean(one))).collect() }
    }
}

impl Play<'_> {
    fn all(&mut self) {
        let model = self.model;
        self.plan(model.window.0, Happens::Looks);
        self.plan(model.window.1, Happens::Looks);
        for (idx, (at_s, _)) in model.shocks.iter().enumerate() {
            self.plan(*at_s, Happens::Shock(idx));
        }
        for (idx, (at_s, _)) in model.arrivals.iter().enumerate() {
            self.plan(*at_s, Happens::Arrives(idx));
        }
        while let Some(Reverse((at_us, _, what))) = self.heap.pop() {
            self.now_s = at_us as f64 / 1e6;
            if self.now_s > model.until_s {
                return;
            }
            self.happens(what);
        }
    }

    fn plan(&mut self, at_s: f64, what: Happens) {
        self.n_events += 1;
        self.heap.push(Reverse(((at_s * 1e6).round() as u64, self.n_events, what)));
    }

    fn happens(&mut self, what: Happens) {
        match what {
            Happens::Looks => {
                self.stations.iter_mut().for_each(|station| station.count(self.now_s));
                self.looks.push(self.stations.iter().map(|station| station.held_s).collect());
            }
            Happens::Shock(idx) => self.shock(self.model.shocks[idx].1),
            Happens::Arrives(unit) => {
                let line = self.threads.entry(self.model.arrivals[unit].1).or_default();
                line.push_back(unit);
                if line.len() == 1 {
                    self.begin(unit);
                }
            }
            Happens::Enters(unit, epoch) if self.units[unit].epoch == epoch => self.enter(unit),
            Happens::Leaves(unit, epoch) if self.units[unit].epoch == epoch => {
                if let Some(place) = self.units[unit].at.take() {
                    self.release(place);
                }
                self.units[unit].next += 1;
                self.go_on(unit);
            }
            Happens::Ends(place) => self.release(place),
            Happens::Enters(..) | Happens::Leaves(..) => {}
        }
    }

    /// Its thread is free: it is accepted.
    fn begin(&mut self, unit: usize) {
        let (n, seconds) = self.model.accepted;
        self.aside(Component::Api, n, seconds);
        let wait_s = self.wait_s(Component::Gateway);
        self.plan(self.now_s + wait_s, Happens::Enters(unit, self.units[unit].epoch));
    }

    fn aside(&mut self, place: Component, n: usize, seconds: f64) {
        for _ in 0..n {
            self.join(place as usize, Who::Aside(seconds));
        }
    }

    fn wait_s(&mut self, place: Component) -> f64 {
        let now_s = self.now_s;
        let gates = self.gates.iter_mut().filter(|gate| gate.place == place);
        gates.map(|gate| gate.take(now_s)).fold(0.0, f64::max)
    }

    fn visit(&self, unit: usize) -> Option<Visit> {
        let Unit { trace, next, .. } = self.units[unit];
        self.model.traces.get(trace)?.visits.get(next).copied()
    }

    /// It was let through: to the harness if it does not run yet, else to the place of its visit.
    fn enter(&mut self, unit: usize) {
        let place = match (self.units[unit].runs, self.visit(unit).and_then(|visit| visit.at)) {
            (false, _) => HARNESS,
            (true, Some(place)) => place as usize,
            (true, None) => return,
        };
        self.join(place, Who::Unit(unit, self.units[unit].epoch));
        let station = &self.stations[place];
        let is_down = station.left == 0.0;
        if place == Component::Model as usize && is_down && self.units[unit].runs {
            // Parked: a row in the store, without a slot.
            self.units[unit].runs = false;
            self.release(HARNESS);
        }
    }

    fn join(&mut self, place: usize, who: Who) {
        if self.stations[place].free() {
            self.serve(place, who);
        } else {
            self.stations[place].line.push_back(who);
        }
    }

    fn serve(&mut self, place: usize, who: Who) {
        if let Who::Unit(unit, epoch) = who {
            if self.units[unit].epoch != epoch {
                // It was cut while it stood here, and stands elsewhere now.
                return;
            }
            if place != HARNESS && !self.units[unit].runs {
                // It was parked: first it needs a slot again.
                return self.join(HARNESS, who);
            }
        }
        let station = &mut self.stations[place];
        station.count(self.now_s);
        station.busy += 1;
        let pace = station.pace;
        match who {
            Who::Aside(seconds) => self.plan(self.now_s + seconds * pace, Happens::Ends(place)),
            Who::Unit(unit, _) if place == HARNESS => {
                self.units[unit].runs = true;
                if !std::mem::replace(&mut self.units[unit].has_begun, true) {
                    for &(place, n, seconds) in &self.model.aside {
                        self.aside(place, n, seconds);
                    }
                }
                self.go_on(unit);
            }
            Who::Unit(unit, _) => {
                self.units[unit].at = Some(place);
                let seconds = self.visit(unit).map_or(0.0, |visit| visit.seconds);
                self.plan(self.now_s + seconds * pace, Happens::Leaves(unit, self.units[unit].epoch));
            }
        }
    }

    /// On to the next visit, or to the end.
    fn go_on(&mut self, unit: usize) {
        let epoch = self.units[unit].epoch;
        match self.visit(unit) {
            Some(Visit { at: Some(place), .. }) => {
                let wait_s = self.wait_s(place);
                self.plan(self.now_s + wait_s, Happens::Enters(unit, epoch));
            }
            Some(Visit { at: None, seconds }) => {
                self.plan(self.now_s + seconds, Happens::Leaves(unit, epoch))
            }
            None => self.end(unit),
        }
    }

    fn end(&mut self, unit: usize) {
        self.told[unit] = Some(self.now_s);
        self.units[unit].runs = false;
        self.release(HARNESS);
        let next = self.threads.get_mut(&self.model.arrivals[unit].1).and_then(|line| {
            line.pop_front();
            line.front().copied()
        });
        if let Some(next) = next {
            self.begin(next);
        }
    }

    fn release(&mut self, place: usize) {
        let station = &mut self.stations[place];
        station.count(self.now_s);
        station.busy -= 1;
        self.serve_line(place);
    }

    fn serve_line(&mut self, place: usize) {
        while self.stations[place].free() {
            let Some(who) = self.stations[place].line.pop_front() else { return };
            self.serve(place, who);
        }
    }

    fn shock(&mut self, shock: Shock) {
        match shock {
            Shock::Left(place, share) => {
                self.stations[place as usize].left = share;
                self.serve_line(place as usize);
            }
            Shock::Pace(place, factor) => self.stations[place as usize].pace = factor,
            Shock::Cut(place, one_in, after_s) => {
                let place = place as usize;
                let hit: Vec<usize> = (0..self.units.len())
                    .filter(|unit| unit % one_in == 0)
                    .filter(|unit| {
                        let unit = &self.units[*unit];
                        if place == HARNESS { unit.runs } else { unit.at == Some(place) }
                    })
                    .collect();
                hit.into_iter().for_each(|unit| self.cut(unit, place == HARNESS, after_s));
            }
        }
    }

    /// Its step begins again after this time; with its process its slot is gone too.
    fn cut(&mut self, unit: usize, with_slot: bool, after_s: f64) {
        if let Some(place) = self.units[unit].at.take() {
            self.release(place);
        }
        let (trace, next) = (self.units[unit].trace, self.units[unit].next);
        let visits = &self.model.traces[trace].visits;
        let step = visits.iter().take(next + 1).rposition(|visit| visit.at == Some(Component::Model));
        let one = &mut self.units[unit];
        one.epoch += 1;
        one.next = step.unwrap_or_default();
        let epoch = one.epoch;
        if with_slot && std::mem::take(&mut one.runs) {
            self.release(HARNESS);
        }
        self.plan(self.now_s + after_s, Happens::Enters(unit, epoch));
    }
}
