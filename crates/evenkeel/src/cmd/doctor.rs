//! `evenkeel doctor`: what isolation this machine can enforce.

use std::process::ExitCode;

use evenkeel_sandbox::{Isolation, SandboxConfig, doctor};

use crate::cmd::Done;
use crate::output;

/// Arguments of `doctor`.
#[derive(clap::Args)]
#[command(after_help = "\
Tries each part of the sandbox on this machine, as this user, and says what holds. Exit code 0 when
everything that the default configuration demands is enforced, 1 otherwise.")]
pub(crate) struct Args {
    /// Which backend: that of `sandbox.isolation`
    #[arg(long, default_value = "native", value_parser = ["native", "bwrap"])]
    isolation: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Examines and prints.
pub(crate) fn run(args: Args) -> Done {
    let isolation = if args.isolation == "bwrap" { Isolation::Bubblewrap } else { Isolation::Native };
    let report = doctor::examine_with(&SandboxConfig { isolation, ..SandboxConfig::default() });
    if args.json {
        output::json(&serde_json::to_value(&report)?)?;
    } else {
        output::line(format_args!("{report}"))?;
    }
    Ok(if report.usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
