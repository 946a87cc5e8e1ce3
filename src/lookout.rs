//! Threads that get up for all shards: how the others know that one of them will. `loom-tests/flags.rs` checks this.
//!
//! A worker's thread that goes to sleep may rely on the lookouts, and so sleep past the time when its shard has to be
//! seen to. They must not miss each other:
//!
//! | a worker's thread                                | a lookout                                         |
//! |--------------------------------------------------|---------------------------------------------------|
//! | 1. publishes when its shard has to be seen to    | 1. publishes until when it sleeps                 |
//! | 2. fence                                         | 2. fence                                          |
//! | 3. reads until when each lookout sleeps: relies  | 3. looks at all shards, and when the other one is |
//! |    on them if one of them is up in time          |    up: is neither of them in time? Does not sleep |
//!
//! What the thread publishes in 1 is written only by who has that shard's worker locked, so what was found out last
//! stands. (When it gets up, the thread takes it back before it locks the worker, and once more then.)
//!
//! One of the two fences comes first:
//! - the thread's: the lookout sees the shard in 3.
//! - the lookout's: the thread reads in 3 what the lookout has published, or something newer.
//!
//! So it is with two lookouts, too: the one whose fence comes second sees what the other has published, and does not
//! leave to it what that has left to this one. A lookout that is up counts as in time for all: before it sleeps, it
//! takes these steps.
//!
//! A thread that misses a lookout takes the same steps in its place: it publishes that there is none, fences, and wakes
//! all that rely on it.
//!
//! A lookout runs callbacks, and one of them may be slow. So the other one watches it: it sleeps for no longer than
//! `watch` after the first should be up, or since when that is. And a lookout runs callbacks only if the other one has
//! published a time that is still to come (while both are up, neither may notice that the other does not come); and if
//! that is too late, calls it before. Of the two fences, in `stay_up` and in `lie_down`, the second again sees what
//! came before the first. One that resigns watches the other until that has resigned as well.
//!
//! One that should be up, but has not shown itself, is late, and does not count: nobody relies on it, and the other one
//! sees to all shards, and looks for it again after `watch`. Only if it does not come for longer is it missed.

use crate::sync::{AtomicU64, Ordering, fence};
use Ordering::{Relaxed, SeqCst};
use crossbeam_utils::CachePadded;
use std::array::from_fn;

const NEVER: u64 = u64::MAX;
/// Flag of a time since when a lookout is up. (Without it, until when it sleeps.)
const UP: u64 = 1 << 63;

/// How many there are. They take turns: a thread that has got up need not get up for the next tick as well, and so can
/// look for the other one when it gets up anyway.
pub(crate) const LOOKOUTS: usize = 2;

/// Whether a lookout that does not come back is noticed by the other one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watched {
    /// The other one is off duty; or it may be up as well, or about to get up.
    No,
    /// It means to sleep for too long.
    IfCalled,
    Yes,
}

/// What lookouts go by, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) tick: u64,
    /// What is due so soon after a lookout is up is seen to then.
    pub(crate) soon: u64,
    /// A lookout sleeps at most so much longer than the other one: some ticks.
    pub(crate) watch: u64,
    /// One is missed if it is up for longer than this: a callback keeps it, as a rule.
    pub(crate) kept: u64,
    /// Or if it gets up later than this. (On a busy machine any thread may.)
    pub(crate) stopped: u64,
}

/// Until when a lookout last meant to sleep (and perhaps was not allowed to), or since when it is up; `NEVER` while it
/// is off duty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct UpBy(u64);

impl UpBy {
    fn time(self) -> u64 {
        if self.0 == NEVER { NEVER } else { self.0 & !UP }
    }

    /// True if it sleeps, or is about to get up.
    fn sleeps(self) -> bool {
        self.0 & UP == 0
    }

    /// The earliest moment from `now` on at which it may have begun to run callbacks.
    fn runs_from(self, now: u64) -> u64 {
        if self.sleeps() { self.time().max(now) } else { self.time() }
    }

    /// True if nobody should rely on it any more.
    fn is_late(self, times: &Times, now: u64) -> bool {
        self.time().saturating_add(times.kept) < now
    }

