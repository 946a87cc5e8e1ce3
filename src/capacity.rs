//! The bound on pending timers: room is handed out from stripes, so that callers do not meet on one counter.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Room that is left, spread over stripes; the sum is what counts. `None`: without bound.
#[derive(Debug)]
pub(crate) struct Capacity(Option<Box<[CachePadded<AtomicI64>]>>);

impl Capacity {
    pub(crate) fn new(limit: Option<usize>, stripe_count: usize) -> Self {
        Self(limit.map(|limit| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let count = stripe_count as i64;
            (0..count).map(|i| CachePadded::new(AtomicI64::new(limit / count + i64::from(i < limit % count)))).collect()
        }))
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.0.is_some()
    }

    /// Takes room for one timer, from another stripe if need be. False if there is none anywhere.
    #[inline]
    pub(crate) fn take(&self, stripe: usize) -> bool {
        let Some(stripes) = &self.0 else { return true };
        let (before, from) = stripes.split_at(stripe);
        loop {
            // Relaxed: counts, exact by the modification order of each stripe.
            let take_one = |left: i64| (left > 0).then(|| left - 1);
            if from.iter().chain(before).any(|room| room.fetch_update(Relaxed, Relaxed, take_one).is_ok()) {
                return true;
            }
            // Room may have come free in a stripe that was passed already.
            if stripes.iter().map(|room| room.load(Relaxed)).sum::<i64>() <= 0 {
                return false;
            }
        }
    }

    /// Takes room even if there is none: a replacement whose predecessor ended by itself meanwhile. The next timer that
    /// ends settles the debt.
    pub(crate) fn force(&self, stripe: usize) {
        if let Some(stripes) = &self.0
            && !self.take(stripe)
        {
            // Relaxed: a count.
            stripes[stripe].fetch_sub(1, Relaxed);
        }
    }

    /// Gives room back.
    #[inline]
    pub(crate) fn give(&self, stripe: usize, count: usize) {
        if let Some(stripes) = &self.0 {
            // Relaxed: a count.
            stripes[stripe].fetch_add(count as i64, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const THREADS: usize = 4;

    /// Runs `work` on each of several threads, many times.
    fn hammer(work: impl Fn(usize) + Sync) {
        let repeat = |number| (0..50_000).for_each(|_| work(number));
        thread::scope(|scope| (0..THREADS).for_each(|number| drop(scope.spawn(move || repeat(number)))));
    }

    #[test]
    fn exactly_the_limit_fits_whoever_asks() {
        for limit in [1, 3, 8, 100] {
            let capacity = Capacity::new(Some(limit), 8);
            assert_eq!((0..200).filter(|i| capacity.take(i % 8)).count(), limit);
            capacity.give(3, 1);
            assert!(capacity.take(5) && !capacity.take(3));
        }
    }

    #[test]
    fn a_debt_is_settled_before_new_room_appears() {
        let capacity = Capacity::new(Some(1), 1);
        assert!(capacity.take(0));
        capacity.force(0);
        capacity.give(0, 1);
        assert!(!capacity.take(0));
        capacity.give(0, 1);
        assert!(capacity.take(0));
    }

    #[test]
    fn contention_neither_makes_room_nor_loses_it() {
        const LIMIT: i64 = 3;
        let (capacity, held) = (Capacity::new(Some(LIMIT as usize), 2), AtomicI64::new(0));
        hammer(|number| {
            if capacity.take(number % 2) {
                assert!(held.fetch_add(1, Relaxed) < LIMIT, "more than the limit");
                held.fetch_sub(1, Relaxed);
                capacity.give(number / 2, 1);
            }
        });
        assert_eq!((0..100).filter(|_| capacity.take(0)).count(), LIMIT as usize);
    }

    #[test]
    fn contention_forgets_no_debt() {
        let capacity = Capacity::new(Some(1), 2);
        hammer(|number| {
            capacity.force(number % 2);
            capacity.give(number / 2, 1);
        });
        assert!(capacity.take(0) && !capacity.take(0));
    }
}
