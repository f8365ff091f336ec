//! A queue in front of servers, and the rates that let visits through.

use std::collections::VecDeque;

use crate::plan::work::Component;

/// Who stands in a queue: a unit in an epoch, or a visit that nobody waits for and how long it takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    Unit(usize, u32),
    Aside(f64),
}

#[derive(Default)]
pub(super) struct Station {
    pub(super) slots: f64,
    pub(super) left: f64,
    pub(super) pace: f64,
    pub(super) busy: usize,
    pub(super) line: VecDeque<Who>,
    /// Served before the line: runs whose first reply has come, in front of the model.
    pub(super) begun: VecDeque<Who>,
    pub(super) held_s: f64,
    pub(super) counted_s: f64,
    /// It is looked at again when its rates let through.
    pub(super) opens: bool,
}

impl Station {
    pub(super) fn free(&self) -> bool {
        (self.busy as f64) < (self.slots * self.left).floor()
    }

    pub(super) fn next(&mut self) -> Option<Who> {
        self.begun.pop_front().or_else(|| self.line.pop_front())
    }

    pub(super) fn count(&mut self, now_s: f64) {
        self.held_s += self.busy as f64 * (now_s - self.counted_s);
        self.counted_s = now_s;
    }
}

/// What a component grants each second, with a second's worth in advance.
pub(super) struct Gate {
    pub(super) place: Component,
    pub(super) per_s: f64,
    pub(super) takes: f64,
    pub(super) level: f64,
    pub(super) at_s: f64,
}

impl Gate {
    /// How long it lets nobody through. Time passes in microseconds: what is shorter is no time.
    pub(super) fn opens_in(&mut self, now_s: f64) -> f64 {
        self.level = (self.level + (now_s - self.at_s) * self.per_s).min(self.per_s);
        self.at_s = now_s;
        let wait_s = -self.level / self.per_s;
        if wait_s > 1e-6 { wait_s } else { 0.0 }
    }
}
