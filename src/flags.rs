//! The two flags of a scheduler's end. `loom-tests/flags.rs` checks this file.

use crate::sync::{AtomicBool, Ordering, fence};

/// Set when `close` begins, or the last `Scheduler` goes.
#[derive(Debug, Default)]
pub(crate) struct Closing(AtomicBool);

impl Closing {
    /// True for exactly one caller, the one that closes.
    pub(crate) fn begin(&self) -> bool {
        // Relaxed: see `has_begun`.
        !self.0.swap(true, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        // Relaxed: what ends a shard is its seal, or that there is no `Scheduler` any more. A thread that has met the
        // seal, was interrupted, or has learned of either by any means that orders the two threads, finds the flag set.
        self.0.load(Ordering::Relaxed)
    }
}

/// Set when the last `Scheduler` goes: no key is looked up any more. Decides who drops the key of a timer that is
/// finished at that very time.
///
/// | the thread that finishes a timer | the thread that drops the last handle   |
/// |----------------------------------|-----------------------------------------|
/// | 1. says so in the timer's word   | 1. sets the flag                        |
/// | 2. fence                         | 2. fence                                |
/// | 3. if the flag is set: tries to  | 3. for each timer that is finished:     |
/// |    take the key                  |    tries to take its key                |
///
/// One of the two fences comes first, so at least one side sees the other's step 1. If both do, the word decides.
#[derive(Debug, Default)]
pub(crate) struct Abandoned(AtomicBool);

impl Abandoned {
    /// To be called before looking at the timers.
    pub(crate) fn set(&self) {
        // Release: publishes the end of all look-ups to the Acquire in `is_set`.
        self.0.store(true, Ordering::Release);
        // SeqCst: step 2. Pairs with the fence in `is_set`.
        fence(Ordering::SeqCst);
    }

    /// To be called after finishing timers.
    pub(crate) fn is_set(&self) -> bool {
        // SeqCst: step 2. Pairs with the fence in `set`.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release in `set`: all looks at keys come before we drop one.
        self.0.load(Ordering::Acquire)
    }
}
