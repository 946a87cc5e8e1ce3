//! From instants to ticks, and the one place where rounding is decided.
//!
//! Tick `first + n` begins `n` tick lengths after the scheduler's origin. A deadline is rounded **up** to a tick,
//! once, from nanoseconds; the present time is rounded **down**. So a timer never fires early, and at most one tick
//! late.

use crate::shard::{Due, Tick};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Nanoseconds since the scheduler's origin: 584 years of them. What would be due later is never due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    pub(crate) fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }

    /// Zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[derive(Debug)]
enum Source {
    /// What `monotonic_nanos` returned at the origin.
    System(u64),
    /// Moved by a `ManualClock`.
    Manual(AtomicU64),
}

#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    first_tick: Tick,
    /// The length of a tick in nanoseconds.
    tick: Divisor,
    source: Source,
}

/// A number to divide by. Some processors take several times as long for a division as for the two multiplications
/// that replace it here. (Barrett, "Implementing the Rivest Shamir and Adleman Public Key Encryption Algorithm on a
/// Standard Digital Signal Processor", CRYPTO 1986.)
#[derive(Clone, Copy, Debug)]
struct Divisor {
    by: u64,
    /// The greatest whole number below 2^64 / `by`; for 1, too, it fits into 64 bits.
    reciprocal: u64,
}

impl Divisor {
    fn new(by: u64) -> Self {
        Self { by, reciprocal: u64::MAX / by }
    }

    /// The quotient, rounded down, and whether there is a remainder.
    #[inline]
    fn divide(self, dividend: u64) -> (u64, bool) {
        // The product is less than the exact quotient, by at most `dividend` / 2^64, that is, by less than 1. So
        // rounded down, it is the rounded quotient or 1 less.
        let quotient = ((u128::from(dividend) * u128::from(self.reciprocal)) >> u64::BITS) as u64;
        let left = dividend - quotient * self.by;
        if left < self.by { (quotient, left > 0) } else { (quotient + 1, left > self.by) }
    }
}

/// A duration in nanoseconds; one that does not fit counts as for ever.
#[inline]
pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock behind `Instant`, in nanoseconds since some moment of its own.
///
/// Making an `Instant` and taking the difference of two costs as much again as reading the clock (measured in the
/// message of `6d8f34a`).
#[cfg(all(target_os = "linux", not(miri)))]
#[inline]
fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn monotonic_nanos() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    saturating_nanos(START.elapsed())
}

/// Readings of the clock within this many nanoseconds count as one.
const AT_ONCE: u64 = 500;

/// One moment in two forms: as an `Instant`, and by `monotonic_nanos`. The latter may be a little later, by what it
/// takes to read the clock once or twice. It is never earlier, or else what is due at an `Instant` would fire before
/// that.
fn origin() -> (Instant, u64) {
    let read = || {
        let (before, instant, after) = (monotonic_nanos(), Instant::now(), monotonic_nanos());
        (after.saturating_sub(before), instant, after)
    };
    let mut best = read();
    // A thread that was stopped in between tries again. Where no try is quick enough, the best one will do.
    for _ in 0..100 {
        if best.0 > AT_ONCE {
            best = std::cmp::min_by_key(best, read(), |&(length, ..)| length);
        }
    }
    (best.1, best.2)
}

impl Clock {
    pub(crate) fn system(tick_length: Duration, first_tick: Tick) -> Self {
        let (origin, nanos) = origin();
        Self::new(origin, tick_length, first_tick, Source::System(nanos))
    }

    pub(crate) fn manual(tick_length: Duration, first_tick: Tick) -> Self {
        Self::new(Instant::now(), tick_length, first_tick, Source::Manual(AtomicU64::new(0)))
    }

    fn new(origin: Instant, tick_length: Duration, first_tick: Tick, source: Source) -> Self {
        Self { origin, first_tick, tick: Divisor::new(saturating_nanos(tick_length)), source }
    }

    pub(crate) fn first_tick(&self) -> Tick {
        self.first_tick
    }

    pub(crate) fn tick_length(&self) -> Duration {
        Duration::from_nanos(self.tick.by)
    }

