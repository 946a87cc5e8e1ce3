//! Callbacks that are under way, for those who wait until they have ended. `loom-tests/flags.rs` checks this file.
//!
//! Whoever may claim timers for their callbacks enters before, and leaves if he has claimed none, or when the last of those callbacks has
//! ended. To wait until there is nobody would be to wait for ever where callbacks overlap all the time. So there are two counts, and a
//! phase that says which of them counts who enters:
//!
//! | who may claim timers                     | who waits                                             |
//! |------------------------------------------|-------------------------------------------------------|
//! | 1. counts himself in, in the phase       | 1. nobody left in the other phase? moves the phase on |
//! | 2. claims; the callbacks run             | 2. nobody left in the one before? has waited enough   |
//! | 3. counts himself out, where he is in    |                                                       |
//!
//! Phase and counts are one word, and all that changes it is read-modify-writes. So their order tells everything: who had entered before
//! somebody began to wait is counted in one phase or the other, and each of the two has been found empty since. Anybody may move the
//! phase on, for all who wait, but only if the other one is empty: two moves since one began to wait are as good as his own. A waiter
//! that is stopped, or whose time is up, leaves nothing undone.
//!
//! No wake-up is lost, and nobody makes one unless there is, or was, somebody who waits: the phase moves for them only, so there is a
//! last one to leave the phase that is not the current one. He takes the lock before he wakes the others: who looked before he left, under
//! the lock, sleeps by then.
//!
//! McKenney, "Sleepable Read-Copy Update", LWN.net 2006: there the counts are one pair per processor, and a lock keeps those who wait apart.

use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering, fence};
use Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::PoisonError;
use std::time::Instant;

/// Of each count. Who is in has at least one of his shard's 2^28 timers, or is a thread that is just about to know.
const COUNT_BITS: u32 = 29;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// One move of the phase. How many there have been is counted in the bits that are left; their lowest is the phase.
const MOVE: u64 = 1 << (2 * COUNT_BITS);

/// Where somebody has entered; to be handed to `leave`, once.
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
    /// Where who enters is counted.
    #[inline]
    fn phase(self) -> Phase {
        Phase((self.0 / MOVE % 2) as u32)
    }

    #[inline]
    fn is_empty(self, phase: Phase) -> bool {
        (self.0 / phase.one()) & COUNT_MAX == 0
    }

    /// Nobody is left in the phase that is not the current one.
    fn may_move(self) -> bool {
        self.is_empty(Phase(1 - self.phase().0))
    }

    fn moved(self) -> Self {
        Self(self.0.wrapping_add(MOVE))
    }

    /// At least so many moves: some are not seen if there were as many as can be counted, and then it takes longer.
    fn moves_since(self, start: Self) -> u64 {
        (self.0 / MOVE).wrapping_sub(start.0 / MOVE) & (u64::MAX / MOVE)
    }
}

/// Of one shard, or whatever else is to be waited for.
#[derive(Default)]
pub(crate) struct UnderWay {
    word: AtomicU64,
    /// Held by those who wait, but while they sleep, and by who wakes them.
    gate: Mutex<()>,
    emptied: Condvar,
}

impl UnderWay {
    /// To be called before claiming timers.
    #[inline]
    pub(crate) fn enter(&self) -> Phase {
        // Relaxed: if it moves on meanwhile, who waits for the old one may wait for us as well.
        let phase = Word(self.word.load(Relaxed)).phase();
        self.word.fetch_add(phase.one(), Relaxed);
        // Release: whoever has heard of what we do from now on, in whatever way, finds us counted. Pairs with the fence in `first_look`.
        fence(Release);
        phase
    }

    /// So many more where somebody has entered, and has not left.
    pub(crate) fn enter_beside(&self, phase: Phase, others: usize) {
        // Relaxed: who would look for us finds the one who is there.
        self.word.fetch_add(phase.one() * others as u64, Relaxed);
    }

    /// To be called when nothing has been claimed, or all that was has ended.
    #[inline]
    pub(crate) fn leave(&self, phase: Phase) {
        // Release: the callbacks, to the Acquires of those who wait.
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

    /// True if nobody is under way, or all have left whom this look finds.
    pub(crate) fn is_empty(&self) -> bool {
        let word = self.first_look();
        word.is_empty(Phase(0)) && word.is_empty(Phase(1))
    }

    fn first_look(&self) -> Word {
        // Acquire: pairs with the fence in `enter`.
        fence(Acquire);
        // Acquire: the callbacks of those who have left.
        Word(self.word.load(Acquire))
    }

    /// Waits until all have left who had entered before. False: it is `limit`, and they have not.
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

    /// True if all have left who were in at `start`. Moves the phase on if need be and it can be.
    fn have_left_since(&self, start: Word) -> bool {
        loop {
            // Acquire: the callbacks of those who have left. (All changes are read-modify-writes, so each hands on what those before
            // it have released.)
            let word = Word(self.word.load(Acquire));
            match word.moves_since(start) {
                0 if !word.may_move() => return false,
                // Relaxed: it hands on what is there. On failure we look again.
                0 => drop(self.word.compare_exchange(word.0, word.moved().0, Relaxed, Relaxed)),
                1 => return word.may_move(),
                _ => return true,
            }
        }
    }
}

/// An entry of several timers: left when the last of them has ended, on whatever thread.
pub(crate) struct Shared {
    phase: Phase,
    /// Timers that have not ended.
    left: AtomicU32,
}

impl Shared {
    /// In the place of the one who has entered.
    pub(crate) fn new(phase: Phase, timers: usize) -> Self {
        Self { phase, left: AtomicU32::new(timers as u32) }
    }

    /// So many timers have ended; to be called for each of them once.
    pub(crate) fn end(&self, timers: usize, of: &UnderWay) {
        // Release: their callbacks. Acquire: those of the others, if it is us who leaves.
        if self.left.fetch_sub(timers as u32, AcqRel) == timers as u32 {
            of.leave(self.phase);
        }
    }
}
