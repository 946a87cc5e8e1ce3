//! Tables in Markdown.

use crate::contenders::Entry;
use crate::figures::{At, Rows, Spread};
use crate::workloads::{Metric, Workload};

/// One line per contender that has figures.
pub(crate) fn print(entries: &[Entry], rows: &Rows, at: At) {
    let At { workload, population, callers } = at;
    let threads = if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") };
    println!("\n{}, {population} timers, {threads} ({})\n", workload.name(), workload.meaning());
    println!("{}", head(workload));
    for entry in entries {
        let Some(first) = workload.metrics().first() else { continue };
        if rows.spread(at, entry.name, first.name).is_some() {
            println!("{}", line(entry, rows, at));
        }
    }
}

fn compared(workload: Workload) -> impl Iterator<Item = &'static Metric> {
    workload.metrics().iter().filter(|metric| metric.compared)
}

fn head(workload: Workload) -> String {
    let figures =
        workload.metrics().iter().map(|metric| format!(" {} |", format!("{} {}", metric.name, metric.unit).trim()));
    let ratios = compared(workload).map(|metric| format!(" {} ratio |", metric.name));
    let columns: Vec<_> = figures.chain(ratios).collect();
    format!("| contender |{}\n|---|{}", columns.concat(), "--:|".repeat(columns.len()))
}

fn line(entry: &Entry, rows: &Rows, at: At) -> String {
    let figure = |metric: &Metric| cell(rows.spread(at, entry.name, metric.name));
    let figures: String = at.workload.metrics().iter().map(figure).collect();
    let ratio = |metric: &Metric| {
        let ratio = rows.ratio(at, entry.name, entry.access.ours(), metric);
        ratio.map_or(" |".to_owned(), |ratio| format!(" {ratio:.2} |"))
    };
    let ratios: String = compared(at.workload).map(ratio).collect();
    format!("| {} |{figures}{ratios}", entry.name)
}

fn cell(spread: Option<Spread>) -> String {
    match spread {
        Some(Spread { median, min, max }) if min == max => format!(" {} |", short(median)),
        Some(Spread { median, min, max }) => format!(" {} ({}-{}) |", short(median), short(min), short(max)),
        None => " |".to_owned(),
    }
}

/// Three digits or more.
fn short(value: f64) -> String {
    let digits = if value.abs() >= 100.0 || value == value.trunc() {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}
