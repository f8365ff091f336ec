//! `lab-full`: everything of the lab that takes long, and one page that says what came of it.
//!
//! Every scenario runs live with several seeds; those of System 1 also on three replicas over
//! PostgreSQL; all of them in virtual time at both depths, twice, where both runs must have one digest;
//! and the plain configurations must lose what they are known to lose. Then come ten thousand drawn
//! seeds, the mutation matrix, the public MCP conformance suite and the fuzz targets. A part that fails
//! does not stop the rest.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{clients, fuzz, shell};

/// One run of a scenario.
struct Case {
    name: String,
    /// What is different from the scenario's file, as arguments.
    varied: &'static [&'static str],
    seed: u32,
    /// A plain configuration: passing would prove that the lab proves nothing.
    must_fail: bool,
    /// In virtual time: once more, with the same digest.
    twice: bool,
}

/// What came of a case.
struct Row {
    case: Case,
    /// The result as `lab run --json` wrote it; none if there was no run.
    result: Option<Value>,
    is_good: bool,
}

const THREE_REPLICAS: &[&str] = &["--replicas", "3", "--store", "postgres"];
const PLAIN: &[&str] = &["--protect", "none"];
/// Both depths of virtual time.
const VIRTUAL: [&[&str]; 2] = [&["--virtual", "--depth", "direct"], &["--virtual", "--depth", "http"]];
const PLAIN_VIRTUAL: &[&str] = &["--virtual", "--protect", "none"];
/// Sweeps of drawn seeds: the depth and how many.
const SWEEPS: [(&str, &str); 2] = [("direct", "10000"), ("http", "500")];
/// For each fuzz target.
const FUZZ_SECONDS: &str = "300";
/// What a plain configuration is tried on.
const LOSING: [&str; 2] = ["system1-as-given", "system2-as-given"];

/// What was asked on the command line.
struct Asked {
    names: Vec<String>,
    n_seeds: u32,
}

impl Asked {
    fn parse(args: &[String]) -> Result<Self> {
        let mut asked = Self { names: Vec::new(), n_seeds: 3 };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if arg == "--seeds" {
                let n = args.next().context("--seeds takes a number")?;
                asked.n_seeds = n.parse().with_context(|| format!("--seeds {n} is not a number"))?;
            } else if arg.starts_with('-') {
                bail!("there is no {arg}; use: cargo xtask lab-full [--seeds N] [NAME...]");
            } else {
                asked.names.push(arg.clone());
            }
        }
        Ok(asked)
    }
}

/// Runs everything, or the scenarios that are named, and writes `target/lab-full/index.html`.
pub(crate) fn lab_full(args: &[String]) -> Result<()> {
    let asked = Asked::parse(args)?;
    shell::run(&shell::cargo(), &["build", "--release", "--locked", "--package", "evenkeel"], &[])?;
    let binary = shell::target_dir().join("release/evenkeel").to_string_lossy().into_owned();
    let folder = shell::target_dir().join("lab-full");
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let cases = cases(&binary, &asked)?;
    let n_all = cases.len();
    let mut rows: Vec<Row> = Vec::with_capacity(n_all);
    for case in cases {
        eprintln!("==> {} of {n_all}: {}", rows.len() + 1, case.title());
        rows.push(run(&binary, &folder, case));
        // After each, so that a look at a long sweep shows what is known.
        write_page(&folder, &rows, &[], n_all)?;
    }
    let failed: Vec<String> = rows.iter().filter(|row| !row.is_good).map(|row| row.case.title()).collect();
    let parts = if asked.names.is_empty() { parts(&binary, &folder) } else { Vec::new() };
    write_page(&folder, &rows, &parts, n_all)?;
    eprintln!("{}", folder.join("index.html").display());
    let broken = parts.iter().filter(|part| part.trouble.is_some()).map(|part| part.name.clone());
    let failed: Vec<String> = failed.into_iter().chain(broken).collect();
    if !failed.is_empty() {
        bail!("{} of {} did not end as they must: {}", failed.len(), n_all + parts.len(), failed.join(", "));
    }
    Ok(())
}

