//! The breaker of one deployment: it decides whether calls flow, and learns when they may again.
//!
//! A deployment that fails costs every caller its patience and the provider its recovery. The
//! breaker notices failure fast (a few failures in a row, half of a window, refused connections,
//! or silence on all streams at once), cuts the deployment off, and then asks with exactly one
//! real call at a time whether it is back. It never rejects by itself: what to do with a call that
//! may not flow (another deployment, a queue, parking) is the router's decision, also when there is
//! only one deployment.
//!
//! Three things make it trustworthy. Results of attempts that started before the last change of
//! traffic are ignored, because they tell of an earlier world: each attempt carries the breaker's
//! [`Term`] and a late result is dropped by it. A success ends a streak of failures only if its
//! attempt began after the streak, so that old streams which still run do not hide that every new
//! one fails. And a probe is judged at its first content, since a long answer would otherwise keep
//! everybody waiting; a probe that goes away unjudged gives its place back.

use std::collections::VecDeque;
use std::time::Duration;

use super::backoff::Backoff;
use crate::{Generator, Mono};

/// Counts the changes of traffic; an attempt keeps the one it started under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub u64);

/// When an attempt started, and under which term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The breaker's term at the start.
    pub term: Term,
    /// The instant of the start.
    pub at: Mono,
}

/// Thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Weighted failures in a row that open it.
    pub consecutive: f64,
    /// Share of weighted failures that opens it ...
    pub failure_share: f64,
    /// ... among at least this many calls ...
    pub failure_calls_min: u32,
    /// ... in this time.
    pub failure_window: Duration,
    /// Connect failures in one second that open it.
    pub connect_failures: u32,
    /// Times between probes.
    pub backoff: Backoff,
}

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Calls flow.
    Closed,
    /// Calls flow, but others are preferred and less is forgiven.
    Suspect,
    /// No calls until the instant, then one probe.
    Open {
        /// When the next probe may start.
        until: Mono,
    },
    /// One probe is out.
    HalfOpen,
    /// Calls flow at a growing rate.
    Ramping,
}

impl Phase {
    /// The word for logs, metrics and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Suspect => "suspect",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
            Self::Ramping => "ramping",
        }
    }
}

/// Why a breaker changed its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing has happened yet.
    Started,
    /// Failures in a row.
    Consecutive,
    /// Too large a share of failures.
    Share,
    /// It cannot be reached.
    Connect,
    /// All its streams are silent.
    Silence,
    /// The account or key is dead.
    Dead,
    /// A sibling in its failure domain cannot be reached.
    Sibling,
    /// Some failures in a row, not yet enough to open.
    Failures,
    /// It succeeds again after being suspect.
    Recovered,
    /// The time of being open is over and a probe starts.
    ProbeStarted,
    /// The probe went away unjudged.
    ProbeReturned,
    /// The probe failed.
    ProbeFailed,
    /// The probe brought content.
    ProbeSucceeded,
    /// Content came on a stream that was thought silent.
    SilenceRefuted,
    /// Failures while the traffic came back.
    RampFailed,
    /// The traffic is back.
    Ramped,
    /// An operator asked for it.
    Operator,
    /// Another replica has found it so.
    Peer,
}

impl Reason {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Consecutive => "failures in a row",
            Self::Share => "half of the calls failed",
            Self::Connect => "cannot be reached",
            Self::Silence => "all streams are silent",
            Self::Dead => "the key or account is refused",
            Self::Sibling => "a sibling cannot be reached",
            Self::Failures => "some failures in a row",
            Self::Recovered => "succeeds again",
            Self::ProbeStarted => "a probe started",
            Self::ProbeReturned => "the probe was given back",
            Self::ProbeFailed => "the probe failed",
            Self::ProbeSucceeded => "the probe brought content",
            Self::SilenceRefuted => "content came after all",
            Self::RampFailed => "failures while ramping",
            Self::Ramped => "the traffic is back",
            Self::Operator => "an operator asked for it",
            Self::Peer => "another replica found it so",
        }
    }
}

/// One change of phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// When.
    pub at: Mono,
    /// From.
    pub from: Phase,
    /// To.
    pub to: Phase,
    /// Why.
    pub reason: Reason,
}

/// One failed attempt as the breaker sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    /// How much it says of the deployment's health; 0 says nothing.
    pub weight: f64,
    /// No connection came about.
    pub connect: bool,
}

