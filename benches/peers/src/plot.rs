//! The figures as SVG.

use crate::contenders::{Access, Entry};
use crate::figures::{At, Rows};
use crate::workloads::Workload;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const CALLS: [Workload; 4] = [Workload::Schedule, Workload::Cancel, Workload::Rpc, Workload::Heartbeat];
const TITLE: u32 = 44;
const LEGEND: u32 = 56;
const PANEL: (u32, u32) = (460, 330);
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xe3, 0xe3, 0xe3);
/// In batches, and one by one: from the last in the list of contenders to the first. A plot has no more of ours.
const OURS: [RGBColor; 2] = [RGBColor(0xf0, 0x8a, 0x5d), RGBColor(0xd6, 0x27, 0x28)];
/// Also distinguishable without seeing red or green, as far as so many colours can be.
const PEERS: [RGBColor; 10] = [
    RGBColor(0x1f, 0x5f, 0xa8),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xb5, 0x8a, 0x00),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0x9a, 0xcd, 0x32),
];

/// Writes each plot for which there are figures.
pub(crate) fn write(directory: &Path, entries: &[Entry], rows: &Rows) -> Result<(), Box<dyn Error>> {
    for (access, name) in [(Access::Key, "key"), (Access::Handle, "handle")] {
        let entries = by(access, entries);
        for callers in callers(rows) {
            let panels = CALLS.iter().filter_map(|&workload| latency(&entries, rows, workload, callers)).collect();
            let threads = if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") };
            let title = format!("What an operation costs, by {name}, {threads} (lower is better)");
            draw(&directory.join(format!("latency-{name}-{callers}.svg")), &title, panels)?;
        }
        let panels = CALLS.iter().filter_map(|&workload| throughput(&entries, rows, workload)).collect();
        let title = format!("Operations of all callers together, by {name} (higher is better)");
        draw(&directory.join(format!("throughput-{name}.svg")), &title, panels)?;
    }
    // By handle, timers fire as they do by key.
    let entries = by(Access::Key, entries);
    let panels = rows.places(Workload::Burst).into_iter().filter_map(|(n, _)| lateness(&entries, rows, n)).collect();
    let title = "How late timers fire that are due within one second (lower is better)";
    draw(&directory.join("lateness.svg"), title, panels)
}

fn by(access: Access, entries: &[Entry]) -> Vec<&Entry> {
    entries.iter().filter(|entry| entry.access == access).collect()
}

fn callers(rows: &Rows) -> Vec<usize> {
    let mut callers: Vec<_> =
        CALLS.iter().flat_map(|&workload| rows.places(workload)).map(|(_, callers)| callers).collect();
    callers.sort_unstable();
    callers.dedup();
    callers
}

/// Nanoseconds against the number of timers.
fn latency(entries: &[&Entry], rows: &Rows, workload: Workload, callers: usize) -> Option<Panel> {
    let mut populations: Vec<_> = rows.places(workload).into_iter().map(|(population, _)| population).collect();
    populations.dedup();
    let lines = lines(entries, |entry| {
        let point = |&population: &usize| {
            let spread = rows.spread(At { workload, population, callers }, entry.name, "wall")?;
            Some((population as f64, spread.median))
        };
        populations.iter().filter_map(point).collect()
    });
    let x = Axis { title: "timers", scale: Scale::Log, label: |count| quantity(count) };
    let y = Axis { title: "ns per operation", scale: Scale::Log, label: |ns| format!("{ns}") };
    Panel { title: workload.name().to_owned(), x, y, x_ticks: floats(&populations), lines }.if_any()
}

/// Calls per second against the number of callers, with the largest number of timers that all of these were measured
/// with.
fn throughput(entries: &[&Entry], rows: &Rows, workload: Workload) -> Option<Panel> {
    let places = rows.places(workload);
    let population = places.iter().map(|&(population, _)| population).find(|&n| n == 1_000_000);
    let population = population.or(places.last().map(|&(population, _)| population))?;
    let callers: Vec<_> = places.into_iter().filter(|&(n, _)| n == population).map(|(_, callers)| callers).collect();
    let lines = lines(entries, |entry| {
        let point = |&callers: &usize| {
            let spread = rows.spread(At { workload, population, callers }, entry.name, "wall")?;
            Some((callers as f64, 1e3 / spread.median))
        };
        callers.iter().filter_map(point).collect()
    });
    let x = Axis { title: "callers", scale: Scale::Linear, label: |count| format!("{count}") };
    let y = Axis { title: "million per second", scale: Scale::Linear, label: |rate| format!("{rate}") };
    let title = format!("{}, {} timers", workload.name(), quantity(population as f64));
    Panel { title, x, y, x_ticks: floats(&callers), lines }.if_any()
}