    /// True if it should have shown itself by `now`.
    fn is_missed(self, times: &Times, now: u64) -> bool {
        let allowed = if self.sleeps() { times.stopped } else { times.kept };
        self.time().saturating_add(allowed) < now
    }
}

/// Times are in nanoseconds. Relaxed: the fences decide what is seen, and nothing else is read through it.
#[derive(Debug)]
pub(crate) struct Lookouts {
    /// By lookout: an `UpBy`.
    up_by: [CachePadded<AtomicU64>; LOOKOUTS],
    /// By shard: when it has to be seen to by a lookout; `NEVER` while its thread is awake, or sees to it itself.
    due: Box<[CachePadded<AtomicU64>]>,
    times: Times,
}

impl Lookouts {
    pub(crate) fn new(shard_count: usize, times: Times) -> Self {
        let never = || CachePadded::new(AtomicU64::new(NEVER));
        Self { up_by: from_fn(|_| never()), due: (0..shard_count).map(|_| never()).collect(), times }
    }

    /// For a thread that goes to sleep: true if a lookout sees to its shard when that is `due`. One that is late does
    /// not count. (`now` is asked last: this thread may be stopped in here.)
    pub(crate) fn rely(&self, shard_number: usize, due: u64, now: impl FnOnce() -> u64) -> bool {
        self.due[shard_number].store(due, Relaxed);
        // SeqCst: step 2 of the thread. Pairs with those in `lie_down` and `dismiss`.
        fence(SeqCst);
        let up_by = self.all_up_by();
        let now = now();
        let relies = up_by.into_iter().any(|up_by| up_by.time() <= due && !up_by.is_late(&self.times, now));
        if !relies {
            self.get_up(shard_number);
        }
        relies
    }

    fn all_up_by(&self) -> [UpBy; LOOKOUTS] {
        from_fn(|number| UpBy(self.up_by[number].load(Relaxed)))
    }

    /// That of the other lookout.
    fn other_up_by(&self, number: usize) -> UpBy {
        UpBy(self.up_by[other(number)].load(Relaxed))
    }

    /// For a thread that sees to its shard itself.
    pub(crate) fn get_up(&self, shard_number: usize) {
        self.due[shard_number].store(NEVER, Relaxed);
    }

    /// For a lookout, which has seen to the shard of a thread that relies on it.
    pub(crate) fn saw_to(&self, shard_number: usize, due: u64) {
        self.due[shard_number].store(due, Relaxed);
    }

    /// When a shard has to be seen to by a lookout; `None` if its thread does not rely on that.
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

    /// For a lookout that has nothing to do before `next`: until when it may sleep, if it may. If the other one gets up
    /// just then, or is up, this one leaves it to that, and sleeps for longer.
    pub(crate) fn lie_down(&self, number: usize, next: u64, now: u64) -> Option<u64> {
        let Times { soon, watch, .. } = self.times;
        // The other one is up by `due`, as far as can be told.
        let is_up_by = |other: UpBy, due: u64| other.time() <= due && !other.is_late(&self.times, now);
        let (due, other) = (next.max(now), self.other_up_by(number));
        let latest = self.at_a_tick(other.runs_from(now).saturating_add(watch), now);
        let leaves_it = is_up_by(other, due) && due <= other.time().saturating_add(soon);
        let until = if leaves_it { latest } else { next.min(latest) };
        self.up_by[number].store(until, Relaxed);
        // SeqCst: step 2 of a lookout. Pairs with the fences in `rely` and `stay_up`, and with the other lookout's.
        fence(SeqCst);
        let (due, other) = (self.next(), self.other_up_by(number));
        let is_in_time = until <= due || is_up_by(other, due.max(now));
        (is_in_time && until <= other.runs_from(now).saturating_add(watch)).then_some(until)
    }

    /// The last tick up to `latest`; or `latest`, if that tick is not after `now`. (The other one may be up at any
    /// time. If this one took that on, the two would go on for long beside the ticks, where there is nothing to do.)
    fn at_a_tick(&self, latest: u64, now: u64) -> u64 {
        let tick = latest - latest % self.times.tick;
        if tick > now { tick } else { latest }
    }

