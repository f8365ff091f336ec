//! `evenkeel doctor`: what isolation this machine can enforce.

use std::process::ExitCode;

use crate::cmd::Done;
use crate::output;

/// Arguments of `doctor`.
#[derive(clap::Args)]
#[command(after_help = "\
Tries each part of the sandbox on this machine, as this user, and says what holds. Exit code 0 when
everything that the default configuration demands is enforced, 1 otherwise.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Examines and prints.
pub(crate) fn run(args: Args) -> Done {
    let report = evenkeel_sandbox::doctor::examine();
    if args.json {
        output::json(&serde_json::to_value(&report)?)?;
    } else {
        output::line(format_args!("{report}"))?;
    }
    Ok(if report.usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
