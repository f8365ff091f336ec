//! The event model: recorded runs played through queues with the limits of the file, for rates that
//! the real code cannot run in reasonable time.
//!
//! ```text
//!   arrive --gateway's rate--> thread free? --> harness slot --> visit, visit, ... --> told
//!                                                  |   ^
//!                                                  +---+  parked: no room in the model
//! ```
//! Each component is a queue, first come first served, in front of as many servers as it has slots; a
//! rate lets through what it grants and makes the rest wait. A unit holds a slot of the harness while
//! it makes its visits, as a run does. One that finds no room in the model waits for a while and is
//! then parked, without a slot; free places go to those that wait (begun runs first) and those that are
//! parked (the oldest first) in turns. Nothing is drawn: the recorded runs are played in turn, and the
//! same question has the same answer.

mod model;
mod station;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::trace::Visit;
use super::work::Component;
pub(crate) use model::{Model, Played, Shock};
use station::{Gate, Station, Who};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Looks,
    Shock(usize),
    Arrives(usize),
    /// The gateway has let it through to its thread.
    Queues(usize),
    /// A unit of this epoch enters the place of its visit.
    Enters(usize, u32),
    /// It has waited for room in the model for as long as it waits; the last is its visit.
    Parks(usize, u32, usize),
    /// A rate lets through again.
    Opens(usize),
    /// Its visit is over.
    Leaves(usize, u32),
    /// A visit that nobody waits for is over.
    Ends(usize),
}

#[derive(Clone, Default)]
struct Unit {
    trace: usize,
    next: usize,
    epoch: u32,
    /// Has a slot of the harness, and had one before.
    runs: bool,
    has_begun: bool,
    has_reply: bool,
    /// Is served there now.
    at: Option<usize>,
}

