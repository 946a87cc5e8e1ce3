//! The bound on pending timers: room is handed out from stripes, so that callers do not meet on one counter.

use crate::shard::Ordinal;
use crate::sync::{AtomicU64, Ordering};
use Ordering::{Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;

/// `None`: unbounded.
#[derive(Debug)]
pub(crate) struct Capacity(Option<Room>);

/// What may still be taken: the sum of the stripes, less the debt.
#[derive(Debug)]
struct Room {
    stripes: Box<[CachePadded<Stripe>]>,
    debt: CachePadded<AtomicU64>,
}

/// `[times that room was given:24 | room:40]`. A stripe that is found without room twice, and was given none in
/// between, had none all the while. (Unless in between it was given room a multiple of 2^24 times.)
#[derive(Debug)]
struct Stripe(AtomicU64);

const ROOM_BITS: u32 = 40;
const ROOM_MAX: u64 = (1 << ROOM_BITS) - 1;

impl Capacity {
    pub(crate) fn new(limit: Option<usize>, stripe_count: usize) -> Self {
        // No machine has memory for more timers.
        let limit = limit.map(|limit| (limit as u64).min(ROOM_MAX));
        Self(limit.map(|limit| {
            let count = stripe_count as u64;
            let share = |i| Stripe(AtomicU64::new(limit / count + u64::from(i < limit % count)));
            let stripes = (0..count).map(|i| CachePadded::new(share(i))).collect();
            Room { stripes, debt: CachePadded::default() }
        }))
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.0.is_some()
    }

    /// Takes room for one timer, from another stripe if need be. False if there was a moment at which there was none
    /// anywhere.
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

    /// Takes room even if there is none: for a replacement whose predecessor has ended by itself meanwhile. The next
    /// timer that ends settles the debt.
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
            room.stripes[ordinal.stripe(room.stripes.len())].give(count as u64);
        }
    }
}

impl Room {
    fn take(&self, ordinal: &Ordinal) -> bool {
        let (before, from) = self.stripes.split_at(ordinal.stripe(self.stripes.len()));
        loop {
            if from.iter().chain(before).any(|stripe| stripe.take_one()) {
                return true;
            }
            // Room may have gone round meanwhile, from a stripe that we had not looked at yet to one that we had.
            if self.was_used_up() {
                return false;
            }
        }
    }

    /// True if there was no room in any stripe between the two rounds. (Afek et al., "Atomic Snapshots of Shared
    /// Memory", J. ACM 40(4), 1993: two rounds that find the same.)
    fn was_used_up(&self) -> bool {
        // The sum over all stripes shows whether any of them was given room, and takes no allocation.
        let round = || {
            self.stripes.iter().try_fold(0_u64, |given, stripe| Some(given.wrapping_add(stripe.given_if_used_up()?)))
        };
        round().is_some_and(|given| round() == Some(given))
    }

    /// True if the room that was just taken settles a debt.
    fn pay_debt(&self) -> bool {
        // Relaxed: a count, exact by its modification order. (The first look may miss a debt that nothing has ordered
        // before it. Then one timer more is admitted, until the next one that finds the debt.)
        self.debt.load(Relaxed) > 0 && self.debt.fetch_update(Relaxed, Relaxed, |debt| debt.checked_sub(1)).is_ok()
    }
}

impl Stripe {
    /// False if it has no room.
    #[inline]
    fn take_one(&self) -> bool {
        // Release: a thread that finds the stripe used up because of this (`given_if_used_up`) sees what was given to
        // other stripes before, by us; and by those who changed this stripe before us, since a read-modify-write hands
        // on what it replaces. Relaxed on failure: an expectation.
        let take = |state: u64| (state & ROOM_MAX != 0).then(|| state - 1);
        self.0.fetch_update(Release, Relaxed, take).is_ok()
    }

    #[inline]
    fn give(&self, room: u64) {
        // Release: as in `take_one`. A thread that finds this room taken again sees what we gave to other stripes
        // before.
        self.0.fetch_add((1 << ROOM_BITS) + room, Release);
    }

    /// How often the stripe was given room; `None` if it has any.
    fn given_if_used_up(&self) -> Option<u64> {
        // Acquire: pairs with the Releases in `take_one` and `give`. The stripes looked at next are seen as they were
        // when this one's room went, or later.
        let state = self.0.load(Acquire);
        (state & ROOM_MAX == 0).then_some(state >> ROOM_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::{Duration, Instant};

    const THREADS: usize = 4;

    /// Runs `work` on several threads at once, for as long as even a busy machine needs to make them meet.
    fn hammer(threads: usize, work: impl Fn(usize) + Sync) {
        let end = Instant::now() + Duration::from_millis(300);
        let repeat = |number| {
            while Instant::now() < end {
                (0..1_000).for_each(|_| work(number));
            }
        };
        thread::scope(|scope| (0..threads).for_each(|number| drop(scope.spawn(move || repeat(number)))));
    }

    #[allow(unsafe_code, reason = "a number instead of a thread of its own")]
    fn ordinal(number: usize) -> Ordinal {
        // SAFETY: a `Capacity` keeps nothing that is one ordinal's alone.
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
        hammer(THREADS, |number| {
            if capacity.take(&ordinal(number % 2)) {
                assert!(held.fetch_add(1, Relaxed) < LIMIT, "more than the limit");
                held.fetch_sub(1, Relaxed);
                capacity.give(&ordinal(number / 2), 1);
            }
        });
        assert_eq!((0..100).filter(|_| capacity.take(&ordinal(0))).count(), LIMIT);
    }

    #[test]
    fn room_that_goes_round_is_found() {
        // Whenever one of the two asks, one of the two places is free, in one stripe or in the other.
        let capacity = Capacity::new(Some(2), 2);
        assert!(capacity.take(&ordinal(0)));
        hammer(2, |number| {
            for stripe in [0, 1] {
                if number == 0 {
                    capacity.give(&ordinal(stripe), 1);
                    assert!(capacity.take(&ordinal(1 - stripe)), "there was room all the time");
                } else {
                    assert!(capacity.take(&ordinal(0)), "there was room all the time");
                    capacity.give(&ordinal(stripe), 1);
                }
            }
        });
    }

    #[test]
    fn contention_forgets_no_debt() {
        let capacity = Capacity::new(Some(1), 2);
        hammer(THREADS, |number| {
            capacity.force(&ordinal(number % 2));
            capacity.give(&ordinal(number / 2), 1);
        });
        assert!(capacity.take(&ordinal(0)) && !capacity.take(&ordinal(0)));
    }
}