/// What the breaker says to a call that wants to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It may.
    Flow,
    /// It may, as the probe.
    Probe,
    /// It may not, before this instant at the earliest.
    Shut(Mono),
    /// It may not; a probe is out.
    Probing,
}

/// The breaker of one deployment.
///
/// ```text
///           2 in a row, sibling                 enough failures, silence, dead key
///   closed <-------------------> suspect   any phase but open --------------------> open
///      ^        success                                                             |  ^
///      | ramped                                         backoff over: probe starts  v  | fails, returned
///   ramping <----------------------------------------------------------------- half-open
///      |        first content of the probe                                             
///      +--- 3 failures in 1 s ---> open
/// ```
///
/// | transition | function |
/// |---|---|
/// | closed, suspect, ramping, half-open -> open | [`failed`](Self::failed), [`silent`](Self::silent), [`trip`](Self::trip) |
/// | open -> half-open | [`begin_probe`](Self::begin_probe) |
/// | half-open -> open (at once) | [`return_probe`](Self::return_probe) |
/// | half-open -> ramping | [`content`](Self::content), [`succeeded`](Self::succeeded) |
/// | open, half-open -> ramping (silence was wrong) | [`content`](Self::content) |
/// | ramping -> closed | [`ramped`](Self::ramped) |
/// | closed -> suspect | [`failed`](Self::failed), [`suspect`](Self::suspect) |
/// | suspect -> closed | [`succeeded`](Self::succeeded) |
///
/// What holds: closed: the streak is below two; open and half-open: an outage has begun; exactly
/// one probe is out in half-open and none elsewhere; the term grows with every change to open,
/// half-open or ramping and never falls.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: Settings,
    phase: Phase,
    since: Mono,
    reason: Reason,
    term: Term,
    /// Weighted failures since the last success that counts.
    streak: f64,
    /// When the first attempt of the streak started.
    streak_started: Option<Mono>,
    /// A sibling failed: less is forgiven until the next success.
    warned: bool,
    /// Per second: calls and weighted failures, for the share.
    seconds: VecDeque<Second>,
    connects: VecDeque<Mono>,
    /// When this outage opened the breaker first; `None` while closed or suspect.
    outage: Option<Outage>,
    detected_after: Option<Duration>,
    recovered_after: Option<Duration>,
    n_opened: u64,
}

