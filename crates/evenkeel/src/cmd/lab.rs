//! `evenkeel lab list|run|plan|sweep|check`: proof, on this machine and this configuration.
//!
//! Scripts depend on these commands, their options, exit codes and JSON: 0 every goal held, 1 a goal
//! was missed or a property violated, 2 bad usage or set-up.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use evenkeel_env::Env;
use evenkeel_lab::scenario::Protect;
use evenkeel_lab::{Mode, PlanOptions, RunOptions, SweepOptions, check};

use crate::cmd::Done;
use crate::cmd::serve::Stop;
use crate::output::{self, Paint, Style};

/// Arguments of `lab`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel lab list
  evenkeel lab run system1-as-given --html report.html
  evenkeel lab run system1-as-given --protect none        the same without protection: it must fail
  evenkeel lab run my-scenario.toml --seed 7 --json -
  evenkeel lab run system2-zombie --virtual --seed 7      in virtual time, the same at every run
  evenkeel lab plan my-scenario.toml --rate 50            what saturates first, and at which rate
  evenkeel lab sweep --seeds 100                          100 drawn scenarios in virtual time
  evenkeel lab compare full.json none.json                two results side by side
  evenkeel lab check history.jsonl

Exit code 0 if every goal held, 1 if a goal was missed or a property violated, 2 if it could not be set
up. The guide, docs/guide/lab.md, has the format of scenarios and of the result.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// The scenarios that ship
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run one scenario and say whether its goals held
    Run(Box<RunArgs>),
    /// Say what a topology can carry: which component saturates first, and at which rate
    Plan(PlanArgs),
    /// Run scenarios in virtual time over many seeds
    Sweep {
        /// Scenarios; without any, each seed draws one of its own
        names: Vec<String>,
        /// How many seeds
        #[arg(long)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// How deep the simulation goes
        #[arg(long, value_enum, default_value = "http")]
        depth: Depth,
        /// A share of each scenario's load, such as 0.1
        #[arg(long, value_name = "SHARE")]
        load: Option<f64>,
        /// Run each seed twice; event logs that differ are a failure
        #[arg(long)]
        twice: bool,
        /// Runs at once; one for each core if absent
        #[arg(long, value_name = "N")]
        workers: Option<usize>,
        /// Write the result to this file; `-` is stdout
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Show two results of `lab run --json` side by side
    Compare {
        /// The first result
        first: PathBuf,
        /// The second result
        second: PathBuf,
    },
    /// Check a recorded history on its own
    Check {
        /// The file that `lab run --history` wrote
        history: PathBuf,
        /// Also write it in Jepsen's JSON form, for the checkers of others
        #[arg(long, value_name = "FILE")]
        jepsen: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// A scenario's name, or a file
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// In virtual time, on one thread, from the seed alone
    #[arg(long = "virtual")]
    virtual_time: bool,
    /// How deep the simulation goes
    #[arg(long, value_enum, requires = "virtual_time", default_value = "http")]
    depth: Depth,
    /// Another seed than the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The store: sqlite, postgres, or a URL
    #[arg(long, value_name = "sqlite|postgres|URL")]
    store: Option<String>,
    /// Replicas of the platform
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// A share of the file's load, such as 0.1
    #[arg(long, value_name = "SHARE")]
    load: Option<f64>,
    /// With or without protection, whatever the file says
    #[arg(long, value_enum)]
    protect: Option<Protection>,
    /// Also run it without protection, and show both side by side in the HTML report
    #[arg(long)]
    compare: bool,
    /// Write the result to this file; `-` is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the history, for `lab check`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Write the history in Jepsen's JSON form, for the checkers of others
    #[arg(long, value_name = "FILE")]
    jepsen: Option<PathBuf>,
    /// Write the event log of a virtual run: one line for everything that crosses a border
    #[arg(long, value_name = "FILE", requires = "virtual_time")]
    trace: Option<PathBuf>,
    /// Keep data, logs and repositories in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

#[derive(clap::Args)]
#[command(after_help = "\
How it works:
  A short virtual run of the same file, without its faults and at a rate at which nothing waits,
  measures what one task or turn asks of each component. Little's law (in use = arrivals x time) gives
  what is in use at the asked rate; with the limits of the file it gives the rate at which each
  component is full. Computation takes no time in a virtual run: say under [plan] what a live system
  has shown, from evenkeel_slots_held_seconds_total / evenkeel_slots_taken_total of its /metrics.

  [plan]                        # optional; these are the defaults
  headroom = 0.2                # share of every limit that must be free
  check = [1, 10, 100]          # multiples of the rate at which --check compares
  commits_per_s = 3000.0        # what the store's disk takes; without it commits have no limit
  service_ms = { policy = 0.1 } # mean time of a visit, by component

Examples:
  evenkeel lab plan system1-as-given
  evenkeel lab plan system2-as-given --rate 450 --replicas 5
  evenkeel lab plan system1-as-given --check              beside what runs show, with the error
  evenkeel lab plan my-scenario.toml --json -

Exit code 0 if the rate fits and the headroom is free, 1 if not, 2 if the plan could not be made.")]
struct PlanArgs {
    /// A scenario's name, or a file
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    /// Another rate than the file's, in tasks or turns a second
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Another number of replicas than the file's
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// Another seed than the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Also show what common faults do, beside those of the file
    #[arg(long)]
    faults: bool,
    /// Compare with an event model and with virtual runs at 1, 10 and 100 times the rate
    #[arg(long)]
    check: bool,
    /// Real seconds that one of these runs may take; beyond it only the event model is played
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, requires = "check")]
    patience: f64,
    /// Write the plan to this file; `-` is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// How deep a simulation goes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Depth {
    /// Requests and answers are handed over as they are, without HTTP: a quarter less time.
    Direct,
    /// Real HTTP over an in-memory network.
    Http,
}

