//! Logs: what the binary sets up once.

use evenkeel_core::Error;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, invalid};

/// Sets up logging to standard error for this process: lines for people on a terminal, JSON
/// otherwise. Call it once, from the binary.
///
/// # Errors
/// `config-invalid` if `telemetry.log` is not a filter.
pub fn init(config: &Config) -> Result<(), Error> {
    use std::io::IsTerminal;
    let filter = EnvFilter::try_new(&config.telemetry.log).map_err(|error| {
        invalid(
            format!("telemetry.log = \"{}\": {error}.", config.telemetry.log),
            "Write a level such as `info`, or a filter such as `info,evenkeel_model=debug`.",
        )
    })?;
    // A complaint about a closed stderr, on that stderr, would be a panic wherever something is logged.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    // A second call (tests) leaves the first one's set-up in place.
    let _ = if std::io::stderr().is_terminal() { builder.try_init() } else { builder.json().try_init() };
    Ok(())
}