/// Lateness against its percentiles.
fn lateness(entries: &[&Entry], rows: &Rows, population: usize) -> Option<Panel> {
    let at = At { workload: Workload::Burst, population, callers: 1 };
    let lines = lines(entries, |entry| {
        let spread = |metric| Some(rows.spread(at, entry.name, metric)?.median.max(1.0));
        let points = (0..).zip(PERCENTILES).filter_map(|(place, metric)| Some((f64::from(place), spread(metric)?)));
        points.collect()
    });
    let x = Axis { title: "percentile", scale: Scale::Linear, label: |place| PERCENTILES[place as usize].to_owned() };
    let y = Axis { title: "lateness", scale: Scale::Log, label: |us| time(us) };
    let title = format!("{} timers", quantity(population as f64));
    Panel { title, x, y, x_ticks: floats(&[0, 1, 2, 3]), lines }.if_any()
}

const PERCENTILES: [&str; 4] = ["p50", "p99", "p99.9", "max"];

fn floats(numbers: &[usize]) -> Vec<f64> {
    numbers.iter().map(|&number| number as f64).collect()
}

fn quantity(count: f64) -> String {
    match count {
        1e6.. => format!("{}M", count / 1e6),
        1e3.. => format!("{}k", count / 1e3),
        _ => format!("{count}"),
    }
}

fn time(us: f64) -> String {
    match us {
        1e6.. => format!("{} s", us / 1e6),
        1e3.. => format!("{} ms", us / 1e3),
        _ => format!("{us} µs"),
    }
}

/// One contender's points.
struct Line {
    name: &'static str,
    color: RGBColor,
    width: u32,
    points: Vec<(f64, f64)>,
}

fn lines(entries: &[&Entry], points: impl Fn(&Entry) -> Vec<(f64, f64)>) -> Vec<Line> {
    let (mut ours, mut peers) = (OURS.iter(), PEERS.iter());
    // Ours last: above the others.
    let line = |entry: &&Entry| {
        let is_ours = entry.name.starts_with("shardwheel");
        let (colors, width) = if is_ours { (&mut ours, 4) } else { (&mut peers, 2) };
        let color = *colors.next().expect("a color for each, see the test");
        Line { name: entry.name, color, width, points: points(entry) }
    };
    let mut lines: Vec<_> = entries.iter().rev().map(line).collect();
    lines.retain(|line| !line.points.is_empty());
    lines
}

#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    Log,
}

impl Scale {
    /// The coordinate to which distances on the axis are proportional.
    fn place(self, value: f64) -> f64 {
        if self == Self::Log { value.log10() } else { value }
    }
}

/// An axis on the paper, as the plotting library wants it.
struct Ruler {
    scale: Scale,
    ticks: Vec<f64>,
    /// Beyond the first and the last tick, as a part of the distance between them.
    room: f64,
}

impl Ranged for Ruler {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, &value: &f64, (from, to): (i32, i32)) -> i32 {
        let [first, last] = [self.ticks[0], self.ticks[self.ticks.len() - 1]].map(|tick| self.scale.place(tick));
        let length = if last > first { last - first } else { 1.0 };
        let share = (self.scale.place(value) - first) / length;
        // A single tick is in the middle.
        let share = if last > first { (share + self.room) / (1.0 + 2.0 * self.room) } else { 0.5 };
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // No lines between the labelled ones.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.ticks[0]..self.ticks[self.ticks.len() - 1]
    }
}

struct Axis {
    title: &'static str,
    scale: Scale,
    label: fn(f64) -> String,
}

impl Axis {
    /// Round values from below the least to above the greatest.
    fn ticks(&self, values: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
        let (min, max) = (values.clone().fold(f64::MAX, f64::min), values.fold(0.0, f64::max));
        match self.scale {
            Scale::Linear => {
                let rough = max / 5.0;
                let unit = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|&step| step >= rough);
                let step = step.unwrap_or(unit);
                (0..=(max / step).ceil() as u32).map(|count| f64::from(count) * step).collect()
            }
            Scale::Log => {
                let factors: &[f64] = if max / min > 300.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                let decades = min.log10().floor() as i32..=max.log10().ceil() as i32;
                let all = decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)));
                let all: Vec<_> = all.collect();
                let first = all.iter().rposition(|&tick| tick <= min).unwrap_or(0);
                let last = all.iter().position(|&tick| tick >= max).unwrap_or(all.len() - 1);
                all[first..=last.max(first + 1).min(all.len() - 1)].to_vec()
            }
        }
    }
}

