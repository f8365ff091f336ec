//! The report in the terminal: a live line while it runs, a table at the end.

use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Goal, Report};
use crate::live::{Progress, Sample};
use crate::scenario::{Protect, Scenario};

/// The live line.
pub(crate) struct Line {
    bar: ProgressBar,
    quiet: bool,
    n_tasks: usize,
    faults: Vec<(f64, f64, String)>,
}

impl Line {
    pub(crate) fn new(scenario: &Scenario, protect: Protect, show: bool, quiet: bool) -> Self {
        let n_tasks = scenario.traffic.n_tasks();
        let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(n_tasks as u64), target);
        let style =
            ProgressStyle::with_template("{elapsed:>4} [{bar:24}] {msg}").expect("the template is valid");
        bar.set_style(style.progress_chars("=> "));
        let faults = scenario.faults.iter().flat_map(|fault| {
            let name = format!("{} {}", fault.target_name(), fault.kind());
            fault.spans().into_iter().map(move |(from, to)| (from, to, name.clone()))
        });
        let line = Self { bar, quiet, n_tasks, faults: faults.collect() };
        let without = if protect == Protect::None { ", without protection" } else { "" };
        line.say(&format!("{}{without}: {}", scenario.name, scenario.about));
        line
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Line {
    fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }

    fn show(&self, sample: &Sample) {
        let ended = sample.succeeded + sample.failed;
        self.bar.set_position(ended as u64);
        let now_s = Duration::from_millis(sample.t).as_secs_f64();
        let faults: Vec<&str> = self
            .faults
            .iter()
            .filter(|(from, to, _)| (*from..*to).contains(&now_s))
            .map(|(_, _, name)| name.as_str())
            .collect();
        let states: Vec<String> =
            sample.states.iter().map(|(name, state)| format!("{name} {state}")).collect();
        let at_work = sample.submitted.saturating_sub(ended);
        let mut text = format!(
            "{ended}/{} ended ({} failed), {at_work} at work, {} parked",
            self.n_tasks, sample.failed, sample.parked,
        );
        for part in [states.join(", "), faults.join(", ")].iter().filter(|part| !part.is_empty()) {
            let _ = write!(text, " | {part}");
        }
        self.bar.set_message(text);
    }
}

/// The table of goals, the figures, and the first of everything that is wrong.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    let counts = &report.counts;
    let protect = report.protect.as_str();
    let _ = writeln!(
        text,
        "\n{}  (seed {}, protection {protect}, {} over {}, {})",
        report.scenario,
        report.seed,
        plural(report.replicas, "replica"),
        report.store,
        time(report)
    );
    let _ = writeln!(text, "\n  {:<24}{:>12}{:>12}  verdict", "goal", "limit", "measured");
    for goal in &report.goals {
        let verdict = if goal.pass { "holds" } else { "MISSED" };
        let _ = writeln!(
            text,
            "  {:<24}{:>12}{:>12}  {verdict}",
            words(goal.name, report.unit()),
            limit(goal),
            measured(goal)
        );
    }
    let (latency, unit) = (report.latency_s, report.unit());
    let _ = writeln!(
        text,
        "\n  {} submitted, {} accepted, {} completed, {} failed, {} expired, {} lost, {} doubled\n  \
         {unit} time: median {:.1} s, p95 {:.1} s, p99 {:.1} s, max {:.1} s\n  \
         {} resumed, {} parked, {} attempts without an answer, {} calls to a provider that was down, {} writes fenced, {} requests asked again",
        counts.submitted,
        counts.accepted,
        counts.completed,
        counts.failed,
        counts.expired,
        counts.lost,
        counts.doubled,
        latency.p50,
        latency.p95,
        latency.p99,
        latency.max,
        counts.resumed,
        counts.parked,
        counts.retried_calls,
        counts.calls_while_down,
        counts.fenced,
        counts.broken_requests,
    );
    for end in report.ends.iter().filter(|end| !end.ok).take(5) {
        let _ = writeln!(text, "  {unit} {} ({}) did not succeed: {}", end.task, end.script, end.why);
    }
    for violation in report.violations.iter().take(5) {
        let _ = writeln!(
            text,
            "  {} violated, {} {}: {}",
            violation.property, violation.turn, violation.thread, violation.text
        );
    }
    let n_more = report.violations.len().saturating_sub(5);
    if n_more > 0 {
        let _ = writeln!(text, "  and {n_more} violations more");
    }
    let _ = write!(text, "\n  {}", if report.pass { "Every goal holds." } else { "Not every goal holds." });
    text
}

/// How long it took; of a virtual run also by its own clock, and what names it exactly.
fn time(report: &Report) -> String {
    let wall_s = report.wall_s;
    match report.virtual_s {
        None => format!("{wall_s:.0} s"),
        Some(virtual_s) => {
            format!("{virtual_s:.0} s of virtual time in {wall_s:.1} s, digest {}", report.digest)
        }
    }
}

/// `1 replica`, `3 replicas`.
fn plural(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

/// The goal's name for people. `unit` is what the load consists of: `task` or `turn`.
pub(crate) fn words(name: &str, unit: &str) -> String {
    match name {
        "success_min" => format!("{unit}s that succeed"),
        "p99_max_s" => format!("p99 {unit} time"),
        "p99_over_base_max_s" => "p99 over fault-free".to_owned(),
        "lost_max" => format!("{unit}s lost"),
        "doubled_max" => format!("{unit}s doubled"),
        "calls_while_down_max" => "calls while down".to_owned(),
        "resumed_min" => "resumed after a kill".to_owned(),
        "parked_min" => "runs parked".to_owned(),
        "fenced_min" => "writes fenced".to_owned(),
        "broken_requests_max" => "requests that failed".to_owned(),
        other => other.to_owned(),
    }
}

/// The limit as people read it.
pub(crate) fn limit(goal: &Goal) -> String {
    let sign = if goal.name.ends_with("_min") { ">=" } else { "<=" };
    format!("{sign} {}", value(goal.name, goal.limit))
}

/// What was measured as people read it.
pub(crate) fn measured(goal: &Goal) -> String {
    goal.measured.map_or_else(|| "not measured".to_owned(), |measured| value(goal.name, measured))
}

fn value(name: &str, value: f64) -> String {
    if name == "success_min" {
        format!("{:.1} %", value * 100.0)
    } else if name.ends_with("_s") {
        format!("{value:.1} s")
    } else {
        format!("{value:.0}")
    }
}
