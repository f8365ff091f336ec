//! `lab sweep`: many seeds in virtual time, and what they found.
//!
//! Without names each seed draws its own scenario (the swarm); with names the seeds run through those
//! scenarios. Every run stands alone, so they are spread over the cores; the result of a seed does not
//! depend on its neighbours, and `lab run NAME --virtual --seed N` repeats it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use evenkeel_env::Env;
use futures_util::future::BoxFuture;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::check::{Entry, Violation};
use crate::report::{Report, SOMETIMES};
use crate::run::{Depth, virtual_here};
use crate::scenario;
use crate::sim::SWARM;

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct SweepOptions {
    /// Scenarios; the swarm if empty.
    pub names: Vec<String>,
    /// How many seeds.
    pub seeds: u64,
    /// The first seed.
    pub from: u64,
    /// A share of each scenario's load; all of it if absent.
    pub load: Option<f64>,
    /// How deep the runs go.
    pub depth: Depth,
    /// Run each seed twice, and count it as failed if its event logs differ.
    pub twice: bool,
    /// Where the result goes as JSON; `-` is standard output.
    pub json: Option<PathBuf>,
    /// Runs at once; one for each core if absent.
    pub workers: Option<usize>,
}

/// The result of a sweep. Its JSON is fixed: scripts depend on it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sweep {
    /// Seeds that were run.
    pub seeds: u64,
    /// Seeds without a finding.
    pub passed: u64,
    /// The others.
    pub failed: Vec<Failed>,
    /// In how many seeds each of the things happened that must happen sometimes.
    pub probes: BTreeMap<String, u64>,
    /// Those that never happened, in a sweep long enough that each should have.
    pub never: Vec<String>,
    /// Real seconds.
    pub wall_s: f64,
    /// Whether every seed passed, and nothing is missing that must happen sometimes.
    pub pass: bool,
}

/// A seed with a finding.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// The scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// What does not hold; goals that were missed count as `goal`.
    pub violations: Vec<Violation>,
}

/// One seed's outcome.
struct Outcome {
    seed: u64,
    probes: Vec<String>,
    failed: Option<(Failed, String)>,
}

/// Runs a sweep; progress and findings go to standard error, the summary to standard output.
///
/// # Errors
/// If a scenario does not exist or a run cannot be set up: exit code 2.
pub fn sweep(env: &Env, options: SweepOptions) -> BoxFuture<'static, anyhow::Result<Sweep>> {
    let env = env.clone();
    Box::pin(async move {
        if options.seeds == 0 {
            bail!("With no seed nothing is shown. Give --seeds 1 or more.");
        }
        for name in options.names.iter().filter(|name| *name != SWARM) {
            scenario::find(name)?.with_load(options.load)?;
        }
        let began = env.mono();
        let mut outcomes = start(&env, &options);
        let bar = bar(options.seeds);
        let mut sweep = Sweep::default();
        while let Some(outcome) = outcomes.recv().await {
            sweep.take(outcome?, &options, &bar);
            let rate = sweep.seeds as f64 / env.mono().since(began).as_secs_f64().max(0.001);
            bar.set_position(sweep.seeds);
            bar.set_message(format!("{rate:.1} seeds/s, {} failed", sweep.failed.len()));
        }
        bar.finish_and_clear();
        sweep.failed.sort_by_key(|failed| failed.seed);
        sweep.wall_s = env.mono().since(began).as_secs_f64();
        sweep.never = never(&options, &sweep.probes);
        sweep.pass = sweep.failed.is_empty() && sweep.never.is_empty() && sweep.seeds == options.seeds;
        write(&options, &sweep).await?;
        Ok(sweep)
    })
}

fn bar(n_seeds: u64) -> ProgressBar {
    let show = std::io::stderr().is_terminal();
    let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(n_seeds), target);
    let style = ProgressStyle::with_template("{elapsed:>4} [{bar:24}] {pos}/{len} {msg}");
    bar.set_style(style.expect("the template is valid").progress_chars("=> "));
    bar
}

