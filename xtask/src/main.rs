//! `cargo xtask`: the habits of this project as commands, in the language it is written in.
//!
//! It stands beside the product and uses none of its crates, so that it builds in seconds and
//! works while the product does not compile.

mod ci;
mod clients;
mod dev;
mod fuzz;
mod lab_full;
mod licences;
mod setup;
mod shell;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  setup            install what the tests need, and the git hooks
  ci               everything that must pass before a change lands
  dev [ARG...]     the server with a fake model provider beside it: no keys needed
  tidy             facts about the tree that no compiler checks (also a test)
  licences         licences, banned crates and duplicate versions (also part of ci)
  bench [NAME]     measure; see bench/README.md
  fuzz [...]       every fuzz target for a minute, --seconds N: for that long
  lab NAME [...]   one scenario: `evenkeel lab run NAME`
  lab-full [...]   every scenario, three seeds each, a page of what came of it, the MCP
                   conformance suite, and five minutes of each fuzz target;
                   --seeds N, names of scenarios: less of it
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let done = match command.as_str() {
        "setup" => setup::setup(),
        "ci" => ci::ci(),
        "dev" => dev::dev(&rest),
        "tidy" => tidy::tidy(),
        "licences" => licences::licences(),
        "bench" => dev::bench(&rest),
        "fuzz" => fuzz::fuzz(&rest),
        "lab" => dev::lab(&rest),
        "lab-full" => lab_full::lab_full(&rest),
        "" | "help" | "--help" | "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("there is no `cargo xtask {other}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
