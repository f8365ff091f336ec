//! `lab run`: one scenario from its file to its report.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use evenkeel_env::Env;
use futures_util::future::BoxFuture;

use crate::check;
use crate::live::{self, Plan};
use crate::report::{self, How, Report, html, terminal};
use crate::scenario::{self, Base, Protect, Scenario, StoreChoice};
pub use crate::sim::Depth;
use crate::sim::{self, Plant, Trace};

/// How a scenario is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Real processes, sockets and time.
    #[default]
    Live,
    /// One thread and virtual time.
    Virtual,
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// A scenario's name, or the path of a file.
    pub scenario: String,
    /// Live or virtual.
    pub mode: Mode,
    /// How deep a virtual run goes.
    pub depth: Depth,
    /// Another seed than the file's.
    pub seed: Option<u64>,
    /// Another store than the file's: `sqlite`, `postgres` or a URL.
    pub store: Option<String>,
    /// Another number of replicas than the file's.
    pub replicas: Option<usize>,
    /// A share of the file's load; all of it if absent.
    pub load: Option<f64>,
    /// With or without protection, whatever the file says.
    pub protect: Option<Protect>,
    /// Also run it without protection, and show both side by side in the HTML report.
    pub compare: bool,
    /// Where the result goes as JSON; `-` is standard output.
    pub json: Option<PathBuf>,
    /// Where the report goes as one HTML page.
    pub html: Option<PathBuf>,
    /// Where the history goes, for `lab check`.
    pub history: Option<PathBuf>,
    /// Where the history goes in Jepsen's JSON form, for the checkers of others.
    pub jepsen: Option<PathBuf>,
    /// Where the event log of a virtual run goes.
    pub trace: Option<PathBuf>,
    /// Keep data, logs and repositories below this folder; otherwise they are removed.
    pub keep: Option<PathBuf>,
    /// The product's executable; this one if absent.
    pub program: Option<PathBuf>,
    /// Print nothing but what was asked for.
    pub quiet: bool,
}

/// Runs a scenario, writes what was asked for, and prints progress (to standard error) and the
/// table of goals (to standard output).
///
/// # Errors
/// If the scenario is not valid, something that was asked for is not offered, or the set-up fails:
/// exit code 2. A goal that was missed is no error; see [`Report::pass`].
pub fn run(env: &Env, options: RunOptions) -> BoxFuture<'static, anyhow::Result<Report>> {
    let env = env.clone();
    Box::pin(async move {
        refuse_what_is_not_offered(&options)?;
        let scenario = match options.mode {
            Mode::Live => scenario::find(&options.scenario)?,
            Mode::Virtual => sim::find(&options.scenario, options.seed)?,
        };
        let scenario = scenario.with_load(options.load)?;
        let protect = options.protect.unwrap_or(scenario.protect);
        let base_s = match (scenario.goals.base, scenario.goals.p99_over_base_max_s) {
            (Base::OwnRun, Some(_)) if protect == Protect::Full => {
                let base = once(&env, &options, &scenario.without_faults(), protect, None).await?;
                (base.counts.completed > 0).then_some(base.latency_s.p99)
            }
            _ => None,
        };
        let report = once(&env, &options, &scenario, protect, base_s).await?;
        let beside = match (options.compare, protect) {
            (true, Protect::Full) => Some(once(&env, &options, &scenario, Protect::None, None).await?),
            _ => None,
        };
        write(&options, &report, beside.as_ref()).await?;
        Ok(report)
    })
}

fn refuse_what_is_not_offered(options: &RunOptions) -> anyhow::Result<()> {
    if options.trace.is_some() && options.mode == Mode::Live {
        bail!("Only a virtual run has an event log. Give --virtual, or leave --trace out.");
    }
    if options.mode == Mode::Virtual && matches!(&options.store, Some(store) if store.contains("://")) {
        bail!(
            "A virtual run reaches no database. Give --store sqlite or --store postgres: it takes the shape of that one."
        );
    }
    if options.replicas == Some(0) {
        bail!("With no replica nothing runs. Give --replicas 1 or more.");
    }
    Ok(())
}

/// The store and the number of replicas: the command line's, else the file's. SQLite that was asked
/// for without a number of replicas has one.
fn topology(options: &RunOptions, scenario: &Scenario) -> anyhow::Result<(StoreChoice, usize)> {
    let own = &scenario.topology;
    let store = match &options.store {
        None => StoreChoice::Own(own.store),
        Some(text) => StoreChoice::parse(text).map_err(|words| anyhow!(words))?,
    };
    let one = options.store.is_some() && store.engine() == "sqlite";
    let replicas = options.replicas.unwrap_or(if one { 1 } else { own.replicas });
    Ok((store, replicas))
}