/// Starts the workers; each takes the next seed until none is left.
fn start(env: &Env, options: &SweepOptions) -> mpsc::Receiver<anyhow::Result<Outcome>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let n_workers = options.workers.unwrap_or(cores).max(1);
    let (done, outcomes) = mpsc::channel(64);
    let next = Arc::new(AtomicU64::new(0));
    for _ in 0..n_workers {
        let (done, next, options) = (done.clone(), next.clone(), options.clone());
        let work = move || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                // Nobody listens if the sweep was given up.
                if n >= options.seeds || done.blocking_send(one(&options, n)).is_err() {
                    return;
                }
            }
        };
        env.spawner.thread("lab-sweep", Box::new(work));
    }
    outcomes
}

fn one(options: &SweepOptions, n: u64) -> anyhow::Result<Outcome> {
    let seed = options.from + n;
    let idx = usize::try_from(n).unwrap_or_default() % options.names.len().max(1);
    let name = options.names.get(idx).map_or(SWARM, String::as_str);
    let report = virtual_here(name, seed, options.depth, options.load)
        .with_context(|| format!("run seed {seed} of {name}"))?;
    let mut violations = findings(&report);
    if options.twice {
        let again = virtual_here(name, seed, options.depth, options.load)
            .with_context(|| format!("run seed {seed} of {name} again"))?;
        if again.digest != report.digest {
            let text = format!("Two runs of it differ: {} and {}.", report.digest, again.digest);
            violations.push(of_whole("digest", text));
        }
    }
    let failed = violations.first().cloned().map(|first| {
        let story = story(&report, &first);
        (Failed { scenario: name.to_owned(), seed, violations }, story)
    });
    Ok(Outcome { seed, probes: report.probes.into_iter().collect(), failed })
}

/// A sweep of the swarm with so many seeds reaches everything that must be reached sometimes.
const SEEDS_FOR_ALL: u64 = 1_000;

/// What a long sweep of the swarm never reached. Green seeds then say nothing of the code for it.
fn never(options: &SweepOptions, probes: &BTreeMap<String, u64>) -> Vec<String> {
    let is_of_swarm = options.names.iter().all(|name| name == SWARM);
    if !is_of_swarm || options.seeds < SEEDS_FOR_ALL {
        return Vec::new();
    }
    SOMETIMES.iter().filter(|probe| !probes.contains_key(**probe)).map(|probe| (*probe).to_owned()).collect()
}

fn of_whole(property: &'static str, text: String) -> Violation {
    Violation { property, thread: String::new(), turn: String::new(), text }
}

/// Violations, and goals that were missed.
fn findings(report: &Report) -> Vec<Violation> {
    let mut findings = report.violations.clone();
    for goal in report.goals.iter().filter(|goal| !goal.pass) {
        let measured = goal.measured.map_or("nothing".to_owned(), |measured| format!("{measured:.3}"));
        let text = format!("{} is {measured} where the limit is {}.", goal.name, goal.limit);
        findings.push(of_whole("goal", text));
    }
    findings
}

/// The time line of a finding's thread: what its clients did and were told, and what broke meanwhile.
fn story(report: &Report, first: &Violation) -> String {
    const N_LINES_MAX: usize = 40;
    const N_CHARS_MAX: usize = 220;
    let number = first.turn.rsplit(' ').next().and_then(|n| n.parse::<usize>().ok());
    let of_thread: Vec<usize> = report
        .history
        .entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Invoke { task, thread, .. } if *thread == first.thread => Some(*task),
            _ => None,
        })
        .collect();
    let is_told = |entry: &&Entry| match entry {
        Entry::Fault { .. } | Entry::Crash { .. } => true,
        Entry::Tail { trouble, .. } => trouble.is_some(),
        Entry::Stored { .. } | Entry::Thread { .. } | Entry::Examined { .. } => entry.task() == number,
        Entry::Log { .. } => false,
        entry => entry.task().is_some_and(|task| Some(task) == number || of_thread.contains(&task)),
    };
    let mut text = String::new();
    for entry in report.history.entries.iter().filter(is_told).take(N_LINES_MAX) {
        let line = serde_json::to_string(entry).unwrap_or_default();
        let line: String = line.chars().take(N_CHARS_MAX).collect();
        let _ = writeln!(text, "    {line}");
    }
    text
}