const HARNESS: usize = Component::Harness as usize;
const MODEL: usize = Component::Model as usize;

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
    parked: BTreeSet<usize>,
    parked_is_next: bool,
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
            parked: BTreeSet::new(),
            parked_is_next: false,
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
                self.take(Component::Gateway as usize);
                let wait_s = self.opens_in(Component::Gateway as usize);
                self.plan(self.now_s + wait_s, Happens::Queues(unit));
            }
            Happens::Queues(unit) => {
                let (n, seconds) = self.model.accepted;
                self.aside(Component::Api, n, seconds);
                let line = self.threads.entry(self.model.arrivals[unit].1).or_default();
                line.push_back(unit);
                if line.len() == 1 {
                    self.enter(unit);
                }
            }
            Happens::Enters(unit, epoch) if self.units[unit].epoch == epoch => self.enter(unit),
            Happens::Leaves(unit, epoch) if self.units[unit].epoch == epoch => {
                if let Some(place) = self.units[unit].at.take() {
                    self.units[unit].has_reply |= place == MODEL;
                    self.release(place);
                }
                self.units[unit].next += 1;
                self.go_on(unit);
            }
            Happens::Ends(place) => self.release(place),
            Happens::Opens(place) => {
                self.stations[place].opens = false;
                self.serve_line(place);
            }
            Happens::Parks(unit, epoch, next)
                if (self.units[unit].epoch, self.units[unit].next) == (epoch, next)
                    && self.units[unit].at.is_none() =>
            {
                self.park(unit);
            }
            // It was cut meanwhile, or had its visit.
            Happens::Enters(..) | Happens::Leaves(..) | Happens::Parks(..) => {}
        }
    }

    fn aside(&mut self, place: Component, n: usize, seconds: f64) {
        for _ in 0..n {
            self.join(place as usize, Who::Aside(seconds));
        }
    }

    fn gates(&mut self, place: usize) -> impl Iterator<Item = &mut Gate> {
        self.gates.iter_mut().filter(move |gate| gate.place as usize == place)
    }

    fn opens_in(&mut self, place: usize) -> f64 {
        let now_s = self.now_s;
        self.gates(place).map(|gate| gate.opens_in(now_s)).fold(0.0, f64::max)
    }

    fn take(&mut self, place: usize) {
        self.gates(place).for_each(|gate| gate.level -= gate.takes);
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
        let Unit { epoch, next, .. } = self.units[unit];
        self.join(place, Who::Unit(unit, epoch));
        if place == MODEL && self.units[unit].at.is_none() {
            if self.stations[MODEL].left == 0.0 {
                self.park(unit);
            } else {
                self.plan(self.now_s + self.model.patience_s, Happens::Parks(unit, epoch, next));
            }
        }
    }

    /// Becomes a row in the store, without a slot and without a place in line.
    fn park(&mut self, unit: usize) {
        self.units[unit].epoch += 1;
        self.units[unit].runs = false;
        self.parked.insert(unit);
        self.release(HARNESS);
    }

    /// The oldest that is parked gets a slot and its visit, if there is one and a slot.
    fn wake(&mut self) -> bool {
        if !self.stations[HARNESS].free() {
            return false;
        }
        let Some(unit) = self.parked.pop_first() else { return false };
        self.occupy(HARNESS);
        self.units[unit].runs = true;
        self.serve(MODEL, Who::Unit(unit, self.units[unit].epoch));
        true
    }

    fn is_ready(&mut self, place: usize) -> bool {
        self.stations[place].free() && self.opens_in(place) <= 0.0
    }

    fn join(&mut self, place: usize, who: Who) {
        if self.is_ready(place) {
            self.serve(place, who);
        } else {
            let goes_first =
                place == MODEL && matches!(who, Who::Unit(unit, _) if self.units[unit].has_reply);
            let station = &mut self.stations[place];
            if goes_first { &mut station.begun } else { &mut station.line }.push_back(who);
            self.watch(place);
        }
    }

    /// Looks at it again when its rates let through, if that is all that is waited for.
    fn watch(&mut self, place: usize) {
        let wait_s = self.opens_in(place);
        let station = &mut self.stations[place];
        if wait_s > 0.0 && station.free() && !std::mem::replace(&mut station.opens, true) {
            self.plan(self.now_s + wait_s, Happens::Opens(place));
        }
    }

    fn occupy(&mut self, place: usize) {
        self.take(place);
        let station = &mut self.stations[place];
        station.count(self.now_s);
        station.busy += 1;
    }

    fn serve(&mut self, place: usize, who: Who) {
        if matches!(who, Who::Unit(unit, epoch) if self.units[unit].epoch != epoch) {
            // It was cut or parked while it stood here, and is elsewhere now.
            return;
        }
        self.occupy(place);
        let pace = self.stations[place].pace;
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
            Some(Visit { at: Some(_), .. }) => self.plan(self.now_s, Happens::Enters(unit, epoch)),
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
        let Some(line) = self.threads.get_mut(&self.model.arrivals[unit].1) else { return };
        line.pop_front();
        if let Some(next) = line.front().copied() {
            self.enter(next);
        }
    }

    fn release(&mut self, place: usize) {
        let station = &mut self.stations[place];
        station.count(self.now_s);
        station.busy -= 1;
        self.serve_line(place);
    }

    fn serve_line(&mut self, place: usize) {
        while self.is_ready(place) {
            if !self.serve_next(place) {
                return;
            }
        }
        self.watch(place);
    }

    fn serve_next(&mut self, place: usize) -> bool {
        let is_model = place == MODEL;
        if is_model && std::mem::take(&mut self.parked_is_next) && self.wake() {
            return true;
        }
        let Some(who) = self.stations[place].next() else { return is_model && self.wake() };
        self.parked_is_next |= is_model;
        self.serve(place, who);
        true
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
                let with_slot = place == HARNESS;
                let is_hit = |(idx, unit): &(usize, &Unit)| {
                    idx % one_in == 0 && if with_slot { unit.runs } else { unit.at == Some(place) }
                };
                let hit: Vec<usize> =
                    self.units.iter().enumerate().filter(is_hit).map(|(idx, _)| idx).collect();
                hit.into_iter().for_each(|unit| self.cut(unit, with_slot, after_s));
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
