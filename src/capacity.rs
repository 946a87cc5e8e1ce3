//! The bound on pending timers: room is handed out from stripes, so that callers do not meet on one counter.

use crate::shard::Ordinal;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// `None`: without bound.
#[derive(Debug)]
pub(crate) struct Capacity(Option<Room>);

/// What may still be taken: the sum of the stripes, less the debt.
#[derive(Debug)]
struct Room {
    stripes: Box<[CachePadded<AtomicUsize>]>,
    debt: CachePadded<AtomicUsize>,
}

impl Capacity {
    pub(crate) fn new(limit: Option<usize>, stripe_count: usize) -> Self {
        Self(limit.map(|limit| {
            let share = |i| AtomicUsize::new(limit / stripe_count + usize::from(i < limit % stripe_count));
            let stripes = (0..stripe_count).map(|i| CachePadded::new(share(i))).collect();
            Room { stripes, debt: CachePadded::default() }
        }))
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.0.is_some()
    }

    /// Takes room for one timer, from another stripe if need be. False if there is none anywhere.
    #[inline]
    pub(crate) fn take(&self, ordinal: &Ordinal) -> bool {
        let Some(room) = &self.0 else { return true };
        while room.take(ordinal) {
            if !room.pay_debt() {
                return true;
            }
        }
        false
    }

    /// Takes room even if there is none: a replacement whose predecessor ended by itself meanwhile. The next timer that
    /// ends settles the debt.
    pub(crate) fn force(&self, ordinal: &Ordinal) {
        if let Some(room) = &self.0
            && !self.take(ordinal)
        {
            // Relaxed: a count.
            room.debt.fetch_add(1, Relaxed);
        }
    }

    /// Gives room back.
    #[inline]
    pub(crate) fn give(&self, ordinal: &Ordinal, count: usize) {
        if let Some(room) = &self.0 {
            // Relaxed: a count.
            room.stripes[ordinal.stripe(room.stripes.len())].fetch_add(count, Relaxed);
        }
    }
}

impl Room {
    fn take(&self, ordinal: &Ordinal) -> bool {
        let (before, from) = self.stripes.split_at(ordinal.stripe(self.stripes.len()));
        loop {
            if from.iter().chain(before).any(|left| take_one(left)) {
                return true;
            }
            // Room may have come free in a stripe that was passed already.
            if self.stripes.iter().all(|left| left.load(Relaxed) == 0) {
                return false;
            }
        }
    }

    /// True if the room that was just taken is owed.
    fn pay_debt(&self) -> bool {
        self.debt.load(Relaxed) > 0 && take_one(&self.debt)
    }
}

fn take_one(count: &AtomicUsize) -> bool {
    // Relaxed: counts, exact by the modification order of each.
    count.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::{Duration, Instant};

    const THREADS: usize = 4;

    /// Runs `work` on several threads at once, for as long as even a busy machine needs to make them meet.
    fn hammer(work: impl Fn(usize) + Sync) {
        let end = Instant::now() + Duration::from_millis(300);
        let repeat = |number| {
            while Instant::now() < end {
                (0..1_000).for_each(|_| work(number));
            }
        };
        thread::scope(|scope| (0..THREADS).for_each(|number| drop(scope.spawn(move || repeat(number)))));
    }

    fn ordinal(number: usize) -> Ordinal {
        // SAFETY: nothing here is owned by ordinal.
        unsafe { Ordinal::assume(number as u32) }
    }

    #[test]
    fn exactly_the_limit_fits_whoever_asks() {
        for limit in [1, 3, 8, 100] {
            let capacity = Capacity::new(Some(limit), 8);
            assert_eq!((0..200).filter(|i| capacity.take(&ordinal(*i))).count(), limit);
            capacity.give(&ordinal(3), 1);
            assert!(capacity.take(&ordinal(5)) && !capacity.take(&ordinal(3)));
        }
    }

    #[test]
    fn a_debt_is_settled_before_new_room_appears() {
        let capacity = Capacity::new(Some(1), 1);
        assert!(capacity.take(&ordinal(0)));
        capacity.force(&ordinal(0));
        capacity.give(&ordinal(0), 1);
        assert!(!capacity.take(&ordinal(0)));
        capacity.give(&ordinal(0), 1);
        assert!(capacity.take(&ordinal(0)));
    }

    #[test]
    fn contention_neither_makes_room_nor_loses_it() {
        const LIMIT: usize = 3;
        let (capacity, held) = (Capacity::new(Some(LIMIT), 2), AtomicUsize::new(0));
        hammer(|number| {
            if capacity.take(&ordinal(number % 2)) {
                assert!(held.fetch_add(1, Relaxed) < LIMIT, "more than the limit");
                held.fetch_sub(1, Relaxed);
                capacity.give(&ordinal(number / 2), 1);
            }
        });
        assert_eq!((0..100).filter(|_| capacity.take(&ordinal(0))).count(), LIMIT);
    }

    #[test]
    fn contention_forgets_no_debt() {
        let capacity = Capacity::new(Some(1), 2);
        hammer(|number| {
            capacity.force(&ordinal(number % 2));
            capacity.give(&ordinal(number / 2), 1);
        });
        assert!(capacity.take(&ordinal(0)) && !capacity.take(&ordinal(0)));
    }
}
