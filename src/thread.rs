//! What the crate knows about the calling thread: its number.

use crate::shard::{Ordinal, Ordinals, SEGMENT_COUNT};
use std::num::NonZero;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::thread::available_parallelism;

/// More stripes than this cost more memory than they save time.
const STRIPES_MAX: usize = 64;

/// How many stripes there are of what threads share, so that they rarely meet. A power of two, with room for the
/// callers, the workers and the callback threads on this machine.
pub(crate) fn stripe_count() -> usize {
    let cores = available_parallelism().map_or(1, NonZero::get);
    (4 * cores).next_power_of_two().min(STRIPES_MAX)
}

static ORDINALS: Ordinals = Ordinals::new([const { AtomicPtr::new(null_mut()) }; SEGMENT_COUNT]);

thread_local! {
    static OWN: Ordinal = ORDINALS.take();
}

/// The calling thread's number.
#[inline]
pub(crate) fn ordinal() -> Ordinal {
    // SAFETY: the number is the thread's own, and is given back when its thread-local is destroyed. The caller keeps
    // the result in a frame of this thread's stack, which is gone by then. That holds in another thread-local's
    // destructor, too: it returns before ours is destroyed, or begins afterwards, when `try_with` fails.
    let own = OWN.try_with(|own| unsafe { Ordinal::assume(own.number()) });
    // A thread whose thread-local is gone takes a number for this one call.
    own.unwrap_or_else(|_| ORDINALS.take())
}