    /// The time, read fresh.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match &self.source {
            Source::System(origin) => Nanos(monotonic_nanos().saturating_sub(*origin)),
            // Relaxed: the time, and nothing is read through it. A thread that has heard of an advance, by whatever
            // hands things over between threads, reads no earlier time than that.
            Source::Manual(now) => Nanos(now.load(Relaxed)),
        }
    }

    /// Sets a manual clock; the system's is not ours to set.
    pub(crate) fn set(&self, now: Nanos) {
        if let Source::Manual(time) = &self.source {
            // Relaxed: as in `now`.
            time.store(now.0, Relaxed);
        }
    }

    /// The moment as an `Instant`; if it is too far for one, an `Instant` that is far ahead but exists.
    pub(crate) fn instant(&self, at: Nanos) -> Instant {
        let mut ahead = Duration::from_nanos(at.0);
        loop {
            match self.origin.checked_add(ahead) {
                Some(instant) => return instant,
                None => ahead /= 2,
            }
        }
    }

    /// The moment of an `Instant`; those before the origin count as the origin.
    #[inline]
    pub(crate) fn nanos(&self, instant: Instant) -> Nanos {
        Nanos(saturating_nanos(instant.saturating_duration_since(self.origin)))
    }

    /// The tick that has begun at `at`.
    #[inline]
    pub(crate) fn tick_at(&self, at: Nanos) -> Tick {
        Tick(self.first_tick.0.saturating_add(self.tick.divide(at.0).0))
    }

    /// When a tick begins.
    #[inline]
    pub(crate) fn start_of(&self, tick: Tick) -> Nanos {
        Nanos(tick.0.saturating_sub(self.first_tick.0).saturating_mul(self.tick.by))
    }

    /// The first tick at or after `delay` from `now`, but later than the present tick; never, if that is beyond the
    /// end of time. `hand` is the tick that the shard's worker has reached: if this thread's clock is behind it,
    /// `hand` counts as the present.
    #[inline]
    pub(crate) fn due_after(&self, now: Nanos, delay: Duration, hand: Tick) -> Due {
        let now = now.max(self.start_of(hand));
        let delay = saturating_nanos(delay);
        let due = self.round_up(now.0.saturating_add(delay));
        if delay >= self.tick.by {
            // It ends after the present tick, whichever that is: one division is saved.
            return Due { tick: due, now: hand };
        }
        let now = self.tick_at(now);
        Due { tick: due.map(|due| due.max(next(now))), now }
    }

    /// The first tick at or after `instant`, but later than the present tick.
    ///
    /// The clock is read only if the instant may have passed: `reached` is the tick that the shard's worker has
    /// reached or, while it sleeps, the one at which it will wake up. (A manual clock is always read.)
    #[inline]
    pub(crate) fn due_at(&self, instant: Instant, hand: Tick, reached: Tick) -> Due {
        let Some(tick) = self.round_up(self.nanos(instant).0) else {
            return Due { tick: None, now: hand };
        };
        if tick > reached && matches!(self.source, Source::System(_)) {
            return Due { tick: Some(tick), now: hand };
        }
        let now = self.tick_at(self.now()).max(hand);
        Due { tick: Some(tick.max(next(now))), now }
    }

    /// The first tick at or after a moment, but later than the present tick.
    pub(crate) fn due_at_nanos(&self, at: Nanos, now: Nanos) -> Due {
        let now = self.tick_at(now);
        Due { tick: self.round_up(at.0).map(|tick| tick.max(next(now))), now }
    }

    /// The first tick that begins at or after a moment; never, if that is less than a tick before the end of time.
    #[inline]
    fn round_up(&self, nanos: u64) -> Option<Tick> {
        if nanos > u64::MAX - self.tick.by {
            return None;
        }
        let (ticks, is_rest_left) = self.tick.divide(nanos);
        Some(Tick(self.first_tick.0.saturating_add(ticks + u64::from(is_rest_left))))
    }

    /// How long from `now` until `tick` begins.
    pub(crate) fn until(&self, tick: Option<Tick>, now: Nanos) -> Duration {
        let Some(tick) = tick else { return Duration::MAX };
        let ticks = u128::from(tick.0.saturating_sub(self.first_tick.0));
        let left = (ticks * u128::from(self.tick.by)).saturating_sub(u128::from(now.0));
        let seconds = u64::try_from(left / 1_000_000_000).unwrap_or(u64::MAX);
        Duration::new(seconds, (left % 1_000_000_000) as u32)
    }
}

