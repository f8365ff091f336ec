//! The Python client that the server is tested with, in an environment of its own under `target`.
//!
//! The test that drives the unmodified SDK needs a Python that has it. `cargo test` alone says that
//! it was not tried; `ci` always tries it, and a failed installation fails `ci`.

use anyhow::{Context, Result, bail};

use crate::{setup, shell};

/// What the test is about: exactly this version.
const PACKAGE: &str = "langgraph-sdk==0.4.14";

/// The Python that has the SDK; `None` on a machine without Python, which says so.
pub(crate) fn python() -> Result<Option<String>> {
    if !shell::present("python3") {
        println!("    no python3: the Python client is not tried");
        return Ok(None);
    }
    let home = shell::target_dir().join("clients/langgraph-sdk-0.4.14");
    let python = home.join("bin/python").to_string_lossy().into_owned();
    let has_it = || shell::capture(&python, &["-c", "import langgraph_sdk"]).is_some();
    if has_it() {
        return Ok(Some(python));
    }
    let home = home.to_string_lossy();
    if shell::run("python3", &["-m", "venv", "--clear", &home], &[]).is_err() {
        setup::install(&["python3-venv"]);
        shell::run("python3", &["-m", "venv", "--clear", &home], &[])
            .context("make a Python environment; install python3-venv and try again")?;
    }
    shell::run(&python, &["-m", "pip", "install", "--quiet", PACKAGE], &[])
        .context("install the Python client; PyPI must be reachable the first time")?;
    if !has_it() {
        bail!("{PACKAGE} was installed but cannot be imported");
    }
    Ok(Some(python))
}