    /// For a lookout that is up, perhaps earlier than it meant to: from now on it may be missed.
    pub(crate) fn stay_up(&self, number: usize, now: impl Fn() -> u64) -> Watched {
        let begun = now();
        self.up_by[number].store(begun | UP, Relaxed);
        // SeqCst: step 2 of a lookout that may run callbacks. Pairs with the other lookout's fence in `lie_down`.
        fence(SeqCst);
        let other = self.other_up_by(number).time();
        // Read again: this thread may have been stopped since, and the other one have got up.
        if other == NEVER || other <= now() {
            Watched::No
        } else if other <= begun.saturating_add(self.times.watch) {
            Watched::Yes
        } else {
            Watched::IfCalled
        }
    }

    /// Until when a lookout may sleep and still watch the other one; `None` if that is off duty.
    pub(crate) fn watches_until(&self, number: usize, now: u64) -> Option<u64> {
        let other = self.other_up_by(number);
        (other.0 != NEVER).then(|| other.runs_from(now).saturating_add(self.times.watch))
    }

    /// True if there is one that is not late at `now`.
    pub(crate) fn is_there(&self, now: u64) -> bool {
        self.all_up_by().into_iter().any(|up_by| up_by.0 != NEVER && !up_by.is_late(&self.times, now))
    }

    /// For a lookout: from now on it is off duty. Calls `each` with all shards whose threads may rely on it.
    pub(crate) fn resign(&self, number: usize, each: impl FnMut(usize)) {
        self.up_by[number].store(NEVER, Relaxed);
        // SeqCst: as in `lie_down`.
        fence(SeqCst);
        self.each_relying(each);
    }

    /// For a thread that looks for the lookouts: one that is missed by `now` is off duty until it shows itself again,
    /// and `each` is called with all shards whose threads may rely on it. Only the first thread does this that misses
    /// it, or those that it calls would go through all shards, too. True if it did.
    pub(crate) fn dismiss(&self, now: impl Fn() -> u64, each: impl FnMut(usize)) -> bool {
        let is_first = |up_by: &AtomicU64| {
            let seen = UpBy(up_by.load(Relaxed));
            // An exchange, so that a lookout that is back is not hidden. With a load and a store it might be: that
            // would cost wake-ups, but no timer (the models hold), so no model notices it.
            seen.0 != NEVER
                && seen.is_missed(&self.times, now())
                && up_by.compare_exchange(seen.0, NEVER, Relaxed, Relaxed).is_ok()
        };
        let does = self.up_by.iter().filter(|up_by| is_first(up_by)).count() > 0;
        if does {
            // SeqCst: as in `lie_down`. If the lookout comes back at this moment, what it publishes comes later, and
            // so it finds all that this thread may have missed.
            fence(SeqCst);
            self.each_relying(each);
        }
        does
    }

    /// Calls `each` with all shards whose threads rely on a lookout.
    pub(crate) fn each_relying(&self, each: impl FnMut(usize)) {
        self.due_by(NEVER - 1).for_each(each);
    }
}

