//! Hints, and the promise that saves most of them.
//!
//! A [`Hint`] asks the worker to *look* at a node at a tick. It carries no identity and decides nothing: a
//! superfluous hint is harmless by construction, **only a missing one is a bug**.
//!
//! A node's [`Promise`] names the tick of a hint that is out (in a mailbox or in the wheel) and has not led to its look
//! yet. A caller whose deadline lies at or after the promised tick sends nothing: the look finds the timer, and the
//! worker files the hint again. So moving a deadline later, and reusing the node of a cancelled time-out, costs no
//! message at all. The promise belongs to the node, not to the timer; it survives cancel and reuse.
//!
//! The rules, each of which a model in `loom-tests/races/hint.rs` breaks once:
//! 1. **Push first, promise later.** The author of a hint names it in the promise only when it is in the mailbox.
//!    An author that stalls in between delays nobody: others see no promise and push hints of their own.
//! 2. **Withdraw before looking.** The worker withdraws the promise, then looks at the word
//!    ([`AtomicWord::look`](super::word::AtomicWord::look) says why no caller slips through between the two).
//! 3. **Every look raises the version**, whichever hint it serves. So an author that stalls before its promise, until
//!    the look for its hint has come, cannot make a promise that nothing keeps: its compare-exchange fails.
//!    (27 bits: to go wrong, a caller must stall over exactly a multiple of 2^27 looks at one node.)
//! 4. **Within one version a promise only moves to earlier ticks.** A promise that fails needs no second attempt: a
//!    hint that no promise names leads to its look all the same, and merely saves nobody a hint.

use super::tick::{HINT_TICK_BITS, HORIZON_TICKS, Tick, at_or_before, unfold};
use crate::sync::{AtomicU64, Ordering};

/// Bits of a node's index. Index 0 is no node.
pub(crate) const NODE_BITS: u32 = 28;
const NODE_MASK: u64 = (1 << NODE_BITS) - 1;
const TICK_MASK: u64 = (1 << HINT_TICK_BITS) - 1;
const _: () = assert!(HINT_TICK_BITS + NODE_BITS == u64::BITS, "a hint is one machine word");

/// A request to look at a node at a tick. Never all-zero. The order means nothing; it serves to find equal hints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Hint(u64);

impl Hint {
    #[inline]
    pub(crate) fn new(tick: Tick, node: u32) -> Self {
        debug_assert!(node != 0 && u64::from(node) <= NODE_MASK);
        Self((tick.0 & TICK_MASK) << NODE_BITS | u64::from(node))
    }

    #[inline]
    pub(crate) fn node(self) -> u32 {
        (self.0 & NODE_MASK) as u32
    }

    /// The tick, read as the one nearest to `near`.
    #[inline]
    pub(crate) fn tick(self, near: Tick) -> Tick {
        unfold(self.0 >> NODE_BITS, HINT_TICK_BITS, near)
    }

    #[inline]
    pub(super) fn to_bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self(bits))
    }
}

/// The tick to ask for so that a timer due at `deadline` is found in time: the deadline, but at most the horizon.
#[inline]
pub(crate) fn hint_tick(deadline: Tick, now: Tick) -> Tick {
    deadline.min(Tick(now.0.saturating_add(HORIZON_TICKS)))
}

/// `[version | some:1 | tick:36]`. All-zero: nothing promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Promise(u64);

const SOME: u64 = 1 << HINT_TICK_BITS;
const VERSION: u64 = SOME << 1;

impl Promise {
    #[inline]
    fn tick_bits(self) -> Option<u64> {
        (self.0 & SOME != 0).then_some(self.0 & TICK_MASK)
    }

    /// True if the promised look comes no later than `tick`.
    #[inline]
    pub(crate) fn covers(self, tick: Tick) -> bool {
        self.tick_bits().is_some_and(|bits| at_or_before(bits, tick.0, HINT_TICK_BITS))
    }

    #[inline]
    fn promising(self, tick: Tick) -> Self {
        Self(self.0 & !(VERSION - 1) | SOME | (tick.0 & TICK_MASK))
    }

