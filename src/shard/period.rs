//! Timers that come back after their callback, and when.
//!
//! A periodic timer has a fixed rate: each deadline is the previous one plus the period, kept in nanoseconds, so it
//! does not drift, whatever the tick and however late a run begins. Runs never overlap: the next deadline is set when a
//! run has ended. What becomes of deadlines that have passed by then is the user's choice ([`MissedTicks`]).

use super::tick::Tick;

/// What a periodic timer does about deadlines that passed while it could not run: because a run took longer than a
/// period, or because the machine stood still.
///
/// For example, with a period of 10 ms and a tick of 1 ms: if the first run lasts from 10 to 45 ms, and the others are
/// short, these begin at (in ms):
///
/// | | | | | | |
/// |---|---|---|---|---|---|
/// | `Skip` | 50 | 60 | 70 | 80 | 90 |
/// | `Burst` | 46 | 47 | 48 | 50 | 60 |
/// | `Delay` | 55 | 65 | 75 | 85 | 95 |
///
/// ```
/// use shardwheel::{MissedTicks, Scheduler};
/// use std::time::{Duration, Instant};
///
/// let (period, run) = (Duration::from_millis(5), Duration::from_millis(12));
/// let (sender, begun) = std::sync::mpsc::channel();
/// let scheduler = Scheduler::builder().shards(1).build(move |_: &&str, _: ()| {
///     let _ = sender.send(Instant::now());
///     std::thread::sleep(run);
/// })?;
/// scheduler.schedule_every("poll", (), period, MissedTicks::Delay)?;
/// let (first, second) = (begun.recv()?, begun.recv()?);
/// assert!(second - first >= run + period);
/// assert_eq!(MissedTicks::default(), MissedTicks::Skip);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
#[allow(unreachable_pub, reason = "reachable in the crate; the models compile this file on its own")]
pub enum MissedTicks {
    /// Leaves them out, and goes on with the first deadline that is still to come. The rate and its phase stay.
    #[default]
    Skip,
    /// Makes up for them one after the other, a tick apart: it catches up if the period is longer than a tick.
    Burst,
    /// Starts anew: the next run is a whole period after the end of the late one.
    Delay,
}

/// Whether a timer comes back after its callback.
#[derive(Debug)]
pub(crate) enum Repeats<V> {
    /// It ends with its callback.
    Never,
    /// The callback decides.
    IfWanted,
    /// At a fixed rate.
    Every(Period<V>),
}

impl<V> Repeats<V> {
    /// True if the timer may come back.
    #[inline]
    pub(super) fn may_come_back(&self) -> bool {
        !matches!(self, Self::Never)
    }
}

/// The rate of a periodic timer, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period<V> {
    /// Makes the copy of the value that a run gets.
    pub(crate) copy: fn(&V) -> V,
    pub(crate) length_ns: u64,
    pub(crate) missed: MissedTicks,
    /// The next deadline, to the nanosecond, and the tick at which it falls due: its own tick, or a later one if that
    /// had passed.
    pub(crate) deadline_ns: u64,
    pub(crate) tick: Option<Tick>,
}

impl<V> Period<V> {
    /// Called when a run has ended: the exact deadline of the next one. That is `next_ns`, unless it was missed, that
    /// is, unless its tick has begun. The present tick began at `tick_ns`.
    pub(crate) fn next_run(&self, next_ns: u64, tick_ns: u64, now_ns: u64) -> u64 {
        if next_ns > tick_ns {
            return next_ns;
        }
        match self.missed {
            MissedTicks::Burst => next_ns,
            MissedTicks::Skip => {
                let missed = (tick_ns - next_ns) / self.length_ns + 1;
                next_ns.saturating_add(missed.saturating_mul(self.length_ns))
            }
            MissedTicks::Delay => now_ns.saturating_add(self.length_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_goes_on_from_its_last_deadline() {
        let period = |missed| Period { copy: |&()| (), length_ns: 10, missed, deadline_ns: 0, tick: None };
        // The next deadline, the start of the present tick, now, and the answers: skipping, in a burst, delayed.
        let cases = [
            (110, 100, 100, [110, 110, 110]),
            (110, 109, 112, [110, 110, 110]),
            (110, 110, 110, [120, 110, 120]),
            (110, 118, 119, [120, 110, 129]),
            (110, 120, 120, [130, 110, 130]),
            (110, 1005, 1005, [1010, 110, 1015]),
            (u64::MAX - 5, u64::MAX - 1, u64::MAX - 1, [u64::MAX, u64::MAX - 5, u64::MAX]),
        ];
        for (next, tick, now, expected) in cases {
            let policies = [MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay];
            assert_eq!(policies.map(|missed| period(missed).next_run(next, tick, now)), expected, "{next} {now}");
        }
    }
}
