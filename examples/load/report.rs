//! The table at the end of a run, and everything that is wrong with the run.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::ops::AddAssign;
use std::time::Duration;

use shardwheel::Stats;

use crate::ledger::Audit;

/// What the callers did, and what they were told.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) scheduled: u64,
    pub(crate) moved: u64,
    pub(crate) cancelled: u64,
    pub(crate) calls: u64,
    /// Answers that cannot be true.
    pub(crate) wrong: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.scheduled += other.scheduled;
        self.moved += other.moved;
        self.cancelled += other.cancelled;
        self.calls += other.calls;
        self.wrong += other.wrong;
    }
}

/// A run, after the scheduler was closed.
pub(crate) struct Report {
    pub(crate) timers: u64,
    pub(crate) tally: Tally,
    pub(crate) audit: Audit,
    pub(crate) stats: Stats,
    /// Wall time of scheduling, moving and cancelling.
    pub(crate) busy: Duration,
    pub(crate) bytes_per_timer: Option<f64>,
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { tally, audit, .. } = self;
        let mut row = |name: &str, value: &dyn Display| writeln!(f, "{name:<24}{value:>14}");
        row("scheduled", &tally.scheduled)?;
        row("moved", &tally.moved)?;
        row("cancelled", &tally.cancelled)?;
        row("fired", &audit.fired)?;
        row("early", &audit.early)?;
        row("lost", &audit.lost)?;
        row("twice", &audit.twice)?;
        row("wrong answers", &tally.wrong)?;
        row("lateness p50", &time(audit.lateness(500)))?;
        row("lateness p99", &time(audit.lateness(990)))?;
        row("lateness p99.9", &time(audit.lateness(999)))?;
        row("lateness max", &time(audit.lateness(1000)))?;
        row("operations per second", &self.operations_per_second())?;
        row("bytes per timer", &self.bytes_per_timer())
    }
}

impl Report {
    /// A sentence for each thing that must not happen; empty if all is well.
    pub(crate) fn faults(&self) -> Vec<String> {
        let Self { tally, audit, .. } = self;
        let counts = [
            (audit.early, "timers fired early"),
            (audit.lost, "timers were lost"),
            (audit.twice, "timers were delivered twice"),
            (tally.wrong, "answers or values were wrong"),
            (self.timers - tally.scheduled, "timers were not scheduled"),
        ];
        let counted = counts.into_iter().filter(|(count, _)| *count > 0);
        counted.map(|(count, what)| format!("{count} {what}")).chain(self.stats_faults()).collect()
    }

    /// Reports where the scheduler's own count differs from ours, or does not add up.
    fn stats_faults(&self) -> Vec<String> {
        let Self { tally, stats, .. } = self;
        let ended = stats.fired + stats.cancelled + stats.replaced + stats.drained;
        let accounted = ended + stats.discarded + stats.returned + stats.pending;
        let compared = [
            ("scheduled", stats.scheduled, tally.scheduled),
            ("rescheduled", stats.rescheduled, tally.moved),
            ("cancelled", stats.cancelled, tally.cancelled),
            ("fired", stats.fired, self.audit.fired),
            ("scheduled", stats.scheduled, accounted),
        ];
        let differing = compared.into_iter().filter(|(_, says, is)| says != is);
        differing.map(|(name, says, is)| format!("stats().{name} is {says}; it should be {is}")).collect()
    }

    /// Calls of `schedule`, `reschedule` and `cancel` by all callers together.
    fn operations_per_second(&self) -> String {
        if self.tally.calls == 0 {
            return "n/a".into();
        }
        let per_second = self.tally.calls as f64 / self.busy.as_secs_f64();
        format!("{per_second:.0}")
    }

    fn bytes_per_timer(&self) -> String {
        self.bytes_per_timer.map_or_else(|| "n/a".into(), |bytes| format!("{bytes:.1}"))
    }
}

fn time(lateness: Option<Duration>) -> String {
    lateness.map_or_else(|| "n/a".into(), |lateness| format!("{lateness:.3?}"))
}

/// The memory that this process keeps resident, where Linux reports it; the first source is exact, the second is off by
/// some pages per core.
pub(crate) fn resident_bytes() -> Option<u64> {
    let sources = [("/proc/self/smaps_rollup", "Rss:"), ("/proc/self/status", "VmRSS:")];
    sources.into_iter().find_map(|(path, field)| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    })
}
