//! When an entry expires, and which thread ends it. `loom-tests/flags.rs` checks this file.
//!
//! ```text
//!   [passed | ended | deadline: 62]      in nanoseconds; the greatest deadline is never
//! ```
//!
//! All is one word, and every change of it is one read-modify-write:
//! - **ended**, for good, by the one thread that set the flag. Look-ups that have found the entry before go on as if
//!   they had come before that thread.
//! - **passed**, for good: somebody has found the deadline in the past. Without this mark a thread that reads the
//!   clock, and is then stopped, could bring back what others have seen expire.
//! - a new **deadline**, unless the entry has ended or its deadline has passed.
//!
//! An entry's timer starts before the entry is in the map. So it may end before, too, and the entry is looked for in
//! vain. Which thread takes it out then?
//!
//! | the one that puts the entry in | the one that ends the entry      |
//! |--------------------------------|----------------------------------|
//! | 1. puts it into the map        | 1. sets `ended`                  |
//! | 2. fence                       | 2. fence                         |
//! | 3. `ended` is set? takes it    | 3. takes it out if it is there   |
//! |    out again                   |                                  |
//!
//! The two fences have one order, so at least one side sees the other's step 1; if both do, the map decides.

use crate::sync::{AtomicU64, Ordering, fence};
use Ordering::{Relaxed, SeqCst};

const PASSED: u64 = 1 << 63;
const ENDED: u64 = 1 << 62;
/// 146 years.
const NEVER: u64 = ENDED - 1;

/// Relaxed throughout: what is seen through an entry was published with it, by the map. Each decision is one exchange
/// on this one word; where there is another place to look at, the fences order it.
#[derive(Debug)]
pub(super) struct Expiry(AtomicU64);

/// What the timer of an entry finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// The entry has expired, and this call has ended it.
    Now,
    /// It was given a later deadline.
    Later(u64),
    /// Another thread has ended it.
    Ended,
}

/// What became of an attempt to give an entry another deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Renewal {
    /// It has the new one; this was the old one.
    Made(u64),
    Expired,
    Ended,
}

fn deadline_of(word: u64) -> u64 {
    word & NEVER
}

fn has_passed(word: u64, now: u64) -> bool {
    word & PASSED != 0 || deadline_of(word) <= now
}

impl Expiry {
    pub(super) fn at(deadline: u64) -> Self {
        Self(AtomicU64::new(deadline.min(NEVER)))
    }

    /// `None`: never.
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(deadline_of(self.0.load(Relaxed))).filter(|&deadline| deadline != NEVER)
    }

    /// True if the deadline is later than `now`: then look-ups may find the entry.
    pub(super) fn is_ahead(&self, now: u64) -> bool {
        let mut seen = self.0.load(Relaxed);
        while has_passed(seen, now) {
            if seen & PASSED != 0 {
                return false;
            }
            match self.change(seen, seen | PASSED) {
                Ok(()) => return false,
                Err(found) => seen = found,
            }
        }
        true
    }

    /// Gives the entry the deadline that `choose` makes of the present one.
    pub(super) fn renew(&self, now: u64, choose: impl Fn(u64) -> u64) -> Renewal {
        while self.is_ahead(now) {
            let seen = self.0.load(Relaxed);
            if seen & ENDED != 0 {
                return Renewal::Ended;
            }
            let before = deadline_of(seen);
            if !has_passed(seen, now) && self.change(seen, choose(before).min(NEVER)).is_ok() {
                return Renewal::Made(before);
            }
        }
        Renewal::Expired
    }

    /// For the entry's timer.
    pub(super) fn expire(&self, now: u64) -> Due {
        let mut seen = self.0.load(Relaxed);
        while seen & ENDED == 0 {
            if !has_passed(seen, now) {
                return Due::Later(deadline_of(seen));
            }
            if let Err(found) = self.change(seen, seen | ENDED) {
                seen = found;
                continue;
            }
            // SeqCst: step 2. Pairs with the fence in `is_missed`.
            fence(SeqCst);
            return Due::Now;
        }
        Due::Ended
    }

    /// Ends the entry; `None` if another thread has. True if its deadline has passed, so that it has expired.
    pub(super) fn end(&self, now: u64) -> Option<bool> {
        let mut seen = self.0.load(Relaxed);
        while seen & ENDED == 0 {
            if let Err(found) = self.change(seen, seen | ENDED) {
                seen = found;
                continue;
            }
            // SeqCst: step 2. Pairs with the fence in `is_missed`.
            fence(SeqCst);
            return Some(has_passed(seen, now));
        }
        None
    }

    /// True if the entry, which was just put into the map, may have been looked for in vain.
    pub(super) fn is_missed(&self) -> bool {
        // SeqCst: step 2. Pairs with the fences in `expire` and `end`.
        fence(SeqCst);
        self.0.load(Relaxed) & ENDED != 0
    }

    fn change(&self, seen: u64, to: u64) -> Result<(), u64> {
        self.0.compare_exchange(seen, to, Relaxed, Relaxed).map(drop)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_has_passed_stays_so() {
        let expiry = Expiry::at(5);
        assert!(expiry.is_ahead(4));
        assert_eq!(expiry.renew(4, |deadline| deadline + 5), Renewal::Made(5));
        assert!(expiry.is_ahead(9) && !expiry.is_ahead(10));
        // By a thread that has read the clock before.
        assert_eq!(expiry.renew(9, |_| 20), Renewal::Expired);
        assert!(!expiry.is_ahead(9));
        assert_eq!(expiry.expire(9), Due::Now, "for its timer, too");
        assert_eq!((expiry.expire(99), expiry.end(99)), (Due::Ended, None));
    }

    #[test]
    fn one_thread_ends_it_and_hears_whether_it_had_expired() {
        let (early, late, renewed) = (Expiry::at(5), Expiry::at(5), Expiry::at(5));
        assert_eq!((early.end(4), early.end(4), early.expire(5)), (Some(false), None, Due::Ended));
        assert!(early.is_ahead(4) && early.is_missed(), "who has found it before has found it in time");
        assert_eq!(early.renew(4, |_| 9), Renewal::Ended);
        assert_eq!((late.is_missed(), late.end(5), late.renew(5, |_| 9)), (false, Some(true), Renewal::Expired));
        assert_eq!(renewed.renew(4, |_| 9), Renewal::Made(5));
        assert_eq!((renewed.expire(5), renewed.expire(9)), (Due::Later(9), Due::Now));
    }

    #[test]
    fn no_deadline_is_too_far() {
        for far in [NEVER, NEVER + 1, u64::MAX] {
            let expiry = Expiry::at(far);
            assert!(expiry.deadline().is_none() && expiry.is_ahead(NEVER - 1));
            assert_eq!(expiry.renew(1, |_| far), Renewal::Made(NEVER));
            assert_eq!((expiry.renew(1, |_| 7), expiry.deadline()), (Renewal::Made(NEVER), Some(7)));
        }
    }
}