async fn once(
    env: &Env,
    options: &RunOptions,
    scenario: &Scenario,
    protect: Protect,
    base_s: Option<f64>,
) -> anyhow::Result<Report> {
    let (store, replicas) = topology(options, scenario)?;
    let folder = Folder::make(options, scenario, protect)?;
    let seed = options.seed.unwrap_or(scenario.seed);
    let program = match &options.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("find the executable to start")?,
    };
    let show_live = !options.quiet && std::io::stderr().is_terminal();
    let progress = Arc::new(terminal::Line::new(scenario, protect, show_live, options.quiet));
    let plan = Plan {
        scenario: scenario.clone(),
        seed,
        protect,
        replicas,
        store: store.clone(),
        program,
        root: folder.path(),
        depth: options.depth,
        world: None,
        plant: Plant::default(),
        readings: Vec::new(),
        progress: progress.clone(),
    };
    let began = env.mono();
    let measured = measure(env, options, plan).await;
    progress.finish();
    let wall_s = env.mono().since(began).as_secs_f64();
    let (measured, trace) = measured?;
    let store = if trace.is_some() { "memory" } else { store.engine() };
    Ok(Report::new(scenario, &How { seed, protect, store, replicas, wall_s, base_s, trace }, measured))
}

async fn measure(
    env: &Env,
    options: &RunOptions,
    plan: Plan,
) -> anyhow::Result<(live::Measured, Option<Trace>)> {
    if options.mode == Mode::Live {
        let generator = evenkeel_core::Generator::from_seed(plan.seed);
        return Ok((live::run(&Env { generator, ..env.clone() }, plan).await?, None));
    }
    let (measured, trace) = sim::run(env, plan, options.trace.is_some()).await?;
    Ok((measured, Some(trace)))
}

/// Runs a scenario in virtual time on this thread, which must not be one of a runtime.
pub(crate) fn virtual_here(name: &str, seed: u64, depth: Depth, load: Option<f64>) -> anyhow::Result<Report> {
    let scenario = sim::find(name, Some(seed))?.with_load(load)?;
    let base_s = match (scenario.goals.base, scenario.goals.p99_over_base_max_s) {
        (Base::OwnRun, Some(_)) => {
            let base = once_here(&scenario.without_faults(), seed, depth, None)?;
            (base.counts.completed > 0).then_some(base.latency_s.p99)
        }
        _ => None,
    };
    once_here(&scenario, seed, depth, base_s)
}

fn once_here(scenario: &Scenario, seed: u64, depth: Depth, base_s: Option<f64>) -> anyhow::Result<Report> {
    let folder = Folder::temporary(Mode::Virtual)?;
    let (protect, replicas) = (scenario.protect, scenario.topology.replicas);
    let plan = Plan { depth, ..simulated(scenario, seed, folder.path()) };
    let (measured, trace) = sim::run_here(plan, false)?;
    let how = How { seed, protect, store: "memory", replicas, wall_s: 0.0, base_s, trace: Some(trace) };
    Ok(Report::new(scenario, &how, measured))
}

/// A virtual run of a scenario as its file says it, of which nobody is told how far it is.
pub(crate) fn simulated(scenario: &Scenario, seed: u64, root: PathBuf) -> Plan {
    Plan {
        scenario: scenario.clone(),
        seed,
        protect: scenario.protect,
        replicas: scenario.topology.replicas,
        store: StoreChoice::Own(scenario.topology.store),
        program: PathBuf::new(),
        root,
        depth: Depth::default(),
        world: None,
        plant: Plant::default(),
        readings: Vec::new(),
        progress: Arc::new(terminal::Line::new(scenario, scenario.protect, false, true)),
    }
}

async fn write(options: &RunOptions, report: &Report, beside: Option<&Report>) -> anyhow::Result<()> {
    let to_stdout = options.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if !options.quiet && !to_stdout {
        println!("{}", report::terminal::table(report));
    }
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(report).context("write the result as JSON")? + "\n";
        if to_stdout {
            print!("{text}");
        } else {
            tokio::fs::write(path, text).await.with_context(|| format!("write {}", path.display()))?;
        }
    }
    if let Some(path) = &options.html {
        let page = html::page(report, beside)?;
        tokio::fs::write(path, page).await.with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &options.trace {
        let text = report.trace.join("\n") + "\n";
        tokio::fs::write(path, text).await.with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &options.history {
        let lines = report.history.to_lines()?;
        tokio::fs::write(path, lines).await.with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &options.jepsen {
        check::export(&report.history, path)?;
    }
    Ok(())
}

/// Where data, logs and repositories of one run are.
pub(crate) enum Folder {
    Kept(PathBuf),
    Temporary(tempfile::TempDir),
}

impl Folder {
    fn make(options: &RunOptions, scenario: &Scenario, protect: Protect) -> anyhow::Result<Self> {
        let Some(path) = &options.keep else {
            return Self::temporary(options.mode);
        };
        // One command may run a scenario more than once.
        let path = &path.join(format!("{}-{}", scenario.name.replace(' ', "-"), protect.as_str()));
        std::fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
        let n_inside = std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))?.count();
        if n_inside > 0 {
            bail!("{} is not empty. Give a folder that is empty or does not exist.", path.display());
        }
        path.canonicalize().map(Self::Kept).with_context(|| format!("find {}", path.display()))
    }

    /// A folder that goes with the run; that of a virtual one in memory where the system has that,
    /// since it waits for its files.
    pub(crate) fn temporary(mode: Mode) -> anyhow::Result<Self> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("evenkeel-lab-");
        let memory = Path::new("/dev/shm");
        let dir = match mode {
            Mode::Virtual if memory.is_dir() => builder.tempdir_in(memory),
            _ => builder.tempdir(),
        };
        dir.map(Self::Temporary).context("make a temporary folder")
    }

    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Kept(path) => path.clone(),
            Self::Temporary(dir) => dir.path().to_owned(),
        }
    }
}
