//! One thread that gets up for several: how the others know that it will. `loom-tests/flags.rs` checks this file.
//!
//! A worker's thread that goes to sleep may rely on the lookout, and so sleep past the time when its shard has to be
//! seen to. The two must not miss each other:
//!
//! | a worker's thread                                | the lookout                                       |
//! |--------------------------------------------------|---------------------------------------------------|
//! | 1. publishes when its shard has to be seen to    | 1. publishes until when it sleeps                 |
//! | 2. fence                                         | 2. fence                                          |
//! | 3. reads until when the lookout sleeps: relies   | 3. looks at all shards: does one have to be seen  |
//! |    on it if that is not too late                 |    to before that? Does not sleep                 |
//!
//! What the thread publishes in 1 is written only by who has that shard's worker locked, so what was found out last
//! stands. (When it gets up, the thread takes it back before it locks the worker, and once more then.)
//!
//! One of the two fences comes first:
//! - the thread's: the lookout sees the shard in 3.
//! - the lookout's: the thread reads in 3 what the lookout has published, or something newer.
//!
//! A thread that misses the lookout takes the same steps in its place: it publishes that there is none, fences, and
//! wakes all that rely on it.
//!
//! The lookout runs callbacks, and one of them may be slow. So another thread, the guard, gets up now and then while it
//! does, and looks whether it still comes. The two meet in the same way:
//!
//! | the guard                                        | the lookout                                       |
//! |--------------------------------------------------|---------------------------------------------------|
//! | 1. publishes until when it sleeps                | 1. publishes when it begins to run callbacks      |
//! | 2. fence                                         | 2. fence                                          |
//! | 3. has the lookout run any lately? Sleeps less   | 3. does the guard sleep too long? Wakes it        |

use crate::sync::{AtomicU64, Ordering, fence};
use Ordering::{Relaxed, SeqCst};
use crossbeam_utils::CachePadded;

const NEVER: u64 = u64::MAX;

/// Times are in nanoseconds. Relaxed: the fences decide what is seen, and nothing else is read through it.
#[derive(Debug)]
pub(crate) struct Lookout {
    /// Until when it last meant to sleep; `NEVER` while there is none.
    asleep_until: AtomicU64,
    /// By shard: when it has to be seen to by the lookout; `NEVER` while its thread is awake, or sees to it itself.
    due: Box<[CachePadded<AtomicU64>]>,
    /// When it last began to run callbacks.
    ran_at: AtomicU64,
    /// Until when the guard last meant to sleep.
    guard_asleep_until: AtomicU64,
}

impl Lookout {
    pub(crate) fn new(shard_count: usize) -> Self {
        let due = (0..shard_count).map(|_| CachePadded::new(AtomicU64::new(NEVER))).collect();
        Self {
            asleep_until: AtomicU64::new(NEVER),
            due,
            ran_at: AtomicU64::new(0),
            guard_asleep_until: AtomicU64::new(NEVER),
        }
    }

    /// For a thread that goes to sleep: true if the lookout sees to its shard when that is `due`. False if it should
    /// have got up before `not_before`, and has not said so since: it may be stopped. (Asked last: this thread may be
    /// stopped in here, and `not_before` is a matter of the time.)
    pub(crate) fn rely(&self, shard_number: usize, due: u64, not_before: impl FnOnce() -> u64) -> bool {
        self.due[shard_number].store(due, Relaxed);
        // SeqCst: step 2 of the thread. Pairs with those in `lie_down` and `dismiss`.
        fence(SeqCst);
        let asleep_until = self.asleep_until.load(Relaxed);
        let relies = asleep_until <= due && not_before() <= asleep_until;
        if !relies {
            self.get_up(shard_number);
        }
        relies
    }

    /// For a thread that sees to its shard itself.
    pub(crate) fn get_up(&self, shard_number: usize) {
        self.due[shard_number].store(NEVER, Relaxed);
    }

    /// For the lookout, which has seen to the shard of a thread that relies on it.
    pub(crate) fn saw_to(&self, shard_number: usize, due: u64) {
        self.due[shard_number].store(due, Relaxed);
    }

    /// When a shard has to be seen to by the lookout; `None` if its thread does not rely on that.
    pub(crate) fn due(&self, shard_number: usize) -> Option<u64> {
        Some(self.due[shard_number].load(Relaxed)).filter(|&due| due != NEVER)
    }

    pub(crate) fn is_due(&self, shard_number: usize, time: u64) -> bool {
        self.due[shard_number].load(Relaxed) <= time
    }

    /// The shards that have to be seen to by `time`.
    pub(crate) fn due_by(&self, time: u64) -> impl Iterator<Item = usize> {
        (0..self.due.len()).filter(move |&shard_number| self.is_due(shard_number, time))
    }

    /// When a shard has to be seen to next.
    pub(crate) fn next(&self) -> u64 {
        self.due.iter().fold(NEVER, |next, due| next.min(due.load(Relaxed)))
    }

    /// For the lookout: true if it may sleep until then.
    pub(crate) fn lie_down(&self, until: u64) -> bool {
        self.asleep_until.store(until, Relaxed);
        // SeqCst: step 2 of the lookout. Pairs with the fence in `rely`.
        fence(SeqCst);
        self.next() >= until
    }

    /// For the lookout while it is up, perhaps earlier than it meant to: from now on it may be missed. (No fence: it
    /// takes its steps before it sleeps.)
    pub(crate) fn stay_up(&self, now: u64) {
        self.asleep_until.store(now, Relaxed);
    }