/// The number of the other lookout.
pub(crate) fn other(number: usize) -> usize {
    (number + 1) % LOOKOUTS
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const WATCH: u64 = 5;
    const TIMES: Times = Times { tick: 1, soon: 1, watch: WATCH, kept: 0, stopped: 0 };

    /// A lookout that sleeps until then, if it may.
    fn sleeps(lookouts: &Lookouts, number: usize, until: u64) -> bool {
        lookouts.lie_down(number, until, 0) == Some(until)
    }

    #[test]
    fn a_thread_relies_on_one_that_gets_up_in_time_and_is_there() {
        for number in 0..LOOKOUTS {
            let lookouts = Lookouts::new(3, TIMES);
            assert!(!lookouts.rely(1, 5, || 0), "there is none");
            assert!(sleeps(&lookouts, number, 10));
            assert!(!lookouts.rely(1, 9, || 0) && !lookouts.rely(1, 20, || 11));
            assert_eq!(lookouts.next(), NEVER, "nobody relies on it");
            assert!(lookouts.rely(1, 10, || 10) && lookouts.rely(2, 20, || 0));
            assert_eq!(lookouts.next(), 10);
            let relies_when_asked = || lookouts.due(0).map_or(11, |_| 10);
            assert!(lookouts.rely(0, 12, relies_when_asked), "it has published when it is due before it asks");
            lookouts.get_up(0);
            assert!(!sleeps(&lookouts, number, 11) && sleeps(&lookouts, number, 10));
            assert!(lookouts.due_by(9).eq([]) && lookouts.due_by(19).eq([1]) && lookouts.due_by(20).eq([1, 2]));
            lookouts.saw_to(1, 30);
            lookouts.get_up(2);
            assert!(sleeps(&lookouts, number, 30) && lookouts.due_by(NEVER - 1).eq([1]));
            assert!(lookouts.is_there(30) && !lookouts.is_there(31));
            lookouts.stay_up(number, || 32);
            assert!(lookouts.is_there(31) && lookouts.rely(1, 40, || 31));
            lookouts.saw_to(1, 30);
            let mut told = Vec::new();
            lookouts.resign(number, |shard_number| told.push(shard_number));
            assert_eq!(told, [1]);
            assert!(!lookouts.rely(1, NEVER - 1, || 0) && !lookouts.is_there(0));
        }
    }

    const PATIENT: Times = Times { kept: 3, stopped: 10, ..TIMES };

    #[test]
    fn one_that_sleeps_is_missed_later_than_one_that_is_up_but_nobody_relies_on_it() {
        let lookouts = Lookouts::new(1, PATIENT);
        let is_late = |now| {
            let relies = lookouts.rely(0, 30, || now);
            lookouts.saw_to(0, 30);
            assert_eq!(relies, lookouts.is_there(now));
            !relies
        };
        let dismisses = |now| lookouts.dismiss(|| now, |_| {});
        assert!(sleeps(&lookouts, 0, 20));
        assert_eq!([20, 23, 24, 30].map(is_late), [false, false, true, true]);
        assert_eq!([24, 30, 31, 31].map(dismisses), [false, false, true, false]);
        lookouts.stay_up(0, || 25);
        assert_eq!([25, 28, 29].map(is_late), [false, false, true]);
        assert_eq!([28, 29, 29].map(dismisses), [false, true, false]);
        assert!(!lookouts.is_there(0));
    }

    #[test]
    fn one_that_is_missing_does_not_count_beside_one_that_is_there() {
        let lookouts = Lookouts::new(1, TIMES);
        assert!(sleeps(&lookouts, 0, 10) && lookouts.lie_down(1, 20, 0) == Some(15));
        assert!(!lookouts.rely(0, 14, || 11) && lookouts.rely(0, 15, || 11));
    }

    #[test]
    fn who_misses_one_first_tells_those_that_rely_on_it() {
        let lookouts = Lookouts::new(3, TIMES);
        assert!(sleeps(&lookouts, 1, 10));
        assert!(lookouts.rely(0, 11, || 0) && lookouts.rely(2, 20, || 0));
        let told_at = |time| {
            let mut told = Vec::new();
            let does = lookouts.dismiss(|| time, |shard_number| told.push(shard_number));
            assert!(does != told.is_empty());
            told
        };
        assert_eq!((told_at(10), lookouts.is_there(10)), (vec![], true), "it may be about to come");
        assert_eq!((told_at(11), lookouts.is_there(0)), (vec![0, 2], false));
        assert_eq!(told_at(NEVER), [], "that has been done");
        assert!(!lookouts.rely(1, 30, || 0), "there is none");
        assert!(!sleeps(&lookouts, 1, 30) && lookouts.is_there(30), "it is back, and sees to what is due");
        assert!(lookouts.lie_down(0, 11, 0).is_some());
        assert_eq!((told_at(12), lookouts.is_there(30)), (vec![0, 2], true), "the other one stays");
    }

    /// One has something to do at `next`; the other one is up at `other`.
    fn sleeps_until(next: u64, other: u64, now: u64) -> Option<u64> {
        let lookouts = Lookouts::new(1, PATIENT);
        lookouts.up_by[1].store(other, Relaxed);
        lookouts.saw_to(0, next);
        lookouts.lie_down(0, next, now)
    }

    #[test]
    fn one_leaves_to_the_other_what_is_due_when_that_is_up_and_watches_it() {
        assert_eq!(sleeps_until(20, NEVER, 10), Some(20), "there is no other");
        assert_eq!([19, 20].map(|other| sleeps_until(20, other, 10)), [24, 25].map(Some));
        assert_eq!([15, 18].map(|other| sleeps_until(20, other, 10)), [Some(20); 2], "that has nothing to do then");
        assert_eq!([11, 14].map(|other| sleeps_until(20, other, 10)), [16, 19].map(Some), "it has to be watched");
        assert_eq!([21, 25].map(|other| sleeps_until(20, other, 10)), [Some(20); 2], "the other one watches");
        assert_eq!([9, 10].map(|other| sleeps_until(9, other | UP, 10)), [14, 15].map(Some), "it is up");
        assert_eq!([7, 9].map(|other| sleeps_until(9, other, 10)), [Some(9), Some(15)], "it is about to be");
        assert_eq!(sleeps_until(9, 11, 10), Some(9), "it is not up yet: this one has something to do");
    }

    #[test]
    fn one_goes_on_beside_another_one_that_is_late() {
        assert_eq!([1, 6].map(|other| sleeps_until(20, other, 10)), [Some(15); 2], "and looks for it now and then");
        assert_eq!([1, 6].map(|other| sleeps_until(12, other, 10)), [Some(12); 2]);
        assert_eq!([1, 6].map(|other| sleeps_until(9, other, 10)), [Some(9); 2], "it has something to do");
        assert_eq!([1, 6].map(|other| sleeps_until(20, other | UP, 10)), [6, 11].map(Some), "that one is kept");
        let lookouts = Lookouts::new(1, PATIENT);
        let watches_until = |other| {
            lookouts.up_by[1].store(other, Relaxed);
            lookouts.watches_until(0, 10)
        };
        assert_eq!([12, 6, 6 | UP, NEVER].map(watches_until), [Some(17), Some(15), Some(11), None]);
        // A thread relies on it meanwhile.
        lookouts.saw_to(0, 12);
        let sleeps_beside = |other| {
            lookouts.up_by[1].store(other, Relaxed);
            lookouts.lie_down(0, 20, 10)
        };
        assert_eq!([1, 6, 9].map(sleeps_beside), [None, None, Some(15)], "what is late sees to nothing in time");
    }

    #[test]
    fn one_sleeps_until_a_tick_wherever_the_other_one_is() {
        let sleeps_until = |other: u64, now| {
            let lookouts = Lookouts::new(1, Times { tick: 10, soon: 0, watch: 20, ..TIMES });
            lookouts.up_by[1].store(other, Relaxed);
            lookouts.lie_down(0, NEVER, now)
        };
        assert_eq!([30, 33, 39].map(|other| sleeps_until(other, other)), [50; 3].map(Some));
        assert_eq!([41, 49].map(|now| sleeps_until(30 | UP, now)), [50; 2].map(Some), "it has not gone by yet");
        assert_eq!(sleeps_until(25 | UP, 41), Some(45), "no tick is in time");
    }

    #[test]
    fn one_that_is_up_is_watched_if_the_other_one_gets_up_soon() {
        let watched = |other| {
            let lookouts = Lookouts::new(1, TIMES);
            lookouts.up_by[1].store(other, Relaxed);
            lookouts.stay_up(0, || 10)
        };
        assert_eq!([NEVER, 3, 10].map(watched), [Watched::No; 3], "it is off duty, or up as well");
        assert_eq!([11, 15].map(watched), [Watched::Yes; 2]);
        assert_eq!([16, NEVER - 1].map(watched), [Watched::IfCalled; 2]);
        let watched_later = |other| {
            let (lookouts, clock) = (Lookouts::new(1, TIMES), std::cell::Cell::new(8));
            lookouts.up_by[1].store(other, Relaxed);
            lookouts.stay_up(0, || clock.replace(clock.get() + 2) + 2)
        };
        assert_eq!(watched_later(11), Watched::No, "it has got up meanwhile");
        assert_eq!(watched_later(16), Watched::IfCalled, "this one has been up since 10");
    }
}
