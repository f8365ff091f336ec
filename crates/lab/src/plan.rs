//! `lab plan`: what a topology can carry, before anybody sends the load.
//!
//! ```text
//!   file --> virtual run without faults --> work of one task or turn --> Little's law --> table
//!                    |                                                                  beside it
//!                    +---------> recorded runs -----------------> event model -----------> these
//!   file --> virtual runs with its faults, and at other rates (--check) ------------------> figures
//! ```
//! A short virtual run of the same file, at a rate at which nothing waits, says what one task or turn
//! asks of each component. Little's law then gives what is in use at any rate, and with the limits of
//! the file where each component ends. Nothing is guessed: what a virtual run cannot know (how long
//! computation takes) counts as no time, unless `[plan]` says what a live system has shown.

mod capacity;
mod effect;
mod event;
mod keys;
mod show;
#[cfg(test)]
mod tests;
mod trace;
mod verify;
mod work;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use evenkeel_core::{Code, Error};
use evenkeel_env::Env;
use futures_util::future::BoxFuture;
use serde::Serialize;

use crate::live::usage::Reading;
use crate::live::{self, Measured};
use crate::report::{How, Latency, Report};
use crate::run::{Folder, Mode, simulated};
use crate::scenario::{self, Protect, Scenario};
use crate::sim;
use crate::task;
use capacity::Capacity;
use effect::Effect;
pub use keys::Keys;
use verify::{Checked, Known};
use work::{Component, Demand, Limited, Made, Of, Work};

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// A scenario's name, or the path of a file.
    pub scenario: String,
    /// Another rate than the file's, in tasks or turns a second.
    pub rate_per_s: Option<f64>,
    /// Another number of replicas than the file's.
    pub replicas: Option<usize>,
    /// Another seed than the file's.
    pub seed: Option<u64>,
    /// Also the faults that every plan should know, beside those of the file.
    pub faults: bool,
    /// Compare with runs at multiples of the rate.
    pub check: bool,
    /// Real seconds that one of these runs may take; beyond it only the event model is played.
    pub patience_s: f64,
    /// Where the result goes as JSON; `-` is standard output.
    pub json: Option<PathBuf>,
}

/// The plan. Its JSON is fixed: scripts depend on it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    scenario: String,
    /// `task`, or `turn` of a chat.
    unit: &'static str,
    seed: u64,
    replicas: usize,
    /// Units that were measured.
    n_measured: usize,
    /// What one of them makes.
    work: Made,
    /// How long one takes where nothing waits.
    latency_s: Latency,
    #[serde(flatten)]
    capacity: Capacity,
    headroom_wanted: f64,
    /// The rate from which calls also go to another provider than the first; none if there is no other.
    first_provider_full_at_per_s: Option<f64>,
    /// What the faults do.
    faults: Vec<Effect>,
    /// The comparison with runs, if it was wanted.
    check: Vec<Checked>,
    /// Whether the asked rate fits with the headroom that is wanted.
    pub pass: bool,
}

/// Measures the work of the file and says what its topology can carry: to standard output, as a table
/// or as JSON.
///
/// # Errors
/// If the file is not valid or the run cannot be set up: exit code 2. A rate that does not fit is no
/// error; see [`Outcome::pass`].
pub fn plan(env: &Env, options: PlanOptions) -> BoxFuture<'static, anyhow::Result<Outcome>> {
    let env = env.clone();
    Box::pin(async move {
        let question = Question::of(&options)?;
        let outcome = question.answer(&env, &options).await?;
        write(options.json.as_deref(), &outcome).await?;
        Ok(outcome)
    })
}

/// A file with what the command line has changed of it.
struct Question {
    scenario: Scenario,
    keys: Keys,
    replicas: usize,
    seed: u64,
}

impl Question {
    fn of(options: &PlanOptions) -> anyhow::Result<Self> {
        let (mut scenario, keys) = scenario::find_with_plan(&options.scenario)?;
        if let Some(rate_per_s) = options.rate_per_s {
            if !rate_per_s.is_finite() || rate_per_s <= 0.0 {
                return Err(unusable(
                    format!("At a rate of {rate_per_s} nothing arrives."),
                    "Give --rate a number of tasks or turns a second that is more than 0.",
                ));
            }
            scenario.traffic.rate_per_s = rate_per_s;
        }
        let replicas = options.replicas.unwrap_or(scenario.topology.replicas);
        if replicas == 0 {
            return Err(unusable("With no replica nothing runs.".to_owned(), "Give --replicas 1 or more."));
        }
        let seed = options.seed.unwrap_or(scenario.seed);
        Ok(Self { scenario, keys, replicas, seed })
    }

