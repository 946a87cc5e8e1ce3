//! How long an entry lives: the TTL, a little more or less.

use std::hash::BuildHasher;
use std::hash::RandomState;
use std::time::Duration;

/// One, in fixed point: the jitter counts in parts of it.
const WHOLE: u128 = 1 << 32;

#[derive(Debug)]
pub(super) struct Lifetime {
    ttl: Duration,
    jitter: u128,
    seed: RandomState,
}

impl Lifetime {
    /// `jitter`: 0.05 for 5 % more or less.
    pub(super) fn new(ttl: Duration, jitter: f64) -> Self {
        Self { ttl, jitter: (jitter * WHOLE as f64) as u128, seed: RandomState::new() }
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// `ttl` with the jitter of entry `id`, which is spread evenly.
    pub(super) fn of(&self, ttl: Duration, id: u64) -> Duration {
        if self.jitter == 0 || ttl == Duration::MAX {
            return ttl;
        }
        let random = u128::from(self.seed.hash_one(id) >> 32);
        let factor = WHOLE - self.jitter + 2 * self.jitter * random / WHOLE;
        // At most 2^94 ns times 2^33.
        let nanos = ttl.as_nanos() * factor / WHOLE;
        let second = u128::from(Duration::from_secs(1).as_nanos() as u64);
        let seconds = u64::try_from(nanos / second).unwrap_or(u64::MAX);
        Duration::new(seconds, (nanos % second) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn jitter_keeps_its_range_and_uses_it() {
        let lifetime = Lifetime::new(HOUR, 0.05);
        let all: Vec<_> = (0..10_000).map(|id| lifetime.of(HOUR, id)).collect();
        let (least, most) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
        assert!(least >= HOUR.mul_f64(0.95) && most <= HOUR.mul_f64(1.05), "{least:?} {most:?}");
        assert!(least < HOUR.mul_f64(0.951) && most > HOUR.mul_f64(1.049), "{least:?} {most:?}");
        let mean = all.iter().sum::<Duration>() / 10_000;
        assert!(mean.abs_diff(HOUR) < HOUR.mul_f64(0.002), "{mean:?}");
    }

    #[test]
    fn no_jitter_and_no_end_stay_what_they_are() {
        assert_eq!(Lifetime::new(HOUR, 0.0).of(HOUR, 1), HOUR);
        assert_eq!(Lifetime::new(HOUR, 0.05).of(Duration::MAX, 1), Duration::MAX);
    }

    #[test]
    fn no_length_of_time_overflows() {
        let lifetime = Lifetime::new(HOUR, 0.999_999_999);
        for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX - Duration::from_nanos(1)] {
            (0..1_000).for_each(|id| assert!(lifetime.of(ttl, id) <= ttl.saturating_mul(2)));
        }
    }
}
