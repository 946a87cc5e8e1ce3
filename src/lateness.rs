//! How late timers fire: a histogram that any thread may add to.
//!
//! It is log-linear, as HdrHistogram: 16 buckets per power of two of nanoseconds. So a percentile is at most 6.25 %
//! too high, and never too low.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const SUB_BITS: u32 = 4;
const BUCKET_COUNT: usize = ((u64::BITS - SUB_BITS + 1) << SUB_BITS) as usize;

#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
    max_ns: AtomicU64,
}

/// How late timers fired: from the deadline's tick to the moment when their callback began.
///
/// Only timers that came due by themselves are counted, not those fired by `expire_now` or `Close::FireNow`. All zero
/// if there were none. Percentiles are rounded up by at most 6.25 %, `max` is not.
///
/// The clock is not read for every timer. Of timers that expire together in one batch, the 1st, 2nd, 5th and 17th read
/// it when their callback begins, then the 33rd and every 32nd after that. All others count as begun when the last of
/// these did. So behind slow callbacks they are later than stated: if one thread runs equally slow ones, up to four
/// times as late.
///
/// ```
/// # use shardwheel::Scheduler;
/// # use std::time::Duration;
/// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
/// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(scheduler.stats().lateness.max, Duration::ZERO, "a manual clock stops at each deadline");
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Lateness {
    /// Half of the timers were no later than this.
    pub p50: Duration,
    /// 99 % of the timers were no later than this.
    pub p99: Duration,
    /// 99.9 % of the timers were no later than this.
    pub p999: Duration,
    /// The latest of all timers for which the clock was read.
    pub max: Duration,
}

/// The bucket of a value: its leading bit and the four bits after that.
fn bucket_of(ns: u64) -> usize {
    let exponent = (u64::BITS - (ns >> SUB_BITS).leading_zeros()).saturating_sub(1);
    let base = if ns >> SUB_BITS == 0 { 0 } else { (exponent + 1) << SUB_BITS };
    let sub = if base == 0 { ns } else { (ns >> exponent) & ((1 << SUB_BITS) - 1) };
    base as usize + sub as usize
}

/// The largest value of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let (group, sub) = (bucket as u64 >> SUB_BITS, bucket as u64 & ((1 << SUB_BITS) - 1));
    match group.checked_sub(1) {
        None => sub,
        Some(exponent) => {
            let width = 1u64 << exponent;
            ((1 << SUB_BITS) + sub).wrapping_mul(width).wrapping_add(width - 1)
        }
    }
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { buckets: (0..BUCKET_COUNT).map(|_| AtomicU64::new(0)).collect(), max_ns: AtomicU64::new(0) }
    }

    /// Counts `count` timers, at least one, that were so late.
    pub(crate) fn record(&self, lateness_ns: u64, count: u64) {
        // Relaxed: figures, nothing is published through them.
        self.buckets[bucket_of(lateness_ns)].fetch_add(count, Relaxed);
        self.max_ns.fetch_max(lateness_ns, Relaxed);
    }

    /// The percentiles over several histograms.
    pub(crate) fn summary<'a>(parts: impl Iterator<Item = &'a Histogram>) -> Lateness {
        let mut counts = vec![0u64; BUCKET_COUNT];
        let mut max_ns = 0;
        for part in parts {
            max_ns = max_ns.max(part.max_ns.load(Relaxed));
            for (count, bucket) in counts.iter_mut().zip(&part.buckets) {
                *count += bucket.load(Relaxed);
            }
        }
        let at = |per_mille| Duration::from_nanos(percentile(&counts, per_mille).min(max_ns));
        Lateness { p50: at(500), p99: at(990), p999: at(999), max: Duration::from_nanos(max_ns) }
    }
}

/// The smallest bound that at least `per_mille` of the values do not exceed.
fn percentile(counts: &[u64], per_mille: u64) -> u64 {
    let total: u64 = counts.iter().sum();
    let wanted = (u128::from(total) * u128::from(per_mille)).div_ceil(1000);
    let mut seen = 0u128;
    let reached = counts.iter().position(|&count| {
        seen += u128::from(count);
        count > 0 && seen >= wanted
    });
    reached.map_or(0, upper_bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn buckets_cover_every_value_within_a_sixteenth() {
        let values = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) + 1, (1 << bit) - 1, u64::MAX >> bit]);
        for value in values {
            let bound = upper_bound(bucket_of(value));
            assert!(bound >= value && bound - value <= value / 16, "{value}: {bound}");
        }
        for bucket in 0..BUCKET_COUNT {
            assert_eq!(bucket_of(upper_bound(bucket)), bucket);
        }
    }

    #[test]
    fn contention_loses_no_count_and_no_maximum() {
        let (histogram, start) = (Histogram::new(), Instant::now());
        // One sets new maxima, the others must not put an old one back.
        let record = &|sets_maxima: bool| {
            let (mut count, mut time) = (0, 0);
            while time < 800_000_000 {
                time = start.elapsed().as_nanos() as u64;
                let ns = if sets_maxima { time } else { 1 };
                histogram.record(ns, 1);
                count += 1;
                (0..count % 8).for_each(|_| std::hint::spin_loop());
                assert!(histogram.max_ns.load(Relaxed) >= ns, "it only grows");
            }
            count
        };
        let recorded: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || record(number == 0))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(histogram.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum::<u64>(), recorded);
    }

    #[test]
    fn percentiles_match_a_sorted_list() {
        let histogram = Histogram::new();
        (1..=500).for_each(|place| histogram.record(2000 * place, 2));
        let lateness = Histogram::summary([&histogram].into_iter());
        let exact = [(lateness.p50, 500), (lateness.p99, 990), (lateness.p999, 999), (lateness.max, 1000)];
        for (told, micros) in exact {
            let exact = Duration::from_micros(micros);
            assert!(told >= exact && told <= exact.mul_f64(1.0625), "{told:?} for {exact:?}");
        }
        assert_eq!(Histogram::summary(std::iter::empty()), Lateness::default());
    }
}
