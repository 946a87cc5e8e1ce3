//! Tables in Markdown.

use crate::contenders::{Access, Entry};
use crate::figures::{At, Rows, Spread};
use crate::workloads::{Metric, Session, Workload};

/// One line per contender that has figures.
pub(crate) fn print(entries: &[Entry], rows: &Rows, at: At) {
    let At { workload, population, callers } = at;
    let threads = if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") };
    println!("\n## {}, {population} timers, {threads}\n\n{}.\n", workload.name(), workload.meaning());
    println!("{}", head(workload));
    for entry in entries {
        let Some(first) = workload.metrics().first() else { continue };
        if rows.spread(at, entry.name, first.name).is_some() {
            println!("{}", line(entry, rows, at));
        }
    }
    print_best(entries, rows, at);
}

/// Below a table: ours to the best of those peers that free what was cancelled, by each figure that is compared.
fn print_best(entries: &[Entry], rows: &Rows, at: At) {
    for access in [Access::Key, Access::Handle] {
        let peers = || entries.iter().filter(|entry| entry.access == access && entry.frees && !entry.is_ours());
        let best = |metric: &'static Metric| {
            let ratios =
                peers().filter_map(|peer| Some((rows.ratio(at, peer.name, access.ours(), metric)?, peer.name)));
            let (ratio, name) = ratios.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
            Some(format!("{} {ratio:.2} (`{name}`)", metric.name))
        };
        let best: Vec<_> = compared(at.workload).filter_map(best).collect();
        if !best.is_empty() {
            println!("\n`{}` to the best that frees what was cancelled: {}", access.ours(), best.join(", "));
        }
    }
}

/// Ours beside ours: what more callers and batches bring, by the clock. Nothing without such figures.
pub(crate) fn print_own(rows: &Rows) {
    let workloads = Workload::ALL.into_iter().filter(|workload| workload.session() == Session::Calls);
    let mut lines = Vec::new();
    for workload in workloads {
        let places = rows.places(workload);
        for &(population, callers) in &places {
            let at = At { workload, population, callers };
            let alone = places.iter().find(|&&(n, _)| n == population).map(|&(_, callers)| At { callers, ..at });
            let gain = |name| {
                let alone = alone.filter(|alone| alone.callers < callers)?;
                rows.quotient((alone, name), (at, name), "wall")
            };
            let batches = rows.quotient((at, "shardwheel"), (at, "shardwheel-batch"), "wall");
            let cells = [gain("shardwheel"), gain("shardwheel-batch"), batches];
            if cells.iter().any(Option::is_some) {
                let cells = cells.map(|cell| cell.map_or(" |".to_owned(), |cell| format!(" {cell:.2} |")));
                lines.push(format!("| {} | {population} | {callers} |{}", workload.name(), cells.concat()));
            }
        }
    }
    if !lines.is_empty() {
        println!("\n## Ours, by the clock\n");
        println!(
            "Throughput with that many callers to throughput with the fewest, in single calls and in batches; and the"
        );
        println!("time of a single call to that of one in a batch.\n");
        println!("| | timers | callers | single | batches | single to batches |\n|---|--:|--:|--:|--:|--:|");
        lines.iter().for_each(|line| println!("{line}"));
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
    // A run that failed has no figures.
    let runs = |name| at.workload.metrics().first().map_or(0, |first| rows.values(at, name, first.name).len());
    let (own, most) = (runs(entry.name), rows.run_count(at));
    let name = if own < most { format!("{} ({own} of {most} runs)", entry.name) } else { entry.name.to_owned() };
    format!("| {name} |{figures}{ratios}")
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
