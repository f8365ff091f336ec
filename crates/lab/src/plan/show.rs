//! The plan as people read it.

use std::fmt::Write as _;

use super::Outcome;
use super::capacity::{Capacity, Row};
use super::effect::Effect;
use super::verify::{Checked, Figure};
use super::work::Made;

/// Everything that was found out.
pub(crate) fn text(outcome: &Outcome) -> String {
    let (capacity, unit) = (&outcome.capacity, outcome.unit);
    let replicas = if outcome.replicas == 1 { "replica" } else { "replicas" };
    let mut text = format!(
        "\n{}: {} {unit}s a second on {} {replicas}\n\n{}\n\n{}",
        outcome.scenario,
        figure(capacity.rate_per_s),
        outcome.replicas,
        made(outcome),
        components(capacity, unit),
    );
    let _ = write!(text, "\n{}", verdict(outcome));
    if !outcome.faults.is_empty() {
        let _ = write!(text, "\n{}", effects(&outcome.faults, unit));
    }
    for checked in &outcome.check {
        let _ = write!(text, "\n{}", comparison(checked, unit));
    }
    text
}

/// What each fault does.
pub(super) fn effects(effects: &[Effect], unit: &str) -> String {
    let mut text = format!(
        "  Faults, each alone, at the asked rate ({unit}s more than before; time until they are gone)\n\n"
    );
    let mut rows = Vec::new();
    for Effect { fault, carries_per_s, figures, .. } in effects {
        let carries =
            carries_per_s.map_or_else(|| "all".to_owned(), |rate| format!("{} {unit}s/s", figure(rate)));
        let mut first = vec![fault.clone(), carries];
        for of in figures {
            let cells = [Some(of.law), of.model, of.real].map(number);
            let mut row = if first.is_empty() { vec![String::new(); 2] } else { std::mem::take(&mut first) };
            row.push(of.name.clone());
            row.extend(cells);
            rows.push(row);
        }
    }
    let head = ["fault", "carries", "figure", "law", "event model", "real code"];
    text.push_str(&table(&head, 3, &rows));
    for Effect { fault, note, .. } in effects {
        if let Some(note) = note {
            let _ = writeln!(text, "  {fault}: {note}.");
        }
    }
    text
}

/// A figure that may be missing.
fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), figure)
}

/// Little's law, the event model and the real code side by side.
pub(super) fn comparison(checked: &Checked, unit: &str) -> String {
    let Checked { multiple, rate_per_s, load_s, n_units, real_wall_s, figures } = checked;
    let real = match real_wall_s {
        Some(wall_s) => format!("the real code took {} for them", time(wall_s * 1_000.0)),
        None => "too many for the real code".to_owned(),
    };
    let mut text = format!(
        "  At {} times the rate: {} {unit}s/s for {:.0} s, {n_units} {unit}s; {real}\n\n",
        multiple,
        figure(*rate_per_s),
        load_s,
    );
    let off = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |error| format!("{error:+.1} %"));
    let row = |of: &Figure| {
        let Figure { name, law, model, real, law_error, model_error } = of;
        vec![name.clone(), figure(*law), number(*model), number(*real), off(*law_error), off(*model_error)]
    };
    let rows: Vec<Vec<String>> = figures.iter().map(row).collect();
    let head = ["in use, or per min", "law", "event model", "real code", "law off by", "model off by"];
    text.push_str(&table(&head, 1, &rows));
    text
}

/// What one task or turn makes.
fn made(outcome: &Outcome) -> String {
    let Made { model_calls, input_tokens, output_tokens, tool_calls, sandbox_runs, .. } = outcome.work;
    let Made { compactions, store_operations, commits, spans, .. } = outcome.work;
    let latency = outcome.latency_s;
    format!(
        "  One {unit} makes {} model calls ({} tokens in, {} out), {} tool calls, {} sandbox runs,\n  \
         {} compactions, {} store operations ({} of them commits) and {} spans, and takes {:.1} s (p99 {:.1} s).\n  \
         Measured in virtual time over {} {unit}s without faults, seed {}.",
        figure(model_calls),
        figure(input_tokens),
        figure(output_tokens),
        figure(tool_calls),
        figure(sandbox_runs),
        figure(compactions),
        figure(store_operations),
        figure(commits),
        figure(spans),
        latency.p50,
        latency.p99,
        outcome.n_measured,
        outcome.seed,
        unit = outcome.unit,
    )
}