    /// For the lookout, which is about to run callbacks: true if the guard gets up by `latest`. If not, it has to be
    /// woken.
    pub(crate) fn is_guarded(&self, now: u64, latest: u64) -> bool {
        self.ran_at.store(now, Relaxed);
        // SeqCst: step 2 of the lookout with its guard. Pairs with the fence in `guard_lies_down`.
        fence(SeqCst);
        self.guard_asleep_until.load(Relaxed) <= latest
    }

    /// For the guard: true if it may sleep until then, since the lookout has begun to run nothing after `since`.
    pub(crate) fn guard_lies_down(&self, until: u64, since: u64) -> bool {
        self.guard_gets_up_by(until);
        // SeqCst: step 2 of the guard. Pairs with the fence in `is_guarded`.
        fence(SeqCst);
        self.ran_at.load(Relaxed) <= since
    }

    /// For the guard, which sleeps no longer than that, in any case.
    pub(crate) fn guard_gets_up_by(&self, until: u64) {
        self.guard_asleep_until.store(until, Relaxed);
    }

    /// True if there is one, and it need not have got up before `not_before`.
    pub(crate) fn is_there(&self, not_before: u64) -> bool {
        (not_before..NEVER).contains(&self.asleep_until.load(Relaxed))
    }

    /// From now on there is none. Calls `each` with all shards whose threads may rely on it.
    pub(crate) fn resign(&self, each: impl FnMut(usize)) {
        self.lie_down(NEVER);
        self.each_relying(each);
    }

    /// For a thread that looks for the lookout: if that should have got up before `time`, there is none until it says
    /// so again, and `each` is called with all shards whose threads may rely on it. Only the first thread does this
    /// that misses the lookout, or those that it calls would go through all shards, too. True if it did.
    pub(crate) fn dismiss(&self, time: impl FnOnce() -> u64, each: impl FnMut(usize)) -> bool {
        let seen = self.asleep_until.load(Relaxed);
        // An exchange, so that a lookout that is back is not hidden. With a load and a store it might be: that would
        // cost wake-ups, but no timer (the models hold), so no model notices it.
        let does =
            seen != NEVER && seen < time() && self.asleep_until.compare_exchange(seen, NEVER, Relaxed, Relaxed).is_ok();
        if does {
            // SeqCst: as in `lie_down`. If the lookout comes back at this moment, what it publishes comes later, and
            // so it finds all that this thread may have missed.
            fence(SeqCst);
            self.each_relying(each);
        }
        does
    }

    /// Calls `each` with all shards whose threads rely on the lookout.
    pub(crate) fn each_relying(&self, each: impl FnMut(usize)) {
        self.due_by(NEVER - 1).for_each(each);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_relies_on_it_if_it_gets_up_in_time_and_is_there() {
        let lookout = Lookout::new(3);
        assert!(!lookout.rely(1, 5, || 0), "there is none");
        assert!(lookout.lie_down(10));
        assert!(!lookout.rely(1, 9, || 0) && !lookout.rely(1, 20, || 11));
        assert_eq!(lookout.next(), NEVER, "nobody relies on it");
        assert!(lookout.rely(1, 10, || 10) && lookout.rely(2, 20, || 0));
        assert_eq!(lookout.next(), 10);
        let relies_when_asked = || lookout.due(0).map_or(11, |_| 10);
        assert!(lookout.rely(0, 12, relies_when_asked), "it has published when it is due before it asks");
        lookout.get_up(0);
        assert!(!lookout.lie_down(11) && lookout.lie_down(10));
        assert!(lookout.due_by(9).eq([]) && lookout.due_by(19).eq([1]) && lookout.due_by(20).eq([1, 2]));
        lookout.saw_to(1, 30);
        lookout.get_up(2);
        assert!(lookout.lie_down(30) && lookout.due_by(NEVER - 1).eq([1]));
        assert!(lookout.is_there(30) && !lookout.is_there(31));
        lookout.stay_up(32);
        assert!(lookout.is_there(31) && lookout.rely(1, 40, || 31));
        lookout.saw_to(1, 30);
        let mut told = Vec::new();
        lookout.resign(|shard_number| told.push(shard_number));
        assert_eq!(told, [1]);
        assert!(!lookout.rely(1, NEVER - 1, || 0) && !lookout.is_there(0));
    }

    #[test]
    fn who_misses_it_first_tells_those_that_rely_on_it() {
        let lookout = Lookout::new(3);
        lookout.lie_down(10);
        assert!(lookout.rely(0, 11, || 0) && lookout.rely(2, 20, || 0));
        let told_at = |time| {
            let mut told = Vec::new();
            let does = lookout.dismiss(|| time, |shard_number| told.push(shard_number));
            assert!(does != told.is_empty());
            told
        };
        assert_eq!((told_at(10), lookout.is_there(10)), (vec![], true), "it may be about to come");
        assert_eq!((told_at(11), lookout.is_there(0)), (vec![0, 2], false));
        assert_eq!(told_at(NEVER), [], "that has been done");
        assert!(!lookout.rely(1, 30, || 0), "there is none");
        assert!(!lookout.lie_down(30) && lookout.is_there(30), "it is back, and sees to what is due");
    }

    #[test]
    fn the_guard_may_sleep_if_no_callback_has_begun_lately() {
        let lookout = Lookout::new(2);
        assert!(!lookout.is_guarded(10, NEVER - 1), "it has never been up");
        assert!(lookout.guard_lies_down(20, 10) && !lookout.guard_lies_down(20, 9));
        assert!(lookout.is_guarded(30, 20) && !lookout.is_guarded(40, 19));
        lookout.guard_gets_up_by(15);
        assert!(lookout.is_guarded(41, 15) && !lookout.guard_lies_down(50, 40) && lookout.guard_lies_down(50, 41));
    }
}
