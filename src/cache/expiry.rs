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
use Ordering::{Acquire, Relaxed, Release, SeqCst};

const PASSED: u64 = 1 << 63;
const ENDED: u64 = 1 << 62;
/// Whatever is later than this (146 years).
const NEVER: u64 = ENDED - 1;

/// What is seen through an entry was published with it, by the map; and where there is another place to look at, the
/// fences order it. So loads are Relaxed, with one exception (`renew`).
#[derive(Debug)]
pub(super) struct Expiry(AtomicU64);

/// When an entry expires: `None` is never.
pub(super) type Deadline = Option<u64>;

/// What the timer of an entry finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// The entry has expired, and this call has ended it.
    Now,
    Later(Deadline),
    /// Another thread has ended it.
    Ended,
}

/// An entry was given the deadline `to` instead of `from`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Renewal {
    pub(super) from: u64,
    pub(super) to: u64,
}

fn deadline_of(word: u64) -> u64 {
    word & NEVER
}

fn finite(deadline: u64) -> Deadline {
    Some(deadline).filter(|&deadline| deadline != NEVER)
}

fn has_passed(word: u64, now: u64) -> bool {
    word & PASSED != 0 || finite(deadline_of(word)).is_some_and(|deadline| deadline <= now)
}

impl Expiry {
    pub(super) fn at(deadline: u64) -> Self {
        Self(AtomicU64::new(deadline.min(NEVER)))
    }

    pub(super) fn deadline(&self) -> Deadline {
        finite(deadline_of(self.0.load(Relaxed)))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.load(Relaxed) & ENDED != 0
    }

    /// The deadline if it is later than `now`: then look-ups may find the entry.
    pub(super) fn ahead(&self, now: u64) -> Option<Deadline> {
        let mut seen = self.0.load(Relaxed);
        while has_passed(seen, now) {
            if seen & PASSED != 0 {
                return None;
            }
            match self.change(seen, seen | PASSED) {
                Ok(()) => return None,
                Err(found) => seen = found,
            }
        }
        Some(finite(deadline_of(seen)))
    }

    /// Gives the entry the deadline that `choose` makes of the time and of the present deadline. `None`: it has expired
    /// or ended.
    ///
    /// The clock is read after the word, and again if that has changed: so a thread that is stopped here does not undo
    /// what others have done meanwhile.
    pub(super) fn renew(&self, clock: impl Fn() -> u64, choose: impl Fn(u64, u64) -> u64) -> Option<Renewal> {
        loop {
            // Acquire: if the entry was taken out of the map, or replaced there, before it ended, observes that. And
            // the clock, if it is a manual one, is read no earlier than by the thread whose change this is.
            let seen = self.0.load(Acquire);
            if seen & (PASSED | ENDED) != 0 {
                return None;
            }
            let (now, from) = (clock(), deadline_of(seen));
            if has_passed(seen, now) {
                let _ = self.change(seen, seen | PASSED);
                continue;
            }
            let to = choose(now, from).min(NEVER);
            if self.change(seen, to).is_ok() {
                return Some(Renewal { from, to });
            }
        }
    }

    /// For the entry's timer.
    pub(super) fn expire(&self, now: u64) -> Due {
        let mut seen = self.0.load(Relaxed);
        while seen & ENDED == 0 {
            if !has_passed(seen, now) {
                return Due::Later(finite(deadline_of(seen)));
            }
            // Passed, too, in case that the clock steps back while the entry is still in the map.
            if let Err(found) = self.change(seen, seen | PASSED | ENDED) {
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
        self.has_ended()
    }

    fn change(&self, seen: u64, to: u64) -> Result<(), u64> {
        // Release: publishes what was done to the map before the entry is ended, and how late it was, to the Acquire in
        // `renew`.
        self.0.compare_exchange(seen, to, Release, Relaxed).map(drop)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_has_passed_stays_so() {
        let expiry = Expiry::at(5);
        assert_eq!(expiry.ahead(4), Some(Some(5)));
        assert_eq!(expiry.renew(|| 4, |now, deadline| now + deadline), Some(Renewal { from: 5, to: 9 }));
        assert_eq!((expiry.ahead(8), expiry.ahead(9)), (Some(Some(9)), None));
        // By a thread that has read the clock before.
        assert_eq!((expiry.renew(|| 8, |_, _| 20), expiry.ahead(8)), (None, None));
        assert_eq!(expiry.expire(8), Due::Now, "for its timer, too");
        assert_eq!((expiry.expire(99), expiry.end(99)), (Due::Ended, None));
        // A renewal that comes too late has seen it pass, too.
        let expiry = Expiry::at(5);
        assert_eq!((expiry.renew(|| 5, |_, _| 20), expiry.ahead(4)), (None, None));
    }

    #[test]
    fn one_thread_ends_it_and_hears_whether_it_had_expired() {
        let (early, late, renewed) = (Expiry::at(5), Expiry::at(5), Expiry::at(5));
        assert_eq!((early.end(4), early.end(4), early.expire(5)), (Some(false), None, Due::Ended));
        assert!(early.ahead(4).is_some() && early.is_missed(), "who has found it before has found it in time");
        assert_eq!(early.renew(|| 4, |_, _| 9), None);
        assert_eq!((late.is_missed(), late.end(5), late.renew(|| 5, |_, _| 9)), (false, Some(true), None));
        assert_eq!(renewed.renew(|| 4, |_, _| 9), Some(Renewal { from: 5, to: 9 }));
        assert_eq!((renewed.expire(5), renewed.expire(9)), (Due::Later(Some(9)), Due::Now));
        assert_eq!(renewed.ahead(8), None, "even if the clock steps back");
    }

    /// Another thread renews it between this one's look at the word and its change.
    #[test]
    fn a_renewal_that_was_stopped_undoes_no_newer_one() {
        let expiry = Expiry::at(5);
        let stopped = std::cell::Cell::new(true);
        let clock = || {
            if !stopped.replace(false) {
                return 4;
            }
            assert_eq!(expiry.renew(|| 4, |now, _| now + 5), Some(Renewal { from: 5, to: 9 }));
            1
        };
        assert_eq!(expiry.renew(clock, |now, _| now + 5), Some(Renewal { from: 9, to: 9 }));
    }

    #[test]
    fn never_is_never() {
        for far in [NEVER, NEVER + 1, u64::MAX] {
            let expiry = Expiry::at(far);
            assert_eq!(
                (expiry.deadline(), expiry.ahead(far), expiry.expire(far)),
                (None, Some(None), Due::Later(None))
            );
            assert_eq!(expiry.renew(|| 1, |_, _| far), Some(Renewal { from: NEVER, to: NEVER }));
            assert_eq!(expiry.renew(|| 1, |_, _| 7), Some(Renewal { from: NEVER, to: 7 }));
            assert_eq!((expiry.deadline(), expiry.end(6)), (Some(7), Some(false)));
        }
    }
}