#[inline]
fn next(tick: Tick) -> Tick {
    Tick(tick.0.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn clock_at(nanos: u64) -> Clock {
        let clock = Clock::manual(MS, Tick(100));
        clock.set(Nanos(nanos));
        clock
    }

    /// Ahead of them, it would fire what is due at one before that.
    #[test]
    fn the_systems_clock_is_that_of_instants_and_not_ahead_of_them() {
        for _ in 0..100 {
            let clock = Clock::system(MS, Tick(0));
            for _ in 0..100 {
                let before = clock.nanos(Instant::now()).0;
                let now = clock.now().0;
                let after = clock.nanos(Instant::now()).0;
                assert!(now <= after && now + 1_000_000 >= before, "{before}, {now}, {after}");
            }
        }
    }

    #[test]
    fn a_quotient_is_exact() {
        let ends = |around: u64| [around.wrapping_sub(1), around, around.wrapping_add(1)];
        let powers = || (0..64).map(|bits| 1 << bits);
        let divisors = [10_000, 100_000, 1_000_000, 3_600_000_000_000, u64::MAX - 1];
        for by in powers().chain(divisors).flat_map(ends).filter(|&by| by > 0) {
            let divisor = Divisor::new(by);
            let multiples = powers().map(|factor: u64| by.wrapping_mul(factor)).chain([u64::MAX - u64::MAX % by]);
            for dividend in multiples.chain(powers()).chain([0, u64::MAX / 3]).flat_map(ends) {
                assert_eq!(divisor.divide(dividend), (dividend / by, dividend % by > 0), "{dividend} / {by}");
            }
        }
    }

    fn due_after(clock: &Clock, delay: Duration, hand: Tick) -> Due {
        clock.due_after(clock.now(), delay, hand)
    }

    #[test]
    fn deadlines_round_up_and_time_rounds_down() {
        let cases = [
            // now in ns, delay in ns, ticks after the first
            (0, 1_000_000, 1),
            (0, 1_000_001, 2),
            (1, 1_000_000, 2),
            (999_999, 1, 1),
            (999_999, 2, 2),
            (0, 0, 1),
            (1_000_000, 0, 2),
        ];
        for (now, delay, ticks) in cases {
            let due = due_after(&clock_at(now), Duration::from_nanos(delay), Tick(0));
            assert_eq!(due.tick, Some(Tick(100 + ticks)), "{now} + {delay}");
            let is_counted_from_now = delay < 1_000_000;
            assert_eq!(due.now, if is_counted_from_now { Tick(100 + now / 1_000_000) } else { Tick(0) });
        }
    }

    #[test]
    fn a_caller_behind_the_worker_counts_from_the_worker() {
        let due = due_after(&clock_at(0), MS, Tick(110));
        assert_eq!((due.tick, due.now), (Some(Tick(111)), Tick(110)));
    }

    #[test]
    fn instants_in_the_past_are_due_at_the_next_tick() {
        let clock = clock_at(5_000_000);
        let due = clock.due_at(clock.origin, Tick(105), Tick(105));
        assert_eq!(due.tick, Some(Tick(106)));
        let due = clock.due_at(clock.origin + 7 * MS, Tick(105), Tick(105));
        assert_eq!(due.tick, Some(Tick(107)));
    }

    #[test]
    fn endless_delays_never_end() {
        let clock = clock_at(5);
        assert_eq!(due_after(&clock, Duration::MAX, Tick(0)).tick, None);
        assert_eq!(due_after(&Clock::manual(Duration::from_secs(3600), Tick(0)), Duration::MAX, Tick(0)).tick, None);
        assert_eq!(due_after(&clock, Duration::from_secs(1 << 35), Tick(0)).tick, None);
        assert!(due_after(&clock, Duration::from_secs(1 << 34), Tick(0)).tick.is_some());
        for tick in [Duration::from_micros(10), MS, Duration::from_secs(3600)] {
            let clock = Clock::manual(tick, Tick(0));
            let last = u64::MAX - saturating_nanos(tick);
            for (nanos, is_ever) in [(last, true), (last + 1, false), (u64::MAX - 1, false), (u64::MAX, false)] {
                let dues = [
                    due_after(&clock, Duration::from_nanos(nanos), Tick(0)),
                    clock.due_at(clock.origin + Duration::from_nanos(nanos), Tick(0), Tick(0)),
                    clock.due_at_nanos(Nanos(nanos), Nanos(0)),
                ];
                assert!(dues.iter().all(|due| due.tick.is_some() == is_ever), "{nanos}");
                assert!(dues.iter().all(|due| due.tick.is_none_or(|tick| clock.start_of(tick).0 < u64::MAX)));
            }
        }
        assert_eq!(clock.until(None, Nanos(0)), Duration::MAX);
        let _ = clock.instant(Nanos(u64::MAX));
    }

    #[test]
    fn far_first_ticks_do_not_overflow() {
        let clock = Clock::manual(MS, Tick(1 << 63));
        let due = due_after(&clock, Duration::from_secs(1 << 34), Tick(1 << 63));
        assert_eq!(due.tick, Some(Tick((1 << 63) + (1000 << 34))));
    }
}
