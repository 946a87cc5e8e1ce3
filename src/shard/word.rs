//! The timer word: the one atomic per timer over which cancel, reschedule, replace and expiry compete.
//!
//! | state     | payload                        | meaning                                              |
//! |-----------|--------------------------------|------------------------------------------------------|
//! | dead      | flags                          | free, or ended: cancelled, expired, drained, closed  |
//! | tentative | ticket, or none                | on its way into the index; nobody may claim it       |
//! | yielding  | ticket, or none                | as tentative; but if its key already has a timer,    |
//! |           |                                | it is this one that ends                             |
//! | pending   | deadline                       | the timer of its key                                 |
//! | replaced  | flags, node of the successor   | ended by a `schedule` of the same key; or, with      |
//! |           |                                | successor 0, which is no node, as the last handle    |
//! |           |                                | is dropped                                           |
//! | firing    | next deadline, or open         | it repeats and its callback runs: it may come back   |
//! | sealed    | next deadline, or open         | its shard was sealed while it fired: it does not     |
//! |           |                                | come back, but may be given back                     |
//!
//! Every method of [`AtomicWord`] is one legal move, and every move of a node in use is one read-modify-write, never a
//! plain store. Exact answers need that, and so do two orderings:
//! - each change is ordered against the worker's look (see [`AtomicWord::look`]);
//! - a read-modify-write, even a relaxed one, continues the release sequences of what it replaces. So a thread that
//!   acquires one move acquires everything that earlier moves released.
//!
//! Users may rely on two consequences. What a caller did before `schedule`, `reschedule`, or a `schedule_if_absent`
//! that found a timer, happens before the callback that follows. What a caller did before it ended a timer happens
//! before any answer that reports the end.

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
    Firing,
    Yielding,
    Sealed,
}

const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
/// The bits that distinguish a yielding timer from a tentative one.
const YIELDS: u64 = State::Tentative as u64 ^ State::Yielding as u64;
/// Flag of a tentative, yielding, pending or firing timer: it repeats.
const REPEATS: u64 = 1 << STATE_BITS;
const DEADLINE_SHIFT: u32 = STATE_BITS + 1;
/// Flag of an ended timer: it is out of the index, where no new reader can reach it, and the thread that took it out is
/// not the one that finishes it. (If the finishing thread takes the node out itself, it needs no flag.)
const UNLINKED: u64 = 1 << 3;
/// Flag of an ended timer: its value is taken and its callback done, so the timer itself no longer needs its key. (Not
/// always set if keys need no drop.)
const DONE: u64 = 1 << 4;
/// Flag of an ended timer: the key has not been dropped yet.
const KEY: u64 = 1 << 5;
/// Flag of a dead timer: it gave way to another one, and so never was pending.
const GAVE_WAY: u64 = 1 << 6;
const SUCCESSOR_SHIFT: u32 = 32;
/// Stands for "no successor": no timer has node 0.
pub(super) const NO_SUCCESSOR: u32 = 0;

impl Word {
    #[inline]
    const fn tentative(repeats: bool) -> Self {
        let flag = if repeats { REPEATS } else { 0 };
        Self(flag | State::Tentative as u64)
    }

    /// The ticket of a tentative or yielding timer.
    #[inline]
    pub(super) fn ticket(self) -> Option<u64> {
        debug_assert!(self.is_undecided());
        Some(self.0 >> DEADLINE_SHIFT).filter(|&ticket| ticket != 0)
    }

    /// The same timer in another state.
    #[inline]
    const fn turned(self, state: State, deadline: Deadline) -> Self {
        Self(deadline.to_bits() << DEADLINE_SHIFT | self.0 & REPEATS | state as u64)
    }

    #[inline]
    const fn replaced_by(successor: u32) -> Self {
        Self((successor as u64) << SUCCESSOR_SHIFT | KEY | State::Replaced as u64)
    }