pub(super) fn components(capacity: &Capacity, unit: &str) -> String {
    let head = ["component", "limit of", "arrivals/s", "service", "needed", "limit", "used", "saturates at"];
    let rows: Vec<Vec<String>> = capacity.components.iter().map(|row| cells(row, unit)).collect();
    table(&head, 2, &rows)
}

fn cells(row: &Row, unit: &str) -> Vec<String> {
    let service = row.service_ms.map_or_else(|| "-".to_owned(), time);
    let ends = match row.saturates_at_per_s {
        Some(rate) => format!("{} {unit}s/s", figure(rate)),
        None => "never".to_owned(),
    };
    vec![
        row.component.name().to_owned(),
        row.of.words().to_owned(),
        figure(row.arrivals_per_s),
        service,
        figure(row.needed),
        figure(row.limit),
        percent(row.used),
        ends,
    ]
}

fn verdict(outcome: &Outcome) -> String {
    let (capacity, unit) = (&outcome.capacity, outcome.unit);
    let Some(first) = capacity.first else {
        return "  Nothing that was measured has a limit.\n".to_owned();
    };
    let times = first.at_per_s / capacity.rate_per_s;
    let mut text = format!(
        "  First to saturate: {} ({}) at {} {unit}s a second, {} times the asked rate.\n",
        first.component.name(),
        first.of.words(),
        figure(first.at_per_s),
        figure(times),
    );
    if let Some(full_at) = outcome.first_provider_full_at_per_s {
        let _ = writeln!(
            text,
            "  The first provider alone is full at {} {unit}s a second; beyond it calls also go to the next.",
            figure(full_at),
        );
    }
    let (free, wanted) = (percent(capacity.headroom), percent(outcome.headroom_wanted));
    let _ = match (outcome.pass, times < 1.0) {
        (true, _) => writeln!(text, "  It fits: {free} of the tightest limit is free ({wanted} wanted)."),
        (false, false) => {
            writeln!(text, "  It runs, but only {free} of the tightest limit is free ({wanted} wanted).")
        }
        (false, true) => writeln!(text, "  It does not fit: more arrives than leaves, and the queue grows."),
    };
    text
}

/// Rows in aligned columns; the first `n_words` columns are words, the others are numbers.
pub(super) fn table(head: &[&str], n_words: usize, rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let widths: Vec<usize> = (0..head.len())
        .map(|column| all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column < n_words {
                write!(line, " {cell:<width$} ")
            } else {
                write!(line, " {cell:>width$} ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number with as many digits as it is worth.
pub(super) fn figure(value: f64) -> String {
    let text = match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        v if v < 0.01 => format!("{value:.4}"),
        _ => format!("{value:.2}"),
    };
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let n = whole.chars().count();
    let mut out = String::new();
    for (idx, digit) in whole.chars().enumerate() {
        if idx > 0 && (n - idx) % 3 == 0 && digit != '-' && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    rest.map_or(out.clone(), |rest| format!("{out}.{rest}"))
}

/// Milliseconds as people say them.
pub(super) fn time(ms: f64) -> String {
    if ms >= 1_000.0 { format!("{:.2} s", ms / 1_000.0) } else { format!("{} ms", figure(ms)) }
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    match (share * 100.0).abs() {
        0.0 => "0 %".to_owned(),
        v if v < 0.1 => "<0.1 %".to_owned(),
        v if v < 10.0 => format!("{:.1} %", share * 100.0),
        _ => format!("{:.0} %", share * 100.0),
    }
}