    async fn answer(&self, env: &Env, options: &PlanOptions) -> anyhow::Result<Outcome> {
        let scenario = &self.scenario;
        let reference = reference(scenario);
        let n_measured = reference.traffic.n_tasks();
        let end = Duration::from_secs_f64(reference.traffic.duration_s);
        let run = measure(env, self, &reference, vec![end]).await?;
        if run.report.counts.completed == 0 {
            let why = run.report.ends.first().map_or("nothing ended", |end| end.why.as_str());
            bail!("Even without a fault nothing completes, so there is nothing to plan with: {why}");
        }
        let limits = Limited { scenario, keys: &self.keys, replicas: self.replicas };
        let work = Work::of(&run.usage, &run.report.history, n_measured, &limits)
            .context("a process did not say what it had done when it was asked")?;
        let known = Known { question: self, work: &work, run: &run, base: run.report.latency_s };
        let mut faults = scenario.faults.clone();
        if options.faults {
            faults.extend(effect::standard(scenario, self.replicas));
        }
        let mut effects = Vec::new();
        for fault in &faults {
            let patience_s = options.check.then_some(options.patience_s);
            effects.push(effect::of(env, &known, fault, patience_s).await?);
        }
        let mut check = Vec::new();
        for multiple in self.keys.check.iter().filter(|_| options.check) {
            check.push(verify::at(env, &known, *multiple, options.patience_s).await?);
        }
        let capacity = Capacity::at(scenario.traffic.rate_per_s, &work.demands);
        Ok(Outcome {
            scenario: scenario.name.clone(),
            unit: run.report.unit(),
            seed: self.seed,
            replicas: self.replicas,
            n_measured,
            work: work.made,
            latency_s: run.report.latency_s,
            headroom_wanted: self.keys.headroom,
            first_provider_full_at_per_s: first_provider_full_at(scenario, &work),
            faults: effects,
            check,
            pass: capacity.headroom >= self.keys.headroom,
            capacity,
        })
    }
}

/// What was asked for cannot be planned.
fn unusable(message: String, remedy: &'static str) -> anyhow::Error {
    Error::client(Code::BadRequest, message, remedy).into()
}

/// At most so many turns a second are measured, for so many seconds.
const TURNS_PER_S: f64 = 20.0;
const TURNS_S: f64 = 15.0;
/// At most so many tasks a second are measured, and each task of the load so many times.
const TASKS_PER_S: f64 = 1.0;
const TIMES_EACH: usize = 2;

/// The same file without faults, at a rate at which nothing waits, for as long as it takes to see each
/// kind of task.
fn reference(scenario: &Scenario) -> Scenario {
    let mut reference = scenario.without_faults();
    let traffic = &mut reference.traffic;
    if scenario.is_chat() {
        traffic.rate_per_s = traffic.rate_per_s.min(TURNS_PER_S);
        traffic.duration_s = TURNS_S.max(1.0 / traffic.rate_per_s);
    } else {
        let n_kinds = if traffic.tasks.is_empty() { task::all().len() } else { traffic.tasks.len() };
        traffic.rate_per_s = traffic.rate_per_s.min(TASKS_PER_S);
        traffic.duration_s = (n_kinds * TIMES_EACH) as f64 / traffic.rate_per_s;
    }
    reference
}

/// The rate at which the first of several providers has no room left.
fn first_provider_full_at(scenario: &Scenario, work: &Work) -> Option<f64> {
    let [first, _, ..] = scenario.provider.as_slice() else { return None };
    let limits = first.limits;
    let alone = work.demands.iter().filter(|demand| demand.component == Component::Model).map(|demand| {
        let limit = match demand.of {
            Of::Calls => limits.calls_per_min as f64 / 60.0,
            Of::TokensIn => limits.input_tokens_per_min as f64 / 60.0,
            _ => f64::from(limits.streams),
        };
        Demand { limit, ..*demand }
    });
    capacity::first(&alone.collect::<Vec<_>>()).map(|first| first.at_per_s)
}

/// A virtual run with what was read during it.
struct Run {
    report: Report,
    usage: Vec<Reading>,
    n_units: usize,
    /// Real seconds that it took.
    wall_s: f64,
}

async fn measure(
    env: &Env,
    question: &Question,
    scenario: &Scenario,
    readings: Vec<Duration>,
) -> anyhow::Result<Run> {
    let folder = Folder::temporary(Mode::Virtual)?;
    let (seed, replicas, protect) = (question.seed, question.replicas, Protect::Full);
    let plan = live::Plan { protect, replicas, readings, ..simulated(scenario, seed, folder.path()) };
    let began = env.mono();
    let (mut measured, trace): (Measured, _) = sim::run(env, plan, false).await?;
    let wall_s = env.mono().since(began).as_secs_f64();
    let usage = std::mem::take(&mut measured.usage);
    let how = How { seed, protect, store: "memory", replicas, wall_s: 0.0, base_s: None, trace: Some(trace) };
    let report = Report::new(scenario, &how, measured);
    Ok(Run { report, usage, n_units: scenario.traffic.n_tasks(), wall_s })
}

async fn write(json: Option<&Path>, outcome: &Outcome) -> anyhow::Result<()> {
    let to_stdout = json.is_some_and(|path| path.as_os_str() == "-");
    if !to_stdout {
        print!("{}", show::text(outcome));
    }
    let Some(path) = json else { return Ok(()) };
    let text = serde_json::to_string_pretty(outcome).context("write the plan as JSON")? + "\n";
    if to_stdout {
        print!("{text}");
        return Ok(());
    }
    tokio::fs::write(path, text).await.with_context(|| format!("write {}", path.display()))
}
