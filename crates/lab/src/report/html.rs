//! The report as one self-contained HTML page: no request leaves it, it opens from a file.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Report;
use super::terminal::{limit, measured, words};

const PAGE: &str = include_str!("../../assets/report.html");
const SLOT: &str = "\"EVENKEEL_DATA\"";

/// The page of a report, with another run (of the same scenario without protection) beside it.
///
/// # Errors
/// If the data cannot be written as JSON.
pub fn page(report: &Report, beside: Option<&Report>) -> anyhow::Result<String> {
    let mut runs = vec![data(report)?];
    runs.extend(beside.map(data).transpose()?);
    let text = serde_json::to_string(&runs).context("write the report's data")?;
    // Inside a script element only this sequence could end it.
    Ok(PAGE.replacen(SLOT, &text.replace("</", "<\\/"), 1))
}

fn data(report: &Report) -> anyhow::Result<Value> {
    let mut data = serde_json::to_value(report).context("write the report's data")?;
    let goals = report.goals.iter().map(|goal| {
        json!({"name": words(goal.name, report.unit()), "limit": limit(goal), "measured": measured(goal), "pass": goal.pass})
    });
    data["goals"] = goals.collect();
    data["about"] = report.about.clone().into();
    data["charts"] = serde_json::to_value(&report.charts).context("write the charts' data")?;
    let failed = report.ends.iter().filter(|end| !end.ok).take(20);
    data["failed"] =
        failed.map(|end| json!({"task": end.task, "script": end.script, "why": end.why})).collect();
    if let Some(violations) = data["violations"].as_array_mut() {
        violations.truncate(50);
    }
    Ok(data)
}