    #[inline]
    pub(crate) const fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Dead,
            1 => State::Tentative,
            2 => State::Pending,
            3 => State::Replaced,
            4 => State::Firing,
            5 => State::Yielding,
            _ => State::Sealed,
        }
    }

    /// Tentative or yielding.
    #[inline]
    pub(super) fn is_undecided(self) -> bool {
        self.0 & (STATE_MASK ^ YIELDS) == State::Tentative as u64
    }

    #[inline]
    pub(crate) fn is_pending(self) -> bool {
        self.state() == State::Pending
    }

    /// It may come back after its callback.
    #[inline]
    pub(crate) fn repeats(self) -> bool {
        debug_assert!(!matches!(self.state(), State::Dead | State::Replaced));
        self.0 & REPEATS != 0
    }

    /// The deadline of a pending timer.
    #[inline]
    pub(crate) fn deadline(self) -> Deadline {
        debug_assert!(self.is_pending());
        Deadline::from_bits(self.0 >> DEADLINE_SHIFT)
    }

    /// The deadline that a firing or sealed timer was given while its callback runs, if any.
    fn given_deadline(self) -> Option<Deadline> {
        debug_assert!(matches!(self.state(), State::Firing | State::Sealed));
        Some(Deadline::from_bits(self.0 >> DEADLINE_SHIFT)).filter(|&deadline| deadline != Deadline::OPEN)
    }

    #[inline]
    pub(super) fn is_replaced_by(self, successor: u32) -> bool {
        self.state() == State::Replaced && self.0 >> SUCCESSOR_SHIFT == u64::from(successor)
    }

    /// True for a dead timer (not a replaced one) whose callback may still run. (Also for some whose callback is done,
    /// if keys need no drop; their nodes are out of the index.)
    #[inline]
    pub(super) fn is_in_use(self) -> bool {
        self.state() == State::Dead && self.0 & DONE == 0
    }

    /// Whether a yielding timer, decided by now, gave way. Asked by its author only: for others the node may have been
    /// reused.
    pub(super) fn gave_way(self) -> bool {
        self.state() == State::Dead && self.0 & GAVE_WAY != 0
    }

    /// True for an ended timer whose key is no longer needed and not yet dropped. Meaningless if keys need no drop.
    #[inline]
    pub(super) fn has_leftover_key(self) -> bool {
        matches!(self.state(), State::Dead | State::Replaced) && self.0 & (DONE | KEY) == DONE | KEY
    }
}

/// How an ended timer leaves its pending state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The key is no longer needed.
    Done,
    /// A callback (or the caller of `drain`, `close`) still borrows the key; `finish` follows.
    KeyInUse,
}

/// A timer's word. All-zero: a free node.
#[derive(Debug, Default)]
pub(crate) struct AtomicWord(AtomicU64);

/// What became of a timer that repeats, after its callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunEnd {
    /// It is pending again.
    Back(Deadline),
    /// It would have been, but its shard is sealed.
    Sealed(Deadline),
    Ended,
}

/// What the worker found when it looked at a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// It was due and is now claimed; this is what it was.
    Claimed(Word),
    /// It is pending and due later.
    Later(Deadline),
    /// There is nothing to wait for: ended, or not published yet.
    Nothing,
}

impl AtomicWord {
    #[inline]
    pub(crate) fn load(&self) -> Word {
        // Acquire: pairs with the Release of every move below, so that a thread which sees a state sees what led to it:
        // the key and the generation of a pending timer, its author's value of a claimed one.
        Word(self.0.load(Acquire))
    }

