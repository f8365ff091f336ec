//! The clients that the server is tested with, each in an environment of its own under `target`.
//!
//! The tests that drive real clients need programs that have them. `cargo test` alone says that they
//! were not tried; `ci` always tries them, and a failed installation fails `ci`. Where Python or node
//! is missing, that is said loudly and the rest is tried.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{setup, shell};

/// The Python client and `RemoteGraph`.
const SDK: [&str; 2] = ["langgraph-sdk==0.4.14", "langgraph==1.2.24"];
/// The reference server of the dialect; only ever started by a test, beside the product.
const REFERENCE: [&str; 4] = [
    "langgraph-api==0.16.7",
    "langgraph-runtime-inmem==0.36.7",
    "langgraph-cli[inmem]==0.4.40",
    "langgraph==1.2.24",
];
/// Checks an OpenAPI document against the server that serves it.
const SCHEMATHESIS: [&str; 1] = ["schemathesis==4.32.5"];
/// The npm client.
const NPM: &str = "@langchain/langgraph-sdk@1.15.0";

/// The variables by which tests find the clients that could be installed.
pub(crate) fn variables() -> Result<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    if shell::present("python3") {
        found.push(("EVENKEEL_SDK_PYTHON", python("langgraph-sdk", &SDK, "langgraph.pregel.remote")?));
        found
            .push(("EVENKEEL_REFERENCE_PYTHON", python("reference", &REFERENCE, "langgraph_runtime_inmem")?));
        found.push(("EVENKEEL_SCHEMATHESIS", python("schemathesis", &SCHEMATHESIS, "schemathesis")?));
    } else {
        println!(
            "    !! no python3: the Python client, RemoteGraph, the reference server and schemathesis are NOT tried"
        );
    }
    if shell::present("node") && shell::present("npm") {
        found.push(("EVENKEEL_SDK_NODE", node_modules()?));
    } else {
        println!("    !! no node or npm: the npm client is NOT tried");
    }
    Ok(found)
}

/// The Python of an environment that has these packages. The environment's name holds what is in it,
/// so that another version is another environment.
fn python(name: &str, packages: &[&str], module: &str) -> Result<String> {
    let versions: Vec<&str> = packages.iter().filter_map(|package| package.split("==").nth(1)).collect();
    let home = shell::target_dir().join(format!("clients/{name}-{}", versions.join("-")));
    let python = home.join("bin/python").to_string_lossy().into_owned();
    let import = format!("import {module}");
    let has_it = || shell::capture(&python, &["-c", &import]).is_some();
    if has_it() {
        return Ok(python);
    }
    make_environment(&home)?;
    let install = [&["-m", "pip", "install", "--quiet"], packages].concat();
    shell::run(&python, &install, &[])
        .with_context(|| format!("install {name}; PyPI must be reachable the first time"))?;
    if !has_it() {
        bail!("{} was installed but {module} cannot be imported", packages.join(" "));
    }
    Ok(python)
}

fn make_environment(home: &Path) -> Result<()> {
    let home = home.to_string_lossy();
    let make = || shell::run("python3", &["-m", "venv", "--clear", &home], &[]);
    if make().is_err() {
        setup::install(&["python3-venv"]);
        make().context("make a Python environment; install python3-venv and try again")?;
    }
    Ok(())
}

/// The folder whose `node_modules` holds the npm client.
fn node_modules() -> Result<String> {
    let home = shell::target_dir().join("clients/npm-langgraph-sdk-1.15.0");
    let package = home.join("node_modules/@langchain/langgraph-sdk/package.json");
    let home = home.to_string_lossy().into_owned();
    if !package.is_file() {
        let install = ["install", "--silent", "--no-audit", "--no-fund", "--prefix", &home, NPM];
        shell::run("npm", &install, &[])
            .context("install the npm client; npm must be reachable the first time")?;
    }
    Ok(home)
}

/// The MCP conformance suite, the reference servers, and a node that is new enough for the suite.
const MCP: [&str; 4] = [
    "@modelcontextprotocol/conformance@0.1.16",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "node@22",
];

/// The folder with what the MCP tests need; `None` without node and npm, which is said.
pub(crate) fn mcp() -> Result<Option<String>> {
    if !shell::present("node") || !shell::present("npm") {
        println!("    !! no node or npm: MCP conformance and the reference servers are NOT tried");
        return Ok(None);
    }
    let home = shell::target_dir().join("clients/npm-mcp-1");
    let is_there = home.join("node_modules/@modelcontextprotocol/conformance/package.json").is_file();
    let home = home.to_string_lossy().into_owned();
    if !is_there {
        let install =
            [&["install", "--silent", "--no-audit", "--no-fund", "--prefix", home.as_str()], &MCP[..]]
                .concat();
        shell::run("npm", &install, &[])
            .context("install the MCP suite; npm must be reachable the first time")?;
    }
    Ok(Some(home))
}