struct Panel {
    title: String,
    x: Axis,
    y: Axis,
    x_ticks: Vec<f64>,
    lines: Vec<Line>,
}

impl Panel {
    fn if_any(self) -> Option<Self> {
        (!self.lines.is_empty()).then_some(self)
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        let y_ticks = self.y.ticks(self.lines.iter().flat_map(Line::heights));
        let x = Ruler { scale: self.x.scale, ticks: self.x_ticks.clone(), room: 0.06 };
        let y = Ruler { scale: self.y.scale, ticks: y_ticks, room: 0.0 };
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 17).into_font().style(FontStyle::Bold).color(&INK))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        let text = ("sans-serif", 13).into_font().color(&INK);
        chart
            .configure_mesh()
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .x_label_formatter(&|&value| (self.x.label)(value))
            .y_label_formatter(&|&value| (self.y.label)(value))
            .label_style(text.clone())
            .axis_desc_style(text)
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for line in &self.lines {
            chart.draw_series(LineSeries::new(line.points.iter().copied(), line.color.stroke_width(line.width)))?;
            let dot = |&point: &(f64, f64)| Circle::new(point, line.width + 1, line.color.filled());
            chart.draw_series(line.points.iter().map(dot))?;
        }
        Ok(())
    }
}

impl Line {
    fn heights(&self) -> impl Iterator<Item = f64> + Clone {
        self.points.iter().map(|&(_, y)| y)
    }
}

/// Panels two by two, a title above and a legend below. Nothing without panels.
fn draw(path: &Path, title: &str, panels: Vec<Panel>) -> Result<(), Box<dyn Error>> {
    if panels.is_empty() {
        return Ok(());
    }
    let columns = panels.len().min(2);
    let rows = panels.len().div_ceil(columns);
    let size = (PANEL.0 * columns.max(2) as u32, PANEL.1 * rows as u32 + TITLE + LEGEND);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(TITLE);
    let (body, foot) = rest.split_vertically(size.1 - TITLE - LEGEND);
    let style = ("sans-serif", 21).into_font().style(FontStyle::Bold).color(&INK);
    head.draw(&Text::new(title.to_owned(), (18, 16), style))?;
    for (area, panel) in body.split_evenly((rows, columns)).iter().zip(&panels) {
        panel.draw(area)?;
    }
    legend(&foot, size.0, &panels[0].lines)?;
    root.present()?;
    Ok(())
}

/// Up to five names in a row, ours first.
fn legend(area: &Area<'_>, width: u32, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    let step = width as i32 / 5;
    let text = ("sans-serif", 14).into_font().color(&INK);
    for (place, line) in (0..).zip(lines.iter().rev()) {
        let (x, y) = (24 + place % 5 * step, 12 + place / 5 * 22);
        area.draw(&PathElement::new(vec![(x, y), (x + 24, y)], line.color.stroke_width(line.width)))?;
        area.draw(&Circle::new((x + 12, y), line.width + 1, line.color.filled()))?;
        area.draw(&Text::new(line.name, (x + 32, y - 7), text.clone()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: Scale, values: &[f64]) -> Vec<f64> {
        Axis { title: "", scale, label: |_| String::new() }.ticks(values.iter().copied())
    }

    #[test]
    fn no_two_contenders_of_a_plot_have_one_color() {
        let entries = crate::contenders::all::<std::collections::hash_map::RandomState>();
        for access in [Access::Key, Access::Handle] {
            let mut colors: Vec<_> = lines(&by(access, &entries), |_| vec![(0.0, 1.0)]);
            let count = colors.len();
            colors.sort_by_key(|line| (line.color.0, line.color.1, line.color.2));
            colors.dedup_by_key(|line| (line.color.0, line.color.1, line.color.2));
            assert_eq!(colors.len(), count);
        }
    }

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        assert_eq!(ticks(Scale::Log, &[70.0, 900.0]), [50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(ticks(Scale::Log, &[100.0, 100.0]), [100.0, 200.0]);
        assert_eq!(ticks(Scale::Linear, &[3.0, 9.0]), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }
}