    /// True if the timer is dead, which it stays for as long as the caller is pinned.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        // Acquire: pairs with `kill`. Our caller passes over this timer, and answers that its key had none: what the
        // thread that ended this timer did before happens before that answer. For the order of timers Relaxed would do.
        // A thread that still helps this timer (`settle`) and finds our caller's, published after this load, reads no
        // older value of this word than we do (read-read coherence).
        Word(self.0.load(Acquire)).state() == State::Dead
    }

    /// dead -> tentative, by the owner of a free node, before the node is linked.
    #[inline]
    pub(super) fn allocate(&self, repeats: bool) {
        // Relaxed: nobody relies on a tentative word; the cell and `publish` release what is in the node.
        // Still a swap: it continues what the worker's last look at this node released, for the Acquire in `publish`.
        let old = Word(self.0.swap(Word::tentative(repeats).0, Relaxed));
        debug_assert!(matches!(old.state(), State::Dead | State::Replaced));
    }

    /// dead -> pending, by the owner of a free node that will not be in the index.
    #[inline]
    pub(super) fn begin(&self, deadline: Deadline, repeats: bool) -> Word {
        let pending = Word::tentative(repeats).turned(State::Pending, deadline);
        // Release: publishes key, value and generation to threads that find the timer by its handle, by a hint, or as
        // they seal the shard.
        // Acquire: observes an earlier look of the worker (see `look`) or of the sealer (`look_and_seal`).
        let old = Word(self.0.swap(pending.0, AcqRel));
        debug_assert!(matches!(old.state(), State::Dead | State::Replaced));
        pending
    }

    /// tentative -> yielding, by the owner of a node that is not linked yet.
    pub(super) fn make_yielding(&self) {
        // Relaxed, and not a store, for the reasons in `allocate`.
        self.0.fetch_or(YIELDS, Relaxed);
    }

    /// tentative, yielding or dead -> dead as if never used, by the owner of a node that was never linked.
    pub(super) fn abort(&self) {
        // Relaxed: nothing is published. A swap: it continues what a sealer may have released at this node
        // (`look_and_seal`).
        self.0.swap(State::Dead as u64, Relaxed);
    }

    /// Gives a ticket to a tentative or yielding timer, which was `seen` without one. Does nothing if it has got one,
    /// or has been decided, since.
    pub(super) fn give_ticket(&self, seen: Word, ticket: u64) {
        debug_assert!(seen.ticket().is_none() && ticket >> (u64::BITS - DEADLINE_SHIFT) == 0);
        // AcqRel: a thread that reads the ticket sees the line from which it was drawn, and what was in that then.
        let _ = self.0.compare_exchange(seen.0, seen.0 | ticket << DEADLINE_SHIFT, AcqRel, Relaxed);
    }

    /// tentative or yielding -> pending, by its author, which has seen no other timer that might have the same key.
    /// False if another thread has seen this one and given it a ticket.
    #[inline]
    pub(super) fn publish_first(&self, state: State, repeats: bool, deadline: Deadline) -> bool {
        let seen = Word(Word::tentative(repeats).0 & !STATE_MASK | state as u64);
        self.publish(seen, deadline)
    }

    /// tentative or yielding -> pending, by the author or a helper; every older timer of the key has ended. False if
    /// the word is not `seen` any more.
    #[inline]
    pub(super) fn publish(&self, seen: Word, deadline: Deadline) -> bool {
        // Release: publishes key, value and generation, and the ends of the older timers, to threads that find this
        // one.
        // Acquire: observes an earlier look of the worker; see `look`. (If a helper was faster, the author acquires
        // what the helper observed, by the `load` that finds the timer decided; so it doesn't read a stale promise
        // afterwards.)
        let pending = seen.turned(State::Pending, deadline);
        self.0.compare_exchange(seen.0, pending.0, AcqRel, Relaxed).is_ok()
    }

    /// yielding -> dead, by the author or a helper, because the key had an older timer. The value is the author's.
    ///
    /// Author and helper may disagree, as the older timer may end meanwhile. Then this competes with `publish`, and
    /// either answer was true at one moment of the author's call.
    pub(super) fn give_way(&self, seen: Word) {
        debug_assert!(seen.state() == State::Yielding);
        // Relaxed: it publishes nothing.
        let dead = GAVE_WAY | KEY | State::Dead as u64;
        let _ = self.0.compare_exchange(seen.0, dead, Relaxed, Relaxed);
    }

    /// True if the timer is pending or firing. Then what led to this call happens before its next callback, or before
    /// that of a timer which replaces it.
    pub(super) fn rely_on(&self) -> bool {
        // Adds nothing, on purpose: a load could still read "pending" after the timer was claimed by a thread that does
        // not see what our caller did. Release: publishes that to the Acquire of the next thread that claims or ends
        // the timer.
        let word = Word(self.0.fetch_add(0, Release));
        matches!(word.state(), State::Pending | State::Firing)
    }

    /// pending -> pending, or firing -> firing, at another deadline. If the word is not `seen` any more, returns what
    /// it is.
    #[inline]
    pub(super) fn reschedule(&self, seen: Word, deadline: Deadline) -> Result<(), Word> {
        debug_assert!(matches!(seen.state(), State::Pending | State::Firing));
        // Release: what the caller did before happens before the callback.
        // Acquire: observes an earlier look of the worker; see `look`.
        // Relaxed on failure, here and below except in `rearm_or_end`: what was found is only compared again.
        let moved = seen.turned(seen.state(), deadline);
        self.0.compare_exchange(seen.0, moved.0, AcqRel, Relaxed).map(drop).map_err(Word)
    }

    /// pending -> dead: the winner owns the value. Or firing -> dead: the timer will not come back, and the value stays
    /// with the thread that runs the callback.
    ///
    /// Cancel, reschedule, replace and expiry all try to leave `seen`; the compare-exchange picks one.
    /// - this call first: the others see a dead word and answer `None` or `false`, or report no expiry.
    /// - another first: this call fails and its caller looks again.
    #[inline]
    pub(super) fn kill(&self, seen: Word, end: End) -> Result<(), Word> {
        debug_assert!(matches!(seen.state(), State::Pending | State::Firing));
        debug_assert!(seen.is_pending() || end == End::KeyInUse, "whoever runs the callback finishes the timer");
        let flags = if end == End::Done { DONE | KEY } else { KEY };
        // Acquire: pairs with `publish`, before which the value was written. It is read by us, or by the thread to
        // which we hand the timer. (`seen` may come from a relaxed read.)
        // Release: publishes what we did before to threads that see the dead word.
        self.0.compare_exchange(seen.0, flags | State::Dead as u64, AcqRel, Relaxed).map(drop).map_err(Word)
    }

    /// pending -> replaced. The value belongs to the author of `successor`, whichever thread made the move; with
    /// `NO_SUCCESSOR`, to the thread that made it.
    #[inline]
    pub(super) fn replace(&self, seen: Word, successor: u32) -> Result<(), Word> {
        debug_assert!(seen.is_pending());
        // Release: as in `kill`. Acquire: pairs with `rely_on`; what its callers did now happens before the successor's
        // callback. This also covers a word that has left `seen` and come back to it, with another value.
        self.0.compare_exchange(seen.0, Word::replaced_by(successor).0, AcqRel, Relaxed).map(drop).map_err(Word)
    }

    /// pending -> firing if it repeats, else -> dead: for its callback.
    #[inline]
    pub(super) fn claim(&self, seen: Word) -> Result<(), Word> {
        if !seen.repeats() {
            return self.kill(seen, End::KeyInUse);
        }
        // Acquire: as in `kill`; and what came before a move comes before the callback.
        // Release: a thread that sees it firing may rely on all that this one did before.
        let firing = seen.turned(State::Firing, Deadline::OPEN);
        self.0.compare_exchange(seen.0, firing.0, AcqRel, Relaxed).map(drop).map_err(Word)
    }

    /// After the callback of a timer that repeats: firing -> pending at the deadline that it was given meanwhile, else
    /// at `next`; firing -> dead if there is neither, or if the caller knows that the shard `is_sealed`; sealed ->
    /// dead; stays dead if another thread has ended it.
    ///
    /// Cancel, replace and close try to end the timer while it fires, and the compare-exchange picks one:
    /// - they first: it is found dead (or sealed, by close) here, and does not come back.
    /// - this call first: they find it pending, and end it like any other.
    pub(super) fn rearm_or_end(&self, next: Option<Deadline>, is_sealed: bool) -> RunEnd {
        // Acquire (in `load`), also on failure: if the timer has ended, our caller takes the node out of its cell, from
        // which others conclude that it has ended. If it is sealed, our caller looks how the scheduler was closed (the
        // exchange acquires that, too).
        let mut seen = self.load();
        while matches!(seen.state(), State::Firing | State::Sealed) {
            let is_sealed = is_sealed || seen.state() == State::Sealed;
            let deadline = seen.given_deadline().or(next);
            let dead = Word(KEY | State::Dead as u64);
            let (turned, end) = match deadline {
                Some(next) if !is_sealed => (seen.turned(State::Pending, next), RunEnd::Back(next)),
                Some(next) => (dead, RunEnd::Sealed(next)),
                None => (dead, RunEnd::Ended),
            };
            // Release: publishes the value, which is back in its place, to the next thread that claims or ends the
            // timer.
            // Acquire: observes an earlier look of the worker; see `look`.
            match self.0.compare_exchange(seen.0, turned.0, AcqRel, Acquire) {
                Ok(_) => return end,
                Err(found) => seen = Word(found),
            }
        }
        RunEnd::Ended
    }

    /// The worker's look: claims the timer if it is due at `now`.
    ///
    /// Always performs a read-modify-write, even when there is nothing to change. A caller changes the word
    /// and then reads the promise; the worker withdraws the promise and then looks here. The modification order
    /// of this word decides, without a fence:
    /// - the caller's change first: this look sees it.
    /// - this look first: the caller's change reads from it (Acquire from Release), so that the caller then reads the
    ///   promise as withdrawn and sends a hint of its own.
    ///
    /// The worker need not be pinned. If the node was reused meanwhile and its word is equal again, it is the new timer
    /// that is due and claimed, and `kill` acquires what belongs to it.
    #[inline]
    pub(super) fn look(&self, now: Tick) -> Sight {
        let mut word = self.load();
        loop {
            if word.is_pending() && word.deadline().is_due(now) {
                match self.claim(word) {
                    Ok(()) => return Sight::Claimed(word),
                    Err(found) => word = found,
                }
                continue;
            }
            // Adds nothing, on purpose. Release: see above. If it returns a timer that is due, `kill` acquires.
            let latest = Word(self.0.fetch_add(0, Release));
            match latest.state() {
                State::Pending if latest.deadline().is_due(now) => word = latest,
                State::Pending => return Sight::Later(latest.deadline()),
                _ => return Sight::Nothing,
            }
        }
    }

    /// The sealer's look at a node that it may not have met in the index: `seal` for a timer there.
    ///
    /// Like `look`, it always performs a read-modify-write. Either that comes before `begin`, which then observes that
    /// the shard is sealed; or it sees the timer.
    pub(super) fn look_and_seal(&self) -> Option<Word> {
        // Adds nothing, on purpose. Release: see above. If it returns a timer, `kill` acquires.
        self.seal(Word(self.0.fetch_add(0, Release)))
    }

    /// For the sealer, which has `seen` the word just now: pending -> dead, or firing -> sealed. Returns the word that
    /// the timer had, if it was pending.
    pub(super) fn seal(&self, mut seen: Word) -> Option<Word> {
        loop {
            let sealed = match seen.state() {
                State::Pending => self.kill(seen, End::KeyInUse),
                State::Firing => self.seal_firing(seen),
                _ => return None,
            };
            match sealed {
                Ok(()) => return Some(seen).filter(|seen| seen.is_pending()),
                Err(_) => seen = self.load(),
            }
        }
    }

    /// firing -> sealed. What it was given meanwhile stays, for the thread that runs the callback.
    fn seal_firing(&self, seen: Word) -> Result<(), Word> {
        let sealed = Word(seen.0 ^ (State::Firing as u64 ^ State::Sealed as u64));
        // Release: that thread sees that the scheduler is closed, and how.
        self.0.compare_exchange(seen.0, sealed.0, Release, Relaxed).map(drop).map_err(Word)
    }

    /// Declares that the timer's key is no longer needed. True if another thread has unlinked the node: the caller
    /// retires it.
    #[must_use]
    #[inline]
    pub(super) fn finish(&self) -> bool {
        // Release: our use of the key happens before its drop by a thread that sees DONE in `load`.
        // Acquire: pairs with `unlink`. If we retire the node, it has left the index before.
        self.0.fetch_or(DONE, AcqRel) & UNLINKED != 0
    }

    /// Declares that the node is out of the index, by the thread that took it out and does not finish its timer. True
    /// if the key is no longer needed: the caller retires the node.
    #[must_use]
    #[inline]
    pub(super) fn unlink(&self) -> bool {
        // DONE is never cleared before the node is retired, and we are the only unlinker: if it is set, we are the
        // last, and nobody waits for the flag.
        // Relaxed: if we retire the node, the last use of its key came before. The thread that set DONE was pinned as
        // it did so, and a deferred function runs after every guard that was dropped before it was deferred, too; on
        // the same every reader relies that leaves just before a node is retired. (The drop of the last handle is not
        // pinned; but nobody unlinks its nodes.)
        self.0.load(Relaxed) & DONE != 0
            // Release: pairs with `finish`. If that retires the node, it has left the index before.
            || self.0.fetch_or(UNLINKED, Release) & DONE != 0
    }

    /// True for exactly one caller per ended timer: the one that drops the key.
    #[must_use]
    #[inline]
    pub(super) fn take_key(&self) -> bool {
        // Relaxed: it only picks one. Each caller knows that the timer is done, by `load` or because it finished it
        // itself, so every use of the key happened before.
        self.0.fetch_and(!KEY, Relaxed) & KEY != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(tick: u64) -> AtomicWord {
        let word = AtomicWord::default();
        word.allocate(false);
        assert!(word.publish_first(State::Tentative, false, Deadline::at(Tick(tick))));
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
        let seen = word.load();
        assert_eq!(word.look(Tick(5)), Sight::Claimed(seen));
        let tentative = AtomicWord::default();
        tentative.allocate(false);
        assert_eq!(tentative.look(Tick(5)), Sight::Nothing);
    }

    #[test]
    fn the_later_of_finish_and_unlink_retires() {
        for finish_first in [true, false] {
            let word = pending(1);
            let seen = word.load();
            assert_eq!(word.look(Tick(1)), Sight::Claimed(seen));
            let first = if finish_first { word.finish() } else { word.unlink() };
            let second = if finish_first { word.unlink() } else { word.finish() };
            assert_eq!((first, second), (false, true));
            assert!(word.load().has_leftover_key());
            assert!(word.take_key() && !word.take_key());
        }
    }

    #[test]
    fn a_timer_that_repeats_comes_back_unless_it_was_ended() {
        let word = AtomicWord::default();
        word.allocate(true);
        assert!(word.publish_first(State::Tentative, true, Deadline::at(Tick(5))));
        let fire = |tick| assert!(matches!(word.look(Tick(tick)), Sight::Claimed(_)));
        fire(5);
        assert_eq!(word.look(Tick(9)), Sight::Nothing, "not twice");
        let at = |tick| Deadline::at(Tick(tick));
        assert_eq!(word.rearm_or_end(Some(at(8)), false), RunEnd::Back(at(8)));
        fire(8);
        assert!(word.reschedule(word.load(), Deadline::at(Tick(20))).is_ok());
        assert_eq!(word.rearm_or_end(None, false), RunEnd::Back(at(20)), "what it was given meanwhile counts");
        assert_eq!(word.look(Tick(19)), Sight::Later(Deadline::at(Tick(20))));
        fire(20);
        assert!(word.kill(word.load(), End::KeyInUse).is_ok());
        assert_eq!(word.rearm_or_end(Some(at(30)), false), RunEnd::Ended);
        assert!(!word.finish() && word.load().has_leftover_key());
    }

    #[test]
    fn a_timer_whose_shard_is_sealed_while_it_fires_ends_and_says_when_it_wanted_to_come_back() {
        let at = |tick| Deadline::at(Tick(tick));
        let firing = || {
            let word = AtomicWord::default();
            word.allocate(true);
            assert!(word.publish_first(State::Tentative, true, at(5)));
            assert!(matches!(word.look(Tick(5)), Sight::Claimed(_)));
            word
        };
        let moved = firing();
        assert!(moved.reschedule(moved.load(), at(20)).is_ok());
        for (word, next, end) in [
            (firing(), Some(at(8)), RunEnd::Sealed(at(8))),
            (firing(), None, RunEnd::Ended),
            (moved, Some(at(8)), RunEnd::Sealed(at(20))),
        ] {
            assert_eq!(word.seal(word.load()), None, "it is not pending");
            assert_eq!((word.load().state(), word.look_and_seal(), word.rely_on()), (State::Sealed, None, false));
            assert_eq!(word.rearm_or_end(next, false), end);
            assert!(!word.finish() && word.load().has_leftover_key());
        }
        assert_eq!(firing().rearm_or_end(Some(at(8)), true), RunEnd::Sealed(at(8)), "the caller knows it");
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
