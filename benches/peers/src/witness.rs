//! The callback of all contenders: it writes down what fired when.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Set in a timer's record if it fired more than once.
const TWICE: u64 = 1 << 63;

pub(crate) struct Witness {
    start: Instant,
    /// By value: the nanosecond of the firing, 0 before. Empty if only the count matters.
    fired_at: Box<[AtomicU64]>,
    /// Firings of values without a record.
    uncounted: AtomicU64,
}

/// How late timers fired, and what went wrong.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// Sorted; timers that fired before their deadline count as 0.
    pub(crate) lateness: Vec<Duration>,
    pub(crate) early: usize,
    pub(crate) lost: usize,
    pub(crate) twice: usize,
}

impl Witness {
    /// Keeps records of the values below `records`. It stays for the rest of the process.
    pub(crate) fn new(records: usize) -> &'static Self {
        let fired_at = (0..records).map(|_| AtomicU64::new(0)).collect();
        Box::leak(Box::new(Self { start: Instant::now(), fired_at, uncounted: AtomicU64::new(0) }))
    }

    /// The callback.
    pub(crate) fn fire(&self, value: u64) {
        // Relaxed, here and below: records and counts, nothing is published through them.
        match self.fired_at.get(value as usize) {
            Some(record) => {
                let now = self.start.elapsed().as_nanos() as u64;
                if record.swap(now, Relaxed) != 0 {
                    record.store(now | TWICE, Relaxed);
                }
            }
            None => drop(self.uncounted.fetch_add(1, Relaxed)),
        }
    }

    /// The number of firings of values without a record.
    pub(crate) fn uncounted(&self) -> usize {
        self.uncounted.load(Relaxed) as usize
    }

    /// Waits until all have fired, or until none has for `patience`.
    pub(crate) fn wait(&self, patience: Duration) {
        let (mut first_missing, mut last_progress) = (0, Instant::now());
        while first_missing < self.fired_at.len() && last_progress.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(5));
            let fired = self.fired_at[first_missing..].iter().take_while(|record| record.load(Relaxed) != 0).count();
            if fired > 0 {
                first_missing += fired;
                last_progress = Instant::now();
            }
        }
    }

    /// `deadline` gives each value's deadline.
    pub(crate) fn verdict(&self, deadline: impl Fn(u64) -> Instant) -> Verdict {
        let mut verdict = Verdict::default();
        for (value, record) in (0..).zip(&self.fired_at) {
            let record = record.load(Relaxed);
            verdict.twice += usize::from(record & TWICE != 0);
            if record == 0 {
                verdict.lost += 1;
                continue;
            }
            let fired_at = self.start + Duration::from_nanos(record & !TWICE);
            let deadline = deadline(value);
            verdict.early += usize::from(fired_at < deadline);
            verdict.lateness.push(fired_at.saturating_duration_since(deadline));
        }
        verdict.lateness.sort_unstable();
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_lost_and_twice_are_told_apart() {
        let witness = Witness::new(4);
        [0, 1, 1, 3, 9].into_iter().for_each(|value| witness.fire(value));
        let an_hour = Duration::from_secs(3600);
        let verdict = witness.verdict(|value| if value == 3 { witness.start + an_hour } else { witness.start });
        assert_eq!((verdict.early, verdict.lost, verdict.twice), (1, 1, 1));
        assert_eq!((verdict.lateness.len(), witness.uncounted()), (3, 1));
    }
}
