//! `evenkeel explain CODE|RUN`: what an error means, or every decision made in a run.
//!
//! A run is explained from its journal alone, in the order in which things happened: claims,
//! attempts at the model with their causes, verdicts of policy, waits, effects that were settled
//! after a crash. Nothing is inferred that the journal does not say.

pub(crate) mod story;

use std::process::ExitCode;

use evenkeel_core::Code;
use evenkeel_core::id::RunId;
use evenkeel_env::Env;

use crate::client::Connection;
use crate::cmd::Done;
use crate::cmd::runs::journal;
use crate::output::{self, Style};
use crate::pages;

/// Arguments of `explain`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel explain store-in-use       what a code means and what to do
  evenkeel explain codes              all codes with one line each
  evenkeel explain 0190f3c2-...       every decision made in a run, from its journal")]
pub(crate) struct Args {
    /// An error code, `codes` for all of them, or the id of a run
    #[arg(value_name = "CODE|RUN")]
    what: String,
    #[command(flatten)]
    connection: Connection,
    /// Print a run's decisions as JSON
    #[arg(long)]
    json: bool,
}

/// Explains.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    if args.what == "codes" {
        let rows: Vec<Vec<String>> =
            Code::ALL.iter().map(|code| vec![code.to_string(), code.title().to_owned()]).collect();
        output::line(format_args!("{}", output::table(Style::stdout(), &["CODE", "MEANS"], &rows)))?;
        return Ok(ExitCode::SUCCESS);
    }
    // A code copied from an error line comes with its decoration.
    let word = args.what.trim_start_matches("error").trim_matches(['[', ']', ':']);
    if let Ok(code) = word.parse::<Code>() {
        output::text(pages::page(code))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Ok(run) = word.parse::<RunId>() else {
        return Err(output::usage(
            format!("`{}` is neither an error code nor the id of a run.", args.what),
            near(word).map_or_else(
                || "`evenkeel explain codes` lists the codes, `evenkeel runs list` the runs.".to_owned(),
                |code| format!("Did you mean `{code}`? `evenkeel explain codes` lists all."),
            ),
        ));
    };
    let server = args.connection.open(env);
    let journal = journal::read(&server, run).await?;
    let told = story::tell(&journal);
    if args.json {
        output::json(&serde_json::to_value(&told)?)?;
    } else {
        output::line(format_args!("{}", story::show(Style::stdout(), &journal, &told)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The code that shares the most words with what was typed, if it shares one.
fn near(word: &str) -> Option<Code> {
    let words: Vec<&str> = word.split(['-', '_', ' ']).filter(|part| part.len() > 2).collect();
    let shared = |code: &Code| code.as_str().split('-').filter(|part| words.contains(part)).count();
    Code::ALL.iter().copied().filter(|code| shared(code) > 0).max_by_key(shared)
}

#[cfg(test)]
mod tests;