impl From<Depth> for evenkeel_lab::run::Depth {
    fn from(depth: Depth) -> Self {
        match depth {
            Depth::Direct => Self::Direct,
            Depth::Http => Self::Http,
        }
    }
}

/// Whether the platform protects what runs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Protection {
    /// As it is.
    Full,
    /// As a plain platform would be.
    None,
}

/// Carries out the action. Whatever prevents a run is set-up, exit code 2.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let done = match args.action {
        Action::List { json } => list(json),
        Action::Run(run) => scenario(env, *run).await,
        Action::Plan(args) => plan(env, args).await,
        Action::Sweep { names, seeds, from, depth, load, twice, workers, json } => {
            let depth = depth.into();
            sweep(env, SweepOptions { names, seeds, from, depth, load, twice, json, workers }).await
        }
        Action::Compare { first, second } => compare(&first, &second),
        Action::Check { history, jepsen, json } => examine(&history, jepsen.as_deref(), json),
    };
    done.or_else(|error| {
        output::failure(&error);
        Ok(ExitCode::from(2))
    })
}

fn list(json: bool) -> Done {
    let scenarios = evenkeel_lab::list();
    if json {
        output::json(&serde_json::to_value(&scenarios)?)?;
    } else {
        let rows: Vec<Vec<String>> =
            scenarios.into_iter().map(|listed| vec![listed.name, listed.about]).collect();
        output::line(format_args!("{}", output::table(Style::stdout(), &["SCENARIO", "SHOWS"], &rows)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn scenario(env: &Env, args: RunArgs) -> Done {
    for path in [&args.json, &args.html, &args.history, &args.jepsen, &args.trace].into_iter().flatten() {
        writable(path)?;
    }
    let options = RunOptions {
        scenario: args.scenario,
        mode: if args.virtual_time { Mode::Virtual } else { Mode::Live },
        depth: args.depth.into(),
        seed: args.seed,
        store: args.store,
        replicas: args.replicas,
        load: args.load,
        protect: args.protect.map(|protection| match protection {
            Protection::Full => Protect::Full,
            Protection::None => Protect::None,
        }),
        compare: args.compare,
        json: args.json,
        html: args.html,
        history: args.history,
        jepsen: args.jepsen,
        trace: args.trace,
        keep: args.keep,
        ..RunOptions::default()
    };
    let mut stop = Stop::listen()?;
    tokio::select! {
        biased;
        // What was started ends with what holds it, which is dropped here.
        () = stop.wait() => Err(anyhow::anyhow!("A signal stopped the run; it says nothing of the goals.")),
        report = evenkeel_lab::run::run(env, options) => Ok(verdict(report?.pass)),
    }
}

async fn plan(env: &Env, args: PlanArgs) -> Done {
    args.json.iter().filter(|path| path.as_os_str() != "-").try_for_each(|path| writable(path))?;
    let PlanArgs { scenario, rate, replicas, seed, faults, check, patience, json } = args;
    let options =
        PlanOptions { scenario, rate_per_s: rate, replicas, seed, faults, check, patience_s: patience, json };
    let mut stop = Stop::listen()?;
    tokio::select! {
        biased;
        () = stop.wait() => Err(anyhow::anyhow!("A signal stopped the plan.")),
        plan = evenkeel_lab::plan(env, options) => Ok(verdict(plan?.pass)),
    }
}

async fn sweep(env: &Env, options: SweepOptions) -> Done {
    options.json.iter().filter(|path| path.as_os_str() != "-").try_for_each(|path| writable(path))?;
    let mut stop = Stop::listen()?;
    tokio::select! {
        biased;
        () = stop.wait() => Err(anyhow::anyhow!("A signal stopped the sweep; it says nothing of the seeds.")),
        sweep = evenkeel_lab::sweep(env, options) => Ok(verdict(sweep?.pass)),
    }
}

/// Says before the minutes of a run, not after them, that its result has no place.
fn writable(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(output::usage(
            format!("The result cannot be written to {}.", path.display()),
            "Name a file in a folder that exists.",
        ));
    }
    Ok(())
}

fn compare(first: &Path, second: &Path) -> Done {
    let rows = evenkeel_lab::compare::files(first, second).map_err(|error| {
        output::usage(format!("{error:#}."), "Give two files that `evenkeel lab run NAME --json FILE` wrote.")
    })?;
    let cells = |row: evenkeel_lab::compare::Row| {
        let by = row.difference.map_or_else(String::new, |by| format!("{by:+.3}"));
        vec![row.name, row.first, row.second, by]
    };
    let rows: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    let head = ["FIGURE", "FIRST", "SECOND", "DIFFERENCE"];
    output::line(format_args!("{}", output::table(Style::stdout(), &head, &rows)))?;
    Ok(ExitCode::SUCCESS)
}

fn examine(history: &Path, jepsen: Option<&Path>, json: bool) -> Done {
    const REMEDY: &str = "Give the file that `evenkeel lab run NAME --history FILE` wrote.";
    jepsen.map_or(Ok(()), writable)?;
    let read = check::file(history).map_err(|error| output::usage(format!("{error:#}."), REMEDY))?;
    let checked = check::history(&read);
    if checked.counts.submitted == 0 {
        return Err(output::usage(
            format!("{} holds no task, so nothing is shown by it.", history.display()),
            REMEDY,
        ));
    }
    if let Some(path) = jepsen {
        check::export(&read, path)?;
    }
    if json {
        output::json(&serde_json::to_value(&checked)?)?;
        return Ok(verdict(checked.pass));
    }
    let style = Style::stdout();
    for violation in &checked.violations {
        output::line(format_args!(
            "{} {}",
            style.paint(Paint::Red, "violated:"),
            output::safe(&serde_json::to_string(violation)?)
        ))?;
    }
    let counts = &checked.counts;
    output::line(format_args!(
        "{} tasks, {} completed, {} lost, {} doubled: {}",
        counts.submitted,
        counts.completed,
        counts.lost,
        counts.doubled,
        if checked.pass {
            style.paint(Paint::Green, "every property holds")
        } else {
            style.paint(Paint::Red, "not every property holds")
        }
    ))?;
    Ok(verdict(checked.pass))
}

fn verdict(pass: bool) -> ExitCode {
    if pass { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
