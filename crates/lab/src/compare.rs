//! `lab compare`: two results side by side, protected beside unprotected, before beside after, or
//! virtual beside live.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

/// What two results say of one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// What the first says.
    pub first: String,
    /// What the second says.
    pub second: String,
    /// The second without the first, for numbers that differ.
    pub difference: Option<f64>,
}

/// The figures in the order in which they are shown, by their place in the result.
const FIGURES: [&str; 25] = [
    "/scenario",
    "/mode",
    "/seed",
    "/store",
    "/replicas",
    "/protect",
    "/success_rate",
    "/latency_s/p50",
    "/latency_s/p95",
    "/latency_s/p99",
    "/latency_s/max",
    "/counts/submitted",
    "/counts/accepted",
    "/counts/completed",
    "/counts/failed",
    "/counts/expired",
    "/counts/lost",
    "/counts/doubled",
    "/counts/resumed",
    "/counts/fenced",
    "/counts/parked",
    "/counts/retried_calls",
    "/counts/calls_while_down",
    "/counts/broken_requests",
    "/pass",
];

/// Reads two results of `lab run --json` and puts them side by side.
///
/// # Errors
/// If a file cannot be read, or is no such result.
pub fn files(first: &Path, second: &Path) -> anyhow::Result<Vec<Row>> {
    Ok(rows(&read(first)?, &read(second)?))
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let value: Value = serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?;
    let complete = FIGURES.iter().all(|place| value.pointer(place).is_some());
    anyhow::ensure!(complete, "{} is not a result that `lab run --json` wrote", path.display());
    Ok(value)
}

fn rows(first: &Value, second: &Value) -> Vec<Row> {
    let row = |place: &&str| {
        let (first, second) = (first.pointer(place)?, second.pointer(place)?);
        let numbers = first.as_f64().zip(second.as_f64());
        let name = place.rsplit_once('/').map_or(*place, |(_, name)| name);
        Some(Row {
            name: name.replace('_', " "),
            first: shown(first),
            second: shown(second),
            difference: numbers.map(|(first, second)| second - first).filter(|by| by.abs() > 1e-9),
        })
    };
    FIGURES.iter().filter_map(row).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}
