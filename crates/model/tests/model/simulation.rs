//! A world in virtual time: runs of several steps, one harness that parks and wakes them, and a
//! provider modelled by a function of time. The machine is the real one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::control::limiter::Claim;
use evenkeel_core::message::Usage;
use evenkeel_core::run::Class as CallClass;
use evenkeel_core::{Generator, Mono, Wall};
use evenkeel_model::classify::{Class, Failure};
use evenkeel_model::config::{ProviderKeys, RouterConfig};
use evenkeel_model::router::event::{Action, Arrival, AttemptKey, CallKey, Event, PermitKey, Start, Verdict};
use evenkeel_model::router::machine::Machine;
use evenkeel_model::router::plan::Plan;
use evenkeel_model::router::{Instant, RouterSnapshot};

/// What a provider does with a call.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// Answers: time to the first content, and in all.
    Answers(u64, u64),
    /// Fails after some time.
    Fails(u64, Failure),
    /// Sends content after the first time and fails after the second.
    Breaks(u64, u64, Failure),
    /// Takes the connection and says nothing at all.
    Silent,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    Done,
    Dropped,
    Park(Option<Mono>),
    TooLong,
    Fatal(String),
}

/// A planted mistake in what stands between the machine and the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The machine is not told that a caller went away, so the place of its call is never given back.
    PlacesLeak,
    /// A probe that is under way counts as gone, so that the next one starts beside it.
    ProbeIsForgotten,
}

#[derive(Clone, Debug)]
enum Happening {
    Arrive { run: usize, permit: Option<PermitKey> },
    Content(AttemptKey),
    Success(AttemptKey),
    Failure(AttemptKey, Failure),
    Do(Event),
    Forget(CallKey, usize),
}

/// One attempt as it was made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) at: Mono,
    pub(crate) lane: usize,
    pub(crate) run: usize,
    pub(crate) call: CallKey,
    pub(crate) was_good: bool,
}

pub(crate) struct Run {
    pub(crate) begun: Mono,
    pub(crate) steps_left: u32,
    pub(crate) step_attempts: u32,
    pub(crate) n_parks: u32,
    pub(crate) ended: Option<(Mono, Ending)>,
    pub(crate) class: CallClass,
    pub(crate) fallback: bool,
    pub(crate) deadline: Mono,
    pub(crate) has_begun: bool,
    pub(crate) tool_ms: u64,
}

pub(crate) struct World<F> {
    pub(crate) machine: Machine,
    pub(crate) generator: Generator,
    pub(crate) now: Mono,
    provider: F,
    happenings: BTreeMap<(Mono, u64), Happening>,
    seq: u64,
    pub(crate) runs: Vec<Run>,
    calls: BTreeMap<CallKey, usize>,
    attempts: BTreeMap<AttemptKey, (CallKey, usize)>,
    pub(crate) parked: VecDeque<usize>,
    pub(crate) made: Vec<Made>,
    pub(crate) endings: Vec<(Mono, usize, Ending)>,
    pub(crate) successes: Vec<Mono>,
    pub(crate) grants: Vec<Mono>,
    /// Attempts that were overtaken.
    pub(crate) cancelled: Vec<Mono>,
    /// Whether parked runs take the permits that are handed out.
    pub(crate) takes_permits: bool,
    pub(crate) mistake: Option<Mistake>,
    dropped: BTreeSet<CallKey>,
}

pub(crate) fn config(json: serde_json::Value) -> RouterConfig {
    serde_json::from_value(json).unwrap()
}