/// What is no run of a scenario.
struct Part {
    name: String,
    /// Why it did not pass.
    trouble: Option<String>,
}

fn parts(binary: &str, folder: &Path) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut take = |name: String, done: Result<()>| {
        parts.push(Part { name, trouble: done.err().map(|error| format!("{error:#}")) });
    };
    for (depth, seeds) in SWEEPS {
        eprintln!("==> a sweep of {seeds} seeds, {depth}");
        let json = folder.join(format!("sweep-{depth}.json")).to_string_lossy().into_owned();
        let args = ["lab", "sweep", "--seeds", seeds, "--depth", depth, "--json", &json];
        take(format!("sweep of {seeds} seeds, {depth}"), shell::run(binary, &args, &[]));
    }
    eprintln!("==> the mutation matrix");
    let args = ["test", "--workspace", "--locked", "--no-fail-fast", "mutation"];
    take("mutation matrix".to_owned(), shell::run(&shell::cargo(), &args, &[]));
    eprintln!("==> the MCP conformance suite");
    take("MCP conformance".to_owned(), mcp());
    eprintln!("==> the fuzz targets");
    take("fuzz targets".to_owned(), fuzz::run(FUZZ_SECONDS));
    parts
}

/// The public MCP conformance suite against our server and our client, and the reference servers under
/// our client.
fn mcp() -> Result<()> {
    let Some(home) = clients::mcp()? else { return Ok(()) };
    let example = ["build", "--locked", "--package", "evenkeel-tools", "--example", "mcp_client"];
    shell::run(&shell::cargo(), &example, &[])?;
    let client = shell::target_dir().join("debug/examples/mcp_client").to_string_lossy().into_owned();
    let args = ["test", "--locked", "--package", "evenkeel", "--test", "cli", "mcp::"];
    let env = [("EVENKEEL_MCP_HOME", home.as_str()), ("EVENKEEL_MCP_CLIENT", client.as_str())];
    shell::run(&shell::cargo(), &args, &env)
}

fn cases(binary: &str, asked: &Asked) -> Result<Vec<Case>> {
    let listed = shell::capture(binary, &["lab", "list", "--json"]).context("list the scenarios")?;
    let listed: Vec<Value> = serde_json::from_str(&listed).context("read the list of scenarios")?;
    let known: Vec<&str> = listed.iter().filter_map(|scenario| scenario["name"].as_str()).collect();
    if let Some(name) = asked.names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no scenario {name}; `evenkeel lab list` names them");
    }
    let is_asked = |name: &&str| asked.names.is_empty() || asked.names.iter().any(|of| of == name);
    let mut cases = Vec::new();
    for name in known.into_iter().filter(is_asked) {
        let case =
            |varied, seed| Case { name: name.to_owned(), varied, seed, must_fail: false, twice: false };
        cases.extend((1..=asked.n_seeds).map(|seed| case(&[], seed)));
        if name.starts_with("system1-") {
            cases.push(case(THREE_REPLICAS, 1));
        }
        if LOSING.contains(&name) {
            cases.push(Case { must_fail: true, ..case(PLAIN, 1) });
            cases.push(Case { must_fail: true, ..case(PLAIN_VIRTUAL, 1) });
        }
        cases.extend(VIRTUAL.map(|varied| Case { twice: true, ..case(varied, 1) }));
    }
    Ok(cases)
}

impl Case {
    fn title(&self) -> String {
        let varied = self.varied.join(" ");
        format!("{} {varied}{}seed {}", self.name, if varied.is_empty() { "" } else { ", " }, self.seed)
    }

    fn file(&self) -> String {
        let varied: String = self.varied.concat().replace("--", "-");
        format!("{}{varied}-{}", self.name, self.seed)
    }
}

