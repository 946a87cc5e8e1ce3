//! The timer word: one atomic per timer over which cancel, reschedule, replace and expiry fight.
//!
//! | state     | payload                        | meaning                                              |
//! |-----------|--------------------------------|------------------------------------------------------|
//! | dead      | flags                          | free, or ended: cancelled, expired, drained, closed  |
//! | tentative | deadline                       | on its way into the index; nobody may claim it       |
//! | pending   | deadline                       | the timer of its key                                 |
//! | replaced  | flags, node of the successor   | ended by a `schedule` of the same key                |
//!
//! Every method of [`AtomicWord`] is one legal move, and every move of a node in use is one read-modify-write, never a
//! plain store. That matters beyond the exactness of the answers: it orders each change against the worker's look
//! (see [`AtomicWord::look`]), and whoever acquires a move acquires all that were released before it, since
//! a read-modify-write, however relaxed, carries on what it replaces.
//!
//! So what a caller did before `schedule` or `reschedule` comes before the callback that follows from it, and what it did
//! before it ended a timer comes before any answer that says so.

use super::tick::{Deadline, Tick};
use crate::sync::{AtomicU64, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// What a timer is at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Dead,
    Tentative,
    Pending,
    Replaced,
}

const STATE_BITS: u32 = 2;
/// Flag of an ended timer: it is out of the index, no new reader can reach it.
const UNLINKED: u64 = 1 << 2;
/// Flag of an ended timer: value taken and callback done; nobody will ask for its key on the timer's behalf.
const DONE: u64 = 1 << 3;
/// Flag of an ended timer: the key has not been dropped yet.
const KEY: u64 = 1 << 4;
const SUCCESSOR_SHIFT: u32 = 32;

impl Word {
    #[inline]
    const fn with_deadline(state: State, deadline: Deadline) -> Self {
        Self(deadline.to_bits() << STATE_BITS | state as u64)
    }

    #[inline]
    const fn pending(deadline: Deadline) -> Self {
        Self::with_deadline(State::Pending, deadline)
    }

    #[inline]
    const fn replaced_by(successor: u32) -> Self {
        Self((successor as u64) << SUCCESSOR_SHIFT | KEY | State::Replaced as u64)
    }

    #[inline]
    pub(crate) const fn state(self) -> State {
        match self.0 & ((1 << STATE_BITS) - 1) {
            0 => State::Dead,
            1 => State::Tentative,
            2 => State::Pending,
            _ => State::Replaced,
        }
    }

    #[inline]
    pub(crate) fn is_pending(self) -> bool {
        self.state() == State::Pending
    }

    /// The deadline; only a tentative or pending word has one.
    #[inline]
    pub(crate) fn deadline(self) -> Deadline {
        debug_assert!(matches!(self.state(), State::Tentative | State::Pending));
        Deadline::from_bits(self.0 >> STATE_BITS)
    }

    #[inline]
    pub(super) fn is_replaced_by(self, successor: u32) -> bool {
        self.state() == State::Replaced && self.0 >> SUCCESSOR_SHIFT == u64::from(successor)
    }

    /// An ended timer whose key is still there although nobody needs it any more.
    #[inline]
    pub(super) fn has_leftover_key(self) -> bool {
        matches!(self.state(), State::Dead | State::Replaced) && self.0 & (DONE | KEY) == DONE | KEY
    }
}

/// How an ended timer leaves its pending state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Nobody needs the key any more.
    Done,
    /// A callback (or the caller of `drain`, `close`) still borrows the key; `finish` follows.
    KeyInUse,
}

/// A timer's word. All-zero: a free node.
#[derive(Debug, Default)]
pub(crate) struct AtomicWord(AtomicU64);

/// What the worker found when it looked at a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// It was due and is now claimed.
    Claimed(Deadline),
    /// It is pending and due later.
    Later(Deadline),
    /// There is nothing to wait for: ended, or not published yet.
    Nothing,
}

impl AtomicWord {
    #[inline]
    pub(crate) fn load(&self) -> Word {
        // Acquire: pairs with every move below, so that whoever sees a state sees what led to it:
        // the key and the generation behind a pending timer, the value's departure behind a dead one.
        Word(self.0.load(Acquire))
    }

