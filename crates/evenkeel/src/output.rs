//! What people and scripts see: colours, tables, times, and errors printed once.
//!
//! Results go to stdout, progress and errors to stderr. Colours are used on a terminal only and
//! never when `NO_COLOR` is set.

use std::fmt::{self, Write as _};
use std::io::{ErrorKind, IsTerminal, Write as _};
use std::process::ExitCode;

use evenkeel_core::{Code, Error, Origin};
use serde_json::Value;

/// A colour of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// It went well.
    Green,
    /// Look at it.
    Yellow,
    /// It failed.
    Red,
    /// Less important.
    Dim,
    /// A heading.
    Bold,
}

/// Where text goes, and whether it may be coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    colours: bool,
}

impl Style {
    /// For text on stdout.
    pub(crate) fn stdout() -> Self {
        Self { colours: wanted() && std::io::stdout().is_terminal() }
    }

    /// For text on stderr.
    pub(crate) fn stderr() -> Self {
        Self { colours: wanted() && std::io::stderr().is_terminal() }
    }

    /// Never coloured, for tests and files.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { colours: false }
    }

    /// The text in this colour, if colours are used.
    pub(crate) fn paint(self, paint: Paint, text: impl AsRef<str>) -> String {
        let text = text.as_ref();
        if !self.colours {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Green => "32",
            Paint::Yellow => "33",
            Paint::Red => "31",
            Paint::Dim => "2",
            Paint::Bold => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// A run state, or the LangGraph word for one, in the colour of its meaning.
    pub(crate) fn state(self, state: &str) -> String {
        let paint = match state {
            "completed" | "success" => Paint::Green,
            "failed" | "error" | "expired" | "timeout" => Paint::Red,
            "waiting" | "queued" | "pending" | "cancelling" => Paint::Yellow,
            _ => Paint::Bold,
        };
        self.paint(paint, state)
    }
}

fn wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints a JSON value for scripts.
pub(crate) fn json(value: &Value) -> anyhow::Result<()> {
    line(format_args!("{value:#}"))
}

/// Prints a line on stdout. A reader that has gone is an error, which [`failure`] passes over.
pub(crate) fn line(text: fmt::Arguments<'_>) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}

/// Prints a text on stdout as it is.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// Text that cannot move the cursor or change colours: what a model or tool wrote is not trusted
/// with the reader's terminal. Newlines and tabs stay.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// The first line of a text, at most `chars_max` characters.
pub(crate) fn brief(text: &str, chars_max: usize) -> String {
    let safe = safe(text.trim());
    let line = safe.lines().next().unwrap_or_default();
    let mut cut: String = line.chars().take(chars_max).collect();
    if cut.chars().count() < safe.chars().count() {
        cut.push('…');
    }
    cut
}

/// Milliseconds as people say them.
pub(crate) fn duration(ms: u64) -> String {
    match ms {
        0..=999 => format!("{ms} ms"),
        1_000..=59_999 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..=3_599_999 => format!("{} min {:02} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {:02} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// Rows in aligned columns under a heading. Width counts characters, not bytes.
pub(crate) fn table(style: Style, heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(heading.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &[String]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        line.trim_end().to_owned()
    };
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = style.paint(Paint::Bold, line(&heading));
    for row in rows {
        text.push('\n');
        text.push_str(&line(row));
    }
    text
}

/// Prints what a server listed: as it came, or as a table; `none` if there is nothing.
pub(crate) fn listing(
    found: &Value,
    as_json: bool,
    none: &str,
    heading: &[&str],
    row: impl Fn(&Value) -> Vec<String>,
) -> anyhow::Result<()> {
    let all = found.as_array().map(Vec::as_slice).unwrap_or_default();
    if as_json {
        return json(found);
    }
    if all.is_empty() {
        return line(format_args!("{none}"));
    }
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    line(format_args!("{}", table(Style::stdout(), heading, &rows)))
}

/// Prints an error once, with its remedy and where to read more, and gives the exit code.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    let closed = |cause: &std::io::Error| cause.kind() == ErrorKind::BrokenPipe;
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(closed) {
        return ExitCode::SUCCESS;
    }
    let style = Style::stderr();
    let Some(ours) = error.chain().find_map(|cause| cause.downcast_ref::<Error>()) else {
        eprintln!("{} {error:#}", style.paint(Paint::Red, "error:"));
        return ExitCode::from(1);
    };
    eprintln!("{} {}", style.paint(Paint::Red, format!("error[{}]:", ours.code)), safe(&ours.message));
    if !ours.remedy.is_empty() {
        eprintln!("  {}", safe(&ours.remedy));
    }
    eprintln!("  {}", style.paint(Paint::Dim, format!("evenkeel explain {}", ours.code)));
    ExitCode::from(exit_code(ours))
}

/// Starts the log on stderr. `RUST_LOG` wins over the configured filter. The MCP library tells of
/// every session at `info`, which nobody asked for by saying `info`; naming it brings that back.
pub(crate) fn log(filter: &str) -> Result<(), Error> {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| format!("rmcp=warn,{filter}"));
    let parsed = tracing_subscriber::EnvFilter::try_new(&filter).map_err(|error| {
        Error::new(
            Code::ConfigInvalid,
            Origin::Ours,
            format!("The log filter `{filter}` is not one: {error}."),
            "Write `info`, `warn`, or `info,evenkeel_model=debug` into telemetry.log or RUST_LOG.",
        )
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_ansi(Style::stderr().colours)
        .with_writer(std::io::stderr)
        // A complaint about a closed stderr, on that stderr, would be a panic wherever something is logged.
        .log_internal_errors(false)
        .finish();
    // Only the first call of a process can set it; the log then simply stays as it is.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

/// Says something on stderr. A server goes on whether or not anybody hears it.
pub(crate) fn aside(text: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// 2 for what has to be changed before anything could begin, 1 for what was tried and failed.
pub(crate) fn exit_code(error: &Error) -> u8 {
    let set_up = matches!(
        error.code,
        Code::ConfigInvalid
            | Code::ConfigUnreadable
            | Code::KeyMissing
            | Code::RouteUnknown
            | Code::PolicyInvalid
            | Code::StoreInUse
            | Code::StoreNewer
            | Code::SandboxUnavailable
            | Code::ScenarioInvalid
            | Code::AddressRefused
            | Code::AddressInUse
            | Code::ServerUnreachable
    );
    if set_up || error.origin == Origin::Client { 2 } else { 1 }
}

/// The caller's mistake on the command line.
pub(crate) fn usage(message: impl Into<String>, remedy: impl Into<String>) -> anyhow::Error {
    Error::client(Code::BadRequest, message.into(), remedy.into()).into()
}

#[cfg(test)]
mod tests;