    /// The next version; without a promise if that was for `tick`.
    #[inline]
    fn withdrawn(self, tick: Tick) -> Self {
        let next = Self(self.0.wrapping_add(VERSION));
        let kept_by_this_look = next.tick_bits() == Some(tick.0 & TICK_MASK);
        if kept_by_this_look { Self(next.0 & !(VERSION - 1)) } else { next }
    }
}

/// A node's promise.
#[derive(Debug, Default)]
pub(crate) struct AtomicPromise(AtomicU64);

impl AtomicPromise {
    #[inline]
    pub(crate) fn load(&self) -> Promise {
        // Acquire: a caller that relies on a promise observes the push of the hint behind it (see `promise`), so that
        // whatever the caller does next comes after that push.
        Promise(self.0.load(Ordering::Acquire))
    }

    /// Promises a look at `tick`. The hint for it is out already, or the caller is the worker, which files it next.
    /// `seen` was read before the hint went out; if anything has happened to the promise since, this does nothing
    /// (rules 3 and 4).
    #[inline]
    pub(crate) fn promise(&self, seen: Promise, tick: Tick) {
        // Relaxed: the fence in `Alarm`, which comes between the push of a hint and its promise, releases the push to
        // the Acquire in `load`; the worker's own hints need no push. What else is read through it is
        // the hand (`Shard::has_passed`), by the same fence; after the worker's own promise, by its look at the word.
        let _ = self.0.compare_exchange(seen.0, seen.promising(tick).0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// For the worker, which is about to look because of a hint for `tick`: withdraws the promise if it names that
    /// hint, and raises the version. Returns the promise that is left.
    #[inline]
    pub(crate) fn withdraw(&self, tick: Tick) -> Promise {
        let mut seen = Promise(self.0.load(Ordering::Relaxed));
        loop {
            let next = seen.withdrawn(tick);
            // Acquire: observes the push of the hint behind the promise that we keep, if any: our next drain finds it.
            // No Release: the word's read-modify-writes make a caller see this (`AtomicWord::look`).
            match self.0.compare_exchange(seen.0, next.0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return next,
                // A caller promised meanwhile. Within a version promises only move to earlier ticks, so this ends.
                Err(found) => seen = Promise(found),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_keep_tick_and_node_at_every_uptime() {
        for now in [0, (1 << 36) - 3, (1 << 42) - 3, (1 << 63) - 3] {
            for ahead in [0, 1, HORIZON_TICKS] {
                let hint = Hint::new(Tick(now + ahead), NODE_MASK as u32);
                assert_eq!(hint.tick(Tick(now)), Tick(now + ahead));
                assert_eq!(hint.node(), NODE_MASK as u32);
            }
        }
    }

    #[test]
    fn a_promise_covers_later_deadlines_only() {
        let promise = AtomicPromise::default();
        assert!(!promise.load().covers(Tick(5)));
        promise.promise(promise.load(), Tick(5));
        let cases = [(4, false), (5, true), (6, true)];
        for (tick, covered) in cases {
            assert_eq!(promise.load().covers(Tick(tick)), covered, "{tick}");
        }
    }

    #[test]
    fn a_look_withdraws_its_own_promise_and_outdates_every_author() {
        let promise = AtomicPromise::default();
        let before = promise.load();
        promise.promise(before, Tick(5));
        assert!(promise.withdraw(Tick(3)).covers(Tick(5)), "another hint's promise stands");
        let stalled = promise.load();
        assert!(!promise.withdraw(Tick(5)).covers(Tick(1 << 20)));
        promise.promise(stalled, Tick(2));
        promise.promise(before, Tick(2));
        assert!(!promise.load().covers(Tick(9)), "an author from before the look promises nothing");
    }

    #[test]
    fn versions_wrap_without_touching_the_tick() {
        let promise = Promise(!0).promising(Tick(9));
        assert!(promise.withdrawn(Tick(8)).covers(Tick(9)));
        assert!(!promise.withdrawn(Tick(9)).covers(Tick(9)));
    }
}
