//! The bound on pending timers: room is handed out from stripes, so that callers do not meet on one counter.

use crate::shard::Ordinal;
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
    pub(crate) fn take(&self, ordinal: &Ordinal) -> bool {
        let Some(stripes) = &self.0 else { return true };
        let (before, from) = stripes.split_at(ordinal.stripe(stripes.len()));
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
    pub(crate) fn force(&self, ordinal: &Ordinal) {
        if let Some(stripes) = &self.0
            && !self.take(ordinal)
        {
            // Relaxed: a count.
            stripes[ordinal.stripe(stripes.len())].fetch_sub(1, Relaxed);
        }
    }

    /// Gives room back.
    #[inline]
    pub(crate) fn give(&self, ordinal: &Ordinal, count: usize) {
        if let Some(stripes) = &self.0 {
            // Relaxed: a count.
            stripes[ordinal.stripe(stripes.len())].fetch_add(count as i64, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
