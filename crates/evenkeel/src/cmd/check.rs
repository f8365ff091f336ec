//! `evenkeel check`: is this configuration possible, what does it come to, and is it wise?

use std::process::ExitCode;

use crate::cmd::Done;
use crate::cmd::configure::Choice;
use crate::output::{self, Paint, Style};

/// Arguments of `check`.
#[derive(clap::Args)]
#[command(after_help = "\
Reads the file, the EVENKEEL_SECTION__KEY variables and the defaults as `serve` would, prints every
effective value as TOML on stdout, and warnings on stderr. Starts nothing. Exit code 2 with file, line
and column when the configuration is not possible.")]
pub(crate) struct Args {
    #[command(flatten)]
    choice: Choice,
    /// Print only the warnings
    #[arg(long)]
    quiet: bool,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks and prints.
pub(crate) fn run(args: &Args) -> Done {
    let config = args.choice.load(&[])?;
    let warnings = config.check()?;
    let effective = config.effective()?;
    if args.json {
        let effective: toml::Value = toml::from_str(&effective)?;
        output::json(&serde_json::json!({ "effective": effective, "warnings": warnings }))?;
    } else {
        let style = Style::stderr();
        if !args.quiet {
            output::line(format_args!("{effective}"))?;
        }
        for warning in &warnings {
            eprintln!("{} {warning}", style.paint(Paint::Yellow, "warning:"));
        }
        let from =
            args.choice.file().map_or_else(|| "the defaults".to_owned(), |path| path.display().to_string());
        eprintln!("{} {from}: possible, {} warnings", style.paint(Paint::Green, "ok:"), warnings.len());
    }
    Ok(if args.strict && !warnings.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
