//! The two flags of a scheduler's end. `loom-tests/flags.rs` checks this file.

use crate::sync::{AtomicBool, Ordering, fence};

/// Set when `close` begins, or the last `Scheduler` goes.
#[derive(Debug, Default)]
pub(crate) struct Closing(AtomicBool);

impl Closing {
    /// True for one caller: the one who closes.
    pub(crate) fn begin(&self) -> bool {
        // Relaxed: see `has_begun`.
        !self.0.swap(true, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        // Relaxed: the end of each shard is its seal; or that there is no `Scheduler` any more. Who has met the seal, or was
        // interrupted, or was told of either in whatever way hands things over between threads, finds the flag set.
        self.0.load(Ordering::Relaxed)
    }
}

/// Set when the last `Scheduler` goes: nobody looks a key up any more. Says who drops the key of a timer that is finished at
/// that very time.
///
/// | who finishes a timer             | who lets the last handle go           |
/// |----------------------------------|---------------------------------------|
/// | 1. says so in the timer's word   | 1. sets the flag                      |
/// | 2. fence                         | 2. fence                              |
/// | 3. the flag is set? tries to     | 3. each timer that is finished: tries |
/// |    take the key                  |    to take its key                    |
///
/// The two fences are in one order, so at least one side sees the other's step 1; if both do, the word decides.
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
        // Acquire: whoever looked at a key has done so before we drop it.
        self.0.load(Ordering::Acquire)
    }
}