    /// dead -> tentative, by the owner of a free node, before the node is linked.
    #[inline]
    pub(super) fn allocate(&self, deadline: Deadline) {
        // Relaxed: nobody relies on a tentative word; the link and `publish` release what is in the node.
        // A swap all the same: it hands on what the worker's last look at this node released, to the Acquire in `publish`.
        let old = Word(self.0.swap(Word::with_deadline(State::Tentative, deadline).0, Relaxed));
        debug_assert!(matches!(old.state(), State::Dead | State::Replaced));
    }

    /// tentative -> dead, by the owner of a node that was never linked.
    pub(super) fn abort(&self) {
        // Relaxed, and a mere store: nobody else knows the node. It cuts off what the worker's looks have released, but
        // only a sealed shard refuses a node: whatever is begun in it after that needs no hint, it is closed.
        self.0.store(State::Dead as u64, Relaxed);
    }

    /// tentative -> pending, by the author or by whoever helps; every older timer of the key has ended.
    #[inline]
    pub(super) fn publish(&self) {
        // Acquire (in `load`), also if a helper was faster: its observation of the worker's look becomes ours, so that
        // the author does not read the promise stale afterwards.
        let word = self.load();
        if word.state() == State::Tentative {
            // Release: publishes key, value and generation, and the ends of the older timers, to whoever finds this one.
            // Acquire: observes a look of the worker that came before; see `look`.
            // Acquire on failure: as above.
            let _ = self.0.compare_exchange(word.0, Word::pending(word.deadline()).0, AcqRel, Acquire);
        }
    }

    /// pending -> pending at another deadline; the word found instead if it is not `seen` any more.
    #[inline]
    pub(super) fn reschedule(&self, seen: Word, deadline: Deadline) -> Result<(), Word> {
        debug_assert!(seen.is_pending());
        // Release: what the caller did before comes before the callback.
        // Acquire: observes a look of the worker that came before; see `look`.
        // Relaxed on failure, here and below: what was found is at most compared again.
        self.0.compare_exchange(seen.0, Word::pending(deadline).0, AcqRel, Relaxed).map(drop).map_err(Word)
    }

    /// pending -> dead. The winner owns the value.
    ///
    /// Cancel, reschedule, replace and expiry all try to leave `seen`; the compare-exchange picks one.
    /// - this call first: the others see a dead word and answer `None`, `false`, or report no expiry.
    /// - another first: this call fails and its caller looks again.
    #[inline]
    pub(super) fn kill(&self, seen: Word, end: End) -> Result<(), Word> {
        debug_assert!(seen.is_pending());
        let flags = if end == End::Done { DONE | KEY } else { KEY };
        // Acquire: the value was written before `publish`; it is read by us next. `seen` may come from a relaxed read.
        // Release: a thread that sees the dead word may rely on all that this one did before.
        self.0.compare_exchange(seen.0, flags | State::Dead as u64, AcqRel, Relaxed).map(drop).map_err(Word)
    }

    /// pending -> replaced. The value belongs to the author of `successor`, whoever made the move.
    #[inline]
    pub(super) fn replace(&self, seen: Word, successor: u32) -> Result<(), Word> {
        debug_assert!(seen.is_pending());
        // Release: as in `kill`. Nothing is read on the strength of it: the author of `successor` takes the value after
        // a `load` of its own.
        self.0.compare_exchange(seen.0, Word::replaced_by(successor).0, Release, Relaxed).map(drop).map_err(Word)
    }