impl Sweep {
    fn take(&mut self, outcome: Outcome, options: &SweepOptions, bar: &ProgressBar) {
        self.seeds += 1;
        for probe in outcome.probes {
            *self.probes.entry(probe).or_default() += 1;
        }
        let Some((failed, story)) = outcome.failed else {
            self.passed += 1;
            return;
        };
        bar.suspend(|| {
            eprintln!("Seed {} of {} failed:", outcome.seed, failed.scenario);
            for violation in failed.violations.iter().take(3) {
                eprintln!("  {} {}: {}", violation.property, violation.turn, violation.text);
            }
            eprint!("{story}");
            let (name, seed) = (&failed.scenario, failed.seed);
            let depth = options.depth.as_str();
            let load = options.load.map_or_else(String::new, |load| format!(" --load {load}"));
            eprintln!(
                "  again: evenkeel lab run {name} --virtual --depth {depth}{load} --seed {seed} --trace FILE"
            );
        });
        self.failed.push(failed);
    }

    fn summary(&self) -> String {
        let rate = self.seeds as f64 / self.wall_s.max(0.001);
        let mut text = format!(
            "{} seeds, {} passed, {} failed, {:.1} s, {rate:.1} seeds/s\n",
            self.seeds,
            self.passed,
            self.failed.len(),
            self.wall_s
        );
        for (probe, n) in &self.probes {
            let _ = writeln!(text, "  {n:>6} {probe}");
        }
        for probe in &self.never {
            let _ = writeln!(text, "   never {probe}: a sweep of this length must reach it");
        }
        text
    }
}

async fn write(options: &SweepOptions, sweep: &Sweep) -> anyhow::Result<()> {
    let json = || serde_json::to_string_pretty(sweep).context("write the result as JSON");
    match &options.json {
        Some(path) if path.as_os_str() == "-" => println!("{}", json()?),
        Some(path) => {
            print!("{}", sweep.summary());
            tokio::fs::write(path, json()? + "\n")
                .await
                .with_context(|| format!("write {}", path.display()))?;
        }
        None => print!("{}", sweep.summary()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(names: &[&str], seeds: u64, hit: &[&str]) -> Vec<String> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let options = SweepOptions { names, seeds, ..SweepOptions::default() };
        never(&options, &hit.iter().map(|probe| ((*probe).to_owned(), 1)).collect())
    }

    #[test]
    fn a_long_sweep_names_what_it_never_reached() {
        assert_eq!(missing(&[], 1_000, &SOMETIMES), Vec::<String>::new());
        let but_one = SOMETIMES.into_iter().filter(|probe| *probe != "write_fenced").collect::<Vec<_>>();
        assert_eq!(missing(&[], 1_000, &but_one), ["write_fenced"]);
        assert_eq!(missing(&["swarm"], 1_000, &but_one), ["write_fenced"]);
    }

    #[test]
    fn a_short_sweep_and_one_of_scenarios_need_not_reach_everything() {
        assert_eq!(missing(&[], 999, &[]), Vec::<String>::new());
        assert_eq!(missing(&["system1-as-given"], 1_000, &[]), Vec::<String>::new());
    }

    #[test]
    fn what_must_be_reached_is_named_once_and_in_order() {
        assert!(SOMETIMES.is_sorted_by(|one, next| one < next));
    }
}