fn run(binary: &str, folder: &Path, case: Case) -> Row {
    let place = |kind: &str| -> PathBuf { folder.join(format!("{}.{kind}", case.file())) };
    let (json, html, seed) = (place("json"), place("html"), case.seed.to_string());
    let (json_arg, html_arg) = (json.to_string_lossy(), html.to_string_lossy());
    let own = ["lab", "run", &case.name, "--seed", &seed, "--json", &json_arg, "--html", &html_arg];
    drop(std::fs::remove_file(&json));
    let passed = shell::run(binary, &[&own, case.varied].concat(), &[]).is_ok();
    let result = read(&json);
    let is_same = !case.twice || {
        let again = place("again.json");
        let again_arg = again.to_string_lossy();
        let own = ["lab", "run", &case.name, "--seed", &seed, "--json", &again_arg];
        // Whether it passes again, its digest says.
        drop(shell::run(binary, &[&own, case.varied].concat(), &[]));
        digest(result.as_ref()).is_some() && digest(result.as_ref()) == digest(read(&again).as_ref())
    };
    // A run that could not even begin is no proof of anything.
    let is_good = result.is_some() && passed != case.must_fail && is_same;
    Row { case, result, is_good }
}

fn read(json: &Path) -> Option<Value> {
    std::fs::read(json).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
}

fn digest(result: Option<&Value>) -> Option<String> {
    result?["digest"].as_str().map(str::to_owned)
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;\
    color:#1d2733;background:#fff}table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;\
    text-align:right;border-bottom:1px solid #dde3ea;font-variant-numeric:tabular-nums}\
    th:first-child,td:first-child{text-align:left}.bad{background:#fdeceb}a{color:#1a5fb4}\
    @media(prefers-color-scheme:dark){body{color:#dde3ea;background:#14191f}th,td{border-color:#2c3640}\
    .bad{background:#4a1f1f}a{color:#8ab8f0}}";

fn write_page(folder: &Path, rows: &[Row], parts: &[Part], n_all: usize) -> Result<()> {
    let n_good = rows.iter().filter(|row| row.is_good).count();
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Evenkeel: the whole lab</title>\
         <style>{STYLE}</style><h1>The whole lab</h1><p>{n_good} of {} runs ended as they must; {n_all} in all. \
         Turns or tasks, seconds. A plain configuration must miss its goals.</p>\
         <table><tr><th>run<th>success<th>accepted<th>completed<th>lost<th>doubled<th>resumed<th>p50<th>p99\
         <th>violations<th>as it must</tr>",
        rows.len()
    );
    for row in rows {
        let class = if row.is_good { "" } else { " class=\"bad\"" };
        let verdict = if row.is_good { "yes" } else { "no" };
        let file = row.case.file();
        write!(page, "<tr{class}><td><a href=\"{file}.html\">{}</a>", row.case.title())?;
        match &row.result {
            Some(result) => figures(&mut page, result)?,
            None => page.push_str("<td colspan=\"9\">no result"),
        }
        write!(page, "<td>{verdict}</tr>")?;
    }
    page.push_str("</table><table><tr><th>part<th>came to</tr>");
    for Part { name, trouble } in parts {
        let class = if trouble.is_some() { " class=\"bad\"" } else { "" };
        let trouble = trouble.as_deref().unwrap_or("passed").replace('&', "&amp;").replace('<', "&lt;");
        write!(page, "<tr{class}><td>{name}<td>{trouble}</tr>")?;
    }
    page.push_str("</table></html>");
    let place = folder.join("index.html");
    std::fs::write(&place, page).with_context(|| format!("write {}", place.display()))
}

fn figures(page: &mut String, result: &Value) -> Result<()> {
    let count = |name: &str| result["counts"][name].as_u64().unwrap_or(0);
    let seconds = |name: &str| result["latency_s"][name].as_f64().unwrap_or(0.0);
    let success = 100.0 * result["success_rate"].as_f64().unwrap_or(0.0);
    write!(page, "<td>{success:.2} %")?;
    for name in ["accepted", "completed", "lost", "doubled", "resumed"] {
        write!(page, "<td>{}", count(name))?;
    }
    let n_violations = result["violations"].as_array().map_or(0, Vec::len);
    write!(page, "<td>{:.1}<td>{:.1}<td>{n_violations}", seconds("p50"), seconds("p99"))?;
    Ok(())
}
