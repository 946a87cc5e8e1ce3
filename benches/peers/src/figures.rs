//! Figures on their way from a measuring process to the table, the plots and the file.

use crate::workloads::{Metric, Workload};
use std::fmt::Write as _;

/// What one process reports: lines of `workload metric value`, and of `fault` and a sentence.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) figures: Vec<(Workload, &'static str, f64)>,
    pub(crate) faults: Vec<String>,
}

impl Report {
    /// One value for each of the workload's metrics.
    pub(crate) fn add<const COUNT: usize>(&mut self, workload: Workload, values: [f64; COUNT]) {
        let metrics = workload.metrics();
        assert_eq!(metrics.len(), COUNT, "{} has other metrics", workload.name());
        self.figures.extend(metrics.iter().zip(values).map(|(metric, value)| (workload, metric.name, value)));
    }

    pub(crate) fn fault(&mut self, what: String) {
        self.faults.push(what);
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (workload, metric, value) in &self.figures {
            writeln!(text, "{} {metric} {value}", workload.name()).expect("a string takes all");
        }
        self.faults.iter().for_each(|fault| writeln!(text, "fault {fault}").expect("a string takes all"));
        text
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("fault", what)) => report.fault(what.to_owned()),
                _ => report.figures.extend(figure(line)),
            }
        }
        report
    }
}

fn figure(line: &str) -> Option<(Workload, &'static str, f64)> {
    let mut words = line.split(' ');
    let workload = Workload::by_name(words.next()?)?;
    let name = words.next()?;
    let metric = workload.metrics().iter().find(|metric| metric.name == name)?;
    Some((workload, metric.name, words.next()?.parse().ok()?))
}

/// One figure of one run.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: Workload,
    pub(crate) population: usize,
    pub(crate) callers: usize,
    pub(crate) contender: &'static str,
    pub(crate) run: usize,
    pub(crate) metric: &'static str,
    pub(crate) value: f64,
}

impl Row {
    fn is_at(&self, at: At) -> bool {
        (self.workload, self.population, self.callers) == (at.workload, at.population, at.callers)
    }
}

/// Everything that was measured.
#[derive(Default)]
pub(crate) struct Rows(Vec<Row>);

impl Rows {
    pub(crate) fn push(&mut self, row: Row) {
        self.0.push(row);
    }

    /// Where a workload ran: population and callers, sorted.
    pub(crate) fn places(&self, workload: Workload) -> Vec<(usize, usize)> {
        let rows = self.0.iter().filter(|row| row.workload == workload);
        let mut places: Vec<_> = rows.map(|row| (row.population, row.callers)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// One figure's values, by run.
    pub(crate) fn values(&self, at: At, contender: &str, metric: &str) -> Vec<(usize, f64)> {
        let is_wanted = |row: &&Row| row.is_at(at) && row.contender == contender && row.metric == metric;
        self.0.iter().filter(is_wanted).map(|row| (row.run, row.value)).collect()
    }

    pub(crate) fn spread(&self, at: At, contender: &str, metric: &str) -> Option<Spread> {
        Spread::of(self.values(at, contender, metric).into_iter().map(|(_, value)| value))
    }

    /// The most runs that any contender has figures of.
    pub(crate) fn run_count(&self, at: At) -> usize {
        self.0.iter().filter(|row| row.is_at(at)).map(|row| row.run + 1).max().unwrap_or(0)
    }

    /// The median over the runs of a peer's figure divided by ours of the same run.
    pub(crate) fn ratio(&self, at: At, peer: &str, ours: &str, metric: &Metric) -> Option<f64> {
        self.quotient((at, peer), (at, ours), metric.name)
    }

    /// The median over the runs of one figure divided by another of the same run.
    pub(crate) fn quotient(&self, above: (At, &str), below: (At, &str), metric: &str) -> Option<f64> {
        let below = self.values(below.0, below.1, metric);
        let below_of = |run| below.iter().find(|(other, _)| *other == run).map(|(_, value)| *value);
        let above = self.values(above.0, above.1, metric).into_iter();
        Some(Spread::of(above.filter_map(|(run, value)| Some(value / below_of(run)?)))?.median)
    }

    pub(crate) fn to_csv(&self) -> String {
        let mut text = "workload,timers,callers,contender,run,metric,unit,value\n".to_owned();
        for Row { workload, population, callers, contender, run, metric, value } in &self.0 {
            let unit = workload.metrics().iter().find(|other| other.name == *metric).map_or("", |metric| metric.unit);
            let name = workload.name();
            writeln!(text, "{name},{population},{callers},{contender},{run},{metric},{unit},{value}")
                .expect("a string takes all");
        }
        text
    }
}

/// A workload at a size.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) workload: Workload,
    pub(crate) population: usize,
    pub(crate) callers: usize,
}

/// A figure over several runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        // For an even number, the mean of the two in the middle.
        let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_way_as_text() {
        let mut report = Report::default();
        report.add(Workload::Rpc, [12.5, 0.25, 99.0]);
        report.add(Workload::Churn, [-3.0]);
        report.fault("rpc: 3 of 9 were not pending".to_owned());
        assert_eq!(Report::from_text(&report.to_text()), report);
    }

    #[test]
    fn the_median_is_the_middle_one_or_the_mean_of_two() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 8.0]), Some(Spread { median: 3.0, min: 1.0, max: 8.0 }));
        assert_eq!(spread(&[3.0, 1.0, 8.0, 4.0]), Some(Spread { median: 3.5, min: 1.0, max: 8.0 }));
    }

    #[test]
    fn a_ratio_compares_within_a_run() {
        let (at, metric) = (At { workload: Workload::Rpc, population: 1, callers: 1 }, &Workload::Rpc.metrics()[0]);
        let mut rows = Rows::default();
        for (run, contender, value) in [(0, "ours", 1.0), (0, "peer", 2.0), (1, "ours", 10.0), (1, "peer", 40.0)] {
            let At { workload, population, callers } = at;
            rows.push(Row { workload, population, callers, contender, run, metric: metric.name, value });
        }
        assert_eq!(rows.ratio(at, "peer", "ours", metric), Some(3.0));
    }
}
