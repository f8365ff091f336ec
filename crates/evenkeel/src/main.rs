//! The command line: `evenkeel serve`, `run`, `runs`, `lab`, `doctor` and the others.
//!
//! This crate stands on top of the tree and decides nothing of its own: it reads what was typed,
//! builds the parts through `evenkeel-server`, talks to a server through its HTTP door, and prints.
//! The first thing `main` does is to ask whether this process is the sandbox's helper, which must
//! be single-threaded and knows nothing of the rest.
//!
//! Exit codes: 0 it was done, 1 the thing itself failed (a run, a goal, a check), 2 bad usage or
//! set-up, and the message says what to change.

mod cli;
mod client;
mod cmd;
mod output;
mod pages;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(code) = evenkeel_sandbox::helper_main() {
        return code;
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe is the reader's choice; the exit code is still the true one.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    allow_many_connections();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = cmd::workers(&cli) {
        runtime.worker_threads(workers.max(1));
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: start the runtime: {error}");
            return ExitCode::from(2);
        }
    };
    let done = runtime.block_on(cmd::run(cli));
    // A read of the terminal that nobody waits for any more must not keep the process.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(error) => output::failure(&error),
    }
}

/// Raises the limit of open files to what this user may have: a connection is one, a stream to a
/// provider another, and the usual 1,024 would be the smallest limit of all. Commands in the sandbox
/// get their own. A refusal changes nothing.
fn allow_many_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
