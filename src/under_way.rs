//! Callbacks that are under way, for threads that wait until they have ended. `loom-tests/flags.rs` checks this file.
//!
//! A *claimer* is anybody who may claim timers for their callbacks. It enters before, and leaves if it has claimed
//! none, or when the last of those callbacks has ended. Where callbacks overlap all the time, a thread that waits until
//! nobody is in would wait for ever. So there are two counts, and a phase that says which of them an entry goes to:
//!
//! | claimer                                   | waiter                                              |
//! |-------------------------------------------|-----------------------------------------------------|
//! | 1. counts itself in, in the current phase | 1. the other phase is empty? moves the phase on     |
//! | 2. claims; the callbacks run              | 2. the phase before is empty? has waited enough     |
//! | 3. counts itself out, in the same phase   |                                                     |
//!
//! Phase and counts are one word, and every change to it is a read-modify-write. So their order is the whole proof: all
//! that had entered before a waiter began are counted in one phase or the other, and each of the two has been found
//! empty since. Any waiter may move the phase on, for all waiters, but only if the other phase is empty. So two moves
//! since a waiter began are as good as its own. A waiter that is stopped, or whose time is up, leaves nothing undone.
//!
//! No wake-up is lost, and none is made unless somebody waits or has waited. Only waiters move the phase, so only then
//! can a claimer be the last to leave a phase that is not the current one. That claimer takes the lock before it wakes
//! the waiters: a waiter that looked, under the lock, before the claimer left is asleep by then.
//!
//! McKenney, "Sleepable Read-Copy Update", LWN.net 2006: there, each processor has a pair of counts, and a lock keeps
//! waiters apart.

use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence};
use Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::PoisonError;
use std::time::Instant;

/// Bits of each count. Each entry has at least one of its shard's 2^28 timers, or a thread that may be about to claim.
const COUNT_BITS: u32 = 29;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// One move of the phase. The bits that are left count the moves; the lowest of them is the phase.
const MOVE: u64 = 1 << (2 * COUNT_BITS);

/// The phase that an entry is counted in; to be handed to `leave`, once.
#[must_use = "who waits for callbacks would wait for ever"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Phase(u32);

impl Phase {
    #[inline]
    fn one(self) -> u64 {
        1 << (COUNT_BITS * self.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Word(u64);

impl Word {
    /// The current phase: the one in which entries are counted.
    #[inline]
    fn phase(self) -> Phase {
        Phase((self.0 / MOVE % 2) as u32)
    }

    #[inline]
    fn is_empty(self, phase: Phase) -> bool {
        (self.0 / phase.one()) & COUNT_MAX == 0
    }

    /// True if nobody is left in the phase that is not the current one.
    fn may_move(self) -> bool {
        self.is_empty(Phase(1 - self.phase().0))
    }

    fn moved(self) -> Self {
        Self(self.0.wrapping_add(MOVE))
    }

    /// How often the phase has moved since `start`, modulo 2^6. So the answer may be too low, which makes a waiter wait
    /// longer, but never too high.
    fn moves_since(self, start: Self) -> u64 {
        (self.0 / MOVE).wrapping_sub(start.0 / MOVE) & (u64::MAX / MOVE)
    }
}

/// What is under way in one shard, or in whatever else can be waited for.
#[derive(Default)]
pub(crate) struct UnderWay {
    word: AtomicU64,
    /// Held by waiters, except while they sleep, and for a moment by a thread that is about to wake them.
    gate: Mutex<()>,
    emptied: Condvar,
}

impl UnderWay {
    /// To be called before claiming timers.
    #[inline]
    pub(crate) fn enter(&self) -> Phase {
        // Relaxed: if the phase moves on meanwhile, a thread that waits for the old one may wait for us as well.
        let phase = Word(self.word.load(Relaxed)).phase();
        self.word.fetch_add(phase.one(), Relaxed);
        // Release: publishes our entry along with whatever we do from now on: a waiter that has learned of that by any
        // means finds us counted. Pairs with the fence in `first_look`.
        fence(Release);
        phase
    }

    /// Adds `others` entries to a phase that the caller has entered and not left.
    pub(crate) fn enter_beside(&self, phase: Phase, others: usize) {
        // Relaxed: a waiter that does not find these yet finds the caller's own entry.
        self.word.fetch_add(phase.one() * others as u64, Relaxed);
    }

    /// To be called when nothing was claimed, or all that was claimed has ended.
    #[inline]
    pub(crate) fn leave(&self, phase: Phase) {
        // Release: publishes the callbacks' work to the Acquires of waiters.
        let word = Word(self.word.fetch_sub(phase.one(), Release) - phase.one());
        if word.phase() != phase && word.is_empty(phase) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        drop(self.gate.lock());
        self.emptied.notify_all();
    }

    /// True if nobody is under way: all whose entry this look finds have left.
    pub(crate) fn is_empty(&self) -> bool {
        let word = self.first_look();
        word.is_empty(Phase(0)) && word.is_empty(Phase(1))
    }

    fn first_look(&self) -> Word {
        // Acquire: pairs with the fence in `enter`.
        fence(Acquire);
        // Acquire: observes the callbacks of claimers that have left.
        Word(self.word.load(Acquire))
    }

    /// Waits until all that had entered before this call have left. False if they have not by `limit`.
    pub(crate) fn wait(&self, limit: Option<Instant>) -> bool {
        let start = self.first_look();
        if start.is_empty(Phase(0)) && start.is_empty(Phase(1)) {
            return true;
        }
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.have_left_since(start) {
            let Some(limit) = limit else {
                gate = self.emptied.wait(gate).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            gate = self.emptied.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// True if all that were in at `start` have left. Moves the phase on if that is necessary and possible.
    fn have_left_since(&self, start: Word) -> bool {
        loop {
            // Acquire: observes the callbacks of claimers that have left. (All changes are read-modify-writes, so each
            // carries on what those before it have released.)
            let word = Word(self.word.load(Acquire));
            match word.moves_since(start) {
                0 if !word.may_move() => return false,
                // Relaxed: it carries on what was released before. On failure we look again.
                0 => drop(self.word.compare_exchange(word.0, word.moved().0, Relaxed, Relaxed)),
                1 => return word.may_move(),
                _ => return true,
            }
        }
    }
}

/// An entry that several timers share: it leaves when the last of them has ended, on whatever thread.
pub(crate) struct Shared {
    phase: Phase,
    /// How many timers have not ended.
    left: AtomicU32,
}

impl Shared {
    /// Takes over an entry in `phase`.
    pub(crate) fn new(phase: Phase, timers: usize) -> Self {
        Self { phase, left: AtomicU32::new(timers as u32) }
    }

    /// Says that so many `timers` have ended; each of them is reported once.
    pub(crate) fn end(&self, timers: usize, of: &UnderWay) {
        // Release: publishes these timers' callbacks. Acquire: observes the others' callbacks, if we are the last.
        if self.left.fetch_sub(timers as u32, AcqRel) == timers as u32 {
            of.leave(self.phase);
        }
    }
}