    /// The worker's look: claims the timer if it is due at `now`.
    ///
    /// It always performs a read-modify-write, also when there is nothing to change. A caller changes the word
    /// and then reads the promise; the worker withdraws the promise and then looks here. The modification order
    /// of this word decides, without a fence:
    /// - the caller's change first: this look sees it.
    /// - this look first: the caller's change reads from it (Acquire from Release), so that the caller then reads the
    ///   promise as withdrawn and sends a hint of its own.
    pub(super) fn look(&self, now: Tick) -> Sight {
        let mut word = self.load();
        loop {
            if word.is_pending() && word.deadline().is_due(now) {
                let deadline = word.deadline();
                match self.kill(word, End::KeyInUse) {
                    Ok(()) => return Sight::Claimed(deadline),
                    Err(found) => word = found,
                }
                continue;
            }
            // Adds nothing, on purpose. Release: see above. If it shows a timer that is due, `kill` acquires.
            let latest = Word(self.0.fetch_add(0, Release));
            match latest.state() {
                State::Pending if latest.deadline().is_due(now) => word = latest,
                State::Pending => return Sight::Later(latest.deadline()),
                _ => return Sight::Nothing,
            }
        }
    }

    /// Says that the timer's key is needed no more. True if the node is also unlinked: the caller retires it.
    #[must_use]
    #[inline]
    pub(super) fn finish(&self) -> bool {
        // Release: our use of the key comes before its drop by whoever sees in `load` that we are done.
        // Acquire: if we retire the node, it has left the index before.
        self.0.fetch_or(DONE, AcqRel) & UNLINKED != 0
    }

    /// Says that the node is out of the index. True if nobody needs its key: the caller retires it.
    #[must_use]
    #[inline]
    pub(super) fn unlink(&self) -> bool {
        // A set DONE never goes away while the node is not retired, and we are the only unlinker:
        // seeing it, we are the last, and need not tell anybody.
        // Relaxed: retiring needs no more than the fact. A key is dropped after a `load`, and the node is used again
        // after a grace period, which waits for the guard of whoever finished.
        self.0.load(Relaxed) & DONE != 0
            // Release: if it is `finish` that retires the node, it has left the index before.
            || self.0.fetch_or(UNLINKED, Release) & DONE != 0
    }

    /// True for exactly one caller per ended timer: the one who drops the key.
    #[must_use]
    #[inline]
    pub(super) fn take_key(&self) -> bool {
        // Relaxed: it only picks one. Each caller knows that the timer is done, by `load` or because it finished it
        // itself, and so has every use of the key behind it.
        self.0.fetch_and(!KEY, Relaxed) & KEY != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(tick: u64) -> AtomicWord {
        let word = AtomicWord::default();
        word.allocate(Deadline::at(Tick(tick)));
        word.publish();
        word
    }

    #[test]
    fn a_pending_timer_ends_once() {
        let word = pending(5);
        let seen = word.load();
        assert_eq!(word.kill(seen, End::Done), Ok(()));
        assert!(word.kill(seen, End::Done).is_err());
        assert!(word.reschedule(seen, Deadline::NEVER).is_err());
        assert!(word.replace(seen, 3).is_err());
        assert_eq!(word.look(Tick(9)), Sight::Nothing);
    }

    #[test]
    fn a_look_claims_what_is_due_and_nothing_else() {
        let word = pending(5);
        assert_eq!(word.look(Tick(4)), Sight::Later(Deadline::at(Tick(5))));
        assert_eq!(word.look(Tick(5)), Sight::Claimed(Deadline::at(Tick(5))));
        let tentative = AtomicWord::default();
        tentative.allocate(Deadline::at(Tick(1)));
        assert_eq!(tentative.look(Tick(5)), Sight::Nothing);
    }

    #[test]
    fn the_later_of_finish_and_unlink_retires() {
        for finish_first in [true, false] {
            let word = pending(1);
            assert_eq!(word.look(Tick(1)), Sight::Claimed(Deadline::at(Tick(1))));
            let first = if finish_first { word.finish() } else { word.unlink() };
            let second = if finish_first { word.unlink() } else { word.finish() };
            assert_eq!((first, second), (false, true));
            assert!(word.load().has_leftover_key());
            assert!(word.take_key() && !word.take_key());
        }
    }

    #[test]
    fn a_replaced_timer_names_its_successor() {
        let word = pending(5);
        word.replace(word.load(), 77).expect("it was pending");
        assert!(word.load().is_replaced_by(77) && !word.load().is_replaced_by(78));
        assert!(!word.finish());
        assert!(word.load().is_replaced_by(77), "flags do not disturb the successor");
    }
}