/// One provider with one deployment.
pub(crate) fn single() -> RouterConfig {
    config(serde_json::json!({
        "providers": {"acme": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        "deployments": {"acme-large": {"provider": "acme", "model": "large"}},
        "routes": {"coder": {"tiers": [["acme-large"]]}},
    }))
}

/// Two providers in two tiers; lane 0 is the first.
pub(crate) fn tiered() -> RouterConfig {
    config(serde_json::json!({
        "providers": {
            "acme": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"},
            "backup": {"kind": "anthropic", "base_url": "http://127.0.0.1:1"},
        },
        "deployments": {
            "acme-large": {"provider": "acme", "model": "large"},
            "backup-large": {"provider": "backup", "model": "large"},
        },
        "routes": {"coder": {"tiers": [["acme-large"], ["backup-large"]]}},
    }))
}

pub(crate) fn down() -> Behaviour {
    Behaviour::Fails(5, Failure::new(Class::Overloaded, "503"))
}

pub(crate) fn refused() -> Behaviour {
    let failure = Failure { connect: true, ..Failure::new(Class::Transient, "connection refused") };
    Behaviour::Fails(1, failure)
}

impl<F: FnMut(Mono, usize, usize) -> Behaviour> World<F> {
    /// A world with a provider: a function of the time, the lane and the run.
    pub(crate) fn new(config: &RouterConfig, seed: u64, provider: F) -> Self {
        let keys = ProviderKeys::read(config).unwrap();
        let plan = Arc::new(Plan::new(config, &keys).unwrap());
        Self {
            machine: Machine::new(plan, Mono(0)),
            generator: Generator::from_seed(seed),
            now: Mono(0),
            provider,
            happenings: BTreeMap::new(),
            seq: 0,
            runs: Vec::new(),
            calls: BTreeMap::new(),
            attempts: BTreeMap::new(),
            parked: VecDeque::new(),
            made: Vec::new(),
            endings: Vec::new(),
            successes: Vec::new(),
            grants: Vec::new(),
            cancelled: Vec::new(),
            takes_permits: true,
            mistake: None,
            dropped: BTreeSet::new(),
        }
    }

    /// A durable run of so many steps that begins at `at_ms`.
    pub(crate) fn run_at(&mut self, at_ms: u64, n_steps: u32) -> usize {
        self.run_with(at_ms, |run| run.steps_left = n_steps)
    }

    pub(crate) fn run_with(&mut self, at_ms: u64, edit: impl FnOnce(&mut Run)) -> usize {
        let mut run = Run {
            begun: Mono(at_ms),
            steps_left: 1,
            step_attempts: 0,
            n_parks: 0,
            ended: None,
            class: CallClass::Batch,
            fallback: true,
            deadline: Mono(at_ms + 3_600_000),
            has_begun: false,
            tool_ms: 150,
        };
        edit(&mut run);
        self.runs.push(run);
        let run = self.runs.len() - 1;
        self.later(Mono(at_ms), Happening::Arrive { run, permit: None });
        run
    }

    pub(crate) fn event_at(&mut self, at_ms: u64, event: Event) {
        self.later(Mono(at_ms), Happening::Do(event));
    }

    fn later(&mut self, at: Mono, happening: Happening) {
        self.seq += 1;
        self.happenings.insert((at.max(self.now), self.seq), happening);
    }

    /// Lets time pass until `until_ms` or until nothing happens any more.
    pub(crate) fn until(&mut self, until_ms: u64) {
        let until = Mono(until_ms);
        loop {
            let happening = self.happenings.first_key_value().map(|((at, _), _)| *at);
            let wake = self.machine.next_wake(self.now);
            let Some(next) = happening.into_iter().chain(wake).min().filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            // A wake in the past would be an endless loop of the real timer.
            self.now = if happening == Some(next) { next } else { next.max(Mono(self.now.0 + 1)) };
            match self.happenings.first_key_value() {
                Some(((at, _), _)) if *at <= self.now => {
                    let (_, happening) = self.happenings.pop_first().unwrap();
                    self.happen(happening);
                }
                _ => self.tell(Event::Tick),
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive { run, permit } => self.arrive(run, permit),
            Happening::Content(attempt) => self.tell(Event::Content(attempt)),
            Happening::Success(attempt) => self.succeed(attempt),
            Happening::Failure(attempt, failure) => {
                if self.attempts.remove(&attempt).is_some() {
                    self.tell(Event::Failed(attempt, failure, Usage::default()));
                }
            }
            Happening::Do(event) => self.tell(event),
            Happening::Forget(call, run) => self.forget(call, run),
        }
    }

    /// Takes a call out of the machine while its attempt is still with the provider; its run asks again.
    fn forget(&mut self, call: CallKey, run: usize) {
        if self.calls.remove(&call).is_none() {
            return;
        }
        self.dropped.insert(call);
        self.attempts.retain(|_, (of, _)| *of != call);
        self.tell(Event::Dropped(call));
        let again = self.now.after(Duration::from_millis(100));
        self.later(again, Happening::Arrive { run, permit: None });
    }

    fn arrive(&mut self, run: usize, permit: Option<PermitKey>) {
        self.seq += 1;
        let key = CallKey(self.seq);
        self.calls.insert(key, run);
        let state = &mut self.runs[run];
        let claim = Claim { class: state.class, begun: state.has_begun, tenant: "t".into() };
        state.has_begun = true;
        let arrival = Arrival {
            route: 0,
            claim,
            deadline: state.deadline,
            prior_attempts: state.step_attempts,
            permit,
            fallback: state.fallback,
            input_bytes: 4_000,
        };
        self.tell(Event::Arrived(key, arrival));
    }

    fn succeed(&mut self, attempt: AttemptKey) {
        let Some((call, run)) = self.attempts.remove(&attempt) else {
            return;
        };
        self.calls.remove(&call);
        self.successes.push(self.now);
        let usage = Usage { input_tokens: 1_000, output_tokens: 50, ..Usage::default() };
        self.tell(Event::Succeeded(attempt, usage));
        self.endings.push((self.now, run, Ending::Done));
        let state = &mut self.runs[run];
        state.step_attempts = 0;
        state.steps_left -= 1;
        if state.steps_left == 0 {
            state.ended = Some((self.now, Ending::Done));
        } else {
            let at = self.now.after(Duration::from_millis(state.tool_ms));
            self.later(at, Happening::Arrive { run, permit: None });
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        let actions = self.machine.on_event(self.now, event, &self.generator);
        for action in actions {
            match action {
                Action::Start(call, start) => self.start(call, &start),
                Action::Cancel(_, attempt) => {
                    self.attempts.remove(&attempt).expect("an attempt that is cancelled is under way");
                    self.cancelled.push(self.now);
                }
                Action::Finish(call, verdict) => self.finish(call, verdict),
                Action::Grant(permit, _) => self.granted(permit),
                Action::Changed(..) => {}
            }
        }
    }

    fn start(&mut self, call: CallKey, start: &Start) {
        let run = self.calls[&call];
        self.runs[run].step_attempts += 1;
        self.attempts.insert(start.attempt, (call, run));
        if self.mistake == Some(Mistake::ProbeIsForgotten) && self.is_probing() {
            self.later(self.now, Happening::Forget(call, run));
        }
        let behaviour = (self.provider)(self.now, start.lane, run);
        let was_good = matches!(behaviour, Behaviour::Answers(..));
        self.made.push(Made { at: self.now, lane: start.lane, run, call, was_good });
        let now = self.now;
        let after = |ms: u64| now.after(Duration::from_millis(ms));
        let limits = start.limits;
        let first_limit = limits.headers.min(limits.first_content).min(limits.attempt);
        let first_limit = u64::try_from(first_limit.as_millis()).unwrap();
        match behaviour {
            Behaviour::Answers(first, _) if first > first_limit => {
                let failure = Failure::new(Class::Slow, "no content in time");
                self.later(after(first_limit), Happening::Failure(start.attempt, failure));
            }
            Behaviour::Answers(first, total) => {
                for ms in (first..total).step_by(1_000) {
                    self.later(after(ms), Happening::Content(start.attempt));
                }
                self.later(after(total), Happening::Success(start.attempt));
            }
            Behaviour::Breaks(first, total, failure) => {
                let (first, total) = (after(first), after(total));
                self.later(first, Happening::Content(start.attempt));
                self.later(total, Happening::Failure(start.attempt, failure));
            }
            Behaviour::Fails(ms, failure) => {
                self.later(after(ms), Happening::Failure(start.attempt, failure));
            }
            Behaviour::Silent => {
                // As the watchdog tells them apart: the provider's silence, or the caller's deadline.
                let class = if limits.attempt < limits.headers { Class::Slow } else { Class::Transient };
                let failure = Failure::new(class, "no headers");
                let at = self.now.after(limits.headers.min(limits.attempt));
                self.later(at, Happening::Failure(start.attempt, failure));
            }
        }
    }

    fn finish(&mut self, call: CallKey, verdict: Verdict) {
        let Some(run) = self.calls.remove(&call) else {
            assert!(self.dropped.contains(&call), "an end for a call that is not there");
            return;
        };
        let ending = match verdict {
            Verdict::Park { until, .. } => Ending::Park(until),
            Verdict::ContextTooLong => Ending::TooLong,
            Verdict::Fatal(error) => Ending::Fatal(error.code.as_str().to_owned()),
        };
        self.endings.push((self.now, run, ending.clone()));
        if matches!(ending, Ending::Park(_)) {
            self.runs[run].n_parks += 1;
            self.parked.push_back(run);
            self.say_parked();
        } else {
            self.runs[run].ended = Some((self.now, ending));
        }
    }

    fn granted(&mut self, permit: PermitKey) {
        self.grants.push(self.now);
        if !self.takes_permits {
            return;
        }
        let Some(run) = self.parked.pop_front() else {
            return self.tell(Event::PermitDropped(permit));
        };
        let at = self.now.after(Duration::from_millis(5));
        self.later(at, Happening::Arrive { run, permit: Some(permit) });
        self.say_parked();
    }

    /// As the harness does: later, and not in the same breath.
    fn say_parked(&mut self) {
        let n = self.parked.len();
        self.later(self.now, Happening::Do(Event::Parked(0, n)));
    }

    /// The caller of this run's call goes away, if it has one; the run is then over.
    pub(crate) fn drop_call_of(&mut self, run: usize) {
        let Some(call) = self.calls.iter().find(|(_, of)| **of == run).map(|(call, _)| *call) else {
            return;
        };
        self.runs[run].ended = Some((self.now, Ending::Dropped));
        self.calls.remove(&call);
        self.dropped.insert(call);
        self.attempts.retain(|_, (of, _)| *of != call);
        if self.mistake != Some(Mistake::PlacesLeak) {
            self.tell(Event::Dropped(call));
        }
    }

    fn is_probing(&mut self) -> bool {
        self.snapshot().deployments.values().any(|deployment| deployment.state == "half_open")
    }

    pub(crate) fn snapshot(&mut self) -> RouterSnapshot {
        self.machine.snapshot(Instant { mono: self.now, wall: Wall(1_700_000_000_000 + self.now.0) })
    }

    pub(crate) fn n_calls(&self, lane: usize, from_ms: u64, to_ms: u64) -> usize {
        let within = |made: &&Made| made.lane == lane && (from_ms..to_ms).contains(&made.at.0);
        self.made.iter().filter(within).count()
    }

    /// Seconds that the runs took, sorted; fails if one of them did not succeed.
    pub(crate) fn durations(&self) -> Vec<f64> {
        let mut durations: Vec<f64> = self
            .runs
            .iter()
            .enumerate()
            .map(|(idx, run)| match &run.ended {
                Some((at, Ending::Done)) => at.since(run.begun).as_secs_f64(),
                other => panic!("run {idx} ended {other:?} after {} parks", run.n_parks),
            })
            .collect();
        durations.sort_by(f64::total_cmp);
        durations
    }
}

pub(crate) fn p99(sorted: &[f64]) -> f64 {
    sorted[(sorted.len() * 99).div_ceil(100) - 1]
}
