//! What a figure should be, and whether it is.
//!
//! A verdict is printed and nothing more: on a machine that is busy with other work a missed aim says
//! little, and the load is among the conditions at the top.

/// Prints the figure beside its aim, their ratio, and the verdict.
pub(crate) fn judge(what: &str, measured: f64, at_most: f64, unit: &str) {
    println!("  {}", verdict(what, measured, at_most, unit));
}

fn verdict(what: &str, measured: f64, at_most: f64, unit: &str) -> String {
    let verdict = if measured <= at_most { "met" } else { "MISSED" };
    let ratio = measured / at_most;
    format!(
        "aim: {what} at most {at_most} {unit}; measured {measured:.2} {unit}, {ratio:.2} of it: {verdict}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_names_figure_bound_and_ratio() {
        assert_eq!(
            verdict("p99 added", 0.5, 1.0, "ms"),
            "aim: p99 added at most 1 ms; measured 0.50 ms, 0.50 of it: met"
        );
        assert_eq!(
            verdict("memory", 300.0, 150.0, "MiB"),
            "aim: memory at most 150 MiB; measured 300.00 MiB, 2.00 of it: MISSED"
        );
    }
}