#[derive(Clone, Copy, Debug)]
struct Second {
    at_s: u64,
    n_calls: u32,
    failed: f64,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Mono,
    n_opened: u32,
    by_silence: bool,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(settings: Settings, now: Mono) -> Self {
        Self {
            settings,
            phase: Phase::Closed,
            since: now,
            reason: Reason::Started,
            term: Term(0),
            streak: 0.0,
            streak_started: None,
            warned: false,
            seconds: VecDeque::new(),
            connects: VecDeque::new(),
            outage: None,
            detected_after: None,
            recovered_after: None,
            n_opened: 0,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Since when.
    #[must_use]
    pub fn since(&self) -> Mono {
        self.since
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// What an attempt that starts now has to carry.
    #[must_use]
    pub fn started(&self, now: Mono) -> Started {
        Started { term: self.term, at: now }
    }

    /// The current term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// When the first attempt of the present streak of failures started.
    #[must_use]
    pub fn streak_started(&self) -> Option<Mono> {
        self.streak_started
    }

    /// From the start of the first failed attempt to the opening, last time.
    #[must_use]
    pub fn detected_after(&self) -> Option<Duration> {
        self.detected_after
    }

    /// From the opening to the first content, last time.
    #[must_use]
    pub fn recovered_after(&self) -> Option<Duration> {
        self.recovered_after
    }

    /// Times it opened.
    #[must_use]
    pub fn n_opened(&self) -> u64 {
        self.n_opened
    }

    /// Probes of this outage that failed or are out; 0 without an outage.
    #[must_use]
    pub fn n_probes(&self) -> u32 {
        self.outage.map_or(0, |outage| outage.n_opened.saturating_sub(1))
    }

    /// Whether a call may start now.
    #[must_use]
    pub fn gate(&self, now: Mono) -> Gate {
        match self.phase {
            Phase::Closed | Phase::Suspect | Phase::Ramping => Gate::Flow,
            Phase::Open { until } if until <= now => Gate::Probe,
            Phase::Open { until } => Gate::Shut(until),
            Phase::HalfOpen => Gate::Probing,
        }
    }

    /// A probe starts (or is promised to somebody by a permit). Only when [`Gate::Probe`] says so.
    pub fn begin_probe(&mut self, now: Mono) -> Option<Transition> {
        if self.gate(now) != Gate::Probe {
            return None;
        }
        Some(self.enter(now, Phase::HalfOpen, Reason::ProbeStarted))
    }

    /// The probe of this term went away unjudged: the next one may start at once.
    pub fn return_probe(&mut self, now: Mono, term: Term) -> Option<Transition> {
        if self.phase != Phase::HalfOpen || term != self.term {
            return None;
        }
        Some(self.enter(now, Phase::Open { until: now }, Reason::ProbeReturned))
    }

    /// Content came on an attempt: it proves that the deployment answers.
    pub fn content(&mut self, now: Mono, attempt: Started) -> Option<Transition> {
        let cut_off = matches!(self.phase, Phase::Open { .. } | Phase::HalfOpen);
        if self.phase == Phase::HalfOpen && attempt.term == self.term {
            return Some(self.recover(now, Reason::ProbeSucceeded));
        }
        if cut_off && self.outage.is_some_and(|outage| outage.by_silence) {
            return Some(self.recover(now, Reason::SilenceRefuted));
        }
        None
    }

    /// An attempt brought a complete answer.
    pub fn succeeded(&mut self, now: Mono, attempt: Started) -> Option<Transition> {
        if attempt.term != self.term {
            return None;
        }
        if self.phase == Phase::HalfOpen {
            return Some(self.recover(now, Reason::ProbeSucceeded));
        }
        self.count(now, 0.0);
        // An older stream that ends well says nothing about attempts that began after it.
        if self.streak_started.is_some_and(|started| attempt.at < started) {
            return None;
        }
        self.forgive();
        (self.phase == Phase::Suspect).then(|| self.enter(now, Phase::Closed, Reason::Recovered))
    }

    /// An attempt failed.
    pub fn failed(
        &mut self,
        now: Mono,
        attempt: Started,
        failure: Failure,
        generator: &Generator,
    ) -> Option<Transition> {
        if attempt.term != self.term {
            return None;
        }
        if self.phase == Phase::HalfOpen {
            // A probe that says nothing about health (a refused request, a rate limit) has been
            // answered: the deployment is back.
            return Some(if failure.weight > 0.0 {
                self.open(now, Reason::ProbeFailed, generator)
            } else {
                self.recover(now, Reason::ProbeSucceeded)
            });
        }
        if failure.weight <= 0.0 {
            return None;
        }
        self.streak += failure.weight;
        self.streak_started = Some(self.streak_started.map_or(attempt.at, |at| at.min(attempt.at)));
        self.count(now, failure.weight);
        if failure.connect {
            self.connects.push_back(now);
        }
        match self.verdict(now) {
            Some(reason) => Some(self.open(now, reason, generator)),
            None if self.phase == Phase::Closed && self.streak >= 2.0 => {
                Some(self.enter(now, Phase::Suspect, Reason::Failures))
            }
            None => None,
        }
    }

    /// All streams have been silent for too long.
    pub fn silent(&mut self, now: Mono, since: Mono, generator: &Generator) -> Option<Transition> {
        if !matches!(self.phase, Phase::Closed | Phase::Suspect | Phase::Ramping) {
            return None;
        }
        self.streak_started = Some(self.streak_started.map_or(since, |at| at.min(since)));
        Some(self.open(now, Reason::Silence, generator))
    }

    /// Opens at once, for a reason that is known to be final for now.
    pub fn trip(&mut self, now: Mono, reason: Reason, generator: &Generator) -> Option<Transition> {
        (!matches!(self.phase, Phase::Open { .. })).then(|| self.open(now, reason, generator))
    }

    /// Others fail, a sibling in the failure domain or the same deployment at another replica: be
    /// careful.
    pub fn suspect(&mut self, now: Mono, reason: Reason) -> Option<Transition> {
        if !matches!(self.phase, Phase::Closed | Phase::Suspect) {
            return None;
        }
        self.warned = true;
        (self.phase == Phase::Closed).then(|| self.enter(now, Phase::Suspect, reason))
    }

    /// The ramp has reached the full limit.
    pub fn ramped(&mut self, now: Mono) -> Option<Transition> {
        (self.phase == Phase::Ramping).then(|| {
            self.outage = None;
            self.forgive();
            self.enter(now, Phase::Closed, Reason::Ramped)
        })
    }

    /// The next call is to try it, now.
    pub fn probe_now(&mut self, now: Mono, reason: Reason) -> Option<Transition> {
        matches!(self.phase, Phase::Open { .. }).then(|| self.enter(now, Phase::Open { until: now }, reason))
    }

    /// No probe before the instant: somebody else asks. Never makes an open breaker probe sooner.
    pub fn defer(&mut self, at_least: Mono) {
        if let Phase::Open { until } = &mut self.phase {
            *until = at_least.max(*until);
        }
    }

    fn verdict(&mut self, now: Mono) -> Option<Reason> {
        let second_ago = Mono(now.ms().saturating_sub(1_000));
        while self.connects.front().is_some_and(|at| *at <= second_ago) {
            self.connects.pop_front();
        }
        let forgiven =
            if self.warned { 2.0_f64.min(self.settings.consecutive) } else { self.settings.consecutive };
        let connects_max = if self.warned { 1 } else { self.settings.connect_failures as usize };
        if !self.connects.is_empty() && self.connects.len() >= connects_max {
            return Some(Reason::Connect);
        }
        if self.streak + 1e-9 >= forgiven {
            return Some(Reason::Consecutive);
        }
        let n_calls: u32 = self.seconds.iter().map(|second| second.n_calls).sum();
        let failed: f64 = self.seconds.iter().map(|second| second.failed).sum();
        let enough = n_calls >= self.settings.failure_calls_min;
        (enough && failed + 1e-9 >= f64::from(n_calls) * self.settings.failure_share).then_some(Reason::Share)
    }

    fn count(&mut self, now: Mono, failed: f64) {
        let at_s = now.ms() / 1000;
        let oldest = (at_s + 1).saturating_sub(self.settings.failure_window.as_secs().max(1));
        while self.seconds.front().is_some_and(|second| second.at_s < oldest) {
            self.seconds.pop_front();
        }
        if self.seconds.back().is_none_or(|second| second.at_s < at_s) {
            self.seconds.push_back(Second { at_s, n_calls: 0, failed: 0.0 });
        }
        if let Some(second) = self.seconds.back_mut() {
            second.n_calls += 1;
            second.failed += failed;
        }
    }

    fn forgive(&mut self) {
        self.streak = 0.0;
        self.streak_started = None;
        self.warned = false;
        self.connects.clear();
    }

    fn open(&mut self, now: Mono, reason: Reason, generator: &Generator) -> Transition {
        let began = self.streak_started.unwrap_or(now);
        let outage = self.outage.get_or_insert_with(|| {
            self.detected_after = Some(now.since(began));
            Outage { since: now, n_opened: 0, by_silence: false }
        });
        outage.by_silence = reason == Reason::Silence || (outage.by_silence && reason == Reason::ProbeFailed);
        let wait = self.settings.backoff.delay(outage.n_opened, now.since(outage.since), generator);
        outage.n_opened += 1;
        if reason == Reason::ProbeFailed {
            // Times are between the starts of probes: a long silence has been waited for already.
            let until = self.since.after(wait).max(now);
            return self.enter(now, Phase::Open { until }, reason);
        }
        self.n_opened += 1;
        self.enter(now, Phase::Open { until: now.after(wait) }, reason)
    }

    fn recover(&mut self, now: Mono, reason: Reason) -> Transition {
        self.recovered_after = self.outage.map(|outage| now.since(outage.since));
        self.enter(now, Phase::Ramping, reason)
    }

    fn enter(&mut self, now: Mono, to: Phase, reason: Reason) -> Transition {
        let transition = Transition { at: now, from: self.phase, to, reason };
        if matches!(to, Phase::Open { .. } | Phase::HalfOpen | Phase::Ramping) {
            self.term.0 += 1;
            self.forgive();
            self.seconds.clear();
        }
        self.phase = to;
        self.since = now;
        self.reason = reason;
        self.assert_invariants();
        transition
    }

    fn assert_invariants(&self) {
        match self.phase {
            Phase::Closed => debug_assert!(self.streak < 2.0 && self.outage.is_none(), "{self:?}"),
            Phase::Suspect => debug_assert!(self.outage.is_none(), "{self:?}"),
            Phase::Open { .. } | Phase::HalfOpen | Phase::Ramping => {
                debug_assert!(self.outage.is_some() && self.streak == 0.0, "{self:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
