//! Spreads threads over stripes, so that what they count and queue does not share cache lines.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

/// More stripes than this cost more memory than they save time.
const STRIPES_MAX: usize = 64;

/// A power of two with room for the callers, the workers and the pool of this machine.
pub(crate) fn count() -> usize {
    let cores = available_parallelism().map_or(1, NonZero::get);
    (4 * cores).next_power_of_two().min(STRIPES_MAX)
}

/// This thread's stripe. Threads may share one; nothing but speed depends on it.
#[inline]
pub(crate) fn current(count: usize) -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static ORDINAL: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread in its last breath has no locals any more: stripe 0 will do.
    let ordinal = ORDINAL.try_with(|ordinal| {
        if ordinal.get() == usize::MAX {
            // Relaxed: a number that no other thread has.
            ordinal.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        ordinal.get()
    });
    ordinal.unwrap_or(0) & (count - 1)
}
